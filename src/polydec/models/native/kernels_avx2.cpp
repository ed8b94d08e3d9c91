// No header of the standard library here: its inline functions would be compiled for this set and
// shared with the rest.
#include "kernels.h"

#if defined(__x86_64__)
BEGIN_SET("avx2,fma,f16c")
#include "simd_avx2.h"

namespace {
constexpr int ROWS = 5, HEADS = 3;
constexpr int WIDE[9] = {0, 4, 2, 1, 1, 1};
}  // namespace

#include "body.h"

const polydec::Kernels* polydec::kernels_avx2() {
  static const Kernels k = make("AVX2");
  return &k;
}
END_SET
#else
const polydec::Kernels* polydec::kernels_avx2() { return nullptr; }
#endif
