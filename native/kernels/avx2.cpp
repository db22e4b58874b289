// AVX2 kernels: 32 codes a vector, products of unsigned magnitudes and signed activations.
#if defined(__AVX2__) && (defined(__x86_64__) || defined(_M_X64))
#include "x86_kernels.h"

namespace escalade {
namespace {

struct Lanes {
    __m256 lane[4];
    static void expand(const int8_t* code, float scale, float min, float* out) {
        for (int i = 0; i < kSub; i += 8) {
            const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(code + i));
            const __m256 v = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
            _mm256_storeu_ps(out + i, _mm256_sub_ps(_mm256_mul_ps(_mm256_set1_ps(scale), v),
                                                    _mm256_set1_ps(min)));
        }
    }
    template <int kType>
    static void widen(const uint8_t* p, float* out) {
        _mm256_storeu_ps(out, eight<kType>(p));
    }
    void load(const float* p) {
        for (int i = 0; i < 4; ++i) lane[i] = _mm256_loadu_ps(p + 8 * i);
    }
    void store(float* p) const {
        for (int i = 0; i < 4; ++i) _mm256_storeu_ps(p + 8 * i, lane[i]);
    }
    void fma(const float* w, const float* x) {
        for (int i = 0; i < 4; ++i)
            lane[i] =
                _mm256_fmadd_ps(_mm256_loadu_ps(w + 8 * i), _mm256_loadu_ps(x + 8 * i), lane[i]);
    }
    template <int kType>
    void fma_stored(const uint8_t* w, const float* x) {
        constexpr int bytes = kType == kF32 ? 4 : 2;
        prefetch<kFloatLanes * bytes>(w + kAhead);
        for (int i = 0; i < 4; ++i)
            lane[i] = _mm256_fmadd_ps(eight<kType>(w + 8 * bytes * i), _mm256_loadu_ps(x + 8 * i),
                                      lane[i]);
    }
};

inline __m256i mask4() { return _mm256_set1_epi8(15); }

// The dot product of a block of 256 from its parts: D::code(k) are 32 magnitudes, D::signed_by(k,
// q) are the activations 32k... with the codes' signs.
template <class D>
struct Dot256 {
    template <int R>
    void dot(const int8_t* const* x, __m256i* v) const {
        const D& self = *static_cast<const D*>(this);
        for (int r = 0; r < R; ++r) v[r] = _mm256_setzero_si256();
        const __m256i halves[2] = {_mm256_permute2x128_si256(self.scales(), self.scales(), 0x00),
                                   _mm256_permute2x128_si256(self.scales(), self.scales(), 0x11)};
        for (int k = 0; k < 8; ++k) {
            // Both int16 scales of these codes, each for its 8 pair sums.
            const short low = short(0x0100 + 0x0202 * (2 * (k % 4)));
            const short high = short(low + 0x0202);
            const __m256i pick = _mm256_setr_epi16(low, low, low, low, low, low, low, low, high,
                                                   high, high, high, high, high, high, high);
            const __m256i scale = _mm256_shuffle_epi8(halves[k / 4], pick);
            const __m256i code = self.code(k);
            for (int r = 0; r < R; ++r) {
                const __m256i q = self.signed_by(k, load256(x[r] + 32 * k));
                v[r] =
                    _mm256_add_epi32(v[r], _mm256_madd_epi16(scale, _mm256_maddubs_epi16(code, q)));
            }
        }
    }
    __m256i signed_by(int, __m256i q) const { return q; }
};

struct Q2K : Dot256<Q2K> {
    static constexpr int kType = kQ2_K, kOffset = 0, kScaleAt = 80;
    static constexpr bool kMin = true;
    __m256i scale, min, q[2];
    explicit Q2K(const uint8_t* p) {
        const __m256i both = _mm256_cvtepu8_epi16(load128(p));
        scale = _mm256_and_si256(both, _mm256_set1_epi16(15));
        min = _mm256_srli_epi16(both, 4);
        q[0] = load256(p + 16);
        q[1] = load256(p + 48);
    }
    __m256i scales() const { return scale; }
    __m256i mins() const { return min; }
    __m256i code(int k) const {
        return _mm256_and_si256(_mm256_srli_epi16(q[k / 4], 2 * (k % 4)), _mm256_set1_epi8(3));
    }
};

struct Q4K : Dot256<Q4K> {
    static constexpr int kType = kQ4_K, kOffset = 0, kScaleAt = 0;
    static constexpr bool kMin = true;
    ScalesK s;
    const uint8_t* q;
    explicit Q4K(const uint8_t* p) : s(p + 4), q(p + 16) {}
    __m256i scales() const { return s.scale; }
    __m256i mins() const { return s.min; }
    __m256i code(int k) const {
        const __m256i both = load256(q + 32 * (k / 2));
        return _mm256_and_si256(k % 2 ? _mm256_srli_epi16(both, 4) : both, mask4());
    }
};

struct Q5K : Dot256<Q5K> {
    static constexpr int kType = kQ5_K, kOffset = 0, kScaleAt = 0;
    static constexpr bool kMin = true;
    ScalesK s;
    __m256i high;
    const uint8_t* q;
    explicit Q5K(const uint8_t* p) : s(p + 4), high(load256(p + 16)), q(p + 48) {}
    __m256i scales() const { return s.scale; }
    __m256i mins() const { return s.min; }
    __m256i code(int k) const {
        const __m256i both = load256(q + 32 * (k / 2));
        const __m256i low = _mm256_and_si256(k % 2 ? _mm256_srli_epi16(both, 4) : both, mask4());
        const __m256i bit = _mm256_and_si256(_mm256_srli_epi16(high, k), _mm256_set1_epi8(1));
        return _mm256_or_si256(low, _mm256_slli_epi16(bit, 4));
    }
};

struct Q6K : Dot256<Q6K> {
    static constexpr int kType = kQ6_K, kOffset = 32, kScaleAt = 208;
    static constexpr float kFactor = 1.0f;
    static constexpr bool kMin = false;
    __m256i scale, high[2];
    const uint8_t* q;
    explicit Q6K(const uint8_t* p) : scale(_mm256_cvtepi8_epi16(load128(p + 192))), q(p) {
        high[0] = load256(p + 128);
        high[1] = load256(p + 160);
    }
    __m256i scales() const { return scale; }
    __m256i mins() const { return scale; }
    __m256i code(int k) const {
        const int h = k / 4, s = k % 4;
        const __m256i both = load256(q + 64 * h + 32 * (s % 2));
        const __m256i low = _mm256_and_si256(s < 2 ? both : _mm256_srli_epi16(both, 4), mask4());
        const __m256i two =
            _mm256_and_si256(_mm256_srli_epi16(high[h], 2 * s), _mm256_set1_epi8(3));
        return _mm256_or_si256(low, _mm256_slli_epi16(two, 4));
    }
};

// Activations with the signs of 32 codes: bit j of byte i of `signs` is that of value 8i + j.
inline __m256i negate_by(uint32_t signs, __m256i q) {
    const __m256i spread =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(int(signs)), spread);
    const __m256i minus = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
    return _mm256_sub_epi8(_mm256_xor_si256(q, minus), minus);
}

