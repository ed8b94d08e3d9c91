// 16 lanes in one AVX-512 register.
#pragma once
#include <immintrin.h>
#define PIN(v)
#define FENCE asm volatile("" ::: "memory")

namespace {
using polydec::u8;

using V = __m512;
using I = __m512i;

inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, V a) { _mm512_storeu_ps(p, a); }
inline V all(float x) { return _mm512_set1_ps(x); }
inline V zero() { return _mm512_setzero_ps(); }
inline V add(V a, V b) { return _mm512_add_ps(a, b); }
inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V div(V a, V b) { return _mm512_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V vmax(V a, V b) { return _mm512_max_ps(a, b); }
inline V vmin(V a, V b) { return _mm512_min_ps(a, b); }
inline V whole(V a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline V pow2(V n) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
inline V keep_from(V x, V low, V y) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, low, _CMP_GE_OQ), y);
}
inline V no_dust(V x) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(x), all(polydec::DUST), _CMP_NLT_UQ),
                             x);
}
inline bool any_from(V a, V low) { return _mm512_cmp_ps_mask(a, low, _CMP_GE_OQ) != 0; }
inline float top(V a) { return _mm512_reduce_max_ps(a); }
inline float total(V a) {
  __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
inline void total4(V a, V b, V c, V d, float* out) {
  const V ab = add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const V cd = add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  V s = add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  s = add(s, _mm512_permute_ps(s, 0x4E));
  s = add(s, _mm512_permute_ps(s, 0xB1));
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, s)));
}
// out[i] = total(s[i]).
template <int N>
inline void totals(const V* s, float* out) {
  if constexpr (N < 16) {
    for (int i = 0; i < N; i += 4) total4(s[i], s[i + 1], s[i + 2], s[i + 3], out + i);
    return;
  }
  V c[4];
  for (int i = 0; i < 4; ++i) {  // sums of i, i + 4, i + 8, i + 12, four lanes each
    auto pair = [&](int a, int b) {
      return add(_mm512_mask_blend_ps(0xFF00, s[a], s[b]), _mm512_shuffle_f32x4(s[a], s[b], 0x4E));
    };
    const V ab = pair(i, i + 4), cd = pair(i + 8, i + 12);
    c[i] = add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  }
  const V x = add(_mm512_mask_blend_ps(0xCCCC, c[0], c[1]), _mm512_shuffle_ps(c[0], c[1], 0x4E));
  const V y = add(_mm512_mask_blend_ps(0xCCCC, c[2], c[3]), _mm512_shuffle_ps(c[2], c[3], 0x4E));
  store(out, add(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xDD)));
}

inline void to_words(V a, int16_t* p) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a)));
}
inline V halves(const u8* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline V brains(const u8* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
inline V signed_bytes(const u8* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline V bytes(const u8* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline I words(const u8* p) { return _mm512_loadu_si512(p); }
inline I either(I a, I b) { return _mm512_or_si512(a, b); }
inline I down(I a, int n) { return _mm512_srli_epi32(a, unsigned(n)); }
inline I up(I a, int n) { return _mm512_slli_epi32(a, unsigned(n)); }
inline I mask(I a, uint32_t m) { return _mm512_and_si512(a, _mm512_set1_epi32(int(m))); }
inline I nibble_mask(I a, int n) { return mask(a, 15u << 4 * n); }
inline I byte_words(const u8* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
}
inline V low_nibbles(const u8* p) { return _mm512_cvtepi32_ps(mask(byte_words(p), 15)); }
inline V high_nibbles(const u8* p) { return _mm512_cvtepi32_ps(down(byte_words(p), 4)); }
inline V half_powers(const u8* p) {  // 2^(e - 128) of 16 bytes e
  const I e = byte_words(p), one = _mm512_set1_epi32(1),
          tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), _mm512_min_epi32(e, one));
  return _mm512_castsi512_ps(
      _mm512_max_epi32(_mm512_slli_epi32(_mm512_sub_epi32(e, one), 23), tiny));
}
inline I lookup(const int8_t* table, I x) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)table)), x);
}
inline V signed_byte(I x, int n) {
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, unsigned(24 - 8 * n)), 24));
}
#ifdef DENORMALS
constexpr float LIFT = 0x1p90f, DROP = 0x1p59f;
inline V floats(I a) { return _mm512_castsi512_ps(a); }  // a * 2^-149
#else
constexpr float LIFT = 1, DROP = 1;
inline V floats(I a) { return _mm512_cvtepi32_ps(a); }
#endif

}  // namespace
