// Integer kernels in plain C++: slow, the same bits everywhere.
#include <string.h>
#include "round_plain.h"

#undef UNROLL
#define UNROLL(n)  // loops stay loops: nothing here lives in registers
#define INLINE inline
#define EACH \
  PRAGMA(GCC unroll 1) for (int i = 0; i < 16; ++i)  // unrolled, this file takes minutes to compile
#include "lanes_portable.h"

namespace {
using namespace polydec;
constexpr int WIDTH = 16;
inline V fms(V a, V b, V c) {
  EACH c.v[i] = __builtin_fmaf(a.v[i], b.v[i], -c.v[i]);
  return c;
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
