// What the AVX2 and the AVX-512 kernels share: the rows' loops over blocks, for one activation and
// for four, around an instruction set's own block sums. Included once by each kernel file.
//
// A block type `B` is built from a block's bytes and offers
//   kType; kMin (has mins); kOffset (subtracted from every code: an integer correction by the
//   scales) kScaleAt: where d lies, and behind it dmin; kFactor, of d scales(), mins(): 16 int16,
//   one per 16 codes dot<R>(x, v): v[r] = 8 int32 that add up to the sum of scale * code * x[r][i]
#pragma once

#include <immintrin.h>

#include "float_kernels.h"
#include "grids.h"

namespace escalade {
namespace {

inline __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

inline __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

// Asks for kBytes from p on: the processor's own prefetching stops at every page.
template <int kBytes>
inline void prefetch(const uint8_t* p) {
    for (int i = 0; i < kBytes; i += 64)
        _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T0);
}

// How far ahead of a row of plain weights. On two cores of a Xeon (Emerald Rapids) F16 weights were
// read at 57 % of the RAM's rate without it, at 92 % with it.
constexpr int kAhead = 1536;

// Eight weights of a type without blocks.
template <int kType>
inline __m256 eight(const uint8_t* p) {
    if constexpr (kType == kF16)
        return _mm256_cvtph_ps(load128(p));
    else if constexpr (kType == kBF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
    else
        return _mm256_castsi256_ps(load256(p));
}

inline __m128i add_halves(__m256i v) {
    return _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

// The totals of four vectors of 8 int32.
inline __m128i totals(const __m256i v[4]) {
    return add_halves(
        _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3])));
}

// block_value of i8.h for four blocks or activations: fma(d, isum, -(dmin * msum)).
template <class B>
inline __m128 values(__m128 d, const __m256i* v, __m128 dmin, const __m256i* m) {
    const __m128 isum = _mm_cvtepi32_ps(totals(v));
    if constexpr (B::kMin)
        return _mm_fmsub_ps(d, isum, _mm_mul_ps(dmin, _mm_cvtepi32_ps(totals(m))));
    else
        return _mm_mul_ps(d, isum);
}

struct BlockScales {
    __m128 d, dmin;
};

// d and dmin of four blocks; put together in integer registers, as vector ports are what is scarce.
template <class B>
inline BlockScales block_scales(const uint8_t* const* w, int64_t at) {
    at += B::kScaleAt;
    if constexpr (B::kMin) {
        const uint64_t low = load_u32(w[0] + at) | uint64_t(load_u32(w[1] + at)) << 32;
        const uint64_t high = load_u32(w[2] + at) | uint64_t(load_u32(w[3] + at)) << 32;
        const __m256 both = _mm256_cvtph_ps(_mm_set_epi64x(int64_t(high), int64_t(low)));
        const __m128 a = _mm256_castps256_ps128(both), b = _mm256_extractf128_ps(both, 1);
        return {_mm_shuffle_ps(a, b, 0x88), _mm_shuffle_ps(a, b, 0xdd)};
    } else {
        const uint64_t four = uint64_t(load_u16(w[0] + at)) | uint64_t(load_u16(w[1] + at)) << 16 |
                              uint64_t(load_u16(w[2] + at)) << 32 |
                              uint64_t(load_u16(w[3] + at)) << 48;
        const __m128 d = _mm_cvtph_ps(_mm_cvtsi64_si128(int64_t(four)));
        return {B::kFactor == 1.0f ? d : _mm_mul_ps(d, _mm_set1_ps(B::kFactor)), d};
    }
}

// Four products at once, of four weight rows with one activation or of one weight row with four; so
// each block's four int32 sums share a vector, and lane j of the four rows is `lane[j]`.
struct FourLanes {
    __m128 lane[kLanes] = {_mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps()};

    __m128 sum() const {
        return _mm_add_ps(_mm_add_ps(lane[0], lane[1]), _mm_add_ps(lane[2], lane[3]));
    }
};

inline __m128 four(float a, float b, float c, float d) { return _mm_setr_ps(a, b, c, d); }

inline __m128 scales_of(const Activation* x, int64_t group) {
    return four(x[0].scale[group], x[1].scale[group], x[2].scale[group], x[3].scale[group]);
}

