// Packing: GGUF blocks of 16 outputs become one panel, block after block of 32 inputs; nothing is
// rounded.
#pragma once
#include <string.h>
#include <cmath>
#include "kernels.h"

namespace polydec {

struct Mat {
  u8* data = nullptr;
  int type = 0, n = 0, k = 0, blocks = 0, panels = 0;
  size_t panel = 0;       // bytes of one
  float* bias = nullptr;  // n, filled up to whole panels
  size_t bytes() const { return panel * size_t(panels); }
};

inline uint16_t u16(const u8* p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}
inline float f32(const u8* p) {
  float v;
  memcpy(&v, p, 4);
  return v;
}
inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, e = h >> 10 & 31, f = h & 1023;
  uint32_t u = e == 31 ? 0x7f800000u | f << 13 : (e + 112) << 23 | f << 13;
  float r;
  if (!e) {
    r = float(f) * 0x1p-24f;
    memcpy(&u, &r, 4);
  }
  u |= sign;
  memcpy(&r, &u, 4);
  return r;
}
inline uint16_t float_to_half(float x) {  // nearest, ties to even; infinity from 65520 on
  uint32_t u;
  memcpy(&u, &x, 4);
  const uint32_t sign = u >> 16 & 0x8000, size = u & 0x7fffffffu;
  if (size >= 0x477ff000u) return uint16_t(sign | 0x7c00);
  if (size >= 0x38800000u)
    return uint16_t(sign | (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13);
  float small;  // multiples of 2^-24: as the last bits of 1.5 * 2^-1 + x
  memcpy(&small, &size, 4);
  small += 0x1.8p-1f;
  memcpy(&u, &small, 4);
  return uint16_t(sign | (u & 0x7ff));
}
inline float brain_to_float(uint16_t h) {
  const uint32_t u = uint32_t(h) << 16;
  float r;
  memcpy(&r, &u, 4);
  return r;
}

inline bool shape(Mat& a, int type, int n, int k) {
  if (type < 0 || type >= TYPES || n < 1 || k < 1 || k % LAYOUT[type].inputs) return false;
  const Layout& l = LAYOUT[type];
  a.type = type;
  a.n = n;
  a.k = k;
  a.blocks = k / BLOCK;
  a.panels = (n + LANES - 1) / LANES;
  a.panel = size_t(a.blocks) * l.bytes + size_t((a.blocks + 7) / 8) * l.head;
  return true;
}
// Where Q8_INT has input k of output o: byte vectors of inputs 8g + {0, 2, 4, 6}, then of 8g + {1,
// 3, 5, 7}.
inline int byte_at(int k, int o) { return 64 * (2 * (k / 8) + k % 2) + 4 * o + k % 8 / 2; }
inline size_t file_row(int type, int k) {
  return size_t(k / LAYOUT[type].inputs) * LAYOUT[type].file;
}

// Six-bit scale and offset of sub-block j of Q4_K and Q5_K.
inline void six_bits(const u8* s, int j, u8& scale, u8& offset) {
  if (j < 4) {
    scale = s[j] & 63;
    offset = s[j + 4] & 63;
    return;
  }
  scale = u8((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
  offset = u8((s[j + 4] >> 4) | (s[j] >> 6) << 4);
}

// Whether every number of a row of k is finite: floats themselves, of blocks their scales and
// offsets.
template <class Int>
inline bool finite(const u8* p, int n, Int mask) {
  bool bad = false;
  for (int i = 0; i < n; ++i) {
    Int v;
    memcpy(&v, p + size_t(i) * sizeof v, sizeof v);
    bad |= (v & mask) == mask;
  }
  return !bad;
}
inline bool finite_row(int type, const u8* row, int k) {
  if (type == F32) return finite<uint32_t>(row, k, 0x7f800000u);
  if (type == F16) return finite<uint16_t>(row, k, 0x7c00);
  if (type == BF16) return finite<uint16_t>(row, k, 0x7f80);
  const Layout& l = LAYOUT[type];
  const int halves =
      type == Q4_1 || type == Q5_1 || type == Q4_K || type == Q5_K || type == Q2_K ? 2 : 1;
  const int at = type == Q6_K ? 208 : type == Q2_K ? 80 : type == Q3_K ? 108 : 0;
  bool good = true;
  for (int b = 0; b < k / l.inputs; ++b) {
    const u8* s = row + size_t(b) * size_t(l.file) + at;
    good &= type == MXFP4 ? *s != 255 : finite<uint16_t>(s, halves, 0x7c00);
  }
  return good;
}

// Six-bit scale j of Q3_K, 16 inputs each.
inline int8_t six_bits_of_3(const u8* s, int j) {
  return int8_t(((j < 8 ? s[j] & 15 : s[j - 8] >> 4) | (s[8 + j % 4] >> 2 * (j / 4) & 3) << 4) -
                32);
}

// The 32 unsigned codes of block b of one row in the file.
inline void codes(int type, const u8* row, int b, u8* q) {
  const Layout& l = LAYOUT[type];
  const u8* s = row + size_t(l.inputs == 32 ? b : b / 8) * size_t(l.file);
  const int j = b % 8;
  switch (type) {
    case Q6_K: {
      const u8 *low = s + 64 * (j / 4) + 32 * (j % 2), *high = s + 128 + 32 * (j / 4);
      for (int k = 0; k < 32; ++k)
        q[k] = u8((low[k] >> 4 * (j % 4 / 2) & 15) | (high[k] >> 2 * (j % 4) & 3) << 4);
      return;
    }
    case Q4_K:
    case Q5_K: {
      const u8* low = s + (type == Q4_K ? 16 : 48) + 32 * (j / 2);
      for (int k = 0; k < 32; ++k)
        q[k] = u8((low[k] >> 4 * (j % 2) & 15) | (type == Q5_K ? s[16 + k] >> j & 1 : 0) << 4);
      return;
    }
    case Q2_K:
    case Q3_K: {
      const u8* low = s + (type == Q2_K ? 16 : 32) + 32 * (j / 4);
      for (int k = 0; k < 32; ++k)
        q[k] = u8((low[k] >> 2 * (j % 4) & 3) | (type == Q3_K ? s[k] >> j & 1 : 0) << 2);
      return;
    }
    default: {  // 16 low nibbles, 16 high ones; before those of Q5 32 fifth bits
      const u8* low = type == IQ4_XS ? s + 8 + 16 * j
                                     : s + (type == MXFP4  ? 1
                                            : type == Q4_1 ? 4
                                            : type == Q5_0 ? 6
                                            : type == Q5_1 ? 8
                                                           : 2);
      uint32_t high = 0;
      if (l.high) memcpy(&high, low - 4, 4);
      for (int k = 0; k < 32; ++k)
        q[k] = u8((k < 16 ? low[k] & 15 : low[k - 16] >> 4) | (high >> k & 1) << 4);
    }
  }
}

// Where the low bits of input k lie: which of the 32-bit words of an output, and from which bit on.
// The high ones likewise.
struct Place {
  int word, bit;
};
inline Place place(int bits, int k) {
  const int g = k / 8, i = 4 * (k % 8);
  return bits == 4 ? Place{g, i} : bits == 2 ? Place{g / 2, i + 2 * (g % 2)} : Place{0, i + g};
}

// Codes of a block into the words of one output at `to`: LOW of their bits, then HIGH. These are
// constants here, as a checkpoint of any size goes through this when it is loaded.
template <int LOW, int HIGH>
inline void set_bits(const u8* q, u8* to) {
  uint32_t low[4] = {}, high[2] = {};
#pragma GCC unroll 32
  for (int k = 0; k < BLOCK; ++k) {
    const Place at = place(LOW, k);
    low[at.word] |= uint32_t(q[k] & ((1 << LOW) - 1)) << at.bit;
    if (HIGH) {
      const Place over = place(HIGH, k);
      high[over.word] |= uint32_t(q[k] >> LOW) << over.bit;
    }
  }
  for (int g = 0; g < LOW; ++g) memcpy(to + 64 * g, &low[g], 4);
  for (int g = 0; g < HIGH; ++g) memcpy(to + 64 * (LOW + g), &high[g], 4);
}
inline auto bits_of(const Layout& l) -> void (*)(const u8*, u8*) {
  if (l.low == 2) return l.high ? set_bits<2, 1> : set_bits<2, 0>;
  return l.high == 2 ? set_bits<4, 2> : l.high ? set_bits<4, 1> : set_bits<4, 0>;
}

// Scales of block b for output o; those of a super-block into its head.
inline void pack_scales(int type, const u8* s, int b, int o, u8* head, u8* scale) {
  const int j = b % 8;
  auto heads = [&](int d, int m) {
    if (j) return;
    memcpy(head + 2 * o, s + d, 2);
    if (m) memcpy(head + 32 + 2 * o, s + m, 2);
  };
  switch (type) {
    case Q4_K:
    case Q5_K:
      heads(0, 2);
      six_bits(s + 4, j, scale[o], scale[16 + o]);
      return;
    case Q6_K:
      heads(208, 0);
      scale[o] = s[192 + 2 * j];
      scale[16 + o] = s[193 + 2 * j];
      return;
    case Q2_K:
      heads(80, 82);
      scale[o] = s[2 * j];
      scale[16 + o] = s[2 * j + 1];
      return;
    case Q3_K:
      heads(108, 0);
      for (int h = 0; h < 2; ++h) scale[16 * h + o] = u8(six_bits_of_3(s + 96, 2 * j + h));
      return;
    case IQ4_XS:
      heads(0, 0);
      scale[o] = u8(((s[4 + j / 2] >> 4 * (j % 2) & 15) | (u16(s + 2) >> 2 * j & 3) << 4) - 32);
      return;
    case MXFP4:
      scale[o] = s[0];
      return;
    default:
      memcpy(scale + 2 * o, s, 2);
      if (type == Q4_1 || type == Q5_1) memcpy(scale + 32 + 2 * o, s + 2, 2);
  }
}

// Rows of panel p come from rows[0..16) of the file (null: a row of zeros).
inline void pack_panel(const Mat& a, int p, const u8* const* rows) {
  const Layout& l = LAYOUT[a.type];
  u8* to = a.data + size_t(p) * a.panel;
  memset(to, 0, a.panel);
  const auto put_bits = bits_of(l);
  for (int b = 0; b < a.blocks; ++b, to += l.bytes) {
    u8* head = to;
    if (l.head && b % 8 == 0) to += l.head;
    for (int o = 0; o < LANES; ++o) {
      const u8* row = rows[o];
      if (!row) continue;
      const u8* s = row + size_t(l.inputs == 32 ? b : b / 8) * size_t(l.file);
      if (a.type <= BF16) {
        const int e = a.type == F32 ? 4 : 2;
        for (int k = 0; k < BLOCK; ++k) memcpy(to + (k * LANES + o) * e, s + k * e, size_t(e));
        continue;
      }
      if (l.low == 8) {
        for (int k = 0; k < BLOCK; ++k)
          to[a.type == Q8_0 ? k * LANES + o : byte_at(k, o)] =
              u8(s[2 + k] + (a.type == Q8_0 ? 0 : 128));
      } else {
        u8 q[BLOCK];
        codes(a.type, row, b, q);
        put_bits(q, to + 4 * o);
      }
      pack_scales(a.type, s, b, o, head, to + 64 * (l.low + l.high));
    }
  }
}

// What a row's dequantisation multiplies codes with in each half of a block, and takes off.
struct Scales {
  float d[2], m[2];
};
inline Scales scales_of(int type, const u8* head, const u8* scale, int o) {
  auto half = [&](const u8* at) { return half_to_float(u16(at + 2 * o)); };
  auto both = [](float d, float m) { return Scales{{d, d}, {m, m}}; };
  auto whole = [&](int at) { return float(int8_t(scale[at + o])); };
  switch (type) {
    case Q4_K:
    case Q5_K:
      return both(half(head) * float(scale[o]), half(head + 32) * float(scale[16 + o]));
    case Q6_K:
    case Q3_K:
      return {{half(head) * whole(0), half(head) * whole(16)}, {0, 0}};
    case Q2_K:
      return {
          {half(head) * float(scale[o] & 15), half(head) * float(scale[16 + o] & 15)},
          {half(head + 32) * float(scale[o] >> 4), half(head + 32) * float(scale[16 + o] >> 4)}};
    case IQ4_XS:
      return both(half(head) * whole(0), 0);
    case MXFP4:
      return both(std::ldexp(1.0f, scale[o] - 128), 0);
    case Q4_1:
    case Q5_1:
      return both(half(scale), half(scale + 32));
    default:
      return both(half(scale), 0);
  }
}

// Row n as floats (look-up of embeddings): exactly what the file's dequantisation gives.
inline void unpack_row(const Mat& a, int n, float* out) {
  const Layout& l = LAYOUT[a.type];
  const u8 *at = a.data + size_t(n / LANES) * a.panel, *head = at;
  const int o = n % LANES;
  for (int b = 0; b < a.blocks; ++b, at += l.bytes, out += BLOCK) {
    if (l.head && b % 8 == 0) {
      head = at;
      at += l.head;
    }
    Scales s{};
    if (a.type > BF16) s = scales_of(a.type, head, at + 64 * (l.low + l.high), o);
    for (int k = 0; k < BLOCK; ++k) {
      const int lane = k * LANES + o;
      const float d = s.d[k / 16], m = s.m[k / 16];
      switch (a.type) {
        case F32:
          out[k] = f32(at + 4 * lane);
          continue;
        case F16:
          out[k] = half_to_float(u16(at + 2 * lane));
          continue;
        case BF16:
          out[k] = brain_to_float(u16(at + 2 * lane));
          continue;
        case Q8_0:
          out[k] = d * float(int8_t(at[lane]));
          continue;
        case Q8_INT:
          out[k] = d * float(at[byte_at(k, o)] - 128);
          continue;
      }
      const Place low = place(l.low, k), over = place(l.high, k);
      uint32_t x, y = 0;
      memcpy(&x, at + 64 * low.word + 4 * o, 4);
      if (l.high) memcpy(&y, at + 64 * (l.low + over.word) + 4 * o, 4);
      const int q = int(x >> low.bit & ((1u << l.low) - 1)) |
                    int(y >> over.bit & ((1u << l.high) - 1)) << l.low;
      switch (a.type) {
        case Q4_0:
          out[k] = d * float(q - 8);
          break;
        case Q5_0:
          out[k] = d * float(q - 16);
          break;
        case Q6_K:
          out[k] = d * float(q - 32);
          break;
        case Q3_K:
          out[k] = d * float(q - 4);
          break;
        case IQ4_NL:
        case IQ4_XS:
          out[k] = d * float(IQ4[q]);
          break;
        case MXFP4:
          out[k] = d * float(FP4[q]);
          break;
        case Q4_K:
        case Q5_K:
        case Q2_K:
          out[k] = d * float(q) - m;
          break;
        default:
          out[k] = d * float(q) + m;
      }
    }
  }
}

}  // namespace polydec
