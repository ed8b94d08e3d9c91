// Sixteen outputs in one AVX-512 register.
#pragma once
#include <immintrin.h>
#include "round_x86.h"

namespace {
constexpr int WIDTH = 16;
using V = __m512;
using I = __m512i;
inline V zero() { return _mm512_setzero_ps(); }
inline V all(float x) { return _mm512_set1_ps(x); }
inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V fms(V a, V b, V c) { return _mm512_fmsub_ps(a, b, c); }
inline void store(float* p, V a) { _mm512_storeu_ps(p, a); }
inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline V add(V a, V b) { return _mm512_add_ps(a, b); }
inline I iall(int32_t x) { return _mm512_set1_epi32(x); }
inline I word(const u8* p) { return _mm512_loadu_si512(p); }
inline I mask(I a, uint32_t m) { return _mm512_and_si512(a, _mm512_set1_epi32(int(m))); }
inline I either(I a, I b) { return _mm512_or_si512(a, b); }
template <int n>
inline I down(I a) {
  return _mm512_srli_epi16(a, n);
}
template <int n>
inline I up(I a) {
  return _mm512_slli_epi16(a, n);
}
template <int n>
inline I signed_down(I a) {
  return _mm512_srai_epi16(a, n);
}
inline I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
inline I isub(I a, I b) { return _mm512_sub_epi32(a, b); }
template <int n>
inline I ishift(I a) {
  return _mm512_slli_epi32(a, n);
}
inline V number(I a) { return _mm512_cvtepi32_ps(a); }
inline V halves(const u8* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline I byte_words(const u8* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
}
inline V bytes(const u8* p) { return number(byte_words(p)); }
inline V low_nibbles(const u8* p) { return number(mask(byte_words(p), 15)); }
inline V high_nibbles(const u8* p) { return number(_mm512_srli_epi32(byte_words(p), 4)); }
inline V signed_bytes(const u8* p) {
  return number(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline V half_powers(const u8* p) {  // 2^(e - 128) of bytes e
  const I e = byte_words(p), one = iall(1),
          tiny = _mm512_sllv_epi32(iall(0x200000), _mm512_min_epi32(e, one));
  return _mm512_castsi512_ps(
      _mm512_max_epi32(_mm512_slli_epi32(_mm512_sub_epi32(e, one), 23), tiny));
}
inline I lookup(const u8* table, I x) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)table)), x);
}

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