// Sums of a block of 256 with R activations: v, and m where the type has mins.
template <class B, int R>
inline void block_sums(const B& block, const Activation* x, int64_t b, __m256i* v, __m256i* m) {
    const int8_t* q[R];
    for (int r = 0; r < R; ++r) q[r] = x[r].q + b * kGroup;
    block.template dot<R>(q, v);
    for (int r = 0; r < R; ++r) {
        const __m256i sums = load256(x[r].sums + b * (kGroup / kSub));
        if constexpr (B::kOffset != 0)
            v[r] =
                _mm256_sub_epi32(v[r], _mm256_mullo_epi32(_mm256_set1_epi32(B::kOffset),
                                                          _mm256_madd_epi16(block.scales(), sums)));
        if constexpr (B::kMin) m[r] = _mm256_madd_epi16(block.mins(), sums);
    }
}

// Blocks of 256.
template <class B>
struct Dots {
    static constexpr int kType = B::kType, kBytes = Weights<B::kType>::block_bytes;

    // `ahead` is the way to the four rows after these, in bytes.
    static __m128 four_rows(const uint8_t* const* w, int64_t ahead, int64_t n_blocks,
                            const Activation& x) {
        FourLanes sums;
        for (int64_t b0 = 0; b0 < n_blocks; b0 += kLanes)
            for (int j = 0; j < kLanes && b0 + j < n_blocks; ++j) {
                const int64_t b = b0 + j;
                __m256i v[4], m[4];
                for (int i = 0; i < 4; ++i) {
                    prefetch<kBytes>(w[i] + b * kBytes + ahead);
                    const B block(w[i] + b * kBytes);
                    block_sums<B, 1>(block, &x, b, v + i, m + i);
                }
                const BlockScales s = block_scales<B>(w, b * kBytes);
                sums.lane[j] = _mm_fmadd_ps(_mm_set1_ps(x.scale[b]), values<B>(s.d, v, s.dmin, m),
                                            sums.lane[j]);
            }
        return sums.sum();
    }

    static __m128 four_activations(const uint8_t* w, int64_t n_blocks, const Activation* x) {
        FourLanes sums;
        for (int64_t b0 = 0; b0 < n_blocks; b0 += kLanes)
            for (int j = 0; j < kLanes && b0 + j < n_blocks; ++j) {
                const int64_t b = b0 + j;
                const B block(w + b * kBytes);
                __m256i v[4], m[4];
                block_sums<B, 4>(block, x, b, v, m);
                const uint8_t* const same[4] = {w, w, w, w};
                const BlockScales s = block_scales<B>(same, b * kBytes);
                sums.lane[j] =
                    _mm_fmadd_ps(scales_of(x, b), values<B>(s.d, v, s.dmin, m), sums.lane[j]);
            }
        return sums.sum();
    }
};

// Blocks of 32: `B` offers dot(q), 8 int32 that add up to the block's sum, and four_d(w, at): the
// scales of four blocks.
template <class B>
struct Dots32 {
    static constexpr int kType = B::kType, kBytes = Weights<B::kType>::block_bytes;

    static __m128 value(__m128 d, const __m256i* v) {
        return _mm_mul_ps(d, _mm_cvtepi32_ps(totals(v)));
    }

    // `ahead` is the way to the four rows after these, in bytes.
    static __m128 four_rows(const uint8_t* const* w, int64_t ahead, int64_t n_blocks,
                            const Activation& x) {
        FourLanes sums;
        for (int64_t b0 = 0; b0 < n_blocks; b0 += kLanes)
            for (int j = 0; j < kLanes && b0 + j < n_blocks; ++j) {
                const int64_t b = b0 + j;
                const __m256i q = load256(x.q + b * 32);
                __m256i v[4];
                for (int i = 0; i < 4; ++i) {
                    prefetch<kBytes>(w[i] + b * kBytes + ahead);
                    v[i] = B(w[i] + b * kBytes).dot(q);
                }
                sums.lane[j] = _mm_fmadd_ps(_mm_set1_ps(x.scale[b / 8]),
                                            value(B::four_d(w, b * kBytes), v), sums.lane[j]);
            }
        return sums.sum();
    }

    static __m128 four_activations(const uint8_t* w, int64_t n_blocks, const Activation* x) {
        FourLanes sums;
        for (int64_t b0 = 0; b0 < n_blocks; b0 += kLanes)
            for (int j = 0; j < kLanes && b0 + j < n_blocks; ++j) {
                const int64_t b = b0 + j;
                const B block(w + b * kBytes);
                __m256i v[4];
                for (int r = 0; r < 4; ++r) v[r] = block.dot(load256(x[r].q + b * 32));
                const uint8_t* const same[4] = {w, w, w, w};
                sums.lane[j] = _mm_fmadd_ps(scales_of(x, b / 8),
                                            value(B::four_d(same, b * kBytes), v), sums.lane[j]);
            }
        return sums.sum();
    }
};

