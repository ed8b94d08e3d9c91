// What the kernels of one instruction set offer to the step. Every set gives the same bits: 16
// virtual lanes, fused multiply-adds, one order of summation, which involves nothing but the row
// itself:
//   linear    lanes are outputs; s = FMA chain over the inputs of a block in order, over its
//   integers (or floats);
//             y = fma(scale, s, y) block after block; with an offset y += fma(scale, s, offset *
//             sum of inputs).
//   norms     sum of squares in 16 lanes (k mod 16), then `total`: lanes i and i + 8, + 4, + 2,
//   + 1. scores    q.k in 16 lanes (d mod 16), then `total`; times the key's scale where keys are
//   integers. softmax   in blocks of 128 positions of the path: maximum, exp, sum in 16 lanes
//   (position mod 16), then `total`. values    FMA chain inside a block (lanes are dimensions),
//   weights times the value's scale where values are integers. Blocks are joined in order: of the
//   sum so far and the next block
//             the one with the smaller maximum is scaled down.
//   packed    see press_int.h: integers, summed exactly; offsets in 16 lanes (place mod 16), then
//             `total`; a row's packed blocks of 128 positions come before those that are exact.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define PRAGMA(x) _Pragma(#x)
// Functions from here to END_SET are compiled for the instruction set of these features.
#if defined(__clang__)
#define BEGIN_SET(features) \
  PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define END_SET PRAGMA(clang attribute pop)
#else
#define BEGIN_SET(features) PRAGMA(GCC target(features))
#define END_SET
#endif
#define UNROLL(n) \
  PRAGMA(GCC unroll n)  // accumulators stay in registers only if every loop over them is unrolled

