// 16 lanes in plain C++, as floats and as integer kernels need them both. Included after EACH,
// which runs a statement for every lane i.
#pragma once
#include <string.h>
#include "kernels.h"

namespace {
using polydec::u8;

struct V {
  float v[16];
};
struct I {
  uint32_t v[16];
};
inline V load(const float* p) {
  V r;
  memcpy(&r, p, 64);
  return r;
}
inline void store(float* p, V a) { memcpy(p, &a, 64); }
inline V all(float x) {
  V r;
  EACH r.v[i] = x;
  return r;
}
inline V zero() { return all(0); }
inline V add(V a, V b) {
  EACH a.v[i] += b.v[i];
  return a;
}
inline V sub(V a, V b) {
  EACH a.v[i] -= b.v[i];
  return a;
}
inline V mul(V a, V b) {
  EACH a.v[i] *= b.v[i];
  return a;
}
inline V fma(V a, V b, V c) {
  EACH c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return c;
}
inline float from_half(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, e = h >> 10 & 31, f = h & 1023;
  uint32_t u = sign | (e == 31 ? 0x7f800000u | f << 13 : (e + 112) << 23 | f << 13);
  float r;
  if (!e) {
    r = float(f) * 0x1p-24f;
    memcpy(&u, &r, 4);
    u |= sign;
  }
  memcpy(&r, &u, 4);
  return r;
}
inline V halves(const u8* p) {
  V r;
  EACH {
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    r.v[i] = from_half(h);
  }
  return r;
}
inline V signed_bytes(const u8* p) {
  V r;
  EACH r.v[i] = float(int8_t(p[i]));
  return r;
}
inline V bytes(const u8* p) {
  V r;
  EACH r.v[i] = float(p[i]);
  return r;
}
inline I either(I a, I b) {
  EACH a.v[i] |= b.v[i];
  return a;
}
inline I mask(I a, uint32_t m) {
  EACH a.v[i] &= m;
  return a;
}
inline V low_nibbles(const u8* p) {
  V r;
  EACH r.v[i] = float(p[i] & 15);
  return r;
}
inline V high_nibbles(const u8* p) {
  V r;
  EACH r.v[i] = float(p[i] >> 4);
  return r;
}
inline V half_powers(const u8* p) {  // 2^(e - 128) of 16 bytes e
  V r;
  EACH {
    const uint32_t u = p[i] < 2 ? 0x200000u << p[i] : uint32_t(p[i] - 1) << 23;
    memcpy(&r.v[i], &u, 4);
  }
  return r;
}

}  // namespace
