// AVX-512 with VNNI. No header of the standard library here: its inline functions would be compiled
// for this set and shared.
#include "integers.h"

#if defined(__x86_64__)
BEGIN_SET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#include "ints_512.h"

namespace {
constexpr int ROWS[COMPUTES] = {0, 8, 8};
constexpr int QUERIES = 8;
constexpr bool reads_words(int) { return false; }
// Where reading is most of the time, Zen 4's own prefetching is faster alone.
constexpr bool fetches(int M, Compute compute, int bytes) {
  return M * (compute == INT8 ? 140 : 200) >= bytes;
}
constexpr bool chains(int M) { return M > 4; }
}  // namespace

#include "tile_int.h"

const polydec::Integers* polydec::integers_vnni() {
  static const Integers k = make();
  return &k;
}
END_SET
#else
const polydec::Integers* polydec::integers_vnni() { return nullptr; }
#endif
