// Eight outputs in one register: AVX2 alone, or with AVX-VNNI where DOT4 multiplies four bytes and
// adds them up.
#pragma once
#include <immintrin.h>
#include "round_x86.h"
#define HOLD(v) \
  asm(""        \
      : "+x"(   \
          v))  // the compiler would put off adds to the end of the block and spill the products

namespace {
constexpr int WIDTH = 8;
using V = __m256;
using I = __m256i;
#define OP(name) _mm256_##name
inline I word(const u8* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline I mask(I a, uint32_t m) { return _mm256_and_si256(a, _mm256_set1_epi32(int(m))); }
inline I either(I a, I b) { return _mm256_or_si256(a, b); }
inline V as_floats(I a) { return _mm256_castsi256_ps(a); }
inline V halves(const u8* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline I byte_words(const u8* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
inline I signed_words(const u8* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
inline I lookup(const u8* table, I x) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)table)), x);
}
}  // namespace

#include "ints_x86.h"

namespace {
struct WordSum {  // two codes of 16 bits with two inputs
  I v;
  WordSum() : v(_mm256_setzero_si256()) {}
  void add(I code, int32_t x) {
    v = iadd(v, _mm256_madd_epi16(code, iall(x)));
    HOLD(v);
  }
  I get() const { return v; }
};
#ifdef DOT4
template <int TOP, int UNIT>
struct ByteSum {  // four codes of 8 bits with four inputs
  I v;
  ByteSum() : v(_mm256_setzero_si256()) {}
  template <int i>
  void add(I code, int32_t x) {
    v = DOT4(v, code, iall(x));
  }
  I get() const { return v; }
};
#else
// vpmaddubsw saturates at 16 bits, so what is added there must fit: a pair of products is at most
// TOP * 127 * 2, RUN of them are added before they are widened. No input is -128.
template <int TOP, int UNIT>
struct ByteSum {
  static constexpr int FIT = 32767 / (TOP * 127 * 2), RUN = FIT >= UNIT / 4 ? UNIT / 4
                                                            : FIT >= 4      ? 4
                                                                            : 2;
  static_assert(FIT >= 2 || TOP == 255, "pairs of products that overflow");
  I v, kept;
  ByteSum() : v(_mm256_setzero_si256()), kept(_mm256_setzero_si256()) {}
  template <int i>
  void add(I code, int32_t x) {
    const I p = _mm256_maddubs_epi16(code, iall(x));
    kept = i % RUN ? _mm256_add_epi16(kept, p) : p;
    HOLD(kept);
    if (i % RUN < RUN - 1) return;
    const I sum = _mm256_madd_epi16(kept, _mm256_set1_epi16(1));
    v = i < RUN ? sum : iadd(v, sum);
  }
  I get() const { return v; }
};
#endif
}  // namespace