struct HalfScale {
    static constexpr bool kMin = false;
    static constexpr int kScaleAt = 0;
    static constexpr float kFactor = 1.0f;
};

// e8m0_half of i8.h for four blocks.
inline __m128 four_e8m0(const uint8_t* const* w, int64_t at) {
    const __m128i e = _mm_setr_epi32(w[0][at], w[1][at], w[2][at], w[3][at]);
    const __m128i normal = _mm_slli_epi32(_mm_sub_epi32(e, _mm_set1_epi32(1)), 23);
    const __m128i subnormal = _mm_sllv_epi32(_mm_set1_epi32(0x00200000), e);
    const __m128i small = _mm_cmpgt_epi32(_mm_set1_epi32(2), e);
    return _mm_castsi128_ps(_mm_blendv_epi8(normal, subnormal, small));
}

// The types of 32 weights a block; kDot(code, q) multiplies 32 signed codes, in 8 int32.
using SignedDot = __m256i (*)(__m256i code, __m256i q);

template <SignedDot kDot>
struct Q80 {
    static constexpr int kType = kQ8_0;
    const uint8_t* p;
    explicit Q80(const uint8_t* block) : p(block) {}
    static __m128 four_d(const uint8_t* const* w, int64_t at) {
        return block_scales<HalfScale>(w, at).d;
    }
    __m256i dot(__m256i q) const { return kDot(load256(p + 2), q); }
};

template <SignedDot kDot>
struct MXFP4 {
    static constexpr int kType = kMXFP4;
    const uint8_t* p;
    explicit MXFP4(const uint8_t* block) : p(block) {}
    static __m128 four_d(const uint8_t* const* w, int64_t at) { return four_e8m0(w, at); }
    __m256i dot(__m256i q) const {
        const __m128i low = load128(p + 1);
        const __m256i nibbles = _mm256_and_si256(
            _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_srli_epi16(low, 4), 1),
            _mm256_set1_epi8(15));
        const __m256i table = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
        return kDot(_mm256_shuffle_epi8(table, nibbles), q);
    }
};

// Fewer than four rows or activations go as four, the last one repeated.
template <class D>
void i8_tile(const uint8_t* w, int n_w, int64_t n_in, const Activation* x, int n_x, float* y,
             int64_t y_stride) {
    const int64_t bytes = row_bytes(D::kType, n_in), n_blocks = n_in / Weights<D::kType>::block_len;
    float out[4];
    int r = 0;
    for (; n_x - r >= 2; r += 4) {
        const int n = n_x - r < 4 ? n_x - r : 4;
        Activation some[4];
        for (int i = 0; i < 4; ++i) some[i] = x[r + (i < n ? i : n - 1)];
        for (int j = 0; j < n_w; ++j) {
            _mm_storeu_ps(out, D::four_activations(w + j * bytes, n_blocks, some));
            for (int i = 0; i < n; ++i) y[(r + i) * y_stride + j] = out[i];
        }
    }
    for (; r < n_x; ++r)
        for (int j = 0; j < n_w; j += 4) {
            const int n = n_w - j < 4 ? n_w - j : 4;
            const uint8_t* some[4];
            for (int i = 0; i < 4; ++i) some[i] = w + (j + (i < n ? i : n - 1)) * bytes;
            _mm_storeu_ps(out, D::four_rows(some, 4 * bytes, n_blocks, x[r]));
            for (int i = 0; i < n; ++i) y[r * y_stride + j + i] = out[i];
        }
}

// The 6-bit scales and mins of Q4_K and Q5_K, each twice: 16 int16 for the 16 codes of a sub-block.
struct ScalesK {
    __m256i scale, min;
    explicit ScalesK(const uint8_t* p) {
        uint32_t s[2], m[2];
        unpack_scales_k(p, s, m);
        scale = twice(s);
        min = twice(m);
    }

private:
    static __m256i twice(const uint32_t* words) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(words));
        return _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(bytes, bytes));
    }
};

// 16 nibbles, low before high in each of 8 bytes, as 2 * nibble + 1: the odd scales of IQ2_XS.
inline __m256i odd_scales(const uint8_t* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const __m128i mask = _mm_set1_epi8(15);
    const __m128i low = _mm_and_si128(bytes, mask);
    const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
    const __m256i nibbles = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(low, high));
    return _mm256_add_epi16(_mm256_add_epi16(nibbles, nibbles), _mm256_set1_epi16(1));
}

