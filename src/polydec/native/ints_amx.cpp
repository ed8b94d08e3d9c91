// AVX-512 with VNNI, and AMX's tiles for INT16 in more rows than VNNI's kernels have: with fewer, and
// in INT8, they are no quicker (docs/native.md). No header of the standard library here. Tiles stand in
// assembler: compilers have no way to say that loading one reads what was stored before.
#include "integers.h"

#if defined(__x86_64__) && defined(__linux__) && \
    ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

// Whether the processor has tiles of bytes and the system lets this process use them. Their registers
// are large, so Linux keeps them for a process only once it has asked.
static bool allowed() {
  constexpr int ASK = 0x1023, TILE_DATA = 18;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 3) == 3 &&
         !syscall(SYS_arch_prctl, ASK, TILE_DATA);
}

#if defined(__clang__)
#pragma clang attribute push(                                                              \
    __attribute__((target(                                                                 \
        "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,amx-tile,amx-int8"))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#endif
#include "ints_512.h"

namespace {
constexpr int ROWS[COMPUTES] = {0, 8, 8};
constexpr int QUERIES = 8;
constexpr bool reads_words(int) { return false; }
constexpr bool fetches(int M, Compute compute, int bytes) {
  return M * (compute == INT8 ? 140 : 200) >= bytes;
}
constexpr bool chains(int M) { return M > 4; }
}  // namespace

#include "tile_amx.h"

const polydec::Integers* polydec::integers_amx() {
  static const Integers k = make_tiled();
  static const bool here = allowed();
  return here ? &k : nullptr;
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
const polydec::Integers* polydec::integers_amx() { return nullptr; }
#endif
