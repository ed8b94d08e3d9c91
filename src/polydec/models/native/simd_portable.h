// 16 lanes in plain C++: slow on machines without FMA, the same bits everywhere.
#pragma once
#define EACH for (int i = 0; i < 16; ++i)
#include "lanes_portable.h"
#define PIN(v)
#define FENCE

namespace {
inline V div(V a, V b) {
  EACH a.v[i] /= b.v[i];
  return a;
}
inline V vmax(V a, V b) {
  EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
inline V vmin(V a, V b) {
  EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
inline V whole(V a) {
  EACH a.v[i] = __builtin_rintf(a.v[i]);
  return a;
}
inline V pow2(V n) {
  V r;
  EACH {
    const uint32_t e = uint32_t(int32_t(n.v[i]) + 127) << 23;
    memcpy(&r.v[i], &e, 4);
  }
  return r;
}
inline V keep_from(V x, V low, V y) {
  EACH y.v[i] = x.v[i] >= low.v[i] ? y.v[i] : 0;
  return y;
}
inline V no_dust(V a) {
  EACH a.v[i] = __builtin_fabsf(a.v[i]) < polydec::DUST ? 0 : a.v[i];
  return a;
}
inline bool any_from(V a, V low) {
  bool r = false;
  EACH r |= a.v[i] >= low.v[i];
  return r;
}
inline float top(V a) {
  for (int n = 8; n; n /= 2)
    for (int i = 0; i < n; ++i) a.v[i] = a.v[i] > a.v[i + n] ? a.v[i] : a.v[i + n];
  return a.v[0];
}
inline float total(V a) {
  for (int n = 8; n; n /= 2)
    for (int i = 0; i < n; ++i) a.v[i] += a.v[i + n];
  return a.v[0];
}
inline void total4(V a, V b, V c, V d, float* out) {
  out[0] = total(a);
  out[1] = total(b);
  out[2] = total(c);
  out[3] = total(d);
}
// out[i] = total(s[i]).
template <int N>
inline void totals(const V* s, float* out) {
  for (int i = 0; i < N; i += 4) total4(s[i], s[i + 1], s[i + 2], s[i + 3], out + i);
}

// The nearest integers, ties to even, within 16 bits; nobody reads what is made of NaN.
inline void to_words(V a, int16_t* p) {
  EACH p[i] = __builtin_fabsf(a.v[i]) < 32768 ? int16_t(__builtin_rintf(a.v[i])) : int16_t(0);
}
inline V brains(const u8* p) {
  V r;
  EACH {
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    const uint32_t u = uint32_t(h) << 16;
    memcpy(&r.v[i], &u, 4);
  }
  return r;
}
inline I words(const u8* p) {
  I r;
  memcpy(&r, p, 64);
  return r;
}
inline I down(I a, int n) {
  EACH a.v[i] >>= n;
  return a;
}
inline I up(I a, int n) {
  EACH a.v[i] <<= n;
  return a;
}
inline I nibble_mask(I a, int n) { return mask(a, 15u << 4 * n); }
constexpr float LIFT = 1, DROP = 1;
inline V floats(I a) {
  V r;
  EACH r.v[i] = float(int32_t(a.v[i]));
  return r;
}
inline I lookup(const int8_t* table, I x) {
  EACH {
    u8 b[4];
    memcpy(b, &x.v[i], 4);
    for (u8& e : b) e = u8(table[e & 15]);
    memcpy(&x.v[i], b, 4);
  }
  return x;
}
inline V signed_byte(I x, int n) {
  V r;
  EACH r.v[i] = float(int8_t(x.v[i] >> 8 * n));
  return r;
}
#undef EACH

}  // namespace
