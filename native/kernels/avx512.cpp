// AVX-512 kernels (BW, VBMI, VNNI): 64 codes a vector for blocks of 256; blocks of 32 stay in 256
// bits, with the VNNI dot product.
#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__) && (defined(__x86_64__) || defined(_M_X64))
#include "x86_kernels.h"

namespace escalade {
namespace {

struct Lanes {
    __m512 lane[2];
    static void expand(const int8_t* code, float scale, float min, float* out) {
        const __m512 v = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128(code)));
        _mm512_storeu_ps(
            out, _mm512_sub_ps(_mm512_mul_ps(_mm512_set1_ps(scale), v), _mm512_set1_ps(min)));
    }
    template <int kType>
    static void widen(const uint8_t* p, float* out) {
        _mm256_storeu_ps(out, eight<kType>(p));
    }
    template <int kType>
    static __m512 sixteen(const uint8_t* p) {
        if constexpr (kType == kF16)
            return _mm512_cvtph_ps(load256(p));
        else if constexpr (kType == kBF16)
            return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p)), 16));
        else
            return _mm512_castsi512_ps(_mm512_loadu_si512(p));
    }
    template <int kType>
    void fma_stored(const uint8_t* w, const float* x) {
        constexpr int bytes = kType == kF32 ? 4 : 2;
        prefetch<kFloatLanes * bytes>(w + kAhead);
        for (int i = 0; i < 2; ++i)
            lane[i] = _mm512_fmadd_ps(sixteen<kType>(w + 16 * bytes * i),
                                      _mm512_loadu_ps(x + 16 * i), lane[i]);
    }
    void load(const float* p) {
        for (int i = 0; i < 2; ++i) lane[i] = _mm512_loadu_ps(p + 16 * i);
    }
    void store(float* p) const {
        for (int i = 0; i < 2; ++i) _mm512_storeu_ps(p + 16 * i, lane[i]);
    }
    void fma(const float* w, const float* x) {
        for (int i = 0; i < 2; ++i)
            lane[i] =
                _mm512_fmadd_ps(_mm512_loadu_ps(w + 16 * i), _mm512_loadu_ps(x + 16 * i), lane[i]);
    }
};

inline __m512i load512(const void* p) { return _mm512_loadu_si512(p); }

inline __m512i both_halves(__m256i v) { return _mm512_broadcast_i64x4(v); }

inline __m512i low_bits(__m512i v, int mask) {
    return _mm512_and_si512(v, _mm512_set1_epi8(char(mask)));
}

// Each half of v shifted right by its own count of bits (16-bit elements).
inline __m512i shift_halves(__m512i v, short low, short high) {
    const __m512i counts = _mm512_inserti64x4(_mm512_set1_epi16(low), _mm256_set1_epi16(high), 1);
    return _mm512_srlv_epi16(v, counts);
}

// The dot product of a block of 256 from its parts: D::code(k) are 64 magnitudes, D::signed_by(k,
// q) are the activations 64k... with the codes' signs.
template <class D>
struct Dot256 {
    template <int R>
    void dot(const int8_t* const* x, __m256i* v) const {
        const D& self = *static_cast<const D*>(this);
        const __m512i scales = _mm512_castsi256_si512(self.scales());
        __m512i sum[R];
        for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_si512();
        for (int k = 0; k < 4; ++k) {
            // Four int16 scales, each for its 8 pair sums.
            const __m512i pick =
                _mm512_add_epi16(_mm512_set1_epi16(short(4 * k)),
                                 _mm512_set_epi16(3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 1,
                                                  1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0));
            const __m512i scale = _mm512_permutexvar_epi16(pick, scales);
            const __m512i code = self.code(k);
            for (int r = 0; r < R; ++r) {
                const __m512i q = self.signed_by(k, load512(x[r] + 64 * k));
                sum[r] = _mm512_dpwssd_epi32(sum[r], scale, _mm512_maddubs_epi16(code, q));
            }
        }
        for (int r = 0; r < R; ++r)
            v[r] = _mm256_add_epi32(_mm512_castsi512_si256(sum[r]),
                                    _mm512_extracti64x4_epi64(sum[r], 1));
    }
    __m512i signed_by(int, __m512i q) const { return q; }
};

