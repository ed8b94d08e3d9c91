// 16 lanes in four NEON registers.
#pragma once
#include <arm_neon.h>
// The compiler would hoist broadcasts and spill; an empty asm keeps one where it stands.
#define PIN(x) asm volatile("" : "+w"((x).v[0]), "+w"((x).v[1]), "+w"((x).v[2]), "+w"((x).v[3]))
#define FENCE asm volatile("" ::: "memory")

namespace {
using polydec::u8;

struct V {
  float32x4_t v[4];
};
struct I {
  uint32x4_t v[4];
};
#define EACH \
  UNROLL(4)  \
  for (int i = 0; i < 4; ++i)

inline V load(const float* p) {
  V r;
  EACH r.v[i] = vld1q_f32(p + 4 * i);
  return r;
}
inline void store(float* p, V a) { EACH vst1q_f32(p + 4 * i, a.v[i]); }
inline V all(float x) {
  V r;
  EACH r.v[i] = vdupq_n_f32(x);
  return r;
}
inline V zero() { return all(0); }
inline V add(V a, V b) {
  EACH a.v[i] = vaddq_f32(a.v[i], b.v[i]);
  return a;
}
inline V sub(V a, V b) {
  EACH a.v[i] = vsubq_f32(a.v[i], b.v[i]);
  return a;
}
inline V mul(V a, V b) {
  EACH a.v[i] = vmulq_f32(a.v[i], b.v[i]);
  return a;
}
inline V div(V a, V b) {
  EACH a.v[i] = vdivq_f32(a.v[i], b.v[i]);
  return a;
}
inline V fma(V a, V b, V c) {
  EACH c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
  return c;
}
// Compared and chosen, as elsewhere: vmaxq and vminq would give NaN where either is one.
inline float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline float32x4_t smaller(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
inline V vmax(V a, V b) {
  EACH a.v[i] = larger(a.v[i], b.v[i]);
  return a;
}
inline V vmin(V a, V b) {
  EACH a.v[i] = smaller(a.v[i], b.v[i]);
  return a;
}
inline V whole(V a) {
  EACH a.v[i] = vrndnq_f32(a.v[i]);
  return a;
}
inline V pow2(V n) {
  EACH n.v[i] =
      vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23));
  return n;
}
inline float32x4_t where(uint32x4_t mask, float32x4_t a) {
  return vreinterpretq_f32_u32(vandq_u32(mask, vreinterpretq_u32_f32(a)));
}
inline V keep_from(V x, V low, V y) {
  EACH y.v[i] = where(vcgeq_f32(x.v[i], low.v[i]), y.v[i]);
  return y;
}
inline V no_dust(V a) {  // NaN stays
  EACH a.v[i] = where(vmvnq_u32(vcltq_f32(vabsq_f32(a.v[i]), vdupq_n_f32(polydec::DUST))), a.v[i]);
  return a;
}
inline bool any_from(V a, V low) {
  uint32x4_t r = vdupq_n_u32(0);
  EACH r = vorrq_u32(r, vcgeq_f32(a.v[i], low.v[i]));
  return vmaxvq_u32(r) != 0;
}
inline float top(V a) {
  const float32x4_t b = larger(larger(a.v[0], a.v[2]), larger(a.v[1], a.v[3])),
                    c = larger(b, vextq_f32(b, b, 2));
  return vgetq_lane_f32(larger(c, vextq_f32(c, c, 1)), 0);
}
inline float32x4_t quarters(V a) {
  return vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
}
inline float total(V a) {
  const float32x4_t s = quarters(a);
  const float32x2_t t = vadd_f32(vget_low_f32(s), vget_high_f32(s));
  return vget_lane_f32(t, 0) + vget_lane_f32(t, 1);
}
inline void total4(V a, V b, V c, V d, float* out) {
  const float32x4_t p = quarters(a), q = quarters(b), r = quarters(c), s = quarters(d);
  const float32x4_t pq = vaddq_f32(vcombine_f32(vget_low_f32(p), vget_low_f32(q)),
                                   vcombine_f32(vget_high_f32(p), vget_high_f32(q)));
  const float32x4_t rs = vaddq_f32(vcombine_f32(vget_low_f32(r), vget_low_f32(s)),
                                   vcombine_f32(vget_high_f32(r), vget_high_f32(s)));
  vst1q_f32(out, vaddq_f32(vuzp1q_f32(pq, rs), vuzp2q_f32(pq, rs)));
}
// out[i] = total(s[i]).
template <int N>
inline void totals(const V* s, float* out) {
  for (int i = 0; i < N; i += 4) total4(s[i], s[i + 1], s[i + 2], s[i + 3], out + i);
}

