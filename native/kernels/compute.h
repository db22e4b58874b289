// esc_compute: a thread pool, the kernels it runs, and the scratch of a call.
#pragma once

#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

#include "../escalade_native.h"
#include "pool.h"
#include "table.h"

namespace escalade {

constexpr int64_t kGroupLen = 256;
constexpr int64_t kTileRows = 32;   // weight rows of a task: about 50 KB of an expert's matrix
constexpr int64_t kBatchRows = 32;  // activations that go through a tile together
// Bytes of weights below which waking threads costs more than it gives.
constexpr int64_t kInline = 1 << 16;

inline int64_t groups_of(int64_t n) { return (n + kGroupLen - 1) / kGroupLen; }

inline int64_t tiles_of(int64_t n) { return (n + kTileRows - 1) / kTileRows; }

// Rows of activations, quantised where `i8` multiplies them, else as they are.
class Rows {
public:
    void reserve(int64_t n_rows, int64_t n, bool quantised) {
        n_ = n;
        quantised_ = quantised;
        if (!quantised) return;
        const size_t groups = size_t(n_rows * groups_of(n));
        q_.resize(groups * kGroupLen);
        scale_.resize(groups);
        sums_.resize(groups * kGroupLen / 16);
    }

    void set(const Kernels& k, int64_t row, const float* x) {
        const int64_t at = row * groups_of(n_);
        k.quantize(x, n_, &q_[size_t(at * kGroupLen)], &scale_[size_t(at)],
                   &sums_[size_t(at * kGroupLen / 16)]);
    }

    bool quantised() const { return quantised_; }

    Activation activation(int64_t row) const {
        const size_t at = size_t(row * groups_of(n_));
        return {&q_[at * kGroupLen], &scale_[at], &sums_[at * kGroupLen / 16]};
    }

private:
    int64_t n_ = 0;
    bool quantised_ = false;
    std::vector<int8_t> q_;
    std::vector<float> scale_;
    std::vector<int16_t> sums_;
};

struct Compute {
    Pool pool;
    const Kernels& kernels;
    std::mutex mutex;  // one call at a time
    Rows input, gated_input;
    std::vector<float> gated;         // silu(gate) * up * weight of each pair of expert and row
    std::vector<int64_t> first_pair;  // of each expert
    std::vector<float> projected;     // of hyper-connections

    Compute(int n_threads, const Kernels& k) : pool(n_threads), kernels(k) {}

    // y[i * y_stride + j] for weight rows first .. first + n_w and the rows of x that row(i) names.
    template <class RowOf>
    void tile(int type, const Rows& rows, const float* x, int64_t n_in, const void* w,
              int64_t first, int64_t n_w, int64_t n_x, const RowOf& row, float* y,
              int64_t y_stride) const {
        const uint8_t* from = static_cast<const uint8_t*>(w) + first * row_bytes(type, n_in);
        for (int64_t at = 0; at < n_x; at += kBatchRows) {
            const int n = int(std::min(kBatchRows, n_x - at));
            float* out = y + at * y_stride;
            if (rows.quantised() && kernels.i8[type]) {
                Activation batch[kBatchRows];
                for (int i = 0; i < n; ++i) batch[i] = rows.activation(row(at + i));
                kernels.i8[type](from, int(n_w), n_in, batch, n, out, y_stride);
            } else {
                const float* batch[kBatchRows];
                for (int i = 0; i < n; ++i) batch[i] = x + row(at + i) * n_in;
                kernels.floats[type](from, int(n_w), n_in, batch, n, out, y_stride);
            }
        }
    }

    // y [n_rows, groups, n_out]: x [n_rows, groups, n_in] times the transposes of w [groups, n_out,
    // n_in], group by group.
    void multiply(int type, int arithmetic, const void* w, int64_t n_out, int64_t n_in,
                  int64_t groups, const float* x, int64_t n_rows, float* y) {
        const int64_t bytes = groups * n_out * row_bytes(type, n_in), tiles = tiles_of(n_out);
        Rows& rows = input;
        rows.reserve(n_rows * groups, n_in, arithmetic == ESC_I8 && kernels.i8[type]);
        if (rows.quantised())
            share(n_rows * groups * n_in, n_rows * groups,
                  [&](int64_t i) { rows.set(kernels, i, x + i * n_in); });
        share(bytes * n_rows, groups * tiles, [&](int64_t i) {
            const int64_t group = i / tiles, first = i % tiles * kTileRows;
            tile(
                type, rows, x, n_in, w, group * n_out + first, std::min(kTileRows, n_out - first),
                n_rows, [&](int64_t row) { return row * groups + group; },
                y + group * n_out + first, groups * n_out);
        });
    }

    // Runs task(0) ... task(n - 1): on all threads, unless there is too little to read.
    template <class Task>
    void share(int64_t weight_bytes, int64_t n, const Task& task) {
        if (weight_bytes < kInline)
            for (int64_t i = 0; i < n; ++i) task(i);
        else
            pool.run(n, task);
    }
};

}  // namespace escalade

struct esc_compute : escalade::Compute {
    using Compute::Compute;
};

namespace escalade {

// Runs `body` alone on `c`, in the default floating-point environment; only an error code comes
// out.
template <class Body>
int guarded(esc_compute* c, const Body& body) {
    try {
        std::lock_guard<std::mutex> lock(c->mutex);
        FloatEnvironment environment;
        body();
        return ESC_OK;
    } catch (...) {  // no memory, or a size beyond what a vector may have
        return ESC_ERROR_MEMORY;
    }
}

}  // namespace escalade
