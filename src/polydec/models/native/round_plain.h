// Rounding of inputs to integers in plain C++; round_x86.h says what is looked at, and how.
#pragma once
#include <string.h>
#include "integers.h"

namespace {
using namespace polydec;

bool round(const float* x, int n, Compute compute, int M, const Whole& to) {
  const float reach = float(REACH[compute]);
  int32_t seen = 0;
  for (int b = 0; b < n / BLOCK; ++b, x += BLOCK) {
    int32_t bits[BLOCK], top_bits = 0, q[BLOCK], half[2] = {0, 0};
    memcpy(bits, x, sizeof bits);
    for (int k = 0; k < BLOCK; ++k) {
      const int32_t v = bits[k] & 0x7FFFFFFF;
      top_bits = v > top_bits ? v : top_bits;
    }
    seen = top_bits > seen ? top_bits : seen;
    if (seen >= 0x7F800000) return false;
    float top;
    memcpy(&top, &top_bits, 4);
    const float inverse = top > 0x1p-100f ? reach / top : 0;
    for (int k = 0; k < BLOCK; ++k) {
      q[k] = int32_t(__builtin_rintf(x[k] * inverse));
      if (compute == INT16) q[k] -= (q[k] & 255) == 128;
      half[k / 16] += q[k];
    }
    const int at = b * M;
    to.scale[at] = top / reach;
    to.total[at] = float(half[0] + half[1]);
    int32_t* sums = to.sums + at * SUMS;
    sums[0] = half[0];
    sums[M] = half[1];
    sums[2 * M] = half[0] + half[1];
    int8_t* out = to.bytes + at * BYTES[compute];
    for (int k = 0; k < BLOCK; ++k) {
      const int place = k / 8 * 8 + k % 2 * 4 + k % 8 / 2, high = (q[k] + 128) >> 8;
      if (compute == INT8) {
        out[place] = int8_t(q[k]);
        continue;
      }
      out[place] = int8_t(high);
      out[BLOCK + place] = int8_t(q[k] - high * 256);
    }
  }
  return true;
}

}  // namespace
