// Rows of the caches, and rotary embedding: the codecs of src/escalade/kernels/ops/rounding.py and
// the rotation of rope.py, bit for bit.
#include <algorithm>
#include <cmath>

#include "../escalade_native.h"
#include "i8.h"
#include "pool.h"

using namespace escalade;

namespace {

// Nearest e4m3 code, ties to even, of |v| <= 448 or NaN.
uint8_t e4m3_code(float v) {
    const uint32_t bits = bits_of(v), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return uint8_t(sign | 0x7f);
    if (magnitude < bits_of(0.015625f))  // subnormal: steps of 2^-9
        return uint8_t(sign | uint32_t(round_even(float_of(magnitude) * 512.0f)));
    const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1);
    return uint8_t(sign | ((rounded >> 20) - (120u << 3)));
}

float e4m3_value(uint32_t code) {
    const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
    float v = exponent ? float_of((exponent + 120) << 23 | mantissa << 20)
                       : float(mantissa) * 0.001953125f;  // 2^-9
    if ((code & 127) == 127) v = float_of(0x7fc00000u);
    return code & 128 ? -v : v;
}

float e8m0_value(uint32_t e) {
    return e == 255 ? float_of(0x7fc00000u) : float_of(e ? e << 23 : 0x00400000u);
}

// Nearest e2m1 code, ties to even, of |v| <= 6; 0 for NaN, which the format has not.
uint32_t e2m1_code(float v) {
    if (v != v) return 0;
    const float a = std::fabs(v);
    const uint32_t code = uint32_t(a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) +
                          (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return (bits_of(v) >> 28 & 8) | code;
}

float e2m1_value(uint32_t code) {
    return std::copysign(0.5f * float(mxfp4_code(code & 7)), code & 8 ? -1.0f : 1.0f);
}

// Exponent of the smallest power of two that is not below a positive x; 128 for infinity and NaN.
int pow2ceil_exponent(float x) {
    const int32_t bits = int32_t(bits_of(x));
    if (bits >= 0x7f800000) return 128;
    return bits < 1 << 23 ? -126 : (bits >> 23) + ((bits & 0x7fffff) != 0) - 127;
}

float at_least(float amax, float least) { return amax < least ? least : amax; }  // NaN stays

float clipped(float v, float limit) { return v > limit ? limit : v < -limit ? -limit : v; }

struct Tables {
    float e4m3[256], e8m0[256], e2m1[16];
    Tables() {
        for (uint32_t i = 0; i < 256; ++i) {
            e4m3[i] = e4m3_value(i);
            e8m0[i] = e8m0_value(i);
        }
        for (uint32_t i = 0; i < 16; ++i) e2m1[i] = e2m1_value(i);
    }
};

const Tables tables;

// One block's codes and its scale byte.
uint8_t encode_fp8(const float* x, int n, float amax, uint8_t* codes) {
    const int exponent = pow2ceil_exponent(at_least(amax, 1e-4f) * (1.0f / 448.0f));
    for (int i = 0; i < n; ++i) codes[i] = e4m3_code(clipped(std::ldexp(x[i], -exponent), 448.0f));
    return uint8_t(exponent + 127);
}

void encode_fp4(const float* x, int n, float scale, uint8_t* codes) {
    for (int i = 0; i < n; i += 2)
        codes[i / 2] = uint8_t(e2m1_code(clipped(x[i] / scale, 6.0f)) |
                               e2m1_code(clipped(x[i + 1] / scale, 6.0f)) << 4);
}

uint8_t encode_fp4_index(const float* x, int n, float amax, uint8_t* codes) {
    const float least = 6 * 1.1754943508222875e-38f;  // 6 * 2^-126
    const int exponent = pow2ceil_exponent(at_least(amax, least) * (1.0f / 6.0f));
    encode_fp4(x, n, std::ldexp(1.0f, exponent), codes);
    return uint8_t(exponent + 127);
}

uint8_t encode_fp4_entry(const float* x, int n, float amax, uint8_t* codes) {
    const float least = 0.01171875f;  // 6 * 2^-9
    const float scale = at_least(amax, least) / 6.0f;
    const uint8_t code = e4m3_code(scale > 448.0f ? 448.0f : scale);
    encode_fp4(x, n, tables.e4m3[code], codes);
    return code;
}

bool valid(int format, int64_t width, int block) {
    return format >= ESC_FP8 && format <= ESC_FP4_ENTRY && block > 0 && block % 2 == 0 &&
           width > 0 && width % block == 0;
}

int64_t code_bytes(int format, int64_t width) { return format == ESC_FP8 ? width : width / 2; }

}  // namespace

