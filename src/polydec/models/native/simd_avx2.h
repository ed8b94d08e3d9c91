// 16 lanes in two AVX2 registers.
#pragma once
#include <immintrin.h>
// The compiler would hoist broadcasts and spill; an empty asm keeps one where it stands.
#define PIN(v) asm volatile("" : "+x"((v).a), "+x"((v).b))
#define FENCE asm volatile("" ::: "memory")

namespace {
using polydec::u8;

struct V {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};

inline V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, V x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline V all(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
inline V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
#define BOTH(name, op) \
  inline V name(V x, V y) { return {op(x.a, y.a), op(x.b, y.b)}; }
BOTH(add, _mm256_add_ps)
BOTH(sub, _mm256_sub_ps)
BOTH(mul, _mm256_mul_ps)
BOTH(div, _mm256_div_ps)
BOTH(vmax, _mm256_max_ps)
BOTH(vmin, _mm256_min_ps)
#undef BOTH
inline V fma(V x, V y, V z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
constexpr int NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
inline V whole(V x) { return {_mm256_round_ps(x.a, NEAREST), _mm256_round_ps(x.b, NEAREST)}; }
inline __m256 pow2_8(__m256 n) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline V pow2(V n) { return {pow2_8(n.a), pow2_8(n.b)}; }
inline V keep_from(V x, V low, V y) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.a, low.a, _CMP_GE_OQ), y.a),
          _mm256_and_ps(_mm256_cmp_ps(x.b, low.b, _CMP_GE_OQ), y.b)};
}
inline __m256 no_dust_8(__m256 x) {
  const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
  return _mm256_and_ps(_mm256_cmp_ps(size, _mm256_set1_ps(polydec::DUST), _CMP_NLT_UQ), x);
}
inline V no_dust(V x) { return {no_dust_8(x.a), no_dust_8(x.b)}; }
inline bool any_from(V x, V low) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.a, low.a, _CMP_GE_OQ),
                                         _mm256_cmp_ps(x.b, low.b, _CMP_GE_OQ))) != 0;
}
inline float top(V x) {
  const __m256 b = _mm256_max_ps(x.a, x.b);
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
inline float total(V x) {
  const __m256 b = _mm256_add_ps(x.a, x.b);
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
inline void total4(V a, V b, V c, V d, float* out) {
  const __m256 e = _mm256_add_ps(a.a, a.b), f = _mm256_add_ps(b.a, b.b),
               g = _mm256_add_ps(c.a, c.b), h = _mm256_add_ps(d.a, d.b);
  const __m256 ef =
      _mm256_add_ps(_mm256_permute2f128_ps(e, f, 0x20), _mm256_permute2f128_ps(e, f, 0x31));
  const __m256 gh =
      _mm256_add_ps(_mm256_permute2f128_ps(g, h, 0x20), _mm256_permute2f128_ps(g, h, 0x31));
  const __m256 s = _mm256_add_ps(_mm256_unpacklo_ps(ef, gh),
                                 _mm256_unpackhi_ps(ef, gh));  // a02 c02 a13 c13 | b02 d02 b13 d13
  const __m128 lo = _mm256_castps256_ps128(s), hi = _mm256_extractf128_ps(s, 1);
  const __m128 ac = _mm_add_ps(lo, _mm_movehl_ps(lo, lo)),
               bd = _mm_add_ps(hi, _mm_movehl_ps(hi, hi));
  _mm_storeu_ps(out, _mm_unpacklo_ps(ac, bd));
}
// out[i] = total(s[i]).
template <int N>
inline void totals(const V* s, float* out) {
  for (int i = 0; i < N; i += 4) total4(s[i], s[i + 1], s[i + 2], s[i + 3], out + i);
}

inline void to_words(V x, int16_t* p) {
  const __m256i w = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(w, 0xD8));
}
inline __m256 halves8(const u8* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline V halves(const u8* p) { return {halves8(p), halves8(p + 16)}; }
inline __m256 brains8(const u8* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline V brains(const u8* p) { return {brains8(p), brains8(p + 16)}; }
inline __m256 signed8(const u8* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
inline V signed_bytes(const u8* p) { return {signed8(p), signed8(p + 8)}; }
inline __m256 bytes8(const u8* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
inline V bytes(const u8* p) { return {bytes8(p), bytes8(p + 8)}; }
inline I words(const u8* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
inline __m256i byte_words8(const u8* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
inline I byte_words(const u8* p) { return {byte_words8(p), byte_words8(p + 8)}; }
inline I either(I x, I y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
inline I down(I x, int n) { return {_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)}; }
inline I up(I x, int n) { return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)}; }
inline I mask(I x, uint32_t m) {
  const __m256i v = _mm256_set1_epi32(int(m));
  return {_mm256_and_si256(x.a, v), _mm256_and_si256(x.b, v)};
}
alignas(32) const uint32_t NIBBLE[4][8] = {
#define ROW(i)                                             \
  {15u << 4 * i, 15u << 4 * i, 15u << 4 * i, 15u << 4 * i, \
   15u << 4 * i, 15u << 4 * i, 15u << 4 * i, 15u << 4 * i}
    ROW(0), ROW(1), ROW(2), ROW(3)
#undef ROW
};
inline I nibble_mask(I x, int n) {
  const uint32_t (*at)[8] = NIBBLE;
  asm("" : "+r"(at));  // a table in memory, not four constants to spill
  const __m256i v = *(const __m256i*)at[n];
  return {_mm256_and_si256(x.a, v), _mm256_and_si256(x.b, v)};
}
inline V low_nibbles(const u8* p) {
  const I x = byte_words(p);
  return {_mm256_cvtepi32_ps(mask(x, 15).a), _mm256_cvtepi32_ps(mask(x, 15).b)};
}
inline V high_nibbles(const u8* p) {
  const I x = down(byte_words(p), 4);
  return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
// 2^(e - 128) of 16 bytes e.
inline __m256 half_powers8(__m256i e) {
  const __m256i one = _mm256_set1_epi32(1),
                tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), _mm256_min_epi32(e, one));
  return _mm256_castsi256_ps(
      _mm256_max_epi32(_mm256_slli_epi32(_mm256_sub_epi32(e, one), 23), tiny));
}
inline V half_powers(const u8* p) {
  const I e = byte_words(p);
  return {half_powers8(e.a), half_powers8(e.b)};
}
inline I lookup(const int8_t* table, I x) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)table));
  return {_mm256_shuffle_epi8(t, x.a), _mm256_shuffle_epi8(t, x.b)};
}
inline __m256 signed_byte8(__m256i x, int n) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 24 - 8 * n), 24));
}
inline V signed_byte(I x, int n) { return {signed_byte8(x.a, n), signed_byte8(x.b, n)}; }
constexpr float LIFT = 1, DROP = 1;
inline V floats(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

}  // namespace
