// The network: weights, buffers and the order of a step.
#pragma once
#include <sys/mman.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include "integers.h"
#include "pack.h"
#include "pool.h"
#include "step.h"
#include "thread_choice.h"

namespace polydec {

inline int source(int i, int swap) {  // which output of the file becomes output i
  if (!swap) return i;
  const int at = i % swap;
  return i - at + 2 * (at % (swap / 2)) + at / (swap / 2);
}

// Denormal numbers count, whatever the caller's thread is set to.
struct Denormals {
#if defined(__x86_64__)
  const unsigned kept = __builtin_ia32_stmxcsr();
  Denormals() {
    if (kept & 0x8040) __builtin_ia32_ldmxcsr(kept & ~0x8040u);
  }
  ~Denormals() {
    if (kept & 0x8040) __builtin_ia32_ldmxcsr(kept);
  }
#elif defined(__aarch64__)
  static constexpr uint64_t FLUSH = uint64_t(1) << 24;
  static uint64_t read() {
    uint64_t x;
    asm volatile("mrs %0, fpcr" : "=r"(x));
    return x;
  }
  static void write(uint64_t x) { asm volatile("msr fpcr, %0" : : "r"(x)); }
  const uint64_t kept = read();
  Denormals() {
    if (kept & FLUSH) write(kept & ~FLUSH);
  }
  ~Denormals() {
    if (kept & FLUSH) write(kept);
  }
#endif
};

struct Arena {  // large pages where the system gives them; freed with the model
  struct Map {
    u8* at;
    size_t size, used;
  };
  std::vector<Map> maps;
  u8* take(size_t n) {
    n = (n + 63) & ~size_t(63);
    if (maps.empty() || maps.back().used + n > maps.back().size) {
      const size_t size =
          (std::max<size_t>(n, 8u << 20) + (2u << 20) - 1) & ~size_t((2u << 20) - 1);
      void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (p == MAP_FAILED) return nullptr;
#ifdef MADV_HUGEPAGE
      madvise(p, size, MADV_HUGEPAGE);
#endif
      maps.push_back({static_cast<u8*>(p), size, 0});
    }
    maps.back().used += n;
    return maps.back().at + maps.back().used - n;
  }
  ~Arena() {
    for (auto& m : maps) munmap(m.at, m.size);
  }
};

struct Buffer {  // grows, 64-byte aligned, contents not kept
  float* p = nullptr;
  size_t n = 0;
  void need(size_t k) {
    if (k <= n) return;
    std::free(p);
    n = 0;
    p = static_cast<float*>(std::aligned_alloc(64, (k * 4 + 127) & ~size_t(63)));
    if (!p) throw std::bad_alloc();
    n = k;
  }
  Buffer() = default;
  Buffer(Buffer&& b) noexcept : p(b.p), n(b.n) { b.p = nullptr; }
  ~Buffer() { std::free(p); }
};

// m rows in tiles of nearly equal size.
struct Tiles {
  int m, count;
  Tiles(int rows, int most) : m(rows), count((rows + most - 1) / most) {}
  int first(int g) const { return m / count * g + std::min(g, m % count); }
};

// Inputs of linear layers, tile by tile: as they are, with the nibbles' factors, sums of blocks;
// rounded to integers.
struct Act {
  float *plain, *scaled, *sums;
  int k;
  Tiles tiles;
  Whole whole;
};
// A set of kernels: floats and integers.
struct Set {
  const char* name;
  const Kernels* floats;
  const Integers* integers;
};

struct Mlp {
  Mat gate, up, down;
};
struct Layer : Mlp {
  Mat q, k, v, o, router;
  std::vector<Mlp> expert;  // empty where the MLP is one
  float *norm1 = nullptr, *norm2 = nullptr, *qnorm = nullptr, *knorm = nullptr, *after1 = nullptr,
        *after2 = nullptr, *sinks = nullptr;
};
struct Rotary {
  std::vector<float> cosine, sine;
};  // [positions][turned / 2]
// Matrices of one input, one after another in units of panels that stay in one thread; or two side
// by side.
struct Mats {
  const Mat* mat[3];
  int count, unit;
  const Mat* pair = nullptr;
  int panels() const {
    int n = 0;
    for (int i = 0; i < count; ++i) n += mat[i]->panels;
    return n;
  }
  int first(int t, int threads) const { return int(int64_t(panels() / unit) * t / threads) * unit; }
};
enum Clock { LINEAR, ATTENTION, REST, HEAD, CLOCKS };

struct Model {
  StepConfig c;
  const Set set;
  const Kernels* k;
  const Integers* ints;
  Compute compute = FLOAT32;  // what quantised matrices are multiplied in
  Kept kept = KEPT_F32;       // how keys and values are kept
  Pools pools;
  ThreadChoice choice;
  std::mutex busy, growing;
  Arena arena;
  std::vector<Layer> layer;
  Mat embed, head, fuse, join;  // the last two: of a drafter's layer (growth.cpp)
  float* last_norm = nullptr;
  std::vector<Rotary> rope;
  std::vector<int> turns;   // of each layer: which of them, -1: none
  std::vector<int> sparse;  // of each layer: whether its MLP is experts
  std::vector<int>
      window;  // of each layer: how many positions a row sees, its own included; 0: all
  double spent[CLOCKS] = {}, mark = 0;

