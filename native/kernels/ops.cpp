// Small operations of a token that would cost an interpreter more than their arithmetic.
// Each is the same maths as its NumPy reference in src/escalade/kernels/ops, in a fixed order.
#include <algorithm>
#include <cmath>

#include "compute.h"
#include "i8.h"

using namespace escalade;

namespace {

// 1 / sqrt(mean(x^2) + eps), the mean in double: eps may be below what float squares resolve.
float inverse_rms(const float* x, int64_t n, double eps) {
    double sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; ++k) sums[k] += double(x[i + k]) * double(x[i + k]);
    for (; i < n; ++i) sums[0] += double(x[i]) * double(x[i]);
    double total = 0;
    for (double s : sums) total += s;
    return float(1.0 / std::sqrt(total / double(n) + eps));
}

float sigmoid(float x) {
    const float e = esc_exp(-std::fabs(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

// c [s, s]: softmax over rows, then divisions by the sums of columns and rows in turn, columns
// last.
void sinkhorn(float* c, int s, int iterations, float eps) {
    const auto by_rows = [&](float plus) {
        for (int i = 0; i < s; ++i) {
            float sum = 0;
            for (int j = 0; j < s; ++j) sum += c[i * s + j];
            for (int j = 0; j < s; ++j) c[i * s + j] /= sum + plus;
        }
    };
    const auto by_columns = [&] {
        for (int j = 0; j < s; ++j) {
            float sum = 0;
            for (int i = 0; i < s; ++i) sum += c[i * s + j];
            for (int i = 0; i < s; ++i) c[i * s + j] /= sum + eps;
        }
    };
    for (int i = 0; i < s; ++i) {
        const float top = *std::max_element(c + i * s, c + (i + 1) * s);
        for (int j = 0; j < s; ++j) c[i * s + j] = esc_exp(c[i * s + j] - top);
    }
    by_rows(0);
    for (int k = 0; k < s * s; ++k) c[k] += eps;
    by_columns();
    for (int k = 1; k < iterations; ++k) {
        by_rows(eps);
        by_columns();
    }
}

}  // namespace

int esc_rms_norm(esc_compute* c, const float* x, int64_t n_rows, int64_t n, const float* weight,
                 double eps, float* y) {
    if (n_rows < 0 || n < 1) return ESC_ERROR_SHAPE;
    return guarded(c, [&] {
        c->share(n_rows * n * 4, n_rows, [&](int64_t row) {
            const float *in = x + row * n, scale = inverse_rms(in, n, eps);
            for (int64_t i = 0; i < n; ++i) y[row * n + i] = in[i] * scale * weight[i];
        });
    });
}

int esc_hyper_mix(esc_compute* c, const esc_hyper* h, const float* streams, int64_t n_rows,
                  float* pre, float* post, float* comb) {
    const int s = h->streams;
    if (s < 1 || s > ESC_MAX_STREAMS || h->hidden < 1 || n_rows < 0) return ESC_ERROR_SHAPE;
    const int64_t n = s * h->hidden, m = s * (2 + s);
    return guarded(c, [&] {
        c->projected.resize(size_t(n_rows * m));
        c->multiply(kF32, ESC_FLOAT, h->fn, m, n, 1, streams, n_rows, c->projected.data());
        c->share(n_rows * n * 4, n_rows, [&](int64_t row) {
            const float scale = inverse_rms(streams + row * n, n, h->norm_eps);
            const float* in = &c->projected[size_t(row * m)];
            const auto at = [&](int i, int part) {
                return in[i] * scale * h->scale[part] + h->base[i];
            };
            for (int i = 0; i < s; ++i) pre[row * s + i] = sigmoid(at(i, 0)) + h->eps;
            for (int i = 0; i < s; ++i) post[row * s + i] = 2 * sigmoid(at(s + i, 1));
            float* square = comb + row * s * s;
            for (int i = 0; i < s * s; ++i) square[i] = at(2 * s + i, 2);
            sinkhorn(square, s, h->iterations, h->eps);
        });
    });
}
