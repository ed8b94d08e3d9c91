// Sixteen outputs in one AVX-512 register.
#pragma once
#include <immintrin.h>
#include "round_x86.h"

namespace {
constexpr int WIDTH = 16;
using V = __m512;
using I = __m512i;
#define OP(name) _mm512_##name
inline I word(const u8* p) { return _mm512_loadu_si512(p); }
inline I mask(I a, uint32_t m) { return _mm512_and_si512(a, _mm512_set1_epi32(int(m))); }
inline I either(I a, I b) { return _mm512_or_si512(a, b); }
inline V as_floats(I a) { return _mm512_castsi512_ps(a); }
inline V halves(const u8* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline I byte_words(const u8* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
}
inline I signed_words(const u8* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
}
inline I lookup(const u8* table, I x) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)table)), x);
}
}  // namespace

#include "ints_x86.h"

namespace {
struct WordSum {  // two codes of 16 bits with two inputs
  I v;
  WordSum()
      : v(_mm512_setzero_si512()) {
  }  // written out: what the compiler adds itself would not be of this set
  void add(I code, int32_t x) { v = _mm512_dpwssd_epi32(v, code, iall(x)); }
  I get() const { return v; }
};
template <int TOP, int UNIT>
struct ByteSum {  // four codes of 8 bits with four inputs
  I v;
  ByteSum() : v(_mm512_setzero_si512()) {}
  template <int i>
  void add(I code, int32_t x) {
    v = _mm512_dpbusd_epi32(v, code, iall(x));
  }
  I get() const { return v; }
};
}  // namespace
