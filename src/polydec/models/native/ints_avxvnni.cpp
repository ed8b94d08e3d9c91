// AVX2 with AVX-VNNI (Alder Lake, Sierra Forest, Zen 5), where the compiler knows it. No header of
// the standard library here.
#include "integers.h"

#if defined(__x86_64__) && \
    ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
BEGIN_SET("avx2,fma,f16c,avxvnni")
#define DOT4 _mm256_dpbusd_avx_epi32
#include "ints_256.h"

namespace {
constexpr int ROWS[COMPUTES] = {0, 5, 6};
constexpr int QUERIES = 4;
constexpr bool reads_words(int) { return false; }
constexpr bool fetches(int, Compute, int) { return true; }
constexpr bool chains(int) { return false; }
}  // namespace

#include "tile_int.h"

const polydec::Integers* polydec::integers_avxvnni() {
  static const Integers k = make();
  return &k;
}
END_SET
#else
const polydec::Integers* polydec::integers_avxvnni() { return nullptr; }
#endif
