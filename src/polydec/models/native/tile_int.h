// The micro-kernel in integers: M rows against one panel. Included once per instruction set after
// its registers, which hold WIDTH outputs; ROWS (rows of the largest tile by compute), reads_words
// (of the largest code), QUERIES (rows of integers that share a load of packed codes, at most),
// fetches (whether the next panel is asked for while this one is worked on) and chains (whether
// rows are enough that one sum of each serves both halves of INT16). One AND of a vector of nibbles
// gives 16 outputs x inputs 8g + {0, 2, 4, 6}, shift and AND 8g + {1, 3, 5, 7}.
#pragma once
#include <string.h>
#include "integers.h"

#ifndef INLINE
#define INLINE __attribute__((always_inline)) inline
#endif

namespace {
using namespace polydec;

struct Codes {
  I even, odd;
};
template <int n>
INLINE I shifted(I x) {
  if constexpr (n > 0)
    return up<n>(x);
  else if constexpr (n < 0)
    return down<-n>(x);
  else
    return x;
}
constexpr uint32_t fourfold(int byte) { return uint32_t(byte) * 0x01010101u; }

// Unsigned codes of `low` and `high` bits, as pack.h lays them; 2^centre is taken off each where
// centre is not 0.
template <Type TYPE, int UNIT, int CENTRE, bool OFFSET>
struct Planes {
  static constexpr Type type = TYPE;
  static constexpr int unit = UNIT, centre = CENTRE, low = LAYOUT[TYPE].low,
                       high = LAYOUT[TYPE].high;
  static constexpr int top = (1 << (low + high)) - 1, scales = 64 * (low + high);
  static constexpr bool offset = OFFSET;
  template <int g>
  static Codes get(const u8* b) {
    if constexpr (low == 8)
      return {word(b + 128 * g), word(b + 128 * g + 64)};
    else {
      constexpr int group = low == 4 ? g : g / 2, at = low == 4 ? 0 : 2 * (g % 2);
      const I w = word(b + 64 * group);
      Codes q{mask(shifted<-at>(w), fourfold((1 << low) - 1)),
              mask(shifted<-at - 4>(w), fourfold((1 << low) - 1))};
      if constexpr (high != 0) {
        constexpr int more = high == 1 ? g : 2 * (g % 2);
        const I h = word(b + 64 * low + (high == 1 ? 0 : 64 * (g / 2)));
        q.even = either(q.even, mask(shifted<low - more>(h), fourfold(((1 << high) - 1) << low)));
        q.odd = either(q.odd, mask(shifted<low - more - 4>(h), fourfold(((1 << high) - 1) << low)));
      }
      return q;
    }
  }
  static V m(const u8*, const u8*, int, int) { return zero(); }
};
// Scales of output s on: b at the block, h at the head of its super-block.
template <Type TYPE, int CENTRE>
struct Simple : Planes<TYPE, 32, CENTRE, false> {
  static V d(const u8* b, const u8*, int, int s) { return halves(b + Simple::scales + 2 * s); }
};
template <Type TYPE>
struct Offset : Planes<TYPE, 32, 0, true> {
  static V d(const u8* b, const u8*, int, int s) { return halves(b + Offset::scales + 2 * s); }
  static V m(const u8* b, const u8*, int, int s) {
    return mul(all(-1), halves(b + Offset::scales + 32 + 2 * s));
  }
};
template <Type TYPE>
struct Super : Planes<TYPE, 32, 0, true> {
  static V d(const u8* b, const u8* h, int, int s) {
    return mul(halves(h + 2 * s), bytes(b + Super::scales + s));
  }
  static V m(const u8* b, const u8* h, int, int s) {
    return mul(halves(h + 32 + 2 * s), bytes(b + Super::scales + 16 + s));
  }
};
template <Type TYPE, int CENTRE>
struct Sixteen : Planes<TYPE, 16, CENTRE, false> {
  static V d(const u8* b, const u8* h, int half, int s) {
    return mul(halves(h + 2 * s), signed_bytes(b + Sixteen::scales + 16 * half + s));
  }
};
struct Two : Planes<Q2_K, 16, 0, true> {
  static V d(const u8* b, const u8* h, int half, int s) {
    return mul(halves(h + 2 * s), low_nibbles(b + scales + 16 * half + s));
  }
  static V m(const u8* b, const u8* h, int half, int s) {
    return mul(halves(h + 32 + 2 * s), high_nibbles(b + scales + 16 * half + s));
  }
};
// Codes that stand for numbers of a table, 2^centre added so that none is negative.
struct Table {
  alignas(16) u8 v[16];
};
constexpr Table lifted(const int8_t (&t)[16], int by) {
  Table r{};
  for (int i = 0; i < 16; ++i) r.v[i] = u8(t[i] + by);
  return r;
}
constexpr Table IQ4_LIFTED = lifted(IQ4, 128), FP4_LIFTED = lifted(FP4, 16);
template <Type TYPE, int CENTRE, int TOP, const Table& TABLE>
struct Looked : Planes<TYPE, 32, CENTRE, false> {
  static constexpr int top = TOP;
  template <int g>
  static Codes get(const u8* b) {
    const Codes q = Planes<TYPE, 32, CENTRE, false>::template get<g>(b);
    return {lookup(TABLE.v, q.even), lookup(TABLE.v, q.odd)};
  }
};
struct Nonlinear : Looked<IQ4_NL, 7, 255, IQ4_LIFTED> {
  static V d(const u8* b, const u8*, int, int s) { return halves(b + scales + 2 * s); }
};
struct NonlinearSuper : Looked<IQ4_XS, 7, 255, IQ4_LIFTED> {
  static V d(const u8* b, const u8* h, int, int s) {
    return mul(halves(h + 2 * s), signed_bytes(b + scales + s));
  }
};
struct Micro : Looked<MXFP4, 4, 28, FP4_LIFTED> {
  static V d(const u8* b, const u8*, int, int s) { return half_powers(b + scales + s); }
};

INLINE int32_t four(const void* x) {
  int32_t v;
  memcpy(&v, x, 4);
  return v;
}

template <bool, class A, class>
struct Choose {
  using type = A;
};
template <class A, class B>
struct Choose<false, A, B> {
  using type = B;
};
template <class F, Compute C>
constexpr bool WORDED = reads_words(F::top);

// Products of 8 inputs (group g of the block) added to the sums; INT16 in bytes: s of the high
// halves, t of the low ones.
template <class F, Compute C, int M, int g, class S>
INLINE void products(const u8* w, const Whole& x, S (&s)[M], S (&t)[M]) {
  constexpr int E = BYTES[C], i = 2 * g % (F::unit / 4);
  const Codes q = F::template get<g>(w);
  if constexpr (WORDED<F, C>) {
    const I c[4] = {mask(q.even, 0x00FF00FF), down<8>(q.even), mask(q.odd, 0x00FF00FF),
                    down<8>(q.odd)};
    UNROLL(4)
    for (int e = 0; e < 4; ++e) UNROLL(8)
    for (int j = 0; j < M; ++j) s[j].add(c[e], four(x.words + BLOCK * j + 8 * g + 2 * e));
  } else {
    UNROLL(8)
    for (int j = 0; j < M; ++j) {
      s[j].template add<i>(q.even, four(x.bytes + E * j + 8 * g));
      if constexpr (C == INT16) t[j].template add<i>(q.even, four(x.bytes + E * j + BLOCK + 8 * g));
    }
    UNROLL(8)
    for (int j = 0; j < M; ++j) {
      s[j].template add<i + 1>(q.odd, four(x.bytes + E * j + 8 * g + 4));
      if constexpr (C == INT16)
        t[j].template add<i + 1>(q.odd, four(x.bytes + E * j + BLOCK + 8 * g + 4));
    }
  }
}

// INT16 in bytes of 16 inputs (half of the block) in one sum each: those of the high halves, times
// 256, then the low ones.
template <class F, int M, int half, class S>
INLINE void chained(const u8* w, const Whole& x, S (&s)[M]) {
  const Codes q[2] = {F::template get<2 * half>(w), F::template get<2 * half + 1>(w)};
  UNROLL(2)
  for (int part = 0; part < 2; ++part) {
    UNROLL(2)
    for (int g = 0; g < 2; ++g) {
      const int8_t* b = x.bytes + BLOCK * part + 16 * half + 8 * g;
      UNROLL(8)
      for (int j = 0; j < M; ++j) s[j].template add<0>(q[g].even, four(b + BYTES[INT16] * j));
      UNROLL(8)
      for (int j = 0; j < M; ++j) s[j].template add<0>(q[g].odd, four(b + BYTES[INT16] * j + 4));
    }
    if (part == 0) UNROLL(8)
    for (int j = 0; j < M; ++j) s[j].v = ishift<8>(s[j].v);
  }
}

// One block of 32 inputs: outputs `part` ... of the panel, added to the rows' sums.
template <class F, Compute C, int M>
INLINE void block(const u8* at, const u8* head, const Whole& x, int part, V (&y)[M]) {
  constexpr bool sixteen = F::unit == 16,
                 one_sum = sixteen && C == INT16 && !WORDED<F, C> && chains(M);
  using S = typename Choose<WORDED<F, C>, WordSum, ByteSum<F::top, F::unit>>::type;
  V kept[M], taken[M];
  UNROLL(2)
  for (int half = 0; half < BLOCK / F::unit; ++half) {
    S s[M], t[M];
    const u8* q = at + 4 * part;
    if constexpr (one_sum) {
      if (half)
        chained<F, M, 1>(q, x, s);
      else
        chained<F, M, 0>(q, x, s);
    } else {
      if (!sixteen || half == 0) {
        products<F, C, M, 0>(q, x, s, t);
        products<F, C, M, 1>(q, x, s, t);
      }
      if (!sixteen || half == 1) {
        products<F, C, M, 2>(q, x, s, t);
        products<F, C, M, 3>(q, x, s, t);
      }
    }
    const V d = F::d(at, head, half, part), m = F::m(at, head, half, part);
    UNROLL(8)
    for (int j = 0; j < M; ++j) {
      I n = s[j].get();
      if constexpr (C == INT16 && !WORDED<F, C> && !one_sum) n = iadd(ishift<8>(n), t[j].get());
      const int32_t* sum = x.sums + (sixteen ? half : 2) * M + j;
      if constexpr (F::centre != 0) n = isub(n, ishift<F::centre>(iall(*sum)));
      const V c = number(n);
      V v;
      if constexpr (!sixteen)
        v = F::offset ? fms(d, c, mul(m, all(x.total[j]))) : mul(d, c);
      else {
        v = half ? fma(d, c, kept[j]) : mul(d, c);
        if constexpr (F::offset) {
          const V f = number(iall(*sum));
          taken[j] = half ? fma(m, f, taken[j]) : mul(m, f);
          if (half) v = sub(v, taken[j]);
        }
      }
      if (sixteen && half == 0)
        kept[j] = v;
      else
        y[j] = fma(all(x.scale[j]), v, y[j]);
    }
  }
}

template <class F, Compute C, int M>
void tile(const u8* w, const u8* ahead, int blocks, const Whole& rows, float* out) {
  constexpr Layout L = LAYOUT[F::type];
  // Where a panel is two registers wide: both at once for few rows, one after the other (the panel
  // is in L1 or L2 by then) where the registers are needed for rows.
  constexpr int AT_ONCE = M <= 2 ? LANES / WIDTH : 1;
  for (int first = 0; first < LANES; first += WIDTH * AT_ONCE) {
    const u8 *at = w, *soon = ahead, *head = w;
    Whole x = rows;
    V y[AT_ONCE][M];
    UNROLL(2)
    for (int h = 0; h < AT_ONCE; ++h) UNROLL(8)
    for (int j = 0; j < M; ++j) y[h][j] = zero();
    for (int b = 0; b < blocks; ++b, at += L.bytes, soon += L.bytes) {
      if (L.head && b % 8 == 0) {
        head = at;
        at += L.head;
        soon += L.head;
      }
      if constexpr (fetches(M, C, L.bytes))
        for (int i = 0; i < L.bytes; i += 64) __builtin_prefetch(soon + i, 0, 2);
      UNROLL(2)
      for (int h = 0; h < AT_ONCE; ++h) block<F, C, M>(at, head, x, first + h * WIDTH, y[h]);
      x.bytes += M * BYTES[C];
      x.words += M * BLOCK;
      x.scale += M;
      x.total += M;
      x.sums += M * SUMS;
    }
    UNROLL(2)
    for (int h = 0; h < AT_ONCE; ++h) UNROLL(8)
    for (int j = 0; j < M; ++j) store(out + j * LANES + first + h * WIDTH, y[h][j]);
  }
}

}  // namespace
#include "press_int.h"
namespace {

template <class F, Compute C, int M>
constexpr void fill_rows(Integers& k) {
  if constexpr (M <= ROWS[C]) {
    k.tile[C][F::type][M] = tile<F, C, M>;
    fill_rows<F, C, M + 1>(k);
  }
}
template <class F>
constexpr void fill_type(Integers& k) {
  k.words[INT16][F::type] = WORDED<F, INT16>;
  k.words[INT8][F::type] = WORDED<F, INT8>;
  fill_rows<F, INT16, 1>(k);
  fill_rows<F, INT8, 1>(k);
}
template <class... F>
constexpr void fill_types(Integers& k) {
  (fill_type<F>(k), ...);
}
constexpr Integers make() {
  Integers k{};
  k.products[0] = products_of<2, QUERIES>;
  k.products[1] = products_of<4, QUERIES>;
  k.products[2] = products_of<8, QUERIES>;
  k.rows[INT16] = ROWS[INT16];
  k.rows[INT8] = ROWS[INT8];
  k.round = round;
  fill_types<Simple<Q8_INT, 7>, Simple<Q4_0, 3>, Offset<Q4_1>, Simple<Q5_0, 4>, Offset<Q5_1>,
             Super<Q4_K>, Super<Q5_K>, Sixteen<Q6_K, 5>, Two, Sixteen<Q3_K, 2>, Nonlinear,
             NonlinearSuper, Micro>(k);
  return k;
}

}  // namespace