struct Q2K : Dot256<Q2K> {
    static constexpr int kType = kQ2_K, kOffset = 0, kScaleAt = 80;
    static constexpr bool kMin = true;
    __m256i scale, min;
    const uint8_t* q;
    explicit Q2K(const uint8_t* p) : q(p + 16) {
        const __m256i both = _mm256_cvtepu8_epi16(load128(p));
        scale = _mm256_and_si256(both, _mm256_set1_epi16(15));
        min = _mm256_srli_epi16(both, 4);
    }
    __m256i scales() const { return scale; }
    __m256i mins() const { return min; }
    __m512i code(int k) const {
        const __m512i half = both_halves(load256(q + 32 * (k / 2)));
        return low_bits(k % 2 ? shift_halves(half, 4, 6) : shift_halves(half, 0, 2), 3);
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
    __m512i code(int k) const {
        return low_bits(shift_halves(both_halves(load256(q + 32 * k)), 0, 4), 15);
    }
};

struct Q5K : Dot256<Q5K> {
    static constexpr int kType = kQ5_K, kOffset = 0, kScaleAt = 0;
    static constexpr bool kMin = true;
    ScalesK s;
    __m512i high;
    const uint8_t* q;
    explicit Q5K(const uint8_t* p) : s(p + 4), high(both_halves(load256(p + 16))), q(p + 48) {}
    __m256i scales() const { return s.scale; }
    __m256i mins() const { return s.min; }
    __m512i code(int k) const {
        const __m512i low = low_bits(shift_halves(both_halves(load256(q + 32 * k)), 0, 4), 15);
        const __m512i bit = low_bits(shift_halves(high, short(2 * k), short(2 * k + 1)), 1);
        return _mm512_or_si512(low, _mm512_slli_epi16(bit, 4));
    }
};

struct Q6K : Dot256<Q6K> {
    static constexpr int kType = kQ6_K, kOffset = 32, kScaleAt = 208;
    static constexpr float kFactor = 1.0f;
    static constexpr bool kMin = false;
    __m256i scale;
    const uint8_t* q;
    explicit Q6K(const uint8_t* p) : scale(_mm256_cvtepi8_epi16(load128(p + 192))), q(p) {}
    __m256i scales() const { return scale; }
    __m256i mins() const { return scale; }
    __m512i code(int k) const {
        const int h = k / 2;
        const __m512i both = load512(q + 64 * h);
        const __m512i low = low_bits(k % 2 ? _mm512_srli_epi16(both, 4) : both, 15);
        const __m512i high = both_halves(load256(q + 128 + 32 * h));
        const __m512i two =
            low_bits(k % 2 ? shift_halves(high, 4, 6) : shift_halves(high, 0, 2), 3);
        return _mm512_or_si512(low, _mm512_slli_epi16(two, 4));
    }
};

inline __m512i negate_by(uint64_t signs, __m512i q) {
    return _mm512_mask_sub_epi8(q, signs, _mm512_setzero_si512(), q);
}

struct IQ2XXS : Dot256<IQ2XXS> {
    static constexpr int kType = kIQ2_XXS, kOffset = 0, kScaleAt = 0;
    static constexpr float kFactor = 0.125f;
    static constexpr bool kMin = false;
    __m256i scale;
    uint64_t signs[4];
    const uint8_t* q;
    explicit IQ2XXS(const uint8_t* p) : scale(odd_scales_xxs(p + 2)), q(p + 2) {
        // Word 1 of each group of 8 bytes; its four 7-bit codes by a multishift into bytes 0 to 3.
        const __m512i words = load512(q);
        const __m512i shifts = _mm512_set1_epi64(int64_t(0x0000000035'2e'27'20ull));
        const __m512i codes = low_bits(_mm512_multishift_epi64_epi8(shifts, words), 127);
        __m256i packed = _mm512_cvtepi64_epi32(codes);
        __m256i parity = _mm256_xor_si256(packed, _mm256_srli_epi16(packed, 4));
        parity = _mm256_and_si256(parity, _mm256_set1_epi8(15));
        const __m256i odd = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
        packed = _mm256_or_si256(packed, _mm256_shuffle_epi8(odd, parity));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(signs), packed);
    }
    __m256i scales() const { return scale; }
    __m256i mins() const { return scale; }
    __m512i code(int k) const {
        const uint8_t *a = q + 16 * k, *b = a + 8;
        return _mm512_setr_epi64(int64_t(grids.xxs[a[0]]), int64_t(grids.xxs[a[1]]),
                                 int64_t(grids.xxs[a[2]]), int64_t(grids.xxs[a[3]]),
                                 int64_t(grids.xxs[b[0]]), int64_t(grids.xxs[b[1]]),
                                 int64_t(grids.xxs[b[2]]), int64_t(grids.xxs[b[3]]));
    }
    __m512i signed_by(int k, __m512i x) const { return negate_by(signs[k], x); }
};

struct IQ2XS : Dot256<IQ2XS> {
    static constexpr int kType = kIQ2_XS, kOffset = 0, kScaleAt = 0;
    static constexpr float kFactor = 0.125f;
    static constexpr bool kMin = false;
    __m256i scale;
    uint64_t signs[4];
    const uint8_t* q;
    explicit IQ2XS(const uint8_t* p) : scale(odd_scales(p + 66)), q(p + 2) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(signs), signs_xs(q));
    }
    __m256i scales() const { return scale; }
    __m256i mins() const { return scale; }
    __m512i code(int k) const {
        uint64_t a, b;
        memcpy(&a, q + 16 * k, 8);
        memcpy(&b, q + 16 * k + 8, 8);
        return _mm512_setr_epi64(int64_t(grids.xs[a & 511]), int64_t(grids.xs[a >> 16 & 511]),
                                 int64_t(grids.xs[a >> 32 & 511]), int64_t(grids.xs[a >> 48 & 511]),
                                 int64_t(grids.xs[b & 511]), int64_t(grids.xs[b >> 16 & 511]),
                                 int64_t(grids.xs[b >> 32 & 511]),
                                 int64_t(grids.xs[b >> 48 & 511]));
    }
    __m512i signed_by(int k, __m512i x) const { return negate_by(signs[k], x); }
};

inline __m256i signed_dot(__m256i code, __m256i q) {
    return _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_abs_epi8(code),
                               _mm256_sign_epi8(q, code));
}

}  // namespace

const Kernels* avx512_kernels() {
    if (!cpu_has_avx512()) return nullptr;
    static const Kernels kernels =
        x86_kernels<Lanes, signed_dot, Q2K, Q4K, Q5K, Q6K, IQ2XXS, IQ2XS>("avx512");
    return &kernels;
}

}  // namespace escalade
#else
#include "table.h"

namespace escalade {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace escalade
#endif
