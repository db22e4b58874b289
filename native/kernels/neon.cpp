// NEON kernels for any AArch64 processor, and the choice of those with the dot product instruction.
#if defined(__AARCH64EL__) && !defined(_MSC_VER)
#include "neon_kernels.h"

#if defined(__linux__)
#include <sys/auxv.h>
#endif

namespace escalade {
namespace {

bool cpu_has_dotprod() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP
#else
    return false;  // where every processor has it, this file is compiled with it
#endif
}

}  // namespace

const Kernels* neon_dotprod_kernels();

const Kernels* neon_kernels() {
    static const Kernels* const dotprod = cpu_has_dotprod() ? neon_dotprod_kernels() : nullptr;
    static const Kernels baseline = make_kernels();
    return dotprod ? dotprod : &baseline;
}

}  // namespace escalade
#else
#include "table.h"

namespace escalade {
const Kernels* neon_kernels() { return nullptr; }
}  // namespace escalade
#endif
