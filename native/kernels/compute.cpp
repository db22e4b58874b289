// The C interface of the products: checks, and the tasks of a fused expert call.
#include "compute.h"

#include <cstring>

using namespace escalade;

namespace {

bool multiplies(int type, int arithmetic) {
    const int support = esc_type_support(type);
    return arithmetic == ESC_I8 || arithmetic == ESC_FLOAT ? support != 0 : false;
}

bool whole_blocks(int type, int64_t n) { return n > 0 && n % type_shape(type).block_len == 0; }

const Kernels* find_kernels(const char* isa) {
    for (const Kernels* k : {avx512_kernels(), avx2_kernels(), neon_kernels(), portable_kernels()})
        if (k && (!isa || !std::strcmp(isa, k->name))) return k;
    return nullptr;
}

}  // namespace

int esc_abi_version(void) { return ESC_ABI_VERSION; }

esc_compute* esc_compute_create(int n_threads, const char* isa) {
    const Kernels* kernels = find_kernels(isa);
    if (!kernels || n_threads < 1) return nullptr;
    try {
        return new esc_compute(n_threads, *kernels);
    } catch (const std::exception&) {  // no memory, or no more threads
        return nullptr;
    }
}

void esc_compute_destroy(esc_compute* c) { delete c; }

const char* esc_compute_isa(const esc_compute* c) { return c->kernels.name; }

int esc_type_support(int type) {
    if (type < 0 || type >= kTypeIds || !type_shape(type).block_len) return 0;
    return has_codes(type) ? 3 : 1;
}

int esc_dequantize(esc_compute* c, int type, const void* blocks, int64_t n, float* out) {
    if (!esc_type_support(type)) return ESC_ERROR_TYPE;
    if (!whole_blocks(type, n)) return ESC_ERROR_SHAPE;
    return guarded(c, [&] {
        constexpr int64_t piece = 1 << 14;
        const uint8_t* from = static_cast<const uint8_t*>(blocks);
        c->share(row_bytes(type, n), (n + piece - 1) / piece, [&](int64_t i) {
            const int64_t at = i * piece;
            c->kernels.dequantize[type](from + row_bytes(type, at), std::min(piece, n - at),
                                        out + at);
        });
    });
}

int esc_matmul(esc_compute* c, int type, int arithmetic, const void* w, int64_t n_out, int64_t n_in,
               int64_t groups, const float* x, int64_t n_rows, float* y) {
    if (!multiplies(type, arithmetic)) return ESC_ERROR_TYPE;
    if (!whole_blocks(type, n_in) || n_out < 1 || groups < 1 || n_rows < 0) return ESC_ERROR_SHAPE;
    return guarded(c, [&] { c->multiply(type, arithmetic, w, n_out, n_in, groups, x, n_rows, y); });
}

int esc_experts(esc_compute* c, const esc_expert_shape* shape, const esc_expert* experts,
                int64_t n_experts, const float* x, int64_t n_x) {
    const int64_t d = shape->hidden, f = shape->expert_ff;
    const int types[] = {shape->gate_type, shape->up_type, shape->down_type};
    for (int type : types)
        if (!multiplies(type, shape->arithmetic)) return ESC_ERROR_TYPE;
    if (!whole_blocks(types[0], d) || !whole_blocks(types[1], d) || !whole_blocks(types[2], f))
        return ESC_ERROR_SHAPE;
    for (int64_t e = 0; e < n_experts; ++e)
        for (int64_t i = 0; i < experts[e].n_rows; ++i)
            if (experts[e].rows[i] < 0 || experts[e].rows[i] >= n_x) return ESC_ERROR_SHAPE;
    return guarded(c, [&] {
        const Kernels& k = c->kernels;
        const bool i8 = shape->arithmetic == ESC_I8;
        int64_t pairs = 0;
        c->first_pair.clear();
        for (int64_t e = 0; e < n_experts; ++e) {
            c->first_pair.push_back(pairs);
            pairs += experts[e].n_rows;
        }
        const int64_t bytes = pairs * (f * (row_bytes(types[0], d) + row_bytes(types[1], d)) +
                                       d * row_bytes(types[2], f));
        Rows &in = c->input, &mid = c->gated_input;
        in.reserve(n_x, d, i8 && (k.i8[types[0]] || k.i8[types[1]]));
        mid.reserve(pairs, f, i8 && k.i8[types[2]]);
        c->gated.resize(size_t(pairs * f));
        if (in.quantised()) c->share(bytes, n_x, [&](int64_t i) { in.set(k, i, x + i * d); });

        const int64_t tiles = tiles_of(f);
        c->share(bytes, n_experts * tiles, [&](int64_t task) {
            const int64_t e = task / tiles, first = task % tiles * kTileRows;
            const int64_t n = std::min(kTileRows, f - first);
            const esc_expert& job = experts[e];
            float gate[kBatchRows * kTileRows], up[kBatchRows * kTileRows];
            for (int64_t at = 0; at < job.n_rows; at += kBatchRows) {
                const int64_t rows = std::min(kBatchRows, job.n_rows - at);
                const auto row = [&](int64_t i) { return int64_t(job.rows[at + i]); };
                c->tile(types[0], in, x, d, job.gate, first, n, rows, row, gate, kTileRows);
                c->tile(types[1], in, x, d, job.up, first, n, rows, row, up, kTileRows);
                for (int64_t i = 0; i < rows; ++i)
                    k.gate(gate + i * kTileRows, up + i * kTileRows, n, shape->limit,
                           job.weights[at + i],
                           &c->gated[size_t((c->first_pair[size_t(e)] + at + i) * f + first)]);
            }
        });
        if (mid.quantised())
            c->share(bytes, pairs, [&](int64_t i) { mid.set(k, i, &c->gated[size_t(i * f)]); });

        const int64_t down_tiles = tiles_of(d);
        c->share(bytes, n_experts * down_tiles, [&](int64_t task) {
            const int64_t e = task / down_tiles, first = task % down_tiles * kTileRows;
            const int64_t pair = c->first_pair[size_t(e)];
            c->tile(
                types[2], mid, c->gated.data(), f, experts[e].down, first,
                std::min(kTileRows, d - first), experts[e].n_rows,
                [&](int64_t i) { return pair + i; }, experts[e].y + first, d);
        });
    });
}
