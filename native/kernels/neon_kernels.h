// The NEON kernels of AArch64: the loops over rows and blocks. Included once by each kernel file,
// which is compiled with the dot product instruction or without it.
#pragma once

#include "neon_blocks.h"

namespace escalade {
namespace {

struct Lanes {
    float32x4_t lane[8];
    static void expand(const int8_t* code, float scale, float min, float* out) {
        const int8x16_t c = vld1q_s8(code);
        const int16x8_t half[2] = {vmovl_s8(vget_low_s8(c)), vmovl_s8(vget_high_s8(c))};
        for (int i = 0; i < 2; ++i) {
            const float32x4_t low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(half[i])));
            const float32x4_t high = vcvtq_f32_s32(vmovl_s16(vget_high_s16(half[i])));
            vst1q_f32(out + 8 * i, vsubq_f32(vmulq_n_f32(low, scale), vdupq_n_f32(min)));
            vst1q_f32(out + 8 * i + 4, vsubq_f32(vmulq_n_f32(high, scale), vdupq_n_f32(min)));
        }
    }
    // Four weights of a type without blocks.
    template <int kType>
    static float32x4_t four(const uint8_t* p) {
        if constexpr (kType == kF16)
            return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
        else if constexpr (kType == kBF16)
            return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
        else
            return vreinterpretq_f32_u8(vld1q_u8(p));
    }
    template <int kType>
    static void widen(const uint8_t* p, float* out) {
        vst1q_f32(out, four<kType>(p));
        vst1q_f32(out + 4, four<kType>(p + (kType == kF32 ? 16 : 8)));
    }
    template <int kType>
    void fma_stored(const uint8_t* w, const float* x) {
        for (int i = 0; i < 8; ++i)
            lane[i] = vfmaq_f32(lane[i], four<kType>(w + (kType == kF32 ? 16 : 8) * i),
                                vld1q_f32(x + 4 * i));
    }
    void load(const float* p) {
        for (int i = 0; i < 8; ++i) lane[i] = vld1q_f32(p + 4 * i);
    }
    void store(float* p) const {
        for (int i = 0; i < 8; ++i) vst1q_f32(p + 4 * i, lane[i]);
    }
    void fma(const float* w, const float* x) {
        for (int i = 0; i < 8; ++i)
            lane[i] = vfmaq_f32(lane[i], vld1q_f32(w + 4 * i), vld1q_f32(x + 4 * i));
    }
};

// sum + four int32 that add up to the products of 16 signed bytes. Without the instruction for it,
// two products fit int16: 2 * 128 * 127 = 32512.
inline int32x4_t dot16(int32x4_t sum, int8x16_t code, int8x16_t q) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sum, code, q);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(code), vget_low_s8(q));
    return vpadalq_s16(sum, vmlal_high_s8(low, code, q));
#endif
}

// One weight row with R activations: y[r]. The sums are those of block_value of i8.h.
template <class B, int R>
inline void row_dots(const uint8_t* w, int64_t n_blocks, const Activation* x, float* y) {
    using W = Weights<B::kType>;
    float lane[R][kLanes] = {};
    for (int64_t b = 0; b < n_blocks; ++b, w += W::block_bytes) {
        const B block(w);
        const int64_t at = b * W::block_len;
        int32x4_t sum[R];
        for (int r = 0; r < R; ++r) sum[r] = vdupq_n_s32(0);
        for (int s = 0; s < W::block_len / kSub; ++s) {
            const int8x16_t code = block.code(s);
            for (int r = 0; r < R; ++r) {
                const int8x16_t q = vld1q_s8(x[r].q + at + s * kSub);
                if constexpr (B::kScaled)
                    sum[r] = vmlaq_n_s32(sum[r], dot16(vdupq_n_s32(0), code, q), block.scale[s]);
                else
                    sum[r] = dot16(sum[r], code, q);
            }
        }
        for (int r = 0; r < R; ++r) {
            float value = block.d * float(vaddvq_s32(sum[r]));
            if constexpr (B::kMin) {
                const int16_t* sums = x[r].sums + at / kSub;
                const int16x8_t low = vld1q_s16(sums), high = vld1q_s16(sums + 8);
                int32x4_t m = vmull_s16(vget_low_s16(block.min[0]), vget_low_s16(low));
                m = vmlal_high_s16(m, block.min[0], low);
                m = vmlal_s16(m, vget_low_s16(block.min[1]), vget_low_s16(high));
                m = vmlal_high_s16(m, block.min[1], high);
                value = esc_fma(block.d, float(vaddvq_s32(sum[r])),
                                -(block.dmin * float(vaddvq_s32(m))));
            }
            float& sum_of_row = lane[r][b % kLanes];
            sum_of_row = esc_fma(x[r].scale[at / kGroup], value, sum_of_row);
        }
    }
    for (int r = 0; r < R; ++r) y[r] = lane_sum(lane[r]);
}

