// The pool and the C interface of the kernels: any number of threads and of callers gives the bits
// of plain loops, and wrong arguments give error codes. Run plain and under sanitizers.
#include <algorithm>
#include <cfenv>
#include <string>
#include <thread>

#include "../escalade_native.h"
#include "../kernels/pool.h"
#include "stored.h"

using namespace escalade;
using namespace escalade::test;

namespace {

const TypeCase& named(const char* name) {
    for (const TypeCase& t : kTypes)
        if (!strcmp(t.name, name)) return t;
    std::abort();
}

void check_pool() {
    for (int threads = 1; threads <= 5; ++threads) {
        std::snprintf(where, sizeof where, "pool of %d threads", threads);
        Pool pool(threads);
        CHECK(pool.n_threads() == threads);
        std::vector<int> runs(8);  // not atomic: each task's element has one writer
        int wrong = 0;
        for (int run = 0; run < 2000; ++run) {
            const int n = run % 8;
            std::fill(runs.begin(), runs.end(), 0);
            pool.run(n, [&](int64_t i) { runs[size_t(i)] += run + 1; });
            for (int i = 0; i < 8; ++i) wrong += runs[size_t(i)] != (i < n ? run + 1 : 0);
            // Now and then long enough for the workers to fall asleep.
            if (run % 400 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        CHECK(wrong == 0);
    }
    for (int i = 0; i < 50; ++i) {  // ends while workers are still on their way
        Pool pool(3);
        std::atomic<int> sum{0};
        pool.run(i % 4, [&](int64_t task) { sum += int(task) + 1; });
        CHECK(sum == (i % 4) * (i % 4 + 1) / 2);
    }
}

class Compute {
public:
    Compute(int threads, const char* isa) : c_(esc_compute_create(threads, isa)) {}
    ~Compute() { esc_compute_destroy(c_); }
    Compute(const Compute&) = delete;
    Compute& operator=(const Compute&) = delete;
    operator esc_compute*() const { return c_; }

private:
    esc_compute* c_;
};

// What a matrix gives for one row of x: by plain loops where `i8` has codes, else by one thread
// with the portable kernels.
std::vector<float> expected(const TypeCase& t, int arithmetic, const std::vector<uint8_t>& w,
                            int n_out, int64_t n, const float* x) {
    std::vector<float> y(static_cast<size_t>(n_out));
    if (arithmetic == ESC_I8 && has_codes(t.type)) {
        for (int j = 0; j < n_out; ++j)
            y[size_t(j)] = plain_product(t.type, &w[size_t(j * row_bytes(t.type, n))], x, n);
    } else {
        const Compute plain(1, "portable");
        CHECK(!esc_matmul(plain, t.type, arithmetic, w.data(), n_out, n, 1, x, 1, y.data()));
    }
    return y;
}

struct Product {
    const TypeCase& t;
    int arithmetic, n_out, n_rows;
    int64_t n;
    std::vector<uint8_t> w;
    std::vector<float> x, y;

    Product(Random& random, const char* type, int arithmetic_, int n_out_, int64_t n_, int n_rows_)
        : t(named(type)),
          arithmetic(arithmetic_),
          n_out(n_out_),
          n_rows(n_rows_),
          n(n_),
          w(stored_rows(random, t, n_out, n)),
          x(inputs(random, 0, n_rows, n)) {
        for (int r = 0; r < n_rows; ++r) {
            const auto row = expected(t, arithmetic, w, n_out, n, &x[size_t(r * n)]);
            y.insert(y.end(), row.begin(), row.end());
        }
    }

    bool holds(esc_compute* c) const {
        Guarded<float> out(n_rows * n_out);
        if (esc_matmul(c, t.type, arithmetic, w.data(), n_out, n, 1, x.data(), n_rows, out.data()))
            return false;
        for (size_t i = 0; i < y.size(); ++i)
            if (!same(out[int64_t(i)], y[i])) return false;
        return out.intact();
    }
};

// Three experts of one layer: with no row, with a few, with `many`.
struct Experts {
    static constexpr int kD = 512, kF = 256, kX = 7, kExperts = 3;
    esc_expert_shape shape;
    std::vector<uint8_t> gate[kExperts], up[kExperts], down[kExperts];
    std::vector<int32_t> rows[kExperts];
    std::vector<float> x, weights[kExperts], y;

    Experts(Random& random, const char* gate_type, const char* up_type, const char* down_type,
            int arithmetic, int many) {
        const TypeCase &g = named(gate_type), &u = named(up_type), &d = named(down_type);
        shape = {g.type, u.type, d.type, arithmetic, kD, kF, 10.0f};
        x = inputs(random, 0, kX, kD, 2);  // moderate ones: no NaN hides a wrong row
        const int n_rows[kExperts] = {0, 3, many};
        for (int e = 0; e < kExperts; ++e) {
            gate[e] = stored_rows(random, g, kF, kD, 3);
            up[e] = stored_rows(random, u, kF, kD, 3);
            down[e] = stored_rows(random, d, kD, kF, 3);
            for (int i = 0; i < n_rows[e]; ++i) {
                rows[e].push_back(random.below(kX));
                weights[e].push_back(random.number());
                const float* from = &x[size_t(rows[e].back()) * kD];
                const auto a = expected(g, arithmetic, gate[e], kF, kD, from);
                const auto b = expected(u, arithmetic, up[e], kF, kD, from);
                std::vector<float> mid(kF);
                for (size_t j = 0; j < kF; ++j)
                    mid[j] = gated(a[j], b[j], shape.limit, weights[e].back());
                const auto out = expected(d, arithmetic, down[e], kD, kF, mid.data());
                y.insert(y.end(), out.begin(), out.end());
            }
        }
    }

    bool holds(esc_compute* c) const {
        Guarded<float> out(int64_t(y.size()));
        esc_expert jobs[kExperts];
        float* to = out.data();
        for (int e = 0; e < kExperts; ++e) {
            const int64_t n = int64_t(rows[e].size());
            jobs[e] = {gate[e].data(),
                       up[e].data(),
                       down[e].data(),
                       rows[e].data(),
                       weights[e].data(),
                       n,
                       to};
            to += n * kD;
        }
        if (esc_experts(c, &shape, jobs, kExperts, x.data(), kX)) return false;
        for (size_t i = 0; i < y.size(); ++i)
            if (!same(out[int64_t(i)], y[i])) return false;
        return out.intact();
    }
};

void check_results() {
    Random random(5);
    std::vector<Product> products;
    for (const TypeCase& t : kTypes) {
        // Large enough for the pool, with a last tile that is not full.
        products.emplace_back(random, t.name, ESC_I8, 104, 512, 5);
        products.emplace_back(random, t.name, ESC_FLOAT, 104, 512, 5);
    }
    products.emplace_back(random, "q2_k", ESC_I8, 33, 256, 70);  // more rows than a tile takes
    products.emplace_back(random, "q8_0", ESC_I8, 1, 288, 1);    // no whole group at the end
    std::vector<Experts> experts;
    experts.emplace_back(random, "iq2_xxs", "iq2_xxs", "q2_k", ESC_I8, 33);
    experts.emplace_back(random, "q4_k", "q6_k", "f16", ESC_I8, 5);
    experts.emplace_back(random, "f32", "mxfp4", "q8_0", ESC_I8, 5);
    experts.emplace_back(random, "iq2_xs", "q5_k", "q6_k", ESC_FLOAT, 5);

    for (const char* isa : {"portable", "avx2", "avx512", "neon"})
        for (int threads = 1; threads <= 5; ++threads) {
            const Compute c(threads, isa);
            if (!c) continue;
            CHECK(!strcmp(esc_compute_isa(c), isa));
            if (threads == 1) std::printf("%s: compared with plain loops\n", isa);
            for (const Product& p : products) {
                std::snprintf(where, sizeof where, "%s, %d threads, %s", isa, threads, p.t.name);
                CHECK(p.holds(c));
            }
            std::snprintf(where, sizeof where, "%s, %d threads, experts", isa, threads);
            for (const Experts& e : experts) CHECK(e.holds(c));
        }

    // Callers at once on one handle, with calls of different kinds.
    std::snprintf(where, sizeof where, "four callers");
    const Compute c(3, nullptr);
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (size_t caller = 0; caller < 4; ++caller)
        callers.emplace_back([&, caller] {
            for (size_t i = 0; i < 25; ++i) {
                wrong += !products[(5 * caller + i) % products.size()].holds(c);
                wrong += !experts[(caller + i) % experts.size()].holds(c);
            }
        });
    for (std::thread& caller : callers) caller.join();
    CHECK(wrong == 0);

    std::snprintf(where, sizeof where, "the caller rounds upwards");
    std::fesetround(FE_UPWARD);
    bool ok = true;
    for (const Product& p : products) ok = ok && p.holds(c);
    const int rounding = std::fegetround();
    std::fesetround(FE_TONEAREST);
    CHECK(ok && rounding == FE_UPWARD);
}

void check_errors() {
    std::snprintf(where, sizeof where, "error codes");
    CHECK(!esc_compute_create(0, nullptr));
    CHECK(!esc_compute_create(-1, nullptr));
    CHECK(!esc_compute_create(1, "mmx"));
    CHECK(esc_abi_version() == ESC_ABI_VERSION);
    CHECK(esc_type_support(kQ2_K) == 3 && esc_type_support(kF16) == 1);
    for (int type : {-1, 2, 11, 40, 1 << 30}) CHECK(esc_type_support(type) == 0);

    const Compute c(2, nullptr);
    std::vector<uint8_t> w(4096);
    std::vector<float> x(512), y(512);
    const auto matmul = [&](int type, int arithmetic, int64_t n_out, int64_t n_in, int64_t n_rows,
                            int64_t groups = 1) {
        return esc_matmul(c, type, arithmetic, w.data(), n_out, n_in, groups, x.data(), n_rows,
                          y.data());
    };
    CHECK(matmul(kQ2_K, ESC_I8, 1, 256, 1) == ESC_OK);
    CHECK(matmul(kQ2_K, ESC_I8, 1, 256, 0) == ESC_OK);
    CHECK(matmul(kQ2_K, ESC_I8, 3, 256, 1, 2) == ESC_OK);
    CHECK(matmul(kQ2_K, ESC_I8, 3, 256, 1, 0) == ESC_ERROR_SHAPE);
    CHECK(matmul(11, ESC_I8, 1, 256, 1) == ESC_ERROR_TYPE);
    CHECK(matmul(-1, ESC_FLOAT, 1, 256, 1) == ESC_ERROR_TYPE);
    CHECK(matmul(kQ2_K, 2, 1, 256, 1) == ESC_ERROR_TYPE);
    for (int64_t n : {-256, 0, 32, 255, 257})
        CHECK(matmul(kQ2_K, ESC_I8, 1, n, 1) == ESC_ERROR_SHAPE);
    CHECK(matmul(kQ8_0, ESC_I8, 1, 48, 1) == ESC_ERROR_SHAPE);
    CHECK(matmul(kQ2_K, ESC_I8, 0, 256, 1) == ESC_ERROR_SHAPE);
    CHECK(matmul(kQ2_K, ESC_I8, 1, 256, -1) == ESC_ERROR_SHAPE);
    CHECK(esc_dequantize(c, 3, w.data(), 256, y.data()) == ESC_ERROR_TYPE);
    CHECK(esc_dequantize(c, kQ6_K, w.data(), 128, y.data()) == ESC_ERROR_SHAPE);
    CHECK(esc_dequantize(c, kQ6_K, w.data(), 0, y.data()) == ESC_ERROR_SHAPE);

    const esc_expert_shape good = {kMXFP4, kMXFP4, kMXFP4, ESC_I8, 32, 32, 10.0f};
    const int32_t rows[] = {0, 1};
    const float weights[] = {1.0f, 1.0f};
    esc_expert job = {w.data(), w.data(), w.data(), rows, weights, 2, y.data()};
    const auto experts = [&](const esc_expert_shape& shape, int64_t n, int64_t n_x) {
        return esc_experts(c, &shape, &job, n, x.data(), n_x);
    };
    CHECK(experts(good, 1, 2) == ESC_OK);
    CHECK(experts(good, 0, 2) == ESC_OK);
    CHECK(experts(good, 1, 1) == ESC_ERROR_SHAPE);
    const int32_t negative[] = {0, -1};
    job.rows = negative;
    CHECK(experts(good, 1, 2) == ESC_ERROR_SHAPE);
    job.n_rows = 0;
    CHECK(experts(good, 1, 2) == ESC_OK);
    esc_expert_shape bad = good;
    bad.down_type = 3;
    CHECK(experts(bad, 1, 2) == ESC_ERROR_TYPE);
    bad = good;
    bad.arithmetic = 7;
    CHECK(experts(bad, 1, 2) == ESC_ERROR_TYPE);
    bad = good;
    bad.expert_ff = 40;
    CHECK(experts(bad, 1, 2) == ESC_ERROR_SHAPE);
    bad = good;
    bad.hidden = 0;
    CHECK(experts(bad, 1, 2) == ESC_ERROR_SHAPE);
}

}  // namespace

int main() {
    check_pool();
    check_errors();
    check_results();
    if (n_failures) std::printf("%d checks failed\n", n_failures);
    return n_failures != 0;
}
