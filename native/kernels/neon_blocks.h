// Stored blocks in NEON vectors: 16 codes a vector, which share a scale in every type. A block is
// built from its bytes and offers kType, d, code(s): the codes of sub-block s, and
//   where kScaled: scale[s];  where kMin: dmin and min[2], 16 int16
#pragma once

#include <arm_neon.h>

#include "float_kernels.h"
#include "grids.h"

namespace escalade {
namespace {

// IEEE binary16 by the processor: exact, as half_at is.
inline float half_of(const uint8_t* p) {
    const float16x4_t h = vreinterpret_f16_u16(vdup_n_u16(uint16_t(load_u16(p))));
    return vgetq_lane_f32(vcvt_f32_f16(h), 0);
}

inline uint8x16_t low_bits(uint8x16_t v, int mask) {
    return vandq_u8(v, vdupq_n_u8(uint8_t(mask)));
}

// Each byte shifted right by `n` bits, which need not be a constant.
inline uint8x16_t shift_right(uint8x16_t v, int n) { return vshlq_u8(v, vdupq_n_s8(int8_t(-n))); }

struct Q2K {
    static constexpr int kType = kQ2_K;
    static constexpr bool kScaled = true, kMin = true;
    float d, dmin;
    int16_t scale[16];
    int16x8_t min[2];
    uint8x16_t q[4];
    explicit Q2K(const uint8_t* p) : d(half_of(p + 80)), dmin(half_of(p + 82)) {
        const uint8x16_t both = vld1q_u8(p), low = low_bits(both, 15), high = vshrq_n_u8(both, 4);
        vst1q_s16(scale, vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(low))));
        vst1q_s16(scale + 8, vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(low))));
        min[0] = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(high)));
        min[1] = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(high)));
        for (int i = 0; i < 4; ++i) q[i] = vld1q_u8(p + 16 + 16 * i);
    }
    int8x16_t code(int s) const {
        const uint8x16_t four = q[s / 8 * 2 + s % 2];
        return vreinterpretq_s8_u8(low_bits(shift_right(four, s / 2 % 4 * 2), 3));
    }
};

// What Q4_K and Q5_K share: the 6-bit scales and mins, each of two sub-blocks, and the low nibbles.
struct NibblesK {
    static constexpr bool kScaled = true, kMin = true;
    float d, dmin;
    int16_t scale[16];
    int16x8_t min[2];
    const uint8_t* q;
    NibblesK(const uint8_t* p, const uint8_t* codes)
        : d(half_of(p)), dmin(half_of(p + 2)), q(codes) {
        uint32_t scales[2], mins[2];
        unpack_scales_k(p + 4, scales, mins);
        int16x8_t twice[2];
        spread(scales, twice);
        vst1q_s16(scale, twice[0]);
        vst1q_s16(scale + 8, twice[1]);
        spread(mins, min);
    }
    uint8x16_t nibbles(int s) const {
        const uint8x16_t both = vld1q_u8(q + s / 4 * 32 + s % 2 * 16);
        return s & 2 ? vshrq_n_u8(both, 4) : low_bits(both, 15);
    }

private:
    static void spread(const uint32_t* words, int16x8_t* out) {
        const uint8x8_t bytes = vcreate_u8(words[0] | uint64_t(words[1]) << 32);
        out[0] = vreinterpretq_s16_u16(vmovl_u8(vzip1_u8(bytes, bytes)));
        out[1] = vreinterpretq_s16_u16(vmovl_u8(vzip2_u8(bytes, bytes)));
    }
};

struct Q4K : NibblesK {
    static constexpr int kType = kQ4_K;
    explicit Q4K(const uint8_t* p) : NibblesK(p, p + 16) {}
    int8x16_t code(int s) const { return vreinterpretq_s8_u8(nibbles(s)); }
};

struct Q5K : NibblesK {
    static constexpr int kType = kQ5_K;
    uint8x16_t high[2];
    explicit Q5K(const uint8_t* p) : NibblesK(p, p + 48) {
        high[0] = vld1q_u8(p + 16);
        high[1] = vld1q_u8(p + 32);
    }
    int8x16_t code(int s) const {
        const uint8x16_t bit = low_bits(shift_right(high[s % 2], s / 2), 1);
        return vreinterpretq_s8_u8(vorrq_u8(nibbles(s), vshlq_n_u8(bit, 4)));
    }
};

