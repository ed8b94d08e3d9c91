// No header of the standard library here: its inline functions would be compiled for this set and
// shared with the rest.
#include "kernels.h"

#if defined(__aarch64__)
#include "simd_neon.h"

namespace {
constexpr int ROWS = 4, HEADS = 2;
constexpr int WIDE[9] = {0, 4, 2, 1, 1};
}  // namespace

#include "body.h"

const polydec::Kernels* polydec::kernels_neon() {
  static const Kernels k = make("NEON");
  return &k;
}
#else
const polydec::Kernels* polydec::kernels_neon() { return nullptr; }
#endif