  Model(const StepConfig& config, int threads, const Set& kernels);
  Mat* matrix(int l, int part);
  float** norm(int l, int part, int& n);
  bool shape_of(int part, int& n, int& k) const;
  bool fits(int part, int n, int k) const;     // of STEP_FUSE and STEP_JOIN
  int pack(Mat& a, const u8* data, int swap);  // 0 or the code of an error
  void look_up(int token, float* out) const;   // what enters the first layer
  uint64_t bytes() const;
  int run(const StepBatch& b);
  int through(const Mat& a, int rows, const float* in, float* out);
  void even(int rows, const float* in, float* out) const;  // each row by its root mean square
  int grow(StepGrowth& g);
  uint64_t press_bytes(const StepPress& p) const;  // 0: not legal
  int press(const StepPress& p, const float* kv, uint8_t* out);

 private:
  static constexpr int PACKED = 8;  // queries that share a load of packed codes, at most
  // Of one step: who works, on what, blocks of the longest sequence, and of the longest part that
  // is packed, query heads and rows of a unit of attention (tile 0: a unit is one block for all
  // rows).
  struct Job {
    Pool& pool;
    const StepBatch& b;
    int blocks, packed, heads, tile;
  };
  struct Out {
    float value;
    int32_t at;
  };
  Buffer x, qkv, att, hid, act, parts, added, route;
  Buffer entering, fusing, fused, joined, above, laws, states;  // of a tree that grows
  std::vector<std::vector<int32_t>> picked;  // of each expert: the rows that go through it
  std::vector<std::vector<float>> weighed;   // and what their results are multiplied by
  std::vector<Buffer> own, own_att, own_scores, own_row, own_sink, own_packed;
  struct Asked {
    std::vector<const float*> query;
    std::vector<float*> part;
  };
  std::vector<Asked> own_asked;      // queries of one call of `block`, and where their parts go
  std::atomic<bool> endless{false};  // whether a number of this step was infinite or NaN
  std::vector<std::vector<Out>> best;
  std::vector<Share> share;

  int check(const StepBatch& b, int& longest, int& packed) const;
  void lap(int t, Clock clock) {
    if (!t) {
      const double n = now();
      spent[clock] += n - mark;
      mark = n;
    }
  }
  Mats mats(int l, int which) const;  // 0: queries, keys, values; 1: out; 2: gate and up; 3: down
  const Mat& top() const { return head.data ? head : embed; }
  const Mat* next(const StepBatch& b, int at) const {  // the first matrix from the at-th layer on
    return at >= b.layers   ? &top()
           : b.half[at] & 1 ? &layer[size_t(b.layer[at])].q
                            : first_of_mlp(b.layer[at]);
  }
  const Mat* first_of_mlp(int l) const {
    return sparse[size_t(l)] ? &layer[size_t(l)].router : &layer[size_t(l)].gate;
  }
  bool in_ints(const Mat& a) const { return compute != FLOAT32 && in_integers(a.type); }
  bool round(int t, const Act& a, int r0, int i, int M, const float* row, const float* weight,
             float factor, bool bytes, bool words);
  Act prepare(const Job& j, int t, int m, int n, const float* src, const int32_t* pick,
              const float* weight, const Mat* const* readers);
  template <class Fn, class Done>
  void linear(const Job& j, int t, int& turn, const Mats& mats, const Act& in, const Mat* then,
              Fn&& out, Done&& done);
  void deal(const Job& j);
  void need_inputs(int rows, int wide, int threads);
  int level(const StepCache* cache, void* rows, float* logits);
  int from(const StepBatch& b, int l, int i) const {
    const int w = window[size_t(l)];  // never beside a press
    return w ? std::max(0, b.seen[i] - w) : sealed(b, i);
  }
  // How many positions row i sees packed.
  int sealed(const StepBatch& b, int i) const {
    const StepPress* p = b.cache[b.sequence[i]].press;
    return p ? std::max(0, b.position[i] / p->block - 1) * p->block : 0;
  }
  void ask_packed(const StepCache& s, int t, int l, int h, int p0, int stop, const float* const* q,
                  int n, float* const* part);
  View view(const StepBatch& b, int l, int which, int h, int i, int p0) const;
  int alike_packed(const StepBatch& b, int i, int end, int p0) const;
  int alike(const StepBatch& b, int l, int i, int end, int p0) const;
  void keep(const float* x, u8* to);
  void settle(const Job& j, int l, int u0, int u1, int first, int step);
  const float* attend(const Job& j, int t, int& turn, int l);
  void close(const Job& j, int t, const float* norm);
  std::vector<size_t> first;  // scratch of `choose`
  std::vector<float> chance;
  void move(const float* by, float* s) const;
  void choose(int rows, const float* routing);
  void mix(const Job& j, int t, int& turn, int l);
  void gated(const float* g, const float* u, float* out) const;
  const float* sink(int t, int l, int h);
  void answer(const Job& j, int t, int& turn);
  void work(const Job& j, int t);
};

}  // namespace polydec
