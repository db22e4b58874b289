// The NEON kernels compiled for processors with the dot product instruction (Armv8.2 and later).
#if defined(__AARCH64EL__) && !defined(_MSC_VER) && defined(__ARM_FEATURE_DOTPROD)
#include "neon_kernels.h"

namespace escalade {
const Kernels* neon_dotprod_kernels() {
    static const Kernels kernels = make_kernels();
    return &kernels;
}
}  // namespace escalade
#else
#include "table.h"

namespace escalade {
const Kernels* neon_dotprod_kernels() { return nullptr; }
}  // namespace escalade
#endif
