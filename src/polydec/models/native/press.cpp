// Packed keys and values: blocks are packed, and attention reads them in integers.
#include "press.h"

#include "model.h"

namespace polydec {

// Numbers that share a scale, `step` apart: scale and lowest number as halves, codes that count
// from it, as presses/_integers.py rounds them; false where one of them is infinite or NaN.
static bool rounded(const float* x, size_t step, int n, int bits, uint16_t* scale, uint16_t* low,
                    u8* code) {
  const float most = float((1 << bits) - 1), largest = 65504;
  float least = INFINITY, top = -INFINITY;
  bool finite = true;
  auto number = [&](int i) { return std::min(std::max(x[size_t(i) * step], -largest), largest); };
  for (int i = 0; i < n; ++i) {
    finite &= std::fabs(x[size_t(i) * step]) < INFINITY;
    least = std::min(least, number(i));
    top = std::max(top, number(i));
  }
  if (!finite) return false;
  *low = float_to_half(least);
  const float offset = half_to_float(*low);
  *scale = float_to_half(std::max((top - offset) / most, 0.0f));  // most is 3 or more: it fits
  const float unit = half_to_float(*scale), by = unit == 0 ? 1 : unit;
  for (int i = 0; i < n; ++i)
    code[i] = u8(std::min(std::max(std::rint((number(i) - offset) / by), 0.0f), most));
  return true;
}

// The k-th code of output o goes into a panel.
static void put(u8* panel, int bits, int o, int k, u8 code) {
  code = u8((code - (1 << (bits - 1))) & ((1 << bits) - 1));  // less the centre
  const int each = 32 / bits, pair = k % each / 2, half = k % 2, at = pair * bits;
  panel[(k / each * LANES + o) * 4 + half * 2 + at / 8] |= u8(code << at % 8);
}

// Mixes n numbers of a head as presses/_hadamard.py does: signs, then a Walsh-Hadamard transform
// over runs of the largest power of two that divides n. It is its own inverse, the signs last then.
static void walsh_hadamard(float* x, int n) {
  const int run = n & -n;
  for (int half = 1; half < run; half *= 2)
    for (int i = 0; i < n; i += 2 * half)
      for (int j = i; j < i + half; ++j) {
        const float a = x[j], b = x[j + half];
        x[j] = a + b;
        x[j + half] = a - b;
      }
  const float unit = float(1 / std::sqrt(double(run)));
  for (int i = 0; i < n; ++i) x[i] *= unit;
}
static void give_signs(float* x, int n) {
  for (int d = 0; d < n; ++d)
    if (__builtin_parity(uint32_t(d) * 0x9E3779B1u)) x[d] = -x[d];
}
static void mix(float* x, int n) {
  give_signs(x, n);
  walsh_hadamard(x, n);
}
static void unmix(float* x, int n) {
  walsh_hadamard(x, n);
  give_signs(x, n);
}

static bool press_block(const PressLayout& at, const float* kv, u8* out) {
  const int B = at.block, D = at.head, H = at.heads;
  const size_t panel_of_keys = size_t(D) * LANES * size_t(at.bits) / 8,
               panel_of_values = size_t(B) * LANES * size_t(at.bits) / 8;
  const float* values = kv + size_t(H) * size_t(B) * size_t(D);
  uint16_t* halves = reinterpret_cast<uint16_t*>(out);
  memset(out, 0, at.bytes());
  u8 code[SPAN];
  for (int h = 0; h < H; ++h)
    for (int g = 0; g < B / at.keys; ++g)
      for (int d = 0; d < D; ++d) {
        const float* x = kv + (size_t(h) * size_t(B) + size_t(g * at.keys)) * size_t(D) + d;
        uint16_t* scale = halves + at.key_scales(h, g) / 2 + d;
        if (!rounded(x, size_t(D), at.keys, at.bits, scale, scale + D, code)) return false;
        for (int i = 0; i < at.keys; ++i) {
          const int p = g * at.keys + i;
          put(out + at.codes(0, h) + size_t(p / LANES) * panel_of_keys, at.bits, p % LANES, d,
              code[i]);
        }
      }
  std::vector<float> row(size_t(H) * size_t(D));
  std::vector<u8> codes(row.size());
  for (int p = 0; p < B; ++p) {
    for (int h = 0; h < H; ++h)
      memcpy(&row[size_t(h) * size_t(D)], values + (size_t(h) * size_t(B) + size_t(p)) * size_t(D),
             size_t(D) * 4);
    if (at.hadamard)
      for (int h = 0; h < H; ++h) mix(&row[size_t(h) * size_t(D)], D);
    for (int g = 0; g < H * D / at.values; ++g) {
      uint16_t* scale = halves + at.value_scales(g) / 2 + p;
      if (!rounded(&row[size_t(g) * size_t(at.values)], 1, at.values, at.bits, scale, scale + B,
                   &codes[size_t(g) * size_t(at.values)]))
        return false;
    }
    for (int c = 0; c < H * D; ++c)
      put(out + at.codes(1, c / D) + size_t(c % D / LANES) * panel_of_values, at.bits, c % LANES, p,
          codes[size_t(c)]);
  }
  return true;
}

uint64_t Model::press_bytes(const StepPress& p) const {
  const PressLayout at(p, c.kv_heads, c.head);
  return at.legal() && kept == KEPT_F32 ? at.bytes() : 0;
}

int Model::press(const StepPress& p, const float* kv, uint8_t* out) {
  return press_block(PressLayout(p, c.kv_heads, c.head), kv, out) ? 0 : 9;
}

// What n queries of key head h see of the positions [p0, stop), which are packed and lie in one
// block of attention: a part for each. Its queries are folded with one factor, from the largest
// scales of each dimension; weights, at most 1, with one for a block and a group. While keys are
// read, values are fetched, and meanwhile the keys of the next positions.
void Model::ask_packed(const StepCache& s, int t, int l, int h, int p0, int stop,
                       const float* const* q, int n, float* const* part) {
  for (; n > PACKED; n -= PACKED, q += PACKED, part += PACKED)
    ask_packed(s, t, l, h, p0, stop, q, PACKED, part);
  const PressLayout at(*s.press, c.kv_heads, c.head);
  const int B = at.block, D = at.head, groups = B / at.keys;
  const Products products = ints->products[at.kind()];
  const u8* const* blocks = s.packed + size_t(l) * size_t(s.blocks);
  const int next = stop / B;
  const bool more = next < s.blocks && stop - p0 == SPAN;
  float *scores = own_packed[size_t(t)].p, *most = scores + PACKED * SPAN,
        *scales = most + FOLDABLE, *middle = scales + SPAN / LANES * FOLDABLE;
  int16_t* words = reinterpret_cast<int16_t*>(middle + SPAN / LANES * FOLDABLE);
  float factor[PACKED], unit[PACKED], offset[PACKED], *y[PACKED];
  const float* x[PACKED];
  auto fold_by = [&](float reach, int i) {
    unit[i] = reach / FOLDED;
    factor[i] = reach > 0x1p-100f ? FOLDED / reach : 0;
  };
  memset(most, 0, size_t(D) * 4);
  int place = 0;
  for (int first = p0; first < stop; first += B)
    for (int g = 0; g < groups; ++g, ++place) {
      const u8* scale = blocks[first / B] + at.key_scales(h, g);
      k->widen(scale, scale + 2 * D, D, at.centre(), scales + place * D, middle + place * D);
      k->raise(most, scales + place * D, D);
    }
  for (int i = 0; i < n; ++i) fold_by(k->reach(q[i], most, D), i);
  place = 0;
  for (int first = p0; first < stop; first += B) {
    const u8 *keys = blocks[first / B] + at.codes(0, h),
             *values = blocks[first / B] + at.codes(1, h);
    for (int g = 0; g < groups; ++g, ++place) {
      const size_t skip = size_t(g) * (at.half() / size_t(groups));
      k->fold(q, n, D, scales + place * D, middle + place * D, factor, words, FOLDABLE, offset);
      for (int i = 0; i < n; ++i) y[i] = scores + i * SPAN + place * at.keys;
      products(keys + skip, at.keys / LANES, D, n, words, FOLDABLE, unit, offset, false,
               values + skip, y);
    }
  }
  for (int i = 0; i < n; ++i) k->weigh(scores + i * SPAN, 0, stop - p0, c.cap, part[i]);
  for (int first = p0; first < stop; first += B) {
    const u8 *block = blocks[first / B],
             *soon = more && next + (first - p0) / B < s.blocks
                         ? blocks[next + (first - p0) / B] + at.codes(0, h)
                         : nullptr;
    for (int i = 0; i < n; ++i) x[i] = scores + i * SPAN + first - p0;
    for (int d = 0, width; d < D; d += width) {
      const int group = (h * D + d) / at.values;
      width = std::min(D - d, (group + 1) * at.values - (h * D + d));
      const u8* scale = block + at.value_scales(group);
      const size_t skip = size_t(d) * (at.half() / size_t(D));
      k->widen(scale, scale + 2 * B, B, at.centre(), scales, middle);
      const float largest = k->reach(scales, nullptr, B);
      for (int i = 0; i < n; ++i) fold_by(largest, i);
      k->fold(x, n, B, scales, middle, factor, words, FOLDABLE, offset);
      for (int i = 0; i < n; ++i) y[i] = part[i] + LANES + d;
      products(block + at.codes(1, h) + skip, width / LANES, B, n, words, FOLDABLE, unit, offset,
               first > p0, soon ? soon + skip : nullptr, y);
    }
  }
  // What weights gather of mixed values is given back as it would have been.
  if (at.hadamard)
    for (int i = 0; i < n; ++i) unmix(part[i] + LANES, D);
}

}  // namespace polydec
