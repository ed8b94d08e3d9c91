// Weight formats and the micro-kernel: M rows against P neighbouring panels of 16 outputs.
//
// Nibbles: 32-bit lane o holds the eight nibbles of output o for inputs 8g..8g+7, and is taken in
// halves of four. They are not shifted down: one AND leaves q * 16^i, which converts exactly, and
// the *input* carries the factor 16^-i (exact, a power of two), so unpacking costs one AND and one
// conversion for 16 weights. Where denormal numbers cost nothing, not even the conversion: the
// AND's bits are themselves the number q * 16^i * 2^-149, the input carries LIFT, the block's scale
// the rest. Fifth and sixth bits lie so that a shift per four inputs puts them above their nibbles.
#pragma once
#include "kernels.h"

namespace {
using namespace polydec;

struct Plain {  // floats: no scale
  static constexpr bool scale = false, offset = false, nibbles = false;
  static constexpr int centre = 0, unit = 32, head = 0;
  struct Word {};
  static Word word(const u8*, int) { return {}; }
  static V d(const u8*, const u8*, int) { return zero(); }
  static V m(const u8*, const u8*, int) { return zero(); }
};
struct FmtF32 : Plain {
  static constexpr Type type = F32;
  static V get(const Word&, const u8* b, int g, int i) {
    return load((const float*)(b + (8 * g + i) * 64));
  }
};
struct FmtF16 : Plain {
  static constexpr Type type = F16;
  static V get(const Word&, const u8* b, int g, int i) { return halves(b + (8 * g + i) * 32); }
};
struct FmtBF16 : Plain {
  static constexpr Type type = BF16;
  static V get(const Word&, const u8* b, int g, int i) { return brains(b + (8 * g + i) * 32); }
};
struct FmtQ8_0 : Plain {
  static constexpr Type type = Q8_0;
  static constexpr bool scale = true;
  static V get(const Word&, const u8* b, int g, int i) {
    return signed_bytes(b + (8 * g + i) * 16);
  }
  static V d(const u8* b, const u8*, int) { return halves(b + 512); }
};
struct Nibbles : Plain {
  static constexpr bool scale = true, nibbles = true;
  struct Word {
    I low[2];
  };
  static Word word(const u8* b, int g) {
    const I w = words(b + 64 * g);
    return {{w, down(w, 16)}};
  }
  static V get(const Word& w, const u8*, int, int i) {
    return floats(nibble_mask(w.low[i / 4], i % 4));
  }
};
struct FmtQ4_0 : Nibbles {
  static constexpr Type type = Q4_0;
  static constexpr int centre = 8;  // d * (q - 8): the 8 is taken off the block's sum
  static V d(const u8* b, const u8*, int) { return halves(b + 256); }
};
struct FmtQ4_1 : Nibbles {
  static constexpr Type type = Q4_1;
  static constexpr bool offset = true;
  static V d(const u8* b, const u8*, int) { return halves(b + 256); }
  static V m(const u8* b, const u8*, int) { return halves(b + 288); }
};
struct FmtQ4_K : Nibbles {
  static constexpr Type type = Q4_K;
  static constexpr bool offset = true;
  static V d(const u8* b, const u8* h, int) { return mul(halves(h), bytes(b + 256)); }
  static V m(const u8* b, const u8* h, int) {
    return sub(zero(), mul(halves(h + 32), bytes(b + 272)));
  }
};
struct Wide : Nibbles {  // nibbles and more bits: `high` has them from bit 4 (i % 4) + 4 on
  struct Word {
    I low[2], high[2];
  };
  static Word join(I low, I high) { return {{low, down(low, 16)}, {up(high, 4), down(high, 12)}}; }
};
struct Five : Wide {
  static Word word(const u8* b, int g) {
    return join(words(b + 64 * g), down(words(b + 256), g));
  }  // bit 4i: of input 8g + i
  static V get(const Word& w, const u8*, int, int i) {
    return floats(
        either(nibble_mask(w.low[i / 4], i % 4), mask(w.high[i / 4], 16u << 4 * (i % 4))));
  }
};
struct FmtQ5_0 : Five {
  static constexpr Type type = Q5_0;
  static constexpr int centre = 16;
  static V d(const u8* b, const u8*, int) { return halves(b + 320); }
};
struct FmtQ5_1 : Five {
  static constexpr Type type = Q5_1;
  static constexpr bool offset = true;
  static V d(const u8* b, const u8*, int) { return halves(b + 320); }
  static V m(const u8* b, const u8*, int) { return halves(b + 352); }
};
struct FmtQ5_K : Five {
  static constexpr Type type = Q5_K;
  static constexpr bool offset = true;
  static V d(const u8* b, const u8* h, int) { return mul(halves(h), bytes(b + 320)); }
  static V m(const u8* b, const u8* h, int) {
    return sub(zero(), mul(halves(h + 32), bytes(b + 336)));
  }
};
struct FmtQ6_K : Wide {
  static constexpr Type type = Q6_K;
  static constexpr int centre = 32, unit = 16;
  static Word word(const u8* b, int g) {  // bits 4i, 4i + 1: of input 8g + i
    return join(words(b + 64 * g), down(words(b + 256 + 64 * (g / 2)), 2 * (g % 2)));
  }
  static V get(const Word& w, const u8*, int, int i) {
    return floats(
        either(nibble_mask(w.low[i / 4], i % 4), mask(w.high[i / 4], 48u << 4 * (i % 4))));
  }
  static V d(const u8* b, const u8* h, int half) {
    return mul(halves(h), signed_bytes(b + 384 + 16 * half));
  }
};
struct FmtQ2_K : Nibbles {  // two bits lie as the fifth and sixth of Q6_K do
  static constexpr Type type = Q2_K;
  static constexpr bool offset = true;
  static constexpr int unit = 16;
  static Word word(const u8* b, int g) {
    const I w = down(words(b + 64 * (g / 2)), 2 * (g % 2));
    return {{w, down(w, 16)}};
  }
  static V get(const Word& w, const u8*, int, int i) {
    return floats(mask(w.low[i / 4], 3u << 4 * (i % 4)));
  }
  static V d(const u8* b, const u8* h, int half) {
    return mul(halves(h), low_nibbles(b + 128 + 16 * half));
  }
  static V m(const u8* b, const u8* h, int half) {
    return sub(zero(), mul(halves(h + 32), high_nibbles(b + 128 + 16 * half)));
  }
};
struct FmtQ3_K : Wide {
  static constexpr Type type = Q3_K;
  static constexpr int centre = 4, unit = 16;
  static Word word(const u8* b, int g) {  // bit 4i + g: the third of input 8g + i
    const I w = down(words(b + 64 * (g / 2)), 2 * (g % 2)), t = words(b + 128),
            h = g < 2 ? up(t, 2 - g) : down(t, g - 2);
    return {{w, down(w, 16)}, {h, down(h, 16)}};
  }
  static V get(const Word& w, const u8*, int, int i) {
    return floats(
        either(mask(w.low[i / 4], 3u << 4 * (i % 4)), mask(w.high[i / 4], 4u << 4 * (i % 4))));
  }
  static V d(const u8* b, const u8* h, int half) {
    return mul(halves(h), signed_bytes(b + 192 + 16 * half));
  }
};
struct Looked : Plain {  // codes that stand for numbers of a table
  static constexpr bool scale = true;
  struct Word {
    I byte[2];
  };  // inputs 8g + {0, 2, 4, 6} and 8g + {1, 3, 5, 7}
  static Word look(const int8_t* table, const u8* b, int g) {
    const I w = words(b + 64 * g);
    return {{lookup(table, mask(w, 0x0F0F0F0F)), lookup(table, mask(down(w, 4), 0x0F0F0F0F))}};
  }
  static V get(const Word& w, const u8*, int, int i) { return signed_byte(w.byte[i % 2], i / 2); }
};
struct FmtIQ4_NL : Looked {
  static constexpr Type type = IQ4_NL;
  static Word word(const u8* b, int g) { return look(IQ4, b, g); }
  static V d(const u8* b, const u8*, int) { return halves(b + 256); }
};
struct FmtIQ4_XS : Looked {
  static constexpr Type type = IQ4_XS;
  static Word word(const u8* b, int g) { return look(IQ4, b, g); }
  static V d(const u8* b, const u8* h, int) { return mul(halves(h), signed_bytes(b + 256)); }
};
struct FmtMXFP4 : Looked {
  static constexpr Type type = MXFP4;
  static Word word(const u8* b, int g) { return look(FP4, b, g); }
  static V d(const u8* b, const u8*, int) { return half_powers(b + 256); }
};

template <class F, int M, int P>
void tile(const u8* w, const u8* ahead, size_t panel, int blocks, const float* x, const float* sums,
          float* y) {
  constexpr Layout L = LAYOUT[F::type];
  for (int i = 0; i < M * P * LANES; i += LANES) store(y + i, zero());
  const u8* head = w;
  for (int b = 0; b < blocks;
       ++b, w += L.bytes, ahead += L.bytes, x += BLOCK * M, sums += SUMS * M) {
    FENCE;  // sums of whole rows and masks stay in memory: registers are for the sums of the block
    if (L.head && b % 8 == 0) {
      head = w;
      w += L.head;
      ahead += L.head;
    }
    UNROLL(4)
    for (int p = 0; p < P; ++p)
      for (int i = 0; i < L.bytes; i += 64) __builtin_prefetch(ahead + p * panel + i, 0, 2);
    for (int half = 0; half < BLOCK / F::unit; ++half) {
      V s[M][P];
      UNROLL(8)
      for (int j = 0; j < M; ++j) UNROLL(4)
      for (int p = 0; p < P; ++p) s[j][p] = zero();
      for (int g = half * F::unit / 8; g < (half + 1) * F::unit / 8; ++g) {
        typename F::Word word[P];
        UNROLL(4)
        for (int p = 0; p < P; ++p) word[p] = F::word(w + p * panel, g);
        UNROLL(8)
        for (int i = 0; i < 8; ++i) {
          const float* a = x + 8 * g + i;
          if constexpr (P == 1 || M > 4) {  // weights, then row after row
            UNROLL(4)
            for (int p = 0; p < P; ++p) {
              const V q = F::get(word[p], w + p * panel, g, i);
              UNROLL(8)
              for (int j = 0; j < M; ++j) {
                V v = all(a[j * BLOCK]);
                PIN(v);
                s[j][p] = fma(v, q, s[j][p]);
              }
            }
          } else {
            V v[M];
            UNROLL(8)
            for (int j = 0; j < M; ++j) v[j] = all(a[j * BLOCK]);
            UNROLL(4)
            for (int p = 0; p < P; ++p) {
              const V q = F::get(word[p], w + p * panel, g, i);
              UNROLL(8)
              for (int j = 0; j < M; ++j) s[j][p] = fma(v[j], q, s[j][p]);
            }
          }
        }
      }
      UNROLL(4)
      for (int p = 0; p < P; ++p) {
        V d = F::d(w + p * panel, head + p * panel, half);
        const V o = F::offset ? F::m(w + p * panel, head + p * panel, half) : d;
        if constexpr (F::nibbles && F::centre == 0 && DROP != 1) d = mul(d, all(DROP));
        UNROLL(8)
        for (int j = 0; j < M; ++j) {
          float* at = y + (j * P + p) * LANES;
          V t = load(at), c = s[j][p];
          if constexpr (F::centre != 0)
            c = fma(c, all(DROP),
                    all(float(-F::centre) * sums[(F::unit == 16 ? half : 2) * M + j]));
          if constexpr (F::offset)
            t = add(t, fma(d, c,
                           mul(o, all(sums[(F::unit == 16 ? half : 2) * M +
                                           j]))));  // the block first: its parts cancel
          else if constexpr (F::scale)
            t = fma(d, c, t);
          else
            t = add(t, c);
          store(at, t);
        }
      }
    }
  }
}

template <class F, int M>
constexpr void fill(Kernels& k) {
  if constexpr (M <= ROWS) {
    k.tile[F::type][M][0] = tile<F, M, 1>;
    k.tile[F::type][M][1] = tile<F, M, WIDE[M]>;
    k.tile[F::type][M][2] = tile < F, M, WIDE[M] == 4 ? 2 : 1 > ;
    fill<F, M + 1>(k);
  }
}
template <class... F>
constexpr void fill_all(Kernels& k) {
  (fill<F, 1>(k), ...);
}

}  // namespace
