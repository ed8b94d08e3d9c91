// No header of the standard library here: its inline functions would be compiled for this set and
// shared with the rest.
#include "kernels.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(                                                    \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
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
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