inline void to_words(V a, int16_t* p) {
  EACH vst1_s16(p + 4 * i, vmovn_s32(vcvtnq_s32_f32(a.v[i])));
}
inline V halves(const u8* p) {
  V r;
  EACH r.v[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i)));
  return r;
}
inline V brains(const u8* p) {
  V r;
  EACH r.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p + 8 * i)), 16));
  return r;
}
inline I byte_words(const u8* p) {
  const uint8x16_t x = vld1q_u8(p);
  const uint16x8_t a = vmovl_u8(vget_low_u8(x)), b = vmovl_u8(vget_high_u8(x));
  return {{vmovl_u16(vget_low_u16(a)), vmovl_u16(vget_high_u16(a)), vmovl_u16(vget_low_u16(b)),
           vmovl_u16(vget_high_u16(b))}};
}
inline V floats(I a) {
  V r;
  EACH r.v[i] = vcvtq_f32_s32(vreinterpretq_s32_u32(a.v[i]));
  return r;
}
inline I up(I a, int n) {
  EACH a.v[i] = vshlq_u32(a.v[i], vdupq_n_s32(n));
  return a;
}
inline I down(I a, int n) { return up(a, -n); }
inline I either(I a, I b) {
  EACH a.v[i] = vorrq_u32(a.v[i], b.v[i]);
  return a;
}
inline I mask(I a, uint32_t m) {
  EACH a.v[i] = vandq_u32(a.v[i], vdupq_n_u32(m));
  return a;
}
inline I nibble_mask(I a, int n) { return mask(a, 15u << 4 * n); }
inline I words(const u8* p) {
  I r;
  EACH r.v[i] = vreinterpretq_u32_u8(vld1q_u8(p + 16 * i));
  return r;
}
inline V bytes(const u8* p) { return floats(byte_words(p)); }
inline V low_nibbles(const u8* p) { return floats(mask(byte_words(p), 15)); }
inline V high_nibbles(const u8* p) { return floats(down(byte_words(p), 4)); }
inline V signed_byte(I x, int n) {
  V r;
  EACH r.v[i] = vcvtq_f32_s32(
      vshrq_n_s32(vreinterpretq_s32_u32(vshlq_u32(x.v[i], vdupq_n_s32(24 - 8 * n))), 24));
  return r;
}
inline V signed_bytes(const u8* p) { return signed_byte(byte_words(p), 0); }
inline V half_powers(const u8* p) {  // 2^(e - 128) of 16 bytes e
  const I e = byte_words(p);
  V r;
  EACH {
    const uint32x4_t one = vdupq_n_u32(1),
                     tiny = vshlq_u32(vdupq_n_u32(0x200000),
                                      vreinterpretq_s32_u32(vminq_u32(e.v[i], one)));
    const int32x4_t usual = vshlq_n_s32(vreinterpretq_s32_u32(vsubq_u32(e.v[i], one)), 23);
    r.v[i] = vreinterpretq_f32_s32(vmaxq_s32(usual, vreinterpretq_s32_u32(tiny)));
  }
  return r;
}
inline I lookup(const int8_t* table, I x) {
  const uint8x16_t t = vreinterpretq_u8_s8(vld1q_s8(table));
  EACH x.v[i] = vreinterpretq_u32_u8(vqtbl1q_u8(t, vreinterpretq_u8_u32(x.v[i])));
  return x;
}
constexpr float LIFT = 1, DROP = 1;
#undef EACH

}  // namespace
