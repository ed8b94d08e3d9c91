// Packing: GGUF blocks of 16 outputs become one panel, block after block of 32 inputs; nothing is rounded.
#pragma once
#include <string.h>
#include "kernels.h"

namespace polydec {

struct Mat {
  u8* data = nullptr;
  int type = 0, n = 0, k = 0, blocks = 0, panels = 0;
  size_t panel = 0;          // bytes of one
  float* bias = nullptr;     // n, filled up to whole panels
  size_t bytes() const { return panel * size_t(panels); }
};

inline uint16_t u16(const u8* p) { uint16_t v; memcpy(&v, p, 2); return v; }
inline float f32(const u8* p) { float v; memcpy(&v, p, 4); return v; }
inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, e = h >> 10 & 31, f = h & 1023;
  uint32_t u = e == 31 ? 0x7f800000u | f << 13 : (e + 112) << 23 | f << 13;
  float r;
  if (!e) { r = float(f) * 0x1p-24f; memcpy(&u, &r, 4); }
  u |= sign;
  memcpy(&r, &u, 4);
  return r;
}
inline float brain_to_float(uint16_t h) { const uint32_t u = uint32_t(h) << 16; float r; memcpy(&r, &u, 4); return r; }

inline bool shape(Mat& a, int type, int n, int k) {
  if (type < 0 || type >= TYPES || n < 1 || k < 1 || k % LAYOUT[type].inputs) return false;
  const Layout& l = LAYOUT[type];
  a.type = type; a.n = n; a.k = k;
  a.blocks = k / BLOCK; a.panels = (n + LANES - 1) / LANES;
  a.panel = size_t(a.blocks) * l.bytes + size_t((a.blocks + 7) / 8) * l.head;
  return true;
}
inline size_t file_row(int type, int k) { return size_t(k / LAYOUT[type].inputs) * LAYOUT[type].file; }

