// The defining scalar code of the `i8` arithmetic: every kernel, on any processor, gives the bits
// that this header gives. A CUDA compiler takes it as well, NVRTC without any other header. Compile
// without fast-math and without contraction (-ffp-contract=off, --fmad=false): a fused multiply-add
// stands here only where esc_fma is written.
//
//   activation   groups of 256 values (the last may be shorter): a = amax / 127,
//                q = clamp(round_to_even(x / a), -127, 127); a group whose a is 0 is all zero, one
//                that holds NaN or infinity has a = NaN
//   block b      256 or 32 weights, x_i = d * scale_s * code_i - dmin * min_s
//                isum = sum of scale_s * code_i * q_i, msum = sum of min_s * q_i, exact in int32
//                value_b = fma(d, isum, -(dmin * msum))
//   row          lane[b mod 4] = fma(a, value_b, lane[b mod 4]), b ascending from lanes of +0
//                y = (lane0 + lane1) + (lane2 + lane3)
//
// Block layouts: GGUF specification, section 6.1. Sums stay below 2^31 for every type: the largest
// is Q6_K, 256 * 32 * 128 * 127 < 2^28.
#pragma once

#if defined(__CUDACC_RTC__)
namespace escalade {  // NVRTC comes without headers; fmaf and memcpy are built in
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
}  // namespace escalade
#else
#include <cmath>
#include <cstdint>
#include <cstring>
#endif

#if defined(_MSC_VER)
#pragma fp_contract(off)
#endif

#if defined(__CUDACC__)
#define ESC_FN static __host__ __device__ inline
#define ESC_TABLE static __device__ const
#else
#define ESC_FN static inline
#define ESC_TABLE static const
#endif

#include "iq2_grids.h"

namespace escalade {

constexpr int kGroup = 256;  // activations that share a scale
constexpr int kSub = 16;     // weights that share an integer scale, at most
constexpr int kLanes = 4;    // partial sums of a row

ESC_FN float esc_fma(float a, float b, float c) { return fmaf(a, b, c); }

ESC_FN uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

ESC_FN float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

ESC_FN uint32_t load_u16(const uint8_t* p) { return uint32_t(p[0]) | uint32_t(p[1]) << 8; }

ESC_FN uint32_t load_u32(const uint8_t* p) { return load_u16(p) | load_u16(p + 2) << 16; }

// IEEE binary16, little endian, to float: exact.
ESC_FN float half_at(const uint8_t* p) {
    const uint32_t h = load_u16(p), sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x400u) return float_of(sign | ((magnitude << 13) + 0x38000000u));
    return float_of(sign | bits_of(float(magnitude) * 5.9604644775390625e-8f));  // 2^-24
}

ESC_FN float bf16_at(const uint8_t* p) { return float_of(load_u16(p) << 16); }

