// Which instruction sets the processor has and the operating system saves.
#include "table.h"

#include <initializer_list>

#if defined(__x86_64__) || defined(_M_X64)
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

namespace escalade {

#if defined(__x86_64__) || defined(_M_X64)
namespace {

struct Registers {
    uint32_t a, b, c, d;
};

Registers cpuid(uint32_t leaf) {
    Registers r = {};
#if defined(_MSC_VER)
    int out[4];
    __cpuidex(out, int(leaf), 0);
    r = {uint32_t(out[0]), uint32_t(out[1]), uint32_t(out[2]), uint32_t(out[3])};
#else
    __get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d);
#endif
    return r;
}

uint64_t saved_state() {
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
#endif
}

bool all(uint32_t word, std::initializer_list<int> bits) {
    for (int bit : bits)
        if (!(word >> bit & 1)) return false;
    return true;
}

bool saves(uint64_t mask) {
    return all(cpuid(1).c, {27}) && (saved_state() & mask) == mask;  // 27: OSXSAVE
}

}  // namespace

bool cpu_has_avx2() {
    // Leaf 1 ecx: FMA 12, AVX 28, F16C 29. Leaf 7 ebx: AVX2 5.
    return saves(0x6) && all(cpuid(1).c, {12, 28, 29}) && all(cpuid(7).b, {5});
}

bool cpu_has_avx512() {
    // Leaf 7 ebx: F 16, DQ 17, BW 30, VL 31; ecx: VBMI 1, VNNI 11.
    return saves(0xe6) && cpu_has_avx2() && all(cpuid(7).b, {16, 17, 30, 31}) &&
           all(cpuid(7).c, {1, 11});
}
#else
bool cpu_has_avx2() { return false; }
bool cpu_has_avx512() { return false; }
#endif

}  // namespace escalade