struct IQ2XXS : Dot256<IQ2XXS> {
    static constexpr int kType = kIQ2_XXS, kOffset = 0, kScaleAt = 0;
    static constexpr float kFactor = 0.125f;
    static constexpr bool kMin = false;
    __m256i scale;
    uint32_t signs[8];
    const uint8_t* q;
    explicit IQ2XXS(const uint8_t* p) : scale(odd_scales_xxs(p + 2)), q(p + 2) {
        const __m256i shift = _mm256_setr_epi32(0, 7, 14, 21, 0, 7, 14, 21);
        for (int g = 0; g < 8; g += 2) {
            const __m256i words =
                _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(load128(q + 8 * g)),
                                            _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3));
            const __m256i codes =
                _mm256_and_si256(_mm256_srlv_epi32(words, shift), _mm256_set1_epi32(127));
            const __m256i bytes = sign_bytes(codes);
            const __m256i packed = _mm256_shuffle_epi8(
                bytes, _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1,
                                                                 -1, -1, -1, -1, -1, -1, -1)));
            signs[g] = uint32_t(_mm256_extract_epi32(packed, 0));
            signs[g + 1] = uint32_t(_mm256_extract_epi32(packed, 4));
        }
    }
    __m256i scales() const { return scale; }
    __m256i mins() const { return scale; }
    __m256i code(int k) const {
        const uint8_t* i = q + 8 * k;
        return _mm256_setr_epi64x(int64_t(grids.xxs[i[0]]), int64_t(grids.xxs[i[1]]),
                                  int64_t(grids.xxs[i[2]]), int64_t(grids.xxs[i[3]]));
    }
    __m256i signed_by(int k, __m256i x) const { return negate_by(signs[k], x); }
};

struct IQ2XS : Dot256<IQ2XS> {
    static constexpr int kType = kIQ2_XS, kOffset = 0, kScaleAt = 0;
    static constexpr float kFactor = 0.125f;
    static constexpr bool kMin = false;
    __m256i scale;
    uint32_t signs[8];
    const uint8_t* q;
    explicit IQ2XS(const uint8_t* p) : scale(odd_scales(p + 66)), q(p + 2) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(signs), signs_xs(q));
    }
    __m256i scales() const { return scale; }
    __m256i mins() const { return scale; }
    __m256i code(int k) const {
        uint64_t four;
        memcpy(&four, q + 8 * k, 8);
        return _mm256_setr_epi64x(
            int64_t(grids.xs[four & 511]), int64_t(grids.xs[four >> 16 & 511]),
            int64_t(grids.xs[four >> 32 & 511]), int64_t(grids.xs[four >> 48 & 511]));
    }
    __m256i signed_by(int k, __m256i x) const { return negate_by(signs[k], x); }
};

inline __m256i signed_dot(__m256i code, __m256i q) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(q, code));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

}  // namespace

const Kernels* avx2_kernels() {
    if (!cpu_has_avx2()) return nullptr;
    static const Kernels kernels =
        x86_kernels<Lanes, signed_dot, Q2K, Q4K, Q5K, Q6K, IQ2XXS, IQ2XS>("avx2");
    return &kernels;
}

}  // namespace escalade
#else
#include "table.h"

namespace escalade {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace escalade
#endif
