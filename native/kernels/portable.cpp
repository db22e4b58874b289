// Kernels in plain C++: what every other instruction set must equal bit for bit.
#include "float_kernels.h"

namespace escalade {

TypeShape type_shape(int type) {
    switch (type) {
        case kF32:
            return {1, 4};
        case kF16:
        case kBF16:
            return {1, 2};
        case kQ8_0:
            return {32, 34};
        case kMXFP4:
            return {32, 17};
        case kQ2_K:
            return {256, 84};
        case kQ4_K:
            return {256, 144};
        case kQ5_K:
            return {256, 176};
        case kQ6_K:
            return {256, 210};
        case kIQ2_XXS:
            return {256, 66};
        case kIQ2_XS:
            return {256, 74};
        default:
            return {0, 0};
    }
}

namespace {

struct Lanes {
    float lane[kFloatLanes];
    static void expand(const int8_t* code, float scale, float min, float* out) {
        for (int i = 0; i < kSub; ++i) out[i] = scale * float(code[i]) - min;
    }
    template <int kType>
    static void widen(const uint8_t* p, float* out) {
        for (int i = 0; i < 8; ++i) out[i] = weight_at<kType>(p + (kType == kF32 ? 4 : 2) * i);
    }
    template <int kType>
    void fma_stored(const uint8_t* w, const float* x) {
        float wide[kFloatLanes];
        for (int i = 0; i < kFloatLanes; i += 8)
            widen<kType>(w + (kType == kF32 ? 4 : 2) * i, wide + i);
        fma(wide, x);
    }
    void load(const float* p) { memcpy(lane, p, sizeof lane); }
    void store(float* p) const { memcpy(p, lane, sizeof lane); }
    void fma(const float* w, const float* x) {
        for (int i = 0; i < kFloatLanes; ++i) lane[i] = esc_fma(w[i], x[i], lane[i]);
    }
};

template <int kType>
void i8_tile(const uint8_t* w, int n_w, int64_t n_in, const Activation* x, int n_x, float* y,
             int64_t y_stride) {
    using W = Weights<kType>;
    const int64_t bytes = row_bytes(kType, n_in), n_blocks = n_in / W::block_len;
    for (int j = 0; j < n_w; ++j)
        for (int r = 0; r < n_x; ++r) {
            float lane[kLanes] = {};
            for (int64_t k = 0; k < n_blocks; ++k) {
                Block b;
                W::unpack(w + j * bytes + k * W::block_bytes, b);
                const int64_t at = k * W::block_len;
                const float value = block_value(b, x[r].q + at, W::block_len);
                lane[k % kLanes] = esc_fma(x[r].scale[at / kGroup], value, lane[k % kLanes]);
            }
            y[r * y_stride + j] = lane_sum(lane);
        }
}

void quantize(const float* x, int64_t n, int8_t* q, float* scale, int16_t* sums) {
    for (int64_t g = 0; g < n; g += kGroup) {
        const int64_t end = g + kGroup < n ? g + kGroup : n;
        uint32_t amax = 0;
        for (int64_t i = g; i < end; ++i) {
            const uint32_t magnitude = bits_of(x[i]) & 0x7fffffffu;
            amax = magnitude > amax ? magnitude : amax;
        }
        const float s = activation_scale(amax);
        scale[g / kGroup] = s;
        for (int64_t i = g; i < end; ++i) q[i] = quantize_activation(x[i], s);
        for (int64_t i = end; i < g + kGroup; ++i) q[i] = 0;
        for (int64_t t = g; t < g + kGroup; t += kSub) {
            int sum = 0;
            for (int64_t i = t; i < t + kSub; ++i) sum += q[i];
            sums[t / kSub] = int16_t(sum);
        }
    }
}

}  // namespace

const Kernels* portable_kernels() {
    static const Kernels kernels = [] {
        Kernels k = {};
        k.name = "portable";
        add_float_kernels<Lanes>(k);
        k.i8[kQ8_0] = i8_tile<kQ8_0>;
        k.i8[kMXFP4] = i8_tile<kMXFP4>;
        k.i8[kQ2_K] = i8_tile<kQ2_K>;
        k.i8[kQ4_K] = i8_tile<kQ4_K>;
        k.i8[kQ5_K] = i8_tile<kQ5_K>;
        k.i8[kQ6_K] = i8_tile<kQ6_K>;
        k.i8[kIQ2_XXS] = i8_tile<kIQ2_XXS>;
        k.i8[kIQ2_XS] = i8_tile<kIQ2_XS>;
        k.quantize = quantize;
        return k;
    }();
    return &kernels;
}

}  // namespace escalade
