// Packed keys and values in integers: rows of folded numbers (kernels.h) with codes of few bits. A
// panel is 16 outputs: positions where codes are keys, dimensions where they are values. Of each
// output it holds 32 bits after 32 bits, whose two halves of 16 bits each hold 16 / BITS codes less
// their centre, the first one lowest: code 2i of these in the lower half, code 2i + 1 in the upper
// one. So two shifts give two codes of 16 bits side by side, which one instruction multiplies by
// two folded numbers and adds up. Sums are exact, in any order. Included by tile_int.h.
#pragma once

namespace {

template <int BITS, int FIELD>
INLINE I field(I w) {
  constexpr int ABOVE = 16 - BITS * (FIELD + 1);
  if constexpr (ABOVE == 0)
    return signed_down<16 - BITS>(w);
  else
    return signed_down<16 - BITS>(up<ABOVE>(w));
}

template <int BITS, int FIELD, int COUNT, int PANELS>
INLINE void fields(const I (&w)[PANELS], const int16_t* x, size_t ld, WordSum (&s)[COUNT][PANELS]) {
  I c[PANELS];
  UNROLL(2)
  for (int e = 0; e < PANELS; ++e) c[e] = field<BITS, FIELD>(w[e]);
  UNROLL(8)
  for (int i = 0; i < COUNT; ++i) UNROLL(2)
  for (int e = 0; e < PANELS; ++e) s[i][e].add(c[e], four(x + size_t(i) * ld + 2 * FIELD));
  if constexpr (FIELD + 1 < 16 / BITS) fields<BITS, FIELD + 1>(w, x, ld, s);
}

template <int BITS, int COUNT, int PANELS>
void some_products(const u8* codes, int n, const int16_t* words, size_t ld, const float* unit,
                   const float* offset, bool more, const u8* soon, float* const* y, int from) {
  constexpr int AT_ONCE = 32 / BITS;  // codes of 32 bits
  const size_t panel = size_t(n) * LANES * BITS / 8;
  for (int part = 0; part < LANES; part += WIDTH) {
    WordSum s[COUNT][PANELS];
    const u8* at = codes + 4 * part;
    for (int k = 0; k < n; k += AT_ONCE, at += 4 * LANES) {
      I w[PANELS];
      UNROLL(2)
      for (int e = 0; e < PANELS; ++e) {
        w[e] = word(at + size_t(e) * panel);
        if (soon && !part) __builtin_prefetch(soon + (at - codes) + size_t(e) * panel, 0, 3);
      }
      fields<BITS, 0>(w, words + k, ld, s);
    }
    UNROLL(8)
    for (int i = 0; i < COUNT; ++i) UNROLL(2)
    for (int e = 0; e < PANELS; ++e) {
      float* to = y[i] + from + e * LANES + part;
      const V v = fma(all(unit[i]), number(s[i][e].get()), all(offset[i]));
      store(to, more ? add(load(to), v) : v);
    }
  }
}

template <int BITS, int COUNT>
void products_of(const u8* codes, int panels, int n, int count, const int16_t* words, size_t ld,
                 const float* unit, const float* offset, bool more, const u8* soon,
                 float* const* y) {
  const size_t panel = size_t(n) * LANES * BITS / 8;
  for (; count >= COUNT; count -= COUNT, words += COUNT * ld, y += COUNT) {
    int p = 0;
    for (; p + 2 <= panels; p += 2)
      some_products<BITS, COUNT, 2>(codes + size_t(p) * panel, n, words, ld, unit, offset, more,
                                    soon ? soon + size_t(p) * panel : nullptr, y, p * LANES);
    if (p < panels)
      some_products<BITS, COUNT, 1>(codes + size_t(p) * panel, n, words, ld, unit, offset, more,
                                    soon ? soon + size_t(p) * panel : nullptr, y, p * LANES);
    unit += COUNT;
    offset += COUNT;
    soon = nullptr;
  }
  if constexpr (COUNT > 1)
    if (count > 0)
      products_of<BITS, COUNT - 1>(codes, panels, n, count, words, ld, unit, offset, more, soon, y);
}

}  // namespace
