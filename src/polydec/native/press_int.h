// Packed keys and values in integers: rows of folded numbers (Folded, kernels.h) with codes of few
// bits. A panel is 16 outputs: positions where codes are keys, dimensions where they are values.
// Of each output it holds 32 bits after 32 bits, whose two halves of 16 bits each hold 16 / BITS
// codes, the first one lowest: code 2i of these in the lower half, code 2i + 1 in the upper one. So
// a shift and an AND give two codes of 16 bits side by side, which one instruction multiplies by
// two folded numbers and adds up. Sums are exact, in any order.
// Included by tile_int.h.
#pragma once

namespace {

template <int BITS, int FIELD>
INLINE I field(I w) {
  constexpr uint32_t MASK = ((1u << BITS) - 1) * 0x00010001u;
  if constexpr (FIELD == 0)
    return mask(w, MASK);
  else if constexpr (FIELD == 16 / BITS - 1)
    return down<BITS * FIELD>(w);
  else
    return mask(down<BITS * FIELD>(w), MASK);
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
void some_products(const u8* codes, int n, const int16_t* words, size_t ld, const Folded* by,
                   bool more, float* const* y, int from) {
  constexpr int AT_ONCE = 32 / BITS;  // codes of 32 bits
  const size_t panel = size_t(n) * LANES * BITS / 8;
  for (int part = 0; part < LANES; part += WIDTH) {
    WordSum s[COUNT][PANELS];
    const u8* at = codes + 4 * part;
    for (int k = 0; k < n; k += AT_ONCE, at += 4 * LANES) {
      I w[PANELS];
      UNROLL(2)
      for (int e = 0; e < PANELS; ++e) w[e] = word(at + size_t(e) * panel);
      fields<BITS, 0>(w, words + k, ld, s);
    }
    UNROLL(8)
    for (int i = 0; i < COUNT; ++i) {
      const I centre = iall(int32_t(uint32_t(by[i].total) << (BITS - 1)));
      UNROLL(2)
      for (int e = 0; e < PANELS; ++e) {
        float* to = y[i] + from + e * LANES + part;
        const V sum = number(isub(s[i][e].get(), centre)),
                v = fma(all(by[i].unit), sum, all(by[i].offset));
        store(to, more ? add(load(to), v) : v);
      }
    }
  }
}

template <int BITS, int COUNT>
void products_of(const u8* codes, int panels, int n, int count, const int16_t* words, size_t ld,
                 const Folded* by, bool more, float* const* y) {
  const size_t panel = size_t(n) * LANES * BITS / 8;
  for (; count >= COUNT; count -= COUNT, words += COUNT * ld, by += COUNT, y += COUNT) {
    int p = 0;
    for (; p + 2 <= panels; p += 2)
      some_products<BITS, COUNT, 2>(codes + size_t(p) * panel, n, words, ld, by, more, y,
                                    p * LANES);
    if (p < panels)
      some_products<BITS, COUNT, 1>(codes + size_t(p) * panel, n, words, ld, by, more, y,
                                    p * LANES);
  }
  if constexpr (COUNT > 1)
    if (count > 0) products_of<BITS, COUNT - 1>(codes, panels, n, count, words, ld, by, more, y);
}

}  // namespace