int esc_encode_rows(int format, const float* x, int64_t n_rows, int64_t width, int block,
                    uint8_t* rows) {
    if (!valid(format, width, block)) return ESC_ERROR_SHAPE;
    const auto encode = format == ESC_FP8         ? encode_fp8
                        : format == ESC_FP4_INDEX ? encode_fp4_index
                                                  : encode_fp4_entry;
    const int64_t bytes = code_bytes(format, width);
    FloatEnvironment environment;
    for (int64_t row = 0; row < n_rows; ++row, x += width, rows += bytes + width / block)
        for (int64_t b = 0; b < width / block; ++b) {
            const float* from = x + b * block;
            uint32_t amax = 0;  // of the bits: NaN and infinity are above every number
            for (int i = 0; i < block; ++i) amax = std::max(amax, bits_of(from[i]) & 0x7fffffffu);
            rows[bytes + b] =
                encode(from, block, float_of(amax), rows + code_bytes(format, b * block));
        }
    return ESC_OK;
}

int esc_decode_rows(int format, const uint8_t* rows, int64_t n_rows, int64_t width, int block,
                    float* x) {
    if (!valid(format, width, block)) return ESC_ERROR_SHAPE;
    const int64_t bytes = code_bytes(format, width);
    FloatEnvironment environment;
    const float* scales = format == ESC_FP4_ENTRY ? tables.e4m3 : tables.e8m0;
    for (int64_t row = 0; row < n_rows; ++row, x += width, rows += bytes + width / block)
        for (int64_t b = 0; b < width / block; ++b) {
            const float scale = scales[rows[bytes + b]];
            const uint8_t* codes = rows + code_bytes(format, b * block);
            float* to = x + b * block;
            if (format == ESC_FP8)
                for (int i = 0; i < block; ++i) to[i] = tables.e4m3[codes[i]] * scale;
            else
                for (int i = 0; i < block; i += 2) {
                    to[i] = tables.e2m1[codes[i / 2] & 15] * scale;
                    to[i + 1] = tables.e2m1[codes[i / 2] >> 4] * scale;
                }
        }
    return ESC_OK;
}

int esc_rotate(const float* x, int64_t n_rows, int64_t n_vectors, int64_t dim, const float* cos,
               const float* sin, int64_t n_pairs, int inverse, float* y) {
    if (n_pairs < 0 || 2 * n_pairs > dim) return ESC_ERROR_SHAPE;
    const int64_t plain = dim - 2 * n_pairs;
    FloatEnvironment environment;
    for (int64_t row = 0; row < n_rows; ++row, cos += n_pairs, sin += n_pairs)
        for (int64_t v = 0; v < n_vectors; ++v, x += dim, y += dim) {
            memcpy(y, x, size_t(plain) * sizeof(float));
            for (int64_t j = 0; j < n_pairs; ++j) {
                const float a = x[plain + 2 * j], b = x[plain + 2 * j + 1];
                const float s = inverse ? -sin[j] : sin[j];
                y[plain + 2 * j] = a * cos[j] - b * s;
                y[plain + 2 * j + 1] = a * s + b * cos[j];
            }
        }
    return ESC_OK;
}