namespace polydec {

using u8 = uint8_t;
constexpr int LANES = 16;         // outputs of one panel
constexpr int BLOCK = 32;         // inputs of one packed block
constexpr int SUMS = 3;           // sums of inputs per block: first half, second half, all
constexpr int MAXM = 8;           // rows of one tile at most
constexpr int SPAN = 128;         // positions of one block of attention
constexpr int SHARING = 4;        // queries that share a load of keys or values at most
constexpr float DUST = 0x1p-64f;  // smaller inputs of nibbles count as 0 (and from 2^37 on they may
                                  // overflow), see tile.h

// Those from Q8_INT on are in no file: Q8_0 as integer kernels want it.
enum Type : int {
  F32,
  F16,
  BF16,
  Q8_0,
  Q4_0,
  Q4_1,
  Q5_0,
  Q5_1,
  Q4_K,
  Q5_K,
  Q6_K,
  Q2_K,
  Q3_K,
  IQ4_NL,
  IQ4_XS,
  MXFP4,
  Q8_INT,
  TYPES,
  FILE_TYPES = Q8_INT
};

// A type in the file (units of `inputs` inputs) and packed: 16 outputs x 32 inputs, first the `low`
// bits of all codes, then the `high` ones, then scales; before every 8 blocks a head with the
// scales of a super-block. scaled, sums: what of the inputs fp32 kernels ask for.
struct Layout {
  int inputs, file, head, bytes;
  bool scaled, sums;
  int low, high;
};
constexpr Layout LAYOUT[TYPES] = {
    {32, 128, 0, 2048, false, false, 0, 0},            // F32
    {32, 64, 0, 1024, false, false, 0, 0},             // F16
    {32, 64, 0, 1024, false, false, 0, 0},             // BF16
    {32, 34, 0, 512 + 32, false, false, 8, 0},         // Q8_0
    {32, 18, 0, 256 + 32, true, true, 4, 0},           // Q4_0
    {32, 20, 0, 256 + 64, true, true, 4, 0},           // Q4_1
    {32, 22, 0, 256 + 64 + 32, true, true, 4, 1},      // Q5_0
    {32, 24, 0, 256 + 64 + 64, true, true, 4, 1},      // Q5_1
    {256, 144, 64, 256 + 32, true, true, 4, 0},        // Q4_K
    {256, 176, 64, 256 + 64 + 32, true, true, 4, 1},   // Q5_K
    {256, 210, 32, 256 + 128 + 32, true, true, 4, 2},  // Q6_K
    {256, 84, 64, 128 + 32, true, true, 2, 0},         // Q2_K
    {256, 110, 32, 128 + 64 + 32, true, true, 2, 1},   // Q3_K
    {32, 18, 0, 256 + 32, false, false, 4, 0},         // IQ4_NL
    {256, 136, 32, 256 + 16, false, false, 4, 0},      // IQ4_XS
    {32, 17, 0, 256 + 16, false, false, 4, 0},         // MXFP4
    {32, 34, 0, 512 + 32, false, false, 8, 0},         // Q8_INT
};

// What the codes of IQ4_NL and IQ4_XS, and those of MXFP4, stand for (the latter twice: its scales
// are half of what they say).
alignas(16) constexpr int8_t IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
alignas(16) constexpr int8_t FP4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// How a head's key or value of one position is kept: as floats of 32 or of 16 bits, or as integers
// from -127 to 127 and behind them the float that they are multiplied by.
enum Kept : int { KEPT_F32, KEPT_F16, KEPT_INT8, KEPTS };
constexpr size_t kept_bytes(int kept, int head) {
  return kept == KEPT_F32   ? size_t(head) * 4
         : kept == KEPT_F16 ? size_t(head) * 2
                            : size_t(head) + 4;
}

// What one row sees in one head's keys or values, `entry` bytes each: positions [from, seen), those
// below `prefix` in place, the others through `tail`; cap: what its scores near by tanh, 0:
// nothing.
struct View {
  const u8* base;
  size_t entry;
  const int32_t* tail;
  int prefix, from, seen, head;
  float cap;
  const u8* at(int p) const { return base + size_t(p < prefix ? p : tail[p - prefix]) * entry; }
};

// Numbers that are multiplied by packed codes (press_int.h) become integers of 16 bits, -FOLDED to
// FOLDED, FOLDABLE at once at most: their sums of products with codes of 8 bits fit into 32 bits.
constexpr int FOLDED = 32767, FOLDABLE = 512;

// Rows of a tile lie block by block: input k of block b of row j at x[(b * M + j) * BLOCK + k], its
// sum c at sums[(b * SUMS + c) * M + j].
using Tile = void (*)(const u8* w, const u8* ahead, size_t panel, int blocks, const float* x,
                      const float* sums, float* y);

struct Kernels {
  const char* name;
  int rows;                       // of the largest tile
  int wide[MAXM + 1];             // panels side by side, by rows: 1, 2 or 4
  Tile tile[TYPES][MAXM + 1][3];  // [type][rows][0: one panel, 1: `wide` panels, 2: half as many]
  float (*squares)(const float* x, int n);
  void (*spread)(const float* x, const float* weight, float factor, int n, int M, float* plain,
                 float* scaled, float* sums);
  // One block of attention for n queries of one key head that see the same of it: a part for each:
  // what the weights are relative to, their sum, and from place 16 on the values. s: room for
  // SHARING * SPAN scores. fetch: what comes next in memory is wanted.
  void (*block[KEPTS])(const float* const* q, int n, const View& k, const View& v, int p0,
                       bool fetch, float* s, float* const* part);
  // Scores [first, n), bounded by `cap` unless it is 0, become weights not yet divided by their
  // sum; into a part's first places: what they are relative to, and the sum.
  void (*weigh)(float* s, int first, int n, float cap, float* part);
  // n scales, of halves, and the numbers that the codes in the middle, `centre`, stand for.
  void (*widen)(const u8* scale, const u8* low, int n, float centre, float* scales, float* middle);
  float (*reach)(const float* x, const float* y, int n);  // the largest |x * y|; without y: of |x|
  void (*raise)(float* x, const float* y, int n);         // x = the larger one of x and y
  // `count` rows of n numbers: x * factor * scale as integers into words + i * ld, and the sum of
  // x * middle.
  void (*fold)(const float* const* x, int count, int n, const float* scales, const float* middle,
               const float* factor, int16_t* words, size_t ld, float* offset);
  void (*join)(float* part, const float* next, int head);  // the next block's part added
  void (*finish)(const float* part, int head, float* out);
  void (*turn)(const float* x, const float* cosine, const float* sine, int half, float scale,
               float* out);                                  // rotary
  void (*gate)(const float* g, const float* u, float* out);  // 16 of silu(g) * u
  void (*gelu)(const float* g, const float* u, float* out);  // 16 of gelu(g) * u, by tanh
  void (*bound)(const float* y, float divide, float cap,
                float* out);  // 16 of y / divide, through cap * tanh(. / cap) unless 0
  bool (*reaches)(const float* y, float best);  // whether any of 16 is >= best
  void (*largest)(const float* y, int n, int k, float* value, int32_t* at);
  void (*peak)(long turns, float* out);  // 8 FMA chains of 16 lanes
};

const Kernels* kernels_portable();
const Kernels* kernels_avx2();  // null where the compiler has no such target
const Kernels* kernels_avx512();
const Kernels* kernels_zen();  // AVX-512 where denormal numbers cost no time: AMD from Zen 4 on
const Kernels* kernels_neon();

}  // namespace polydec
