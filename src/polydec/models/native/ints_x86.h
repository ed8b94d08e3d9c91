// What registers of 256 and of 512 bits do alike. Included by ints_256.h and ints_512.h, after V, I
// and OP (the intrinsic of the set by its name) and the loads of bytes, which differ.
#pragma once

namespace {
inline V zero() { return OP(setzero_ps)(); }
inline V all(float x) { return OP(set1_ps)(x); }
inline V mul(V a, V b) { return OP(mul_ps)(a, b); }
inline V sub(V a, V b) { return OP(sub_ps)(a, b); }
inline V fma(V a, V b, V c) { return OP(fmadd_ps)(a, b, c); }
inline V fms(V a, V b, V c) { return OP(fmsub_ps)(a, b, c); }
inline void store(float* p, V a) { OP(storeu_ps)(p, a); }
inline V load(const float* p) { return OP(loadu_ps)(p); }
inline V add(V a, V b) { return OP(add_ps)(a, b); }
inline I iall(int32_t x) { return OP(set1_epi32)(x); }
template <int n>
inline I down(I a) {
  return OP(srli_epi16)(a, n);
}
template <int n>
inline I up(I a) {
  return OP(slli_epi16)(a, n);
}
template <int n>
inline I signed_down(I a) {
  return OP(srai_epi16)(a, n);
}
inline I iadd(I a, I b) { return OP(add_epi32)(a, b); }
inline I isub(I a, I b) { return OP(sub_epi32)(a, b); }
template <int n>
inline I ishift(I a) {
  return OP(slli_epi32)(a, n);
}
inline V number(I a) { return OP(cvtepi32_ps)(a); }
inline V bytes(const u8* p) { return number(byte_words(p)); }
inline V low_nibbles(const u8* p) { return number(mask(byte_words(p), 15)); }
inline V high_nibbles(const u8* p) { return number(OP(srli_epi32)(byte_words(p), 4)); }
inline V signed_bytes(const u8* p) { return number(signed_words(p)); }
inline V half_powers(const u8* p) {  // 2^(e - 128) of bytes e
  const I e = byte_words(p), one = iall(1),
          tiny = OP(sllv_epi32)(iall(0x200000), OP(min_epi32)(e, one));
  return as_floats(OP(max_epi32)(OP(slli_epi32)(OP(sub_epi32)(e, one), 23), tiny));
}
}  // namespace
