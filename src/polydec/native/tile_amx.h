// The micro-kernel of INT16 in AMX's tiles: M rows against one panel. Behind tile_int.h, whose codes, scales
// and order of sums it has, in registers of 16 outputs.
//
// A tile of inputs has two rows of 32 bytes for each row, its high halves and its low ones, as they lie
// in memory. A tile of codes has four inputs of 16 outputs a row, as unpacking
// gives them. Their products are a tile of sums, 16 outputs a row, which is stored, read and scaled.
// A store takes 16 cycles whatever its rows, a product max(10, rows). So all tiles have all rows, and
// one configuration serves a whole step; what lies behind the last row is read and not used. While
// tiles are worked on, vectors of 512 bits go half as fast: blocks are taken some at a time, and each
// is unpacked, multiplied and scaled with the others.
#pragma once

#include "tile_int.h"

namespace {

constexpr int TILE_ROWS = 16;
constexpr int TILED_ROWS = 16;  // of inputs, at most
static_assert(TILED_ROWS <= MOST_ROWS, "tiles beyond the table");

// Tiles 0 to 3 are sums, 4 and 5 inputs of a block and of half a block, 6 and 7 their codes.
struct alignas(64) Configuration {
  u8 palette = 1, row = 0, none[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 32, 16, 64, 64};
  u8 rows[16] = {16, 16, 16, 16, 16, 16, 8, 4};
};
void enter() {
  const Configuration c;
  asm volatile("ldtilecfg %0" : : "m"(c));
}
void leave() { asm volatile("tilerelease" : : : "memory"); }

INLINE void load_inputs(const int8_t* x, bool half) {
  if (half)
    asm volatile("tileloadd (%0,%1,1), %%tmm5" : : "r"(x), "r"(32L) : "memory");
  else
    asm volatile("tileloadd (%0,%1,1), %%tmm4" : : "r"(x), "r"(32L) : "memory");
}
INLINE void load_codes(const u8* q, bool half) {
  if (half)
    asm volatile("tileloadd (%0,%1,1), %%tmm7" : : "r"(q), "r"(64L) : "memory");
  else
    asm volatile("tileloadd (%0,%1,1), %%tmm6" : : "r"(q), "r"(64L) : "memory");
}
template <int to>
INLINE void multiply(bool half) {  // tile `to` = inputs x codes
  if (half)
    asm volatile("tilezero %%tmm%c0\n\ttdpbsud %%tmm7, %%tmm5, %%tmm%c0" : : "i"(to) : "memory");
  else
    asm volatile("tilezero %%tmm%c0\n\ttdpbsud %%tmm6, %%tmm4, %%tmm%c0" : : "i"(to) : "memory");
}
template <int from>
INLINE void store_sums(int32_t* to) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(64L), "i"(from) : "memory");
}

template <class F, int M>
struct Tiled {
  static constexpr Layout L = LAYOUT[F::type];
  static constexpr int HALVES = BLOCK / F::unit, ROWS_OF_TILE = TILE_ROWS / 2,
                       PARTS = (M + ROWS_OF_TILE - 1) / ROWS_OF_TILE, PRODUCTS = HALVES * PARTS;
  // Blocks: their sums stay in the first cache.
  static constexpr int TOGETHER = 16 / PRODUCTS < 8 ? 16 / PRODUCTS : 8;
  static constexpr int LAG = 2;  // products that are begun before the sums of one are stored
  static constexpr bool unpacked = L.low < 8;  // codes of 8 bits lie as wanted

  const u8 *w, *ahead;
  const Whole& rows;
  alignas(64) u8 codes[TOGETHER][16 * BLOCK];
  alignas(64) int32_t sums[TOGETHER * PRODUCTS][TILE_ROWS * LANES];

  static int place(int b) { return b * L.bytes + (L.head ? (b / 8 + 1) * L.head : 0); }