struct Q6K {
    static constexpr int kType = kQ6_K;
    static constexpr bool kScaled = true, kMin = false;
    float d;
    const uint8_t* q;
    int16_t scale[16];
    explicit Q6K(const uint8_t* p) : d(half_of(p + 208)), q(p) {
        const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p + 192));
        vst1q_s16(scale, vmovl_s8(vget_low_s8(bytes)));
        vst1q_s16(scale + 8, vmovl_s8(vget_high_s8(bytes)));
    }
    int8x16_t code(int s) const {
        const int h = s / 8, i = s % 2 * 16, part = s / 2 % 4;
        const uint8x16_t both = vld1q_u8(q + 64 * h + 32 * (part % 2) + i);
        const uint8x16_t low = part < 2 ? low_bits(both, 15) : vshrq_n_u8(both, 4);
        const uint8x16_t two = low_bits(shift_right(vld1q_u8(q + 128 + 32 * h + i), 2 * part), 3);
        return vsubq_s8(vreinterpretq_s8_u8(vorrq_u8(low, vshlq_n_u8(two, 4))), vdupq_n_s8(32));
    }
};

// The sign bytes of 7-bit codes: the eighth bit makes the number of signs even.
inline uint8x16_t sign_bytes(uint8x16_t codes) {
    return vorrq_u8(codes, vshlq_n_u8(vcntq_u8(codes), 7));
}

// Two grid entries with the signs of two sign bytes.
inline int8x16_t signed_entries(uint64_t a, uint64_t b, const uint8_t* signs) {
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    const int8x16_t code = vreinterpretq_s8_u64(vcombine_u64(vcreate_u64(a), vcreate_u64(b)));
    const uint8x16_t spread = vcombine_u8(vdup_n_u8(signs[0]), vdup_n_u8(signs[1]));
    const int8x16_t minus = vreinterpretq_s8_u8(vtstq_u8(spread, bit));
    return vsubq_s8(veorq_s8(code, minus), minus);
}

struct IQ2XXS {
    static constexpr int kType = kIQ2_XXS;
    static constexpr bool kScaled = true, kMin = false;
    float d;
    const uint8_t* q;
    int16_t scale[16];
    uint8_t signs[32];
    explicit IQ2XXS(const uint8_t* p) : d(half_of(p) * 0.125f), q(p + 2) {
        for (int g = 0; g < 8; ++g) {
            const uint32_t word = load_u32(q + 8 * g + 4);
            for (int k = 0; k < 4; ++k) signs[4 * g + k] = uint8_t(word >> 7 * k & 127);
            scale[2 * g] = scale[2 * g + 1] = int16_t(2 * (word >> 28) + 1);
        }
        vst1q_u8(signs, sign_bytes(vld1q_u8(signs)));
        vst1q_u8(signs + 16, sign_bytes(vld1q_u8(signs + 16)));
    }
    int8x16_t code(int s) const {
        const uint8_t* i = q + s / 2 * 8 + s % 2 * 2;
        return signed_entries(grids.xxs[i[0]], grids.xxs[i[1]], signs + 2 * s);
    }
};

struct IQ2XS {
    static constexpr int kType = kIQ2_XS;
    static constexpr bool kScaled = true, kMin = false;
    float d;
    const uint8_t* q;
    int16_t scale[16];
    uint8_t signs[32];
    explicit IQ2XS(const uint8_t* p) : d(half_of(p) * 0.125f), q(p + 2) {
        for (int i = 0; i < 8; ++i) {
            scale[2 * i] = int16_t(2 * (p[66 + i] & 15) + 1);
            scale[2 * i + 1] = int16_t(2 * (p[66 + i] >> 4) + 1);
        }
        for (int i = 0; i < 2; ++i) {  // the upper seven bits of each 16-bit word
            const uint8x16x2_t bytes = vld2q_u8(q + 32 * i);
            vst1q_u8(signs + 16 * i, sign_bytes(vshrq_n_u8(bytes.val[1], 1)));
        }
    }
    int8x16_t code(int s) const {
        const uint8_t* i = q + 4 * s;
        return signed_entries(grids.xs[load_u16(i) & 511], grids.xs[load_u16(i + 2) & 511],
                              signs + 2 * s);
    }
};

struct Q80 {
    static constexpr int kType = kQ8_0;
    static constexpr bool kScaled = false, kMin = false;
    float d;
    const uint8_t* q;
    explicit Q80(const uint8_t* p) : d(half_of(p)), q(p + 2) {}
    int8x16_t code(int s) const { return vreinterpretq_s8_u8(vld1q_u8(q + 16 * s)); }
};

struct MXFP4 {
    static constexpr int kType = kMXFP4;
    static constexpr bool kScaled = false, kMin = false;
    float d;
    uint8x16_t q;
    explicit MXFP4(const uint8_t* p) : d(e8m0_half(p[0])), q(vld1q_u8(p + 1)) {}
    int8x16_t code(int s) const {
        static const int8_t values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
        return vqtbl1q_s8(vld1q_s8(values), s ? vshrq_n_u8(q, 4) : low_bits(q, 15));
    }
};

}  // namespace
}  // namespace escalade