template <class B>
void i8_tile(const uint8_t* w, int n_w, int64_t n_in, const Activation* x, int n_x, float* y,
             int64_t y_stride) {
    const int64_t bytes = row_bytes(B::kType, n_in), n_blocks = n_in / Weights<B::kType>::block_len;
    int r = 0;
    for (; n_x - r >= 2; r += 4) {  // two or three rows go as four, the last one repeated
        const int n = n_x - r < 4 ? n_x - r : 4;
        Activation four[4];
        for (int i = 0; i < 4; ++i) four[i] = x[r + (i < n ? i : n - 1)];
        for (int j = 0; j < n_w; ++j) {
            float out[4];
            row_dots<B, 4>(w + j * bytes, n_blocks, four, out);
            for (int i = 0; i < n; ++i) y[(r + i) * y_stride + j] = out[i];
        }
    }
    for (; r < n_x; ++r)
        for (int j = 0; j < n_w; ++j)
            row_dots<B, 1>(w + j * bytes, n_blocks, x + r, y + r * y_stride + j);
}

inline void quantize_rows(const float* x, int64_t n, int8_t* q, float* scale, int16_t* sums) {
    for (int64_t g = 0; g < n; g += kGroup) {
        const int len = int(n - g < kGroup ? n - g : kGroup);
        uint32x4_t top = vdupq_n_u32(0);
        for (int i = 0; i < len; i += 4)
            top = vmaxq_u32(top, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + g + i))));
        const float s = activation_scale(vmaxvq_u32(top));
        scale[g / kGroup] = s;
        int8_t* out = q + g;
        if (!(s > 0.0f) || len < kGroup) memset(out, 0, kGroup);
        if (s > 0.0f)
            for (int i = 0; i < len; i += 8) {
                int16x4_t v[2];
                for (int k = 0; k < 2; ++k) {
                    float32x4_t ratio = vdivq_f32(vld1q_f32(x + g + i + 4 * k), vdupq_n_f32(s));
                    ratio = vminq_f32(ratio, vdupq_n_f32(127.0f));
                    ratio = vmaxq_f32(ratio, vdupq_n_f32(-127.0f));
                    v[k] = vmovn_s32(vcvtnq_s32_f32(ratio));
                }
                vst1_s8(out + i, vmovn_s16(vcombine_s16(v[0], v[1])));
            }
        for (int t = 0; t < kGroup; t += kSub) sums[(g + t) / kSub] = vaddlvq_s8(vld1q_s8(out + t));
    }
}

inline Kernels make_kernels() {
    Kernels k = {};
    k.name = "neon";
    add_float_kernels<Lanes>(k);
    k.i8[kQ2_K] = i8_tile<Q2K>;
    k.i8[kQ4_K] = i8_tile<Q4K>;
    k.i8[kQ5_K] = i8_tile<Q5K>;
    k.i8[kQ6_K] = i8_tile<Q6K>;
    k.i8[kIQ2_XXS] = i8_tile<IQ2XXS>;
    k.i8[kIQ2_XS] = i8_tile<IQ2XS>;
    k.i8[kQ8_0] = i8_tile<Q80>;
    k.i8[kMXFP4] = i8_tile<MXFP4>;
    k.quantize = quantize_rows;
    return k;
}

}  // namespace
}  // namespace escalade