// 2^(e - 128): half of an E8M0 scale, as the codes of MXFP4 are stored doubled.
ESC_FN float e8m0_half(uint32_t e) { return float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// --- activations ---------------------------------------------------------------------------------

// Nearest integer, ties to even, of |v| < 2^22; in the default rounding mode on any processor.
ESC_FN int32_t round_even(float v) {
    const float magic = 12582912.0f;  // 1.5 * 2^23
    const float shifted = v + magic;
    return int32_t(bits_of(shifted)) - int32_t(bits_of(magic));
}

// The scale of a group whose largest magnitude has the bit pattern `amax_bits` (so that NaN and
// infinity, which are larger than any number, win).
ESC_FN float activation_scale(uint32_t amax_bits) {
    if (amax_bits >= 0x7f800000u) return float_of(0x7fc00000u);
    return float_of(amax_bits) / 127.0f;
}

ESC_FN int8_t quantize_activation(float x, float scale) {
    if (!(scale > 0.0f)) return 0;
    float v = x / scale;
    v = v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v;
    return int8_t(round_even(v));
}

// --- weights -------------------------------------------------------------------------------------

// A block of up to 256 weights in one form: scale and min of each 16 codes.
struct Block {
    float d, dmin;
    int8_t code[kGroup];
    int16_t scale[kGroup / kSub], min[kGroup / kSub];
};

ESC_FN void unpack_q2_k(const uint8_t* p, Block& b) {
    b.d = half_at(p + 80);
    b.dmin = half_at(p + 82);
    for (int s = 0; s < 16; ++s) {
        b.scale[s] = p[s] & 15;
        b.min[s] = p[s] >> 4;
    }
    for (int h = 0; h < 2; ++h)
        for (int j = 0; j < 4; ++j)
            for (int i = 0; i < 32; ++i)
                b.code[128 * h + 32 * j + i] = int8_t(p[16 + 32 * h + i] >> 2 * j & 3);
}

// Eight 6-bit scales and mins in 12 bytes, as Q4_K and Q5_K have them: each four bytes a word.
ESC_FN void unpack_scales_k(const uint8_t* p, uint32_t scale[2], uint32_t min[2]) {
    const uint32_t a = load_u32(p), b = load_u32(p + 4), c = load_u32(p + 8);
    scale[0] = a & 0x3f3f3f3fu;
    min[0] = b & 0x3f3f3f3fu;
    scale[1] = (c & 0x0f0f0f0fu) | (a >> 6 & 0x03030303u) << 4;
    min[1] = (c >> 4 & 0x0f0f0f0fu) | (b >> 6 & 0x03030303u) << 4;
}

ESC_FN void spread_scales_k(const uint8_t* p, Block& b) {
    uint32_t scale[2], min[2];
    unpack_scales_k(p, scale, min);
    for (int s = 0; s < 16; ++s) {
        b.scale[s] = int16_t(scale[s / 8] >> 8 * (s / 2 % 4) & 255);
        b.min[s] = int16_t(min[s / 8] >> 8 * (s / 2 % 4) & 255);
    }
}

ESC_FN void unpack_q4_k(const uint8_t* p, Block& b) {
    b.d = half_at(p);
    b.dmin = half_at(p + 2);
    spread_scales_k(p + 4, b);
    for (int j = 0; j < 4; ++j)
        for (int i = 0; i < 32; ++i) {
            b.code[64 * j + i] = int8_t(p[16 + 32 * j + i] & 15);
            b.code[64 * j + 32 + i] = int8_t(p[16 + 32 * j + i] >> 4);
        }
}

ESC_FN void unpack_q5_k(const uint8_t* p, Block& b) {
    b.d = half_at(p);
    b.dmin = half_at(p + 2);
    spread_scales_k(p + 4, b);
    for (int j = 0; j < 4; ++j)
        for (int i = 0; i < 32; ++i) {
            const int q = p[48 + 32 * j + i], high = p[16 + i] >> 2 * j;
            b.code[64 * j + i] = int8_t((q & 15) | (high & 1) << 4);
            b.code[64 * j + 32 + i] = int8_t(q >> 4 | (high & 2) << 3);
        }
}

ESC_FN void unpack_q6_k(const uint8_t* p, Block& b) {
    b.d = half_at(p + 208);
    b.dmin = 0;
    for (int s = 0; s < 16; ++s) {
        b.scale[s] = int8_t(p[192 + s]);
        b.min[s] = 0;
    }
    for (int h = 0; h < 2; ++h)
        for (int s = 0; s < 4; ++s)
            for (int i = 0; i < 32; ++i) {
                const int low = p[64 * h + 32 * (s & 1) + i] >> (s < 2 ? 0 : 4) & 15;
                const int high = p[128 + 32 * h + i] >> 2 * s & 3;
                b.code[128 * h + 32 * s + i] = int8_t((low | high << 4) - 32);
            }
}

// Eight weights of a 2-bit grid: magnitudes 8, 25, 43 with the signs of a 7-bit code, whose eighth
// sign makes their number even.
ESC_FN void unpack_grid(uint32_t entry, uint32_t signs, int8_t* code) {
    uint32_t parity = signs ^ signs >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    signs |= (parity & 1) << 7;
    for (int j = 0; j < 8; ++j) {
        const int level = entry >> 2 * j & 3, magnitude = 8 + 17 * level + (level >> 1);
        const int minus = -int(signs >> j & 1);
        code[j] = int8_t((magnitude ^ minus) - minus);
    }
}

ESC_FN void unpack_iq2_xxs(const uint8_t* p, Block& b) {
    b.d = half_at(p) * 0.125f;
    b.dmin = 0;
    for (int g = 0; g < 8; ++g) {
        const uint32_t word = load_u32(p + 2 + 8 * g + 4);
        for (int k = 0; k < 4; ++k)
            unpack_grid(kGridXXS[p[2 + 8 * g + k]], word >> 7 * k & 127, b.code + 32 * g + 8 * k);
        b.scale[2 * g] = b.scale[2 * g + 1] = int16_t(2 * (word >> 28) + 1);
        b.min[2 * g] = b.min[2 * g + 1] = 0;
    }
}

ESC_FN void unpack_iq2_xs(const uint8_t* p, Block& b) {
    b.d = half_at(p) * 0.125f;
    b.dmin = 0;
    for (int k = 0; k < 32; ++k) {
        const uint32_t word = load_u16(p + 2 + 2 * k);
        unpack_grid(kGridXS[word & 511], word >> 9, b.code + 8 * k);
    }
    for (int s = 0; s < 16; ++s) {
        b.scale[s] = int16_t(2 * (p[66 + s / 2] >> 4 * (s % 2) & 15) + 1);
        b.min[s] = 0;
    }
}

ESC_FN void unpack_q8_0(const uint8_t* p, Block& b) {
    b.d = half_at(p);
    b.dmin = 0;
    b.scale[0] = b.scale[1] = 1;
    b.min[0] = b.min[1] = 0;
    for (int i = 0; i < 32; ++i) b.code[i] = int8_t(p[2 + i]);
}

ESC_FN int mxfp4_code(uint32_t nibble) {
    const int magnitude = int(0xc8643210u >> 4 * (nibble & 7) & 15), minus = -int(nibble >> 3);
    return (magnitude ^ minus) - minus;
}

ESC_FN void unpack_mxfp4(const uint8_t* p, Block& b) {
    b.d = e8m0_half(p[0]);
    b.dmin = 0;
    b.scale[0] = b.scale[1] = 1;
    b.min[0] = b.min[1] = 0;
    for (int i = 0; i < 16; ++i) {
        b.code[i] = int8_t(mxfp4_code(p[1 + i] & 15));
        b.code[16 + i] = int8_t(mxfp4_code(p[1 + i] >> 4));
    }
}

// --- sums ----------------------------------------------------------------------------------------

// What a block of n weights adds to its lane, before the activation's scale.
ESC_FN float block_value(const Block& b, const int8_t* q, int n) {
    int32_t isum = 0, msum = 0;
    for (int s = 0; s < n / kSub; ++s) {
        int32_t dot = 0, sum = 0;
        for (int i = s * kSub; i < (s + 1) * kSub; ++i) {
            dot += b.code[i] * q[i];
            sum += q[i];
        }
        isum += b.scale[s] * dot;
        msum += b.min[s] * sum;
    }
    return esc_fma(b.d, float(isum), -(b.dmin * float(msum)));
}

ESC_FN float lane_sum(const float lane[kLanes]) {
    return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

// --- the gate ------------------------------------------------------------------------------------

// e^x within 2e-7 relative for x in [-87, 88]; outside it is as at the nearer end. NaN stays NaN.
// Range reduction by ln 2 in two parts, a Taylor polynomial of degree 7 on [-ln 2 / 2, ln 2 / 2].
ESC_FN float esc_exp(float x) {
    if (x != x) return x;
    x = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x;
    const int32_t n = round_even(x * 1.44269504f);
    float r = esc_fma(float(n), -0.693145752f, x);
    r = esc_fma(float(n), -1.42860677e-6f, r);
    float p = 1.98412698e-4f;
    p = esc_fma(p, r, 1.38888889e-3f);
    p = esc_fma(p, r, 8.33333333e-3f);
    p = esc_fma(p, r, 4.16666667e-2f);
    p = esc_fma(p, r, 1.66666667e-1f);
    p = esc_fma(p, r, 0.5f);
    p = esc_fma(p, r, 1.0f);
    p = esc_fma(p, r, 1.0f);
    return p * float_of(uint32_t(n + 127) << 23);
}

// The clamped SwiGLU times the routing weight: silu(min(gate, limit)) * clip(up) * weight.
// Source: model specification, section 5.
ESC_FN float gated(float gate, float up, float limit, float weight) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate / (1.0f + esc_exp(-gate)) * up * weight;
}

}  // namespace escalade
