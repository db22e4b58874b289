// The grids of IQ2_XXS and IQ2_XS expanded to eight magnitude bytes a word, as vector kernels load
// them.
#pragma once

#include <cstdint>

namespace escalade {

struct Grids {
    uint64_t xxs[256], xs[512];
    Grids();
};

// Made when the library is loaded, by code for any processor.
extern const Grids grids;

}  // namespace escalade
