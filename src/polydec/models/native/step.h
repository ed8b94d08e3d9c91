// The C interface. Every function that can refuse returns 0 or a code that step_error names.
#pragma once
#include <stdint.h>

extern "C" {

struct StepConfig {
  int32_t vocab, width, layers, heads, kv_heads, head, inner, context;
  int32_t outputs, turned;  // rows of the head's matrix; dimensions of a head that rotary embedding
                            // turns, the first ones
  int32_t ropes;            // tables of rotary embeddings
  int32_t norms;  // which a layer has: 1 before attention, 2 of what that adds, 4 before the MLP, 8
                  // of what that adds
  int32_t wide_norms;  // 1: queries, and keys, are normed over all heads together, 0: head by head
                       // (if at all)
  int32_t act;  // of the gate: 0 silu, 1 gelu (by tanh), 2 silu(alpha g) / alpha * (u + 1), both
                // clamped to `limit` first
  int32_t experts, used;  // of a layer whose MLP is several: how many there are, and how many a row
                          // goes through; 0: none
  int32_t expert_inner;   // their inner width
  int32_t
      share_used;  // 1: the weights of those that a row goes through sum to one, 0: those of all do
  float eps;
  float scale;                  // of scores
  float cap, final_cap;         // scores, and logits, become cap * tanh(. / cap); 0: they stay
  float embed_scale, residual;  // what embeddings, and what a layer adds, are multiplied by
  float divide;                 // what logits are divided by
  float alpha, limit;           // of act 2
};

// Entries of a sequence that are read only: those before `stop` and behind the part before. kv:
// [layers][2][kv_heads][capacity] of vectors as step_keep says, whose first slot holds entry
// `first`. Parts end at multiples of the 128 positions of a block of attention.
struct StepShared {
  const uint8_t* kv;
  int64_t capacity, first, stop;
};

// How a sequence's old keys and values are packed: whole blocks of `block` positions, counted from
// the beginning of the text, as integers of `bits` bits, each with a scale and a lowest number as
// halves. Keys share these along `keys` positions of a channel, values along `values` dimensions of
// a position, those of all heads side by side. A row at position p sees the first p / block - 1
// blocks packed (none below 2 blocks) and what lies behind them as it is. hadamard, 0 or 1: the
// dimensions of each head's values are mixed by signs and a Walsh-Hadamard transform first.
struct StepPress {
  int32_t bits, block, keys, values, hadamard;
};

// Keys and values of one sequence: entries [start, start + capacity) in kv:
// [layers][2][kv_heads][capacity] of vectors, and those before `start`, where there are any, in
// parts.
struct StepCache {
  uint8_t* kv;
  int64_t capacity, start, parts;
  const StepShared* part;
  const StepPress* press;  // null: all entries are seen as they are, and what follows is not read
  int64_t base, blocks;    // entries below `base` are there packed only; packed blocks
  const uint8_t* const* packed;  // [layers][blocks], as step_press has made them; of layers whose
                                 // attention does not run in this batch they may be null
};

// Row i stands at position[i] of cache[sequence[i]], is written to slot[i] and sees `seen[i]`
// entries in order of position: the first prefix[i] lie in slots 0, 1, ..., the others in the slots
// tail[tail_start[i]], ... . Slots before the cache's `start` are never written, and stand in no
// tail. Its input is the embedding of token[i], or row i of `embed` where token[i] is -1. The
// layers layer[0], layer[1], ... run, in ascending order; one whose attention does not run writes
// nothing to the cache.
struct StepBatch {
  int32_t rows, sequences, layers, tails, outputs;
  const StepCache* cache;
  const int32_t* layer;
  const int32_t* exit;  // [layers]: where in `exits` the answered rows go after each layer, or -1
  const int32_t* half;  // [layers]: 1: its attention runs, 2: its MLP, 3: both
  const int32_t *token, *sequence, *position, *slot, *seen, *prefix, *tail_start, *tail;
  const float* embed;
  const int32_t* output_row;  // [outputs], rows that are answered
  const int32_t* logits_row;  // [outputs], the row of `logits` for each, or -1
  float* logits;              // [.][outputs of the head]
  int32_t*
      argmax;  // [outputs] or null; the first of equals; -1: the largest is no number, or infinite
  float* hidden;  // [outputs][width] or null: after the last layer that ran, before the final norm
  float* exits;   // [.][outputs][width]: the same after the layers that `exit` names
  // [rows][layers of the model][experts] or null: what is added to a row's scores of the experts,
  // in their standard deviations
  const float* routing;
};

// A tree that a network of one layer grows behind a sequence of another model's states
// (learned/kinds/narrow.py). Its rows are a token's embedding beside a state, each divided by its
// root mean square, joined to one of the network's width S by STEP_JOIN. First it reads
// `rows` true states, which stay in its cache: entries [length, length + rows). Then it expands at
// each level the `tips` likeliest paths, of which each names its `width` likeliest tokens, none on
// a path less likely than `floor`; of all that were named the `nodes` likeliest are answered
// (BestFirst, trees/best_first.py).
struct StepGrowth {
  const StepCache* cache;  // room for length + rows + tips * (depth - 1) entries
  int32_t length;          // entries that are there
  int32_t rows, states;    // of true states; how many of them lie side by side for STEP_FUSE
  int32_t depth, width, tips, nodes;
  int32_t found;  // nodes of the answer
  double floor;
  const float *embed,
      *state;               // [rows][S] and [rows][states * S]: tokens, and the states before them
  const float* table;       // [outputs][S]: what the head's tokens are as embeddings
  float *tip, *logits;      // [S], [outputs]: of the last true state; read where rows is 0
  int32_t *token, *parent;  // [nodes]: a row of the head; the node above it, -1: the root
  double* chance;           // [nodes]: of the token behind the one above it
};

enum StepPart {
  STEP_EMBED,
  STEP_HEAD,
  STEP_NORM,
  STEP_Q,
  STEP_K,
  STEP_V,
  STEP_O,
  STEP_GATE,
  STEP_UP,
  STEP_DOWN,
  STEP_NORM1,
  STEP_NORM2,
  STEP_QNORM,
  STEP_KNORM,
  STEP_AFTER1,
  STEP_AFTER2,
  STEP_ROUTER,
  STEP_SINKS,
  STEP_FUSE,  // of a drafter's layer: makes one state of several, side by side
  STEP_JOIN,  // of a drafter's layer: makes one row of a token's embedding and a state
  STEP_PARTS  // and from here on gate, up and down of the first expert, of the second, ...
};

const char* step_error(int code);
const char* step_sets(void);  // instruction sets that run here, best first
void* step_new(const StepConfig* config, int threads,
               const char* set);  // null where it does not fit; set "": the best
void step_free(void* model);
const char* step_set(void* model);
// What quantised matrices are multiplied in, before any is given: 0 fp32, 1 and 2 inputs rounded to
// 16 and 8 bits (integers.h).
int step_compute(void* model, int compute);
// How a head's key or value is kept in every cache: 0: `head` floats; 1: as many of 16 bits; 2: as
// many integers of 8 bits, then the float that they are multiplied by.
int step_keep(void* model, int kept);
// One matrix [n, k] as it stands in the file. Where `swap` is a head's width, output 2i + h of a
// head becomes i + h * swap/2.
int step_weight(void* model, int layer, int part, int type, const void* data, uint64_t bytes, int n,
                int k, int swap);
// A norm, or a bias of a matrix: n floats, which `count` must be as well.
int step_vector(void* model, int layer, int part, int bias, const float* data, uint64_t count,
                int n, int swap);
// Of one rotary embedding [positions][turned / 2] of the first positions; count: the floats in each
// of the tables.
int step_rotary(void* model, int rope, const float* cosine, const float* sine, uint64_t count,
                int positions);
// [count = layers]: how many positions a row sees, its own included; 0: all.
int step_windows(void* model, const int32_t* widths, uint64_t count);
// [count = layers]: which rotary embedding turns queries and keys, -1: none; all by the first
// before this is called.
int step_turns(void* model, const int32_t* ropes, uint64_t count);
// [count = layers]: 1 where the MLP is experts, 0 where it is one; all of them are experts before
// this is called, if there are any.
int step_sparse(void* model, const int32_t* sparse, uint64_t count);
// Bytes of a packed block of one layer; 0: blocks of this kind cannot be read.
uint64_t step_press_bytes(void* model, const StepPress* press);
// Packs a block of one layer, whose numbers must be finite, kv [2][kv_heads][block][head] (`count`
// floats), into `out` (`room` bytes).
int step_press(void* model, const StepPress* press, const float* kv, uint64_t count, uint8_t* out,
               uint64_t room);
int step_run(void* model, const StepBatch* batch);
// Rows through STEP_FUSE or STEP_JOIN alone: `in` [rows][what it reads] into `out` [rows][width].
int step_through(void* model, int part, int rows, const float* in, uint64_t count, float* out,
                 uint64_t room);
// Rows of `width` floats (`count` in all), each divided by its root mean square, into `out`
// (`room` floats).
int step_even(void* model, int rows, const float* in, uint64_t count, float* out, uint64_t room);
// Grows a tree of guesses.
int step_grow(void* model, StepGrowth* growth);
// The k likeliest of each row of logits [rows][n] (`count` floats), likeliest first, into top
// [rows][k] (`room` ids); k: at most n.
int step_top(void* model, const float* logits, uint64_t count, int rows, int n, int k, int32_t* top,
             uint64_t room);
// Threads that a pass of few rows takes at present, and what such a pass took, as every pass tells
// itself: rows, seconds, and the seconds that its threads slept for one another.
int step_threads(void* model);
void step_learn_threads(void* model, int rows, double seconds, double slept);
void step_profile(void* model,
                  double* seconds);  // since the last call: linear, attention, the rest, head
int step_row(void* model, int row, float* out,
             uint64_t count);        // one embedding of `count` = width floats
uint64_t step_bytes(void* model);    // packed weights that a pass reads
double step_bandwidth(void* model);  // bytes a second, reading the packed weights with all threads
double step_peak(void* model);       // fp32 operations a second, all threads
}
