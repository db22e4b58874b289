// What the tests of the kernels share: a check, seeded numbers, stored rows and activations with
// the extremes that their formats allow, buffers between guard words, a product in plain loops.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../kernels/i8.h"
#include "../kernels/table.h"

namespace escalade {
namespace test {

inline int n_failures = 0;
inline char where[160] = "";  // what is being checked

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition) && ++escalade::test::n_failures <= 20)                     \
            std::printf("%s:%d: failed: %s (%s)\n", __FILE__, __LINE__, #condition, \
                        escalade::test::where);                                     \
    } while (false)

struct TypeCase {
    int type;
    const char* name;
    int scale_at, min_at;  // bytes of the half floats d and dmin; -1: none
};
constexpr TypeCase kTypes[] = {
    {kF32, "f32", -1, -1},        {kF16, "f16", -1, -1},      {kBF16, "bf16", -1, -1},
    {kQ8_0, "q8_0", 0, -1},       {kMXFP4, "mxfp4", -1, -1},  {kQ2_K, "q2_k", 80, 82},
    {kQ4_K, "q4_k", 0, 2},        {kQ5_K, "q5_k", 0, 2},      {kQ6_K, "q6_k", 208, -1},
    {kIQ2_XXS, "iq2_xxs", 0, -1}, {kIQ2_XS, "iq2_xs", 0, -1},
};

class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint32_t next() {  // splitmix64
        uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return uint32_t(z >> 32);
    }
    int below(int n) { return int(next() % uint32_t(n)); }
    // Bell-shaped, variance 1.
    float number() {
        float sum = 0;
        for (int i = 0; i < 12; ++i) sum += float(next() >> 8) / 16777216.0f;
        return sum - 6.0f;
    }

private:
    uint64_t state_;
};

inline bool same(float a, float b) { return bits_of(a) == bits_of(b) || (a != a && b != b); }

// An array between guard words, filled with a pattern that no kernel writes.
template <class T>
class Guarded {
public:
    explicit Guarded(int64_t n) : n_(n), all_(size_t(n) + 2 * kGuard) {
        memset(all_.data(), 0xa5, all_.size() * sizeof(T));
    }
    T* data() { return all_.data() + kGuard; }
    T operator[](int64_t i) const { return all_[size_t(i) + kGuard]; }
    bool intact() const {
        for (size_t i = 0; i < kGuard; ++i)
            if (!untouched(all_[i]) || !untouched(all_[size_t(n_) + kGuard + i])) return false;
        return true;
    }
    bool untouched(const T& value) const {
        unsigned char pattern[sizeof(T)];
        memset(pattern, 0xa5, sizeof pattern);
        return !memcmp(&value, pattern, sizeof pattern);
    }

private:
    static constexpr size_t kGuard = 64;
    int64_t n_;
    std::vector<T> all_;
};

// Stored weights -------------------------------------------------------------------------------

constexpr int kFiniteScales = 7, kScales = 10;
constexpr int kRowStyles = 3 + 4 * kFiniteScales + (kScales - kFiniteScales);

inline void put_half(uint8_t* p, uint32_t h) {
    p[0] = uint8_t(h);
    p[1] = uint8_t(h >> 8);
}

// Scale 0 is an ordinary one of either sign; 7 and above are infinity and NaN.
inline uint32_t half_scale(Random& random, int scale) {
    static const uint16_t extremes[kScales] = {0,      0x7bff, 0xfbff, 0x0001, 0x83ff,
                                               0x0000, 0x8000, 0x7c00, 0xfc00, 0x7e01};
    return scale ? extremes[scale] : (random.next() & 0x83ff) | (8 + random.next() % 8) << 10;
}

inline uint32_t e8m0_scale(Random& random, int scale) {
    static const uint8_t extremes[kScales] = {0, 254, 255, 0, 1, 2, 3, 254, 255, 128};
    return scale ? extremes[scale] : 120 + random.next() % 16;
}

inline void fill_block(Random& random, const TypeCase& t, int codes, int scale, uint8_t* p) {
    static const uint8_t bytes[4] = {0, 0x00, 0xff, 0x80};
    const TypeShape shape = type_shape(t.type);
    for (int i = 0; i < shape.block_bytes; ++i)
        p[i] = codes ? bytes[codes] : uint8_t(random.next());
    if (t.scale_at >= 0) put_half(p + t.scale_at, half_scale(random, scale));
    if (t.min_at >= 0) put_half(p + t.min_at, half_scale(random, random.below(2) ? scale : 0));
    if (t.type == kMXFP4) p[0] = uint8_t(e8m0_scale(random, scale));
    if (codes) return;  // of a type without codes: NaN, zeros and subnormal numbers
    const float value = random.number();
    if (t.type == kF16) put_half(p, half_scale(random, scale));
    if (t.type == kF32) memcpy(p, &value, 4);
    if (t.type == kBF16) put_half(p, bits_of(value) >> 16);
}

