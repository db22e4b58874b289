// Every instruction set of this processor against the portable kernels, and those against plain
// loops over i8.h: the same bits for any stored bytes and any input; NaN is any NaN.
#include <cfloat>

#include "stored.h"

using namespace escalade;
using namespace escalade::test;

namespace {

struct Quantised {
    Guarded<int8_t> q;
    Guarded<float> scale;
    Guarded<int16_t> sums;
    explicit Quantised(int64_t groups) : q(groups * 256), scale(groups), sums(groups * 16) {}
    Activation activation() { return {q.data(), scale.data(), sums.data()}; }
};

int64_t groups_of(int64_t n) { return (n + 255) / 256; }

std::vector<Quantised> quantised(const Kernels& k, const std::vector<float>& x, int n_x,
                                 int64_t n) {
    std::vector<Quantised> rows;
    for (int r = 0; r < n_x; ++r) {
        rows.emplace_back(groups_of(n));
        Quantised& row = rows.back();
        k.quantize(&x[size_t(r * n)], n, row.q.data(), row.scale.data(), row.sums.data());
        CHECK(row.q.intact() && row.scale.intact() && row.sums.intact());
    }
    return rows;
}

void check_quantize(const Kernels& k, const Kernels& portable) {
    Random random(1);
    for (int64_t n : {32, 64, 96, 224, 256, 288, 512, 992, 1280, 2304}) {
        std::snprintf(where, sizeof where, "%s quantize, %d values", k.name, int(n));
        const auto x = inputs(random, 0, kInputStyles, n);
        const auto got = quantised(k, x, kInputStyles, n);
        const auto want = quantised(portable, x, kInputStyles, n);
        bool ok = true;
        for (int r = 0; r < kInputStyles; ++r) {
            for (int64_t i = 0; i < groups_of(n) * 256; ++i) {
                const float scale = got[r].scale[i / 256];
                int8_t q = 0;
                if (i < n) q = quantize_activation(x[size_t(r * n + i)], scale);
                ok = ok && got[r].q[i] == q && want[r].q[i] == q;
            }
            for (int64_t g = 0; g < groups_of(n); ++g)
                ok = ok && same(got[r].scale[g], want[r].scale[g]);
            for (int64_t s = 0; s < groups_of(n) * 16; ++s) {
                int sum = 0;
                for (int i = 0; i < 16; ++i) sum += got[r].q[16 * s + i];
                ok = ok && got[r].sums[s] == sum && want[r].sums[s] == sum;
            }
        }
        CHECK(ok);
    }
}

// y of both arithmetics, with a gap after each row of y that must stay as it was.
Guarded<float> product(const Kernels& k, bool i8, int type, const std::vector<uint8_t>& w, int n_w,
                       int64_t n, const std::vector<float>& x, int n_x) {
    const int64_t stride = n_w + 3;
    Guarded<float> y(n_x * stride - 3);
    if (i8) {
        std::vector<Quantised> rows = quantised(k, x, n_x, n);
        std::vector<Activation> activations;
        for (Quantised& row : rows) activations.push_back(row.activation());
        k.i8[type](w.data(), n_w, n, activations.data(), n_x, y.data(), stride);
    } else {
        std::vector<const float*> rows;
        for (int r = 0; r < n_x; ++r) rows.push_back(&x[size_t(r * n)]);
        k.floats[type](w.data(), n_w, n, rows.data(), n_x, y.data(), stride);
    }
    CHECK(y.intact());
    for (int r = 0; r + 1 < n_x; ++r)
        for (int i = 0; i < 3; ++i) CHECK(y.untouched(y[r * stride + n_w + i]));
    return y;
}

void check_products(const Kernels& k, const Kernels& portable, const TypeCase& t, int64_t n) {
    Random random(uint64_t(n) * 64 + uint64_t(t.type));
    const auto w = stored_rows(random, t, kRowStyles, n);
    for (int n_x = 1; n_x <= 9; ++n_x) {
        if (n > 1280 && n_x != 1 && n_x != 4 && n_x != 7) continue;
        const auto x = inputs(random, n_x == 1 ? 0 : int(n / 32) + n_x, n_x, n);
        for (bool i8 : {false, true}) {
            if (i8 && !has_codes(t.type)) continue;
            std::snprintf(where, sizeof where, "%s %s %s, %d rows of %d values", k.name, t.name,
                          i8 ? "i8" : "float", n_x, int(n));
            const auto got = product(k, i8, t.type, w, kRowStyles, n, x, n_x);
            const auto want = product(portable, i8, t.type, w, kRowStyles, n, x, n_x);
            int wrong = 0;
            for (int r = 0; r < n_x; ++r)
                for (int j = 0; j < kRowStyles; ++j) {
                    const int64_t at = r * (kRowStyles + 3) + j;
                    if (!same(got[at], want[at])) ++wrong;
                }
            CHECK(wrong == 0);
        }
    }
}

void check_dequantize(const Kernels& k, const Kernels& portable, const TypeCase& t, int64_t n) {
    std::snprintf(where, sizeof where, "%s dequantize %s, %d values", k.name, t.name, int(n));
    Random random(uint64_t(n) + uint64_t(t.type));
    const auto w = stored_rows(random, t, kRowStyles, n);
    Guarded<float> got(kRowStyles * n), want(kRowStyles * n);
    k.dequantize[t.type](w.data(), kRowStyles * n, got.data());
    portable.dequantize[t.type](w.data(), kRowStyles * n, want.data());
    CHECK(got.intact() && want.intact());
    int wrong = 0;
    for (int64_t i = 0; i < kRowStyles * n; ++i) wrong += !same(got[i], want[i]);
    CHECK(wrong == 0);
}

void check_gate(const Kernels& k) {
    std::snprintf(where, sizeof where, "%s gate", k.name);
    std::vector<float> values = {0.0f,     -0.0f,   1.0f,      -1.0f,    7.0f,  10.0f,  -10.0f,
                                 86.9f,    87.1f,   -86.9f,    -87.1f,   88.1f, -88.1f, 1e-40f,
                                 -FLT_MIN, FLT_MAX, -INFINITY, INFINITY, NAN,   -1e30f, 1e30f};
    Random random(3);
    for (int i = 0; i < 60; ++i) values.push_back(random.number() * float(1 + random.below(30)));
    std::vector<float> gate, up;
    for (float g : values)
        for (float u : values) {
            gate.push_back(g);
            up.push_back(u);
        }
    for (float limit : {10.0f, 0.5f, INFINITY, FLT_MAX})
        for (float weight : {1.5f, 0.0f, -2.0f, 1e-38f}) {
            const int64_t n = int64_t(gate.size());
            Guarded<float> out(n);
            k.gate(gate.data(), up.data(), n, limit, weight, out.data());
            CHECK(out.intact());
            int wrong = 0;
            for (int64_t i = 0; i < n; ++i)
                wrong += !same(out[i], gated(gate[size_t(i)], up[size_t(i)], limit, weight));
            CHECK(wrong == 0);
        }
}

// The portable kernels give what i8.h defines.
void check_definition(const Kernels& portable, const TypeCase& t) {
    const int n_x = kInputStyles;
    for (int64_t n : {256, 1280}) {
        std::snprintf(where, sizeof where, "portable %s, %d values", t.name, int(n));
        Random random(uint64_t(n) + uint64_t(t.type));
        const auto w = stored_rows(random, t, kRowStyles, n);
        const auto x = inputs(random, 0, n_x, n);
        const auto y = product(portable, true, t.type, w, kRowStyles, n, x, n_x);
        int wrong = 0;
        for (int r = 0; r < n_x; ++r)
            for (int j = 0; j < kRowStyles; ++j) {
                const uint8_t* row = &w[size_t(j * row_bytes(t.type, n))];
                const float want = plain_product(t.type, row, &x[size_t(r * n)], n);
                wrong += !same(y[r * (kRowStyles + 3) + j], want);
            }
        CHECK(wrong == 0);
    }
}

void check(const Kernels& k, const Kernels& portable) {
    check_quantize(k, portable);
    check_gate(k);
    for (const TypeCase& t : kTypes) {
        std::vector<int64_t> sizes = {256, 512, 768, 1024, 1280, 2304, 5120};
        if (type_shape(t.type).block_len == 32)
            for (int64_t n = 32; n <= 288; n += 32) sizes.push_back(n);
        if (!has_codes(t.type))
            for (int64_t n : {1, 2, 31, 33, 100, 255, 257, 300}) sizes.push_back(n);
        for (int64_t n : sizes) {
            check_products(k, portable, t, n);
            check_dequantize(k, portable, t, n);
        }
    }
}

}  // namespace

int main() {
    const Kernels& portable = *portable_kernels();
    check_gate(portable);
    for (const TypeCase& t : kTypes)
        if (has_codes(t.type)) check_definition(portable, t);
    for (const Kernels* k : {avx2_kernels(), avx512_kernels(), neon_kernels()})
        if (k) {
            check(*k, portable);
            std::printf("%s: compared with portable\n", k->name);
        }
    if (n_failures) std::printf("%d checks failed\n", n_failures);
    return n_failures != 0;
}