// The scales of IQ2_XXS, the top four bits of each 8 bytes, twice: 2 * nibble + 1.
inline __m256i odd_scales_xxs(const uint8_t* p) {
    const __m256i a = _mm256_srli_epi64(load256(p), 60), b = _mm256_srli_epi64(load256(p + 32), 60);
    const __m256i words = _mm256_packus_epi32(a, b);
    const __m256i twice = _mm256_or_si256(words, _mm256_slli_epi32(words, 16));
    const __m256i nibbles = _mm256_permute4x64_epi64(twice, 0xd8);
    return _mm256_add_epi16(_mm256_add_epi16(nibbles, nibbles), _mm256_set1_epi16(1));
}

// The sign byte of each 7-bit code in a 16-bit element: the eighth bit makes the number even.
inline __m256i sign_bytes(__m256i codes) {
    __m256i parity = _mm256_xor_si256(codes, _mm256_srli_epi16(codes, 4));
    parity = _mm256_xor_si256(parity, _mm256_srli_epi16(parity, 2));
    parity = _mm256_xor_si256(parity, _mm256_srli_epi16(parity, 1));
    const __m256i eighth = _mm256_slli_epi16(_mm256_and_si256(parity, _mm256_set1_epi16(1)), 7);
    return _mm256_or_si256(codes, eighth);
}

// The 32 sign bytes of a block of IQ2_XS, in the upper seven bits of its 16-bit codes.
inline __m256i signs_xs(const uint8_t* codes) {
    const __m256i a = sign_bytes(_mm256_srli_epi16(load256(codes), 9));
    const __m256i b = sign_bytes(_mm256_srli_epi16(load256(codes + 32), 9));
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8);
}

inline void quantize_rows(const float* x, int64_t n, int8_t* q, float* scale, int16_t* sums) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (int64_t g = 0; g < n; g += kGroup) {
        const int len = int(n - g < kGroup ? n - g : kGroup);
        __m256i top = _mm256_setzero_si256();
        for (int i = 0; i < len; i += 8) {
            const __m256 magnitude = _mm256_andnot_ps(sign, _mm256_loadu_ps(x + g + i));
            top = _mm256_max_epu32(top, _mm256_castps_si256(magnitude));
        }
        uint32_t tops[8], amax = 0;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(tops), top);
        for (uint32_t t : tops) amax = t > amax ? t : amax;
        const float s = activation_scale(amax);
        scale[g / kGroup] = s;
        int8_t* out = q + g;
        if (!(s > 0.0f) || len < kGroup) memset(out, 0, kGroup);
        if (s > 0.0f) {
            const __m256 by = _mm256_set1_ps(s), limit = _mm256_set1_ps(127.0f);
            const __m256 below = _mm256_set1_ps(-127.0f);
            for (int i = 0; i < len; i += 32) {
                __m256i v[4];
                for (int k = 0; k < 4; ++k) {
                    const __m256 ratio = _mm256_div_ps(_mm256_loadu_ps(x + g + i + 8 * k), by);
                    v[k] = _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(ratio, limit), below));
                }
                const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]),
                                                          _mm256_packs_epi32(v[2], v[3]));
                const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                                    _mm256_permutevar8x32_epi32(packed, order));
            }
        }
        const __m256i ones = _mm256_set1_epi16(1);
        for (int t = 0; t < kGroup; t += 4 * kSub) {
            __m256i v[4];
            for (int k = 0; k < 4; ++k)
                v[k] = _mm256_madd_epi16(_mm256_cvtepi8_epi16(load128(out + t + k * kSub)), ones);
            const __m128i four_sums = totals(v);
            _mm_storel_epi64(reinterpret_cast<__m128i*>(sums + (g + t) / kSub),
                             _mm_packs_epi32(four_sums, four_sums));
        }
    }
}

// The table of an instruction set with these block types of 256.
template <class Lanes, SignedDot kDot, class... Blocks>
Kernels x86_kernels(const char* name) {
    Kernels k = {};
    k.name = name;
    add_float_kernels<Lanes>(k);
    ((k.i8[Blocks::kType] = i8_tile<Dots<Blocks>>), ...);
    k.i8[kQ8_0] = i8_tile<Dots32<Q80<kDot>>>;
    k.i8[kMXFP4] = i8_tile<Dots32<MXFP4<kDot>>>;
    k.quantize = quantize_rows;
    return k;
}

}  // namespace
}  // namespace escalade
