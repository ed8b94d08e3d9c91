// No header of the standard library here: its inline functions would be compiled for this set and
// shared with the rest.
#include "integers.h"

#if defined(__x86_64__)
BEGIN_SET("avx2,fma,f16c")
#include "ints_256.h"

namespace {
constexpr int ROWS[COMPUTES] = {0, 5, 6};
constexpr int QUERIES = 4;
constexpr bool reads_words(int top) {
  return top == 255;
}  // sums of 16 bits hold no pair of products of 8-bit codes
constexpr bool fetches(int, Compute, int) { return true; }
constexpr bool chains(int) { return false; }
}  // namespace

#include "tile_int.h"

const polydec::Integers* polydec::integers_avx2() {
  static const Integers k = make();
  return &k;
}
END_SET
#else
const polydec::Integers* polydec::integers_avx2() { return nullptr; }
#endif
