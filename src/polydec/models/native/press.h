// Where everything lies in a packed block of one layer (step.h, StepPress): first scales and lowest
// numbers of keys, then those of values, then of each head the panels of its keys' codes (an output
// is a position) and of its values' codes (an output is a dimension), as press_int.h says.
#pragma once
#include "integers.h"
#include "step.h"

namespace polydec {

struct PressLayout {
  int bits, block, keys, values, heads, head, hadamard;
  PressLayout(const StepPress& p, int kv_heads, int width)
      : bits(p.bits),
        block(p.block),
        keys(p.keys),
        values(p.values),
        heads(kv_heads),
        head(width),
        hadamard(p.hadamard) {}
  // What can be read: panels of 16 outputs share a scale, and blocks fill one of attention.
  bool legal() const {
    return (bits == 2 || bits == 4 || bits == 8) && block >= LANES && SPAN % block == 0 &&
           block % LANES == 0 && keys >= LANES && block % keys == 0 && keys % LANES == 0 &&
           values >= LANES && heads * head % values == 0 && values % LANES == 0 &&
           head <= FOLDABLE && (hadamard == 0 || hadamard == 1);
  }
  float centre() const { return float(1 << (bits - 1)); }
  int kind() const { return bits == 2 ? 0 : bits == 4 ? 1 : 2; }  // of Integers::products
  // Scales of a group of keys of head h; behind them as many lowest numbers.
  size_t key_scales(int h, int group) const {
    return (size_t(h) * size_t(block / keys) + size_t(group)) * size_t(head) * 4;
  }
  // The same of a group of values, one a position.
  size_t value_scales(int group) const {
    return key_scales(heads, 0) + size_t(group) * size_t(block) * 4;
  }
  size_t half() const { return size_t(block) * size_t(head) * size_t(bits) / 8; }
  size_t codes(int which, int h) const {
    return value_scales(heads * head / values) + (size_t(h) * 2 + size_t(which)) * half();
  }
  size_t bytes() const { return codes(0, heads); }
};

}  // namespace polydec
