// No header of the standard library here: its inline functions would be compiled for this set and
// shared with the rest.
#include "kernels.h"

#if defined(__x86_64__)
BEGIN_SET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#include "simd_avx512.h"

namespace {
constexpr int ROWS = 8, HEADS = 4;
constexpr int WIDE[9] = {0, 4, 4, 4, 4, 2, 2, 2, 2};
}  // namespace

#include "body.h"

#ifdef DENORMALS
#define KERNELS kernels_zen
#define NAME "AVX-512-Zen"
#else
#define KERNELS kernels_avx512
#define NAME "AVX-512"
#endif
const polydec::Kernels* polydec::KERNELS() {
  static const Kernels k = make(NAME);
  return &k;
}
END_SET
#endif
