// Integer kernels in plain C++: slow, the same bits everywhere.
#include <string.h>
#include "round_plain.h"

#undef UNROLL
#define UNROLL(n)  // loops stay loops: nothing here lives in registers
#define INLINE inline

namespace {
using namespace polydec;
constexpr int WIDTH = 16;
struct V {
  float v[16];
};
struct I {
  uint32_t v[16];
};
#define EACH \
  PRAGMA(GCC unroll 1) for (int i = 0; i < 16; ++i)  // unrolled, this file takes minutes to compile
inline V all(float x) {
  V r;
  EACH r.v[i] = x;
  return r;
}
inline V zero() { return all(0); }
inline V mul(V a, V b) {
  EACH a.v[i] *= b.v[i];
  return a;
}
inline V sub(V a, V b) {
  EACH a.v[i] -= b.v[i];
  return a;
}
inline V fma(V a, V b, V c) {
  EACH c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return c;
}
inline V fms(V a, V b, V c) {
  EACH c.v[i] = __builtin_fmaf(a.v[i], b.v[i], -c.v[i]);
  return c;
}
inline void store(float* p, V a) { memcpy(p, &a, 64); }
inline V load(const float* p) {
  V r;
  memcpy(&r, p, 64);
  return r;
}
inline V add(V a, V b) {
  EACH a.v[i] += b.v[i];
  return a;
}
inline I iall(int32_t x) {
  I r;
  EACH r.v[i] = uint32_t(x);
  return r;
}
inline I word(const u8* p) {
  I r;
  memcpy(&r, p, 64);
  return r;
}
inline I mask(I a, uint32_t m) {
  EACH a.v[i] &= m;
  return a;
}
inline I either(I a, I b) {
  EACH a.v[i] |= b.v[i];
  return a;
}
template <int n>
inline I down(I a) {
  EACH a.v[i] = (a.v[i] >> n & 0xFFFFu >> n) | (a.v[i] >> n & (0xFFFFu >> n) << 16);
  return a;
}
template <int n>
inline I up(I a) {
  EACH a.v[i] = (a.v[i] << n & 0xFFFF) | (a.v[i] >> 16 << n << 16);
  return a;
}
template <int n>
inline I signed_down(I a) {
  EACH {
    int16_t w[2];
    memcpy(w, &a.v[i], 4);
    for (int16_t& x : w) x = int16_t(x >> n);
    memcpy(&a.v[i], w, 4);
  }
  return a;
}
inline I iadd(I a, I b) {
  EACH a.v[i] += b.v[i];
  return a;
}
inline I isub(I a, I b) {
  EACH a.v[i] -= b.v[i];
  return a;
}
template <int n>
inline I ishift(I a) {
  EACH a.v[i] <<= n;
  return a;
}
inline V number(I a) {
  V r;
  EACH r.v[i] = float(int32_t(a.v[i]));
  return r;
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
inline V bytes(const u8* p) {
  V r;
  EACH r.v[i] = float(p[i]);
  return r;
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
inline V signed_bytes(const u8* p) {
  V r;
  EACH r.v[i] = float(int8_t(p[i]));
  return r;
}
inline V half_powers(const u8* p) {  // 2^(e - 128) of bytes e
  V r;
  EACH {
    const uint32_t u = p[i] < 2 ? 0x200000u << p[i] : uint32_t(p[i] - 1) << 23;
    memcpy(&r.v[i], &u, 4);
  }
  return r;
}
inline I lookup(const u8* table, I x) {
  EACH {
    u8 b[4];
    memcpy(b, &x.v[i], 4);
    for (u8& e : b) e = table[e & 15];
    memcpy(&x.v[i], b, 4);
  }
  return x;
}
struct WordSum {  // two codes of 16 bits with two inputs
  I v = iall(0);
  void add(I code, int32_t x) {
    int16_t a[2];
    memcpy(a, &x, 4);
    EACH {
      int16_t c[2];
      memcpy(c, &code.v[i], 4);
      v.v[i] += uint32_t(c[0] * a[0] + c[1] * a[1]);
    }
  }
  I get() const { return v; }
};
template <int TOP, int UNIT>
struct ByteSum {
  I v = iall(0);
  template <int>
  void add(I code, int32_t x) {
    int8_t a[4];
    memcpy(a, &x, 4);
    EACH {
      int32_t s = 0;
      for (int e = 0; e < 4; ++e) s += int32_t(code.v[i] >> 8 * e & 255) * a[e];
      v.v[i] += uint32_t(s);
    }
  }
  I get() const { return v; }
};
#undef EACH

constexpr int ROWS[COMPUTES] = {0, 2, 2};
constexpr int QUERIES = 2;
constexpr bool reads_words(int) { return false; }
constexpr bool fetches(int, Compute, int) { return false; }
constexpr bool chains(int) { return false; }
}  // namespace

#include "tile_int.h"

const Integers* polydec::integers_portable() {
  static const Integers k = make();
  return &k;
}
