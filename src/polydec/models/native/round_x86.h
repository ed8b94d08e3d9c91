// Rounding of inputs to integers with AVX2: the largest of a block is looked for among the bits, as
// integers, because floats with NaN have no order; blocks whose largest is below 2^-100 count as 0
// (its inverse might overflow).
#pragma once
#include <immintrin.h>
#include "integers.h"

namespace {
using namespace polydec;

inline __m256i pack_bytes(const __m256i* q) {  // 32 numbers, even ones of eight first
  const __m256i all =
      _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  const __m256i row = _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  return _mm256_shuffle_epi8(
      row, _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 0, 2, 4, 6, 1, 3,
                            5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
}
inline __m256i pack_words(__m256i a,
                          __m256i b) {  // 16 numbers, of eight in the order 0 4 2 6 1 5 3 7
  const __m256i row = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
  return _mm256_shuffle_epi8(
      row, _mm256_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 10, 11, 6, 7, 14, 15, 0, 1, 8, 9, 4, 5,
                            12, 13, 2, 3, 10, 11, 6, 7, 14, 15));
}
inline int32_t sum_of(__m256i x) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}
inline int32_t most_of(__m256i x) {
  __m128i s = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

bool round(const float* x, int n, Compute compute, int M, const Whole& to) {
  const float reach = float(REACH[compute]);
  const __m256i size = _mm256_set1_epi32(0x7FFFFFFF), c128 = _mm256_set1_epi32(128),
                c255 = _mm256_set1_epi32(255);
  int32_t seen = 0;
  for (int b = 0; b < n / BLOCK; ++b, x += BLOCK) {
    __m256 v[4];
    __m256i q[4], top_bits = _mm256_setzero_si256();
    UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + 8 * i);
      top_bits = _mm256_max_epi32(top_bits, _mm256_and_si256(_mm256_castps_si256(v[i]), size));
    }
    const int32_t bits = most_of(top_bits);
    const float top = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
    seen = bits > seen ? bits : seen;
    const __m256 inverse = _mm256_set1_ps(top > 0x1p-100f ? reach / top : 0);
    UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
      if (compute == INT16)
        q[i] = _mm256_add_epi32(
            q[i], _mm256_cmpeq_epi32(_mm256_and_si256(q[i], c255), c128));  // no low half is -128
    }
    const int at = b * M;
    const int32_t s0 = sum_of(_mm256_add_epi32(q[0], q[1])),
                  s1 = sum_of(_mm256_add_epi32(q[2], q[3]));
    to.scale[at] = top / reach;
    to.total[at] = float(s0 + s1);
    int32_t* sums = to.sums + at * SUMS;
    sums[0] = s0;
    sums[M] = s1;
    sums[2 * M] = s0 + s1;
    if (to.words)
      for (int h = 0; h < 2; ++h)
        _mm256_storeu_si256((__m256i*)(to.words + at * BLOCK + 16 * h),
                            pack_words(q[2 * h], q[2 * h + 1]));
    if (!to.bytes) continue;
    __m256i* out = (__m256i*)(to.bytes + at * BYTES[compute]);
    if (compute == INT8) {
      _mm256_storeu_si256(out, pack_bytes(q));
      continue;
    }
    __m256i high[4], low[4];
    UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      high[i] = _mm256_srai_epi32(_mm256_add_epi32(q[i], c128), 8);
      low[i] = _mm256_sub_epi32(q[i], _mm256_slli_epi32(high[i], 8));
    }
    _mm256_storeu_si256(out, pack_bytes(high));
    _mm256_storeu_si256(out + 1, pack_bytes(low));
  }
  return seen < 0x7F800000;
}

}  // namespace
