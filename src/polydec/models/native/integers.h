// Linear layers in integers: what the kernels of one instruction set offer. Inputs are rounded to
// integers with one scale for 32 of them, of 16 bits (INT16: +-32639) or of 8 (INT8: +-127); codes
// stay as packed. Every set gives the same bits, as the sums of a block are exact, in any order,
// and then
//   y = fma(scale of the inputs, block, y), block after block, where c is the integer sum as a
//   float and the block is d * c   or with an offset   fma(d, c, -(m * sum of inputs)): its parts
//   cancel first. Where 16 inputs have a scale: fma(d1, c1, d0 * c0), less fma(m1, sum1, m0 *
//   sum0).
#pragma once
#include "kernels.h"

namespace polydec {

enum Compute : int { FLOAT32, INT16, INT8, COMPUTES };
constexpr int REACH[COMPUTES] = {0, 127 * 256 + 127, 127};  // of the integers
constexpr int BYTES[COMPUTES] = {0, 2 * BLOCK,
                                 BLOCK};  // of a rounded block: high halves, then low ones

inline bool in_integers(int type) { return type > BF16; }

// The rows of one tile, block by block. Of block b and row j: `bytes` or 32 `words` at place b * M
// + j (whichever the kernel reads), the scale at scale[b * M + j], the sum of its integers at
// total[b * M + j], that sum c (first half, second half, all) as an integer at sums[(b * SUMS + c)
// * M + j]. Bytes stand even inputs of eight first, words in the order 0 4 2 6 1 5 3 7: so does
// unpacking leave the codes.
struct Whole {
  int8_t* bytes;
  int16_t* words;
  float *scale, *total;
  int32_t* sums;
};

using IntTile = void (*)(const u8* w, const u8* ahead, int blocks, const Whole& x,
                         float* y);  // one panel; y: [rows][16]

// Packed codes of `panels` panels of 16 outputs, n each, with `count` rows of folded integers ld
// apart (kernels.h): y[i] = or, with `more`, += unit * sum of the products + offset. Meanwhile as
// many bytes from `soon` on are fetched, unless it is null.
using Products = void (*)(const u8* codes, int panels, int n, int count, const int16_t* words,
                          size_t ld, const float* unit, const float* offset, bool more,
                          const u8* soon, float* const* y);

struct Integers {
  Products products[3];                     // of codes of 2, 4 and 8 bits
  int rows[COMPUTES];                       // of the largest tile
  bool words[COMPUTES][TYPES];              // what the kernel of a type reads
  IntTile tile[COMPUTES][TYPES][MAXM + 1];  // [compute][type][rows]
  // One row of a tile of M (all of `to` already at its first block; null: not wanted); false where
  // an input is infinite or NaN.
  bool (*round)(const float* x, int n, Compute compute, int M, const Whole& to);
};

const Integers* integers_portable();
const Integers* integers_avx2();  // null where the compiler has no such target
const Integers* integers_avxvnni();
const Integers* integers_vnni();  // AVX-512 VNNI
const Integers* integers_neon();  // NEON with the dot product

}  // namespace polydec
