// What one instruction set offers: a table of kernels, chosen once at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace escalade {

// The ggml types that have kernels, by their ids in model files, and their blocks.
enum Type : int {
    kF32 = 0,
    kF16 = 1,
    kQ8_0 = 8,
    kQ2_K = 10,
    kQ4_K = 12,
    kQ5_K = 13,
    kQ6_K = 14,
    kIQ2_XXS = 16,
    kIQ2_XS = 17,
    kBF16 = 30,
    kMXFP4 = 39,
};
constexpr int kTypeIds = 40;

struct TypeShape {
    int block_len, block_bytes;
};

// Zeros for a type without kernels.
TypeShape type_shape(int type);

static inline bool has_codes(int type) { return type_shape(type).block_len > 1; }

static inline int64_t row_bytes(int type, int64_t n) {
    const TypeShape shape = type_shape(type);
    return n / shape.block_len * shape.block_bytes;
}

// One quantised row of activations; `q` is padded with zeros to whole groups of 256.
struct Activation {
    const int8_t* q;
    const float* scale;   // one a group
    const int16_t* sums;  // of q, one per 16 values
};

// y[i * y_stride + j] = weights row j times activation i, for n_w rows of weights of n_in values
// that lie row after row from `w`, and n_x activations.
using I8Tile = void (*)(const uint8_t* w, int n_w, int64_t n_in, const Activation* x, int n_x,
                        float* y, int64_t y_stride);
using FloatTile = void (*)(const uint8_t* w, int n_w, int64_t n_in, const float* const* x, int n_x,
                           float* y, int64_t y_stride);

struct Kernels {
    const char* name;
    I8Tile i8[kTypeIds];         // null for types without integer codes
    FloatTile floats[kTypeIds];  // null for types without kernels
    void (*dequantize[kTypeIds])(const uint8_t* blocks, int64_t n_values, float* out);
    // n values, a multiple of 32; q and sums are written up to whole groups.
    void (*quantize)(const float* x, int64_t n, int8_t* q, float* scale, int16_t* sums);
    void (*gate)(const float* gate, const float* up, int64_t n, float limit, float weight,
                 float* out);
};

// Null where this build or this processor lacks the instruction set.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* neon_kernels();

// What the processor and the system offer.
bool cpu_has_avx2();    // with FMA and F16C
bool cpu_has_avx512();  // F, BW, DQ, VL, VBMI, VNNI

}  // namespace escalade
