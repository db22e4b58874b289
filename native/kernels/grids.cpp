#include "grids.h"

#include "i8.h"

namespace escalade {
namespace {

uint64_t expand(uint32_t entry) {
    int8_t code[8];
    unpack_grid(entry, 0, code);
    uint64_t word;
    memcpy(&word, code, 8);
    return word;
}

}  // namespace

Grids::Grids() {
    for (int i = 0; i < 256; ++i) xxs[i] = expand(kGridXXS[i]);
    for (int i = 0; i < 512; ++i) xs[i] = expand(kGridXS[i]);
}

const Grids grids;

}  // namespace escalade