  INLINE void unpack(int b, u8* to) {
    const u8* at = w + place(b);
    if constexpr (fetches(M, INT16, L.bytes))
      for (int i = 0; i < L.bytes; i += 64) __builtin_prefetch(ahead + place(b) + i, 0, 2);
    if constexpr (unpacked) {
      const Codes q[4] = {F::template get<0>(at), F::template get<1>(at), F::template get<2>(at),
                          F::template get<3>(at)};
      UNROLL(4)
      for (int g = 0; g < 4; ++g) {
        _mm512_store_si512(to + 128 * g, q[g].even);
        _mm512_store_si512(to + 128 * g + 64, q[g].odd);
      }
    }
  }
  // Product n of those from block `first` on, in tile `to`: halves of a block, of each the rows.
  template <int to>
  INLINE void product(int first, int n) {
    constexpr int half = to % PRODUCTS / PARTS, part = to % PARTS;
    const int i = n / PRODUCTS;
    const int8_t* x = rows.bytes + (first + i) * M * BYTES[INT16];
    if constexpr (part == 0)
      load_codes((unpacked ? codes[i] : w + place(first + i)) + 256 * half, HALVES == 2);
    load_inputs(x + 512 * part + 16 * half, HALVES == 2);
    multiply<to>(HALVES == 2);
  }
  template <int to>
  INLINE void step(int first, int n, int count) {
    if (n < count) product<to>(first, n);
    if (n >= LAG && n - LAG < count) store_sums<(to + 4 - LAG) % 4>(sums[n - LAG]);
  }
  INLINE void scale(int first, int i, V (&y)[M]) {
    const int b = first + i;
    const u8 *at = w + place(b), *head = w + b / 8 * (8 * L.bytes + L.head);
    Whole x = rows;
    x.scale += b * M;
    x.total += b * M;
    x.sums += b * M * SUMS;
    V d[HALVES], m[HALVES];
    UNROLL(2)
    for (int half = 0; half < HALVES; ++half) {
      d[half] = F::d(at, head, half, 0);
      m[half] = F::m(at, head, half, 0);
    }
    UNROLL(16)
    for (int j = 0; j < M; ++j) {
      V kept, taken;
      UNROLL(2)
      for (int half = 0; half < HALVES; ++half) {
        const u8* s = (const u8*)sums[i * PRODUCTS + half * PARTS + j / ROWS_OF_TILE];
        const int row = j % ROWS_OF_TILE;
        const I n = iadd(ishift<8>(word(s + 128 * row)), word(s + 128 * row + 64));
        settle<F, M>(n, d[half], m[half], x, half, j, kept, taken, y[j]);
      }
    }
  }
  void run(int blocks, float* out) {
    V y[M];
    UNROLL(16)
    for (int j = 0; j < M; ++j) y[j] = zero();
    for (int first = 0; first < blocks; first += TOGETHER) {
      const int some = blocks - first < TOGETHER ? blocks - first : TOGETHER, n = some * PRODUCTS;
      for (int i = 0; i < some; ++i) unpack(first + i, codes[i]);
      for (int k = 0; k < n + LAG; k += 4) {
        step<0>(first, k, n);
        step<1>(first, k + 1, n);
        step<2>(first, k + 2, n);
        step<3>(first, k + 3, n);
      }
      for (int i = 0; i < some; ++i) scale(first, i, y);
    }
    UNROLL(16)
    for (int j = 0; j < M; ++j) store(out + j * LANES, y[j]);
  }
};

template <class F, int M>
void tiled(const u8* w, const u8* ahead, int blocks, const Whole& rows, float* out) {
  Tiled<F, M> t{w, ahead, rows};
  t.run(blocks, out);
}

template <class F, int M>
constexpr void fill_tiled(Integers& k) {
  if constexpr (M <= TILED_ROWS) {
    k.tile[INT16][F::type][M] = tiled<F, M>;
    fill_tiled<F, M + 1>(k);
  }
}
template <class... F>
constexpr void fill_tiled_types(Integers& k, List<F...>) {
  (fill_tiled<F, ROWS[INT16] + 1>(k), ...);
}
constexpr Integers make_tiled() {
  Integers k = make();
  k.rows[INT16] = TILED_ROWS;
  k.enter = enter;
  k.leave = leave;
  fill_tiled_types(k, Formats{});
  return k;
}

}  // namespace