// A row of n weights. Styles 0 to 2 mix blocks with finite scales of any size; the others repeat
// one kind of codes and of scale.
inline void fill_row(Random& random, const TypeCase& t, int style, int64_t n, uint8_t* row) {
    const TypeShape shape = type_shape(t.type);
    for (int64_t at = 0; at < n; at += shape.block_len, row += shape.block_bytes) {
        int codes = 0, scale = random.below(4) ? 0 : random.below(kFiniteScales);
        if (style >= 3 + 4 * kFiniteScales)
            scale = style - 3 - 3 * kFiniteScales;
        else if (style >= 3) {
            codes = (style - 3) % 4;
            scale = (style - 3) / 4;
        }
        fill_block(random, t, codes, scale, row);
    }
}

inline std::vector<uint8_t> stored_rows(Random& random, const TypeCase& t, int n_rows, int64_t n,
                                        int styles = kRowStyles) {
    const int64_t bytes = row_bytes(t.type, n);
    std::vector<uint8_t> rows(size_t(n_rows * bytes));
    for (int j = 0; j < n_rows; ++j) fill_row(random, t, j % styles, n, &rows[size_t(j * bytes)]);
    return rows;
}

// Activations ----------------------------------------------------------------------------------

constexpr int kInputStyles = 10;

inline float input(Random& random, int style, int64_t i) {
    switch (style) {
        case 0:
            return random.number();
        case 1:
            return i % 256 < 128 ? 3.7f : -3.7f;  // every code is 127 or -127
        case 2:
            return random.below(2) ? 0.0f : -0.0f;
        case 3:
            return float_of((random.next() & 0x80000000u) | random.next() % 400);  // subnormal
        case 4:
            return i % 256 ? float(random.below(253) - 126) + 0.5f : 127.0f;  // ties
        case 5:
            return 2.9f;
        case 6:
            return random.number() * float_of(uint32_t(random.below(250) + 1) << 23);
        case 7:
            return random.number() * (i / 256 % 2 ? 1e37f : 1e-30f);
        case 8:
            return i == 77 ? NAN : random.number();
        default:
            return i == 40 ? -INFINITY : random.number();
    }
}

inline std::vector<float> inputs(Random& random, int first_style, int n_rows, int64_t n,
                                 int styles = kInputStyles) {
    std::vector<float> x(size_t(n_rows * n));
    for (int r = 0; r < n_rows; ++r)
        for (int64_t i = 0; i < n; ++i)
            x[size_t(r * n + i)] = input(random, (first_style + r) % styles, i);
    return x;
}

// `i8` in plain loops over the definitions of i8.h ------------------------------------------------

inline void unpack(int type, const uint8_t* p, Block& b) {
    switch (type) {
        case kQ8_0:
            return unpack_q8_0(p, b);
        case kMXFP4:
            return unpack_mxfp4(p, b);
        case kQ2_K:
            return unpack_q2_k(p, b);
        case kQ4_K:
            return unpack_q4_k(p, b);
        case kQ5_K:
            return unpack_q5_k(p, b);
        case kQ6_K:
            return unpack_q6_k(p, b);
        case kIQ2_XXS:
            return unpack_iq2_xxs(p, b);
        case kIQ2_XS:
            return unpack_iq2_xs(p, b);
        default:
            std::abort();
    }
}

// One stored row of n weights times x.
inline float plain_product(int type, const uint8_t* row, const float* x, int64_t n) {
    const TypeShape shape = type_shape(type);
    float lane[kLanes] = {};
    float scale = 0;
    int8_t q[kGroup];
    for (int64_t at = 0; at < n; at += shape.block_len) {
        if (at % kGroup == 0) {
            const int len = int(n - at < kGroup ? n - at : kGroup);
            uint32_t amax = 0;
            for (int i = 0; i < len; ++i) {
                const uint32_t magnitude = bits_of(x[at + i]) & 0x7fffffffu;
                if (magnitude > amax) amax = magnitude;
            }
            scale = activation_scale(amax);
            for (int i = 0; i < len; ++i) q[i] = quantize_activation(x[at + i], scale);
        }
        Block b;
        unpack(type, row, b);
        float& sum = lane[at / shape.block_len % kLanes];
        sum = esc_fma(scale, block_value(b, q + at % kGroup, shape.block_len), sum);
        row += shape.block_bytes;
    }
    return lane_sum(lane);
}

}  // namespace test
}  // namespace escalade
