// Integer kernels with NEON's dot product of four bytes (Armv8.2 with dotprod), eight outputs in
// two registers. No header of the standard library here: its inline functions would be compiled for
// this set and shared with the rest.
#include "integers.h"

#if defined(__aarch64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#include <arm_neon.h>
#include "round_plain.h"

namespace {
constexpr int WIDTH = 8;
struct V {
  float32x4_t a, b;
};
struct I {
  uint32x4_t a, b;
};
inline V all(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline V zero() { return all(0); }
inline V mul(V x, V y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
inline V sub(V x, V y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
inline V fma(V x, V y, V z) { return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)}; }
inline V fms(V x, V y, V z) { return fma(x, y, {vnegq_f32(z.a), vnegq_f32(z.b)}); }
inline void store(float* p, V x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
}
inline V load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline V add(V x, V y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
inline uint8x16_t in_bytes(uint32x4_t x) { return vreinterpretq_u8_u32(x); }
inline uint16x8_t in_words(uint32x4_t x) { return vreinterpretq_u16_u32(x); }
inline I iall(int32_t x) { return {vdupq_n_u32(uint32_t(x)), vdupq_n_u32(uint32_t(x))}; }
inline I word(const u8* p) {
  return {vreinterpretq_u32_u8(vld1q_u8(p)), vreinterpretq_u32_u8(vld1q_u8(p + 16))};
}
inline I mask(I x, uint32_t m) {
  return {vandq_u32(x.a, vdupq_n_u32(m)), vandq_u32(x.b, vdupq_n_u32(m))};
}
inline I either(I x, I y) { return {vorrq_u32(x.a, y.a), vorrq_u32(x.b, y.b)}; }
template <int n>
inline uint32x4_t down4(uint32x4_t x) {
  return vreinterpretq_u32_u16(vshrq_n_u16(in_words(x), n));
}
template <int n>
inline uint32x4_t up4(uint32x4_t x) {
  return vreinterpretq_u32_u16(vshlq_n_u16(in_words(x), n));
}
template <int n>
inline I down(I x) {
  return {down4<n>(x.a), down4<n>(x.b)};
}
template <int n>
inline I up(I x) {
  return {up4<n>(x.a), up4<n>(x.b)};
}
template <int n>
inline uint32x4_t signed_down4(uint32x4_t x) {
  return vreinterpretq_u32_s16(vshrq_n_s16(vreinterpretq_s16_u32(x), n));
}
template <int n>
inline I signed_down(I x) {
  return {signed_down4<n>(x.a), signed_down4<n>(x.b)};
}
inline I iadd(I x, I y) { return {vaddq_u32(x.a, y.a), vaddq_u32(x.b, y.b)}; }
inline I isub(I x, I y) { return {vsubq_u32(x.a, y.a), vsubq_u32(x.b, y.b)}; }
template <int n>
inline I ishift(I x) {
  return {vshlq_n_u32(x.a, n), vshlq_n_u32(x.b, n)};
}
inline V number(I x) {
  return {vcvtq_f32_s32(vreinterpretq_s32_u32(x.a)), vcvtq_f32_s32(vreinterpretq_s32_u32(x.b))};
}
inline float32x4_t halves4(const u8* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
inline V halves(const u8* p) { return {halves4(p), halves4(p + 8)}; }
inline I byte_words(const u8* p) {
  const uint16x8_t x = vmovl_u8(vld1_u8(p));
  return {vmovl_u16(vget_low_u16(x)), vmovl_u16(vget_high_u16(x))};
}
inline V bytes(const u8* p) { return number(byte_words(p)); }
inline V low_nibbles(const u8* p) { return number(mask(byte_words(p), 15)); }
inline V high_nibbles(const u8* p) {
  const I x = byte_words(p);
  return number({vshrq_n_u32(x.a, 4), vshrq_n_u32(x.b, 4)});
}
inline V signed_bytes(const u8* p) {
  const int16x8_t x = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(x)))};
}
inline float32x4_t half_powers4(uint32x4_t e) {
  const uint32x4_t one = vdupq_n_u32(1), tiny = vshlq_u32(vdupq_n_u32(0x200000),
                                                          vreinterpretq_s32_u32(vminq_u32(e, one)));
  const int32x4_t usual = vshlq_n_s32(vreinterpretq_s32_u32(vsubq_u32(e, one)), 23);
  return vreinterpretq_f32_s32(vmaxq_s32(usual, vreinterpretq_s32_u32(tiny)));
}
inline V half_powers(const u8* p) {
  const I e = byte_words(p);
  return {half_powers4(e.a), half_powers4(e.b)};
}  // 2^(e - 128)
inline uint32x4_t lookup4(uint8x16_t table, uint32x4_t x) {
  return vreinterpretq_u32_u8(vqtbl1q_u8(table, in_bytes(x)));
}
inline I lookup(const u8* table, I x) {
  const uint8x16_t t = vld1q_u8(table);
  return {lookup4(t, x.a), lookup4(t, x.b)};
}

// Four codes of 8 bits with four inputs. The instruction takes both as signed: codes up to 255 go
// in less 128, and what that takes away, the same for all outputs, is counted beside them.
template <int TOP, int UNIT>
struct ByteSum {
  static constexpr bool LOWERED = TOP > 127;
  I v = iall(0);
  int32x4_t lost = vdupq_n_s32(0);
  static uint32x4_t dot(uint32x4_t sum, uint32x4_t code, int8x16_t x) {
    const int8x16_t q =
        vreinterpretq_s8_u8(LOWERED ? veorq_u8(in_bytes(code), vdupq_n_u8(128)) : in_bytes(code));
    return vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(sum), q, x));
  }
  template <int>
  void add(I code, int32_t x) {
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(x));
    v.a = dot(v.a, code.a, four);
    v.b = dot(v.b, code.b, four);
    if (LOWERED) lost = vdotq_s32(lost, vdupq_n_s8(-128), four);
  }
  I get() const {
    const uint32x4_t less = vreinterpretq_u32_s32(lost);
    return LOWERED ? isub(v, {less, less}) : v;
  }
};
struct WordSum {  // two codes of 16 bits with two inputs
  I v = iall(0);
  static uint32x4_t dot(uint32x4_t sum, uint32x4_t code, int16x8_t x) {
    const int16x8_t c = vreinterpretq_s16_u32(code);
    const int32x4_t low = vmull_s16(vget_low_s16(c), vget_low_s16(x)), high = vmull_high_s16(c, x);
    return vaddq_u32(sum, vreinterpretq_u32_s32(vpaddq_s32(low, high)));
  }
  void add(I code, int32_t x) {
    const int16x8_t two = vreinterpretq_s16_s32(vdupq_n_s32(x));
    v.a = dot(v.a, code.a, two);
    v.b = dot(v.b, code.b, two);
  }
  I get() const { return v; }
};

constexpr int ROWS[COMPUTES] = {0, 4, 6};
constexpr int QUERIES = 4;
constexpr bool reads_words(int) { return false; }
constexpr bool fetches(int, Compute, int) { return true; }
constexpr bool chains(int M) { return M > 2; }
}  // namespace

#include "tile_int.h"

const polydec::Integers* polydec::integers_neon() {
  static const Integers k = make();
  return &k;
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
const polydec::Integers* polydec::integers_neon() { return nullptr; }
#endif
