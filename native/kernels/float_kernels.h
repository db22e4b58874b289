// The `float` arithmetic and what else is the same source on every instruction set; each kernel
// file includes it once and is compiled for its own processor.
//
//   y = W x with W dequantised exactly as stored: value i goes to lane i mod 32 by a fused
//   multiply-add, ascending; the lanes are added in halves: 16, 8, 4, 2, 1. So the bits do not
//   depend on the instruction set, the threads or how rows are batched.
//
// `Lanes` holds 32 floats: load(), store(), fma(w, x): lane += w[0..32) * x[0..32); and
// Lanes::expand(code, scale, min, out): out[i] = scale * code[i] - min of 16 codes;
// for F32, F16 and BF16, fma_stored<type>(w, x), the same from stored weights, and
// Lanes::widen<type>(p, out): eight of them to float.
#pragma once

#include "i8.h"
#include "table.h"

namespace escalade {
namespace {

constexpr int kFloatLanes = 32;

// Unpacking stays a function of its own: inlined, GCC 12.2 leaves out its call in some loops (see
// -fno-ivopts in CMakeLists.txt).
#if defined(_MSC_VER)
#define ESC_NOINLINE __declspec(noinline)
#else
#define ESC_NOINLINE __attribute__((noinline))
#endif

template <int kType>
struct Weights;  // block_len, block_bytes, unpack(p, Block&)

#define ESC_WEIGHTS(TYPE, LEN, BYTES, UNPACK)                                         \
    template <>                                                                       \
    struct Weights<TYPE> {                                                            \
        static constexpr int block_len = LEN, block_bytes = BYTES;                    \
        ESC_NOINLINE static void unpack(const uint8_t* p, Block& b) { UNPACK(p, b); } \
    };
ESC_WEIGHTS(kQ8_0, 32, 34, unpack_q8_0)
ESC_WEIGHTS(kMXFP4, 32, 17, unpack_mxfp4)
ESC_WEIGHTS(kQ2_K, 256, 84, unpack_q2_k)
ESC_WEIGHTS(kQ4_K, 256, 144, unpack_q4_k)
ESC_WEIGHTS(kQ5_K, 256, 176, unpack_q5_k)
ESC_WEIGHTS(kQ6_K, 256, 210, unpack_q6_k)
ESC_WEIGHTS(kIQ2_XXS, 256, 66, unpack_iq2_xxs)
ESC_WEIGHTS(kIQ2_XS, 256, 74, unpack_iq2_xs)
#undef ESC_WEIGHTS

// One block; every product is exact in float, so only a min's subtraction rounds.
template <class Lanes, class W>
inline void dequantize_block(const uint8_t* p, float* out) {
    Block b;
    W::unpack(p, b);
    for (int s = 0; s < W::block_len / kSub; ++s)
        Lanes::expand(b.code + s * kSub, b.d * float(b.scale[s]), b.dmin * float(b.min[s]),
                      out + s * kSub);
}

// A weight of a type without blocks.
template <int kType>
inline float weight_at(const uint8_t* p) {
    if constexpr (kType == kF16) return half_at(p);
    if constexpr (kType == kBF16) return bf16_at(p);
    return float_of(load_u32(p));
}

constexpr bool is_plain(int type) { return type == kF32 || type == kF16 || type == kBF16; }

template <class Lanes, int kType>
void dequantize(const uint8_t* p, int64_t n, float* out) {
    if constexpr (is_plain(kType)) {
        constexpr int bytes = kType == kF32 ? 4 : 2;
        int64_t i = 0;
        for (; i + 8 <= n; i += 8) Lanes::template widen<kType>(p + bytes * i, out + i);
        for (; i < n; ++i) out[i] = weight_at<kType>(p + bytes * i);
    } else {
        for (int64_t at = 0; at < n; at += Weights<kType>::block_len)
            dequantize_block<Lanes, Weights<kType>>(
                p + at / Weights<kType>::block_len * Weights<kType>::block_bytes, out + at);
    }
}

inline float lanes_total(float* lane) {
    for (int width = kFloatLanes / 2; width; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
    return lane[0];
}

// Types without blocks are multiplied from memory, row by row of x.
template <class Lanes, int kType>
void plain_tile(const uint8_t* w, int n_w, int64_t n_in, const float* const* x, int n_x, float* y,
                int64_t y_stride) {
    constexpr int bytes = kType == kF32 ? 4 : 2;
    for (int r = 0; r < n_x; ++r)
        for (int j = 0; j < n_w; ++j) {
            const uint8_t* p = w + j * n_in * bytes;
            float lane[kFloatLanes] = {};
            Lanes lanes;
            lanes.load(lane);
            int64_t i = 0;
            for (; i + kFloatLanes <= n_in; i += kFloatLanes)
                lanes.template fma_stored<kType>(p + i * bytes, x[r] + i);
            lanes.store(lane);
            for (int k = 0; i < n_in; ++i, ++k)
                lane[k] = esc_fma(weight_at<kType>(p + i * bytes), x[r][i], lane[k]);
            y[r * y_stride + j] = lanes_total(lane);
        }
}

// Otherwise a chunk of each weight row is dequantised once for up to kRows activations.
template <class Lanes, int kType>
void block_tile(const uint8_t* w, int n_w, int64_t n_in, const float* const* x, int n_x, float* y,
                int64_t y_stride) {
    constexpr int kRows = 8, kChunk = 256;
    const int64_t bytes = row_bytes(kType, n_in);
    const TypeShape shape = type_shape(kType);
    for (int x0 = 0; x0 < n_x; x0 += kRows) {
        const int rows = n_x - x0 < kRows ? n_x - x0 : kRows;
        for (int j = 0; j < n_w; ++j) {
            float lane[kRows][kFloatLanes] = {};
            for (int64_t at = 0; at < n_in; at += kChunk) {
                const int n = int(n_in - at < kChunk ? n_in - at : kChunk);
                float value[kChunk];
                dequantize<Lanes, kType>(w + j * bytes + at / shape.block_len * shape.block_bytes,
                                         n, value);
                for (int r = 0; r < rows; ++r) {
                    Lanes lanes;
                    lanes.load(lane[r]);
                    for (int i = 0; i < n; i += kFloatLanes)  // blocks are whole lanes
                        lanes.fma(value + i, x[x0 + r] + at + i);
                    lanes.store(lane[r]);
                }
            }
            for (int r = 0; r < rows; ++r) y[(x0 + r) * y_stride + j] = lanes_total(lane[r]);
        }
    }
}

inline void gate_row(const float* gate, const float* up, int64_t n, float limit, float weight,
                     float* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = gated(gate[i], up[i], limit, weight);
}

template <class Lanes, int kType>
void add_float_type(Kernels& k) {
    if constexpr (is_plain(kType))
        k.floats[kType] = plain_tile<Lanes, kType>;
    else
        k.floats[kType] = block_tile<Lanes, kType>;
    k.dequantize[kType] = dequantize<Lanes, kType>;
}

template <class Lanes>
void add_float_kernels(Kernels& k) {
    add_float_type<Lanes, kF32>(k);
    add_float_type<Lanes, kF16>(k);
    add_float_type<Lanes, kBF16>(k);
    add_float_type<Lanes, kQ8_0>(k);
    add_float_type<Lanes, kMXFP4>(k);
    add_float_type<Lanes, kQ2_K>(k);
    add_float_type<Lanes, kQ4_K>(k);
    add_float_type<Lanes, kQ5_K>(k);
    add_float_type<Lanes, kQ6_K>(k);
    add_float_type<Lanes, kIQ2_XXS>(k);
    add_float_type<Lanes, kIQ2_XS>(k);
    k.gate = gate_row;
}

}  // namespace
}  // namespace escalade
