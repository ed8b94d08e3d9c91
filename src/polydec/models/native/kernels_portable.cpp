#include "kernels.h"
#include "simd_portable.h"

namespace {
constexpr int ROWS = 4, HEADS = 2;
constexpr int WIDE[9] = {0, 1, 1, 1, 1};
}  // namespace

#include "body.h"

const polydec::Kernels* polydec::kernels_portable() {
  static const Kernels k = make("portable");
  return &k;
}