// Six-bit scale and offset of sub-block j of Q4_K and Q5_K.
inline void six_bits(const u8* s, int j, u8& scale, u8& offset) {
  if (j < 4) { scale = s[j] & 63; offset = s[j + 4] & 63; return; }
  scale = u8((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
  offset = u8((s[j + 4] >> 4) | (s[j] >> 6) << 4);
}

// Whether every number of a row of k is finite: floats themselves, of blocks their scales and offsets.
template <class Int>
inline bool finite(const u8* p, int n, Int mask) {
  bool bad = false;
  for (int i = 0; i < n; ++i) { Int v; memcpy(&v, p + size_t(i) * sizeof v, sizeof v); bad |= (v & mask) == mask; }
  return !bad;
}
inline bool finite_row(int type, const u8* row, int k) {
  if (type == F32) return finite<uint32_t>(row, k, 0x7f800000u);
  if (type == F16) return finite<uint16_t>(row, k, 0x7c00);
  if (type == BF16) return finite<uint16_t>(row, k, 0x7f80);
  const Layout& l = LAYOUT[type];
  const int halves = type == Q4_1 || type == Q5_1 || type == Q4_K || type == Q5_K ? 2 : 1;
  bool good = true;
  for (int b = 0; b < k / l.inputs; ++b) good &= finite<uint16_t>(row + size_t(b) * l.file + (type == Q6_K ? 208 : 0), halves, 0x7c00);
  return good;
}

// The 32 unsigned codes of block b of one row in the file.
inline void codes(int type, const u8* row, int b, u8* q) {
  if (LAYOUT[type].inputs == 32) {
    const u8* s = row + size_t(b) * LAYOUT[type].file;
    const bool five = type == Q5_0 || type == Q5_1;
    const u8* low = s + (type == Q4_0 ? 2 : type == Q4_1 ? 4 : type == Q5_0 ? 6 : 8);
    uint32_t high = 0;
    if (five) memcpy(&high, low - 4, 4);
    for (int k = 0; k < 32; ++k) q[k] = u8((k < 16 ? low[k] & 15 : low[k - 16] >> 4) | (high >> k & 1) << 4);
    return;
  }
  const u8* s = row + size_t(b / 8) * LAYOUT[type].file;
  const int j = b % 8;
  if (type == Q6_K) {
    const u8 *low = s + 64 * (j / 4) + 32 * (j % 2), *high = s + 128 + 32 * (j / 4);
    for (int k = 0; k < 32; ++k) q[k] = u8((low[k] >> 4 * (j % 4 / 2) & 15) | (high[k] >> 2 * (j % 4) & 3) << 4);
  } else {
    const u8* low = s + (type == Q4_K ? 16 : 48) + 32 * (j / 2);
    for (int k = 0; k < 32; ++k) q[k] = u8((low[k] >> 4 * (j % 2) & 15) | (type == Q5_K ? s[16 + k] >> j & 1 : 0) << 4);
  }
}

// Rows of panel p come from rows[0..16) of the file (null: a row of zeros).
inline void pack_panel(const Mat& a, int p, const u8* const* rows) {
  const Layout& l = LAYOUT[a.type];
  u8* to = a.data + size_t(p) * a.panel;
  memset(to, 0, a.panel);
  for (int b = 0; b < a.blocks; ++b, to += l.bytes) {
    u8* head = to;
    if (l.head && b % 8 == 0) to += l.head;
    for (int o = 0; o < LANES; ++o) {
      const u8* row = rows[o];
      if (!row) continue;
      const u8* s = row + size_t(l.inputs == 32 ? b : b / 8) * l.file;
      if (a.type <= BF16) {
        const int e = a.type == F32 ? 4 : 2;
        for (int k = 0; k < BLOCK; ++k) memcpy(to + (k * LANES + o) * e, s + k * e, size_t(e));
        continue;
      }
      if (a.type == Q8_0) {
        for (int k = 0; k < BLOCK; ++k) to[k * LANES + o] = s[2 + k];
        memcpy(to + 512 + 2 * o, s, 2);
        continue;
      }
      u8 q[BLOCK];
      codes(a.type, row, b, q);
      uint32_t low[4] = {}, high[2] = {};
      const bool six = a.type == Q6_K;
      for (int k = 0; k < BLOCK; ++k) {
        const int g = k / 8, i = k % 8;
        low[g] |= uint32_t(q[k] & 15) << 4 * i;
        if (six) high[g / 2] |= uint32_t(q[k] >> 4) << (4 * i + 2 * (g % 2)); else high[0] |= uint32_t(q[k] >> 4) << (4 * i + g);
      }
      for (int g = 0; g < 4; ++g) memcpy(to + 64 * g + 4 * o, &low[g], 4);
      const bool wide = a.type >= Q5_0 && a.type != Q4_K;
      if (wide) for (int h = 0; h < (six ? 2 : 1); ++h) memcpy(to + 256 + 64 * h + 4 * o, &high[h], 4);
      u8* scale = to + (six ? 384 : wide ? 320 : 256);
      if (six) {
        if (b % 8 == 0) memcpy(head + 2 * o, s + 208, 2);
        scale[o] = s[192 + 2 * (b % 8)];
        scale[16 + o] = s[193 + 2 * (b % 8)];
      } else if (l.head) {
        if (b % 8 == 0) { memcpy(head + 2 * o, s, 2); memcpy(head + 32 + 2 * o, s + 2, 2); }
        six_bits(s + 4, b % 8, scale[o], scale[16 + o]);
      } else {
        memcpy(scale + 2 * o, s, 2);
        if (a.type == Q4_1 || a.type == Q5_1) memcpy(scale + 32 + 2 * o, s + 2, 2);
      }
    }
  }
}

// Row n as floats (look-up of embeddings): exactly what the file's dequantisation gives.
inline void unpack_row(const Mat& a, int n, float* out) {
  const Layout& l = LAYOUT[a.type];
  const u8 *at = a.data + size_t(n / LANES) * a.panel, *head = at;
  const int o = n % LANES;
  for (int b = 0; b < a.blocks; ++b, at += l.bytes, out += BLOCK) {
    if (l.head && b % 8 == 0) { head = at; at += l.head; }
    const bool six = a.type == Q6_K, wide = a.type >= Q5_0 && a.type != Q4_K;
    const u8* scale = at + (six ? 384 : wide ? 320 : 256);
    float d = 0, m = 0, d2 = 0;
    if (six) { d = half_to_float(u16(head + 2 * o)); d2 = d * float(int8_t(scale[16 + o])); d *= float(int8_t(scale[o])); }
    else if (l.head) { d = half_to_float(u16(head + 2 * o)) * scale[o]; m = half_to_float(u16(head + 32 + 2 * o)) * scale[16 + o]; }
    else if (a.type >= Q4_0) {
      d = half_to_float(u16(scale + 2 * o));
      if (a.type == Q4_1 || a.type == Q5_1) m = half_to_float(u16(scale + 32 + 2 * o));
    }
    else if (a.type == Q8_0) d = half_to_float(u16(at + 512 + 2 * o));
    for (int k = 0; k < BLOCK; ++k) {
      const int lane = k * LANES + o, g = k / 8, i = k % 8;
      switch (a.type) {
        case F32: out[k] = f32(at + 4 * lane); continue;
        case F16: out[k] = half_to_float(u16(at + 2 * lane)); continue;
        case BF16: out[k] = brain_to_float(u16(at + 2 * lane)); continue;
        case Q8_0: out[k] = d * float(int8_t(at[lane])); continue;
      }
      uint32_t low, high = 0;
      memcpy(&low, at + 64 * g + 4 * o, 4);
      if (wide) memcpy(&high, at + 256 + (six ? 64 * (g / 2) : 0) + 4 * o, 4);
      const int q = int(low >> 4 * i & 15) | (!wide ? 0 : six ? int(high >> (4 * i + 2 * (g % 2)) & 3) << 4 : int(high >> (4 * i + g) & 1) << 4);
      switch (a.type) {
        case Q4_0: out[k] = d * float(q - 8); break;
        case Q5_0: out[k] = d * float(q - 16); break;
        case Q6_K: out[k] = (k < 16 ? d : d2) * float(q - 32); break;
        case Q4_K: case Q5_K: out[k] = d * float(q) - m; break;
        default: out[k] = d * float(q) + m;
      }
    }
  }
}

}  // namespace polydec
