// One forward step of a Llama-shaped network for a batch of few rows, made for CPUs. See kernels.h
// for the arithmetic.
#include "step.h"

#include "model.h"

#if defined(__x86_64__)
#include <cpuid.h>
static bool has_avxvnni() {  // older compilers do not know the name; that the system saves the
                             // registers AVX2 has told
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

#if defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
static bool has_dot_product() { return getauxval(AT_HWCAP) >> 20 & 1; }
#else
static bool has_dot_product() {
  return true;
}  // of Apple's processors all that are called arm64 have it
#endif
#endif

#if defined(__GLIBCXX__)
// Containers call this where a size overflows. The C++ library has it since GCC 11 only, and one
// wheel serves systems with older ones.
namespace std {
[[noreturn]] void __throw_bad_array_new_length() { throw std::bad_alloc(); }
}  // namespace std
#endif

using namespace polydec;

static const char* const ERRORS[] = {
    "no error",
    "a part or layer that this network does not have",
    "shape or block type not supported",
    "the data is shorter or longer than its shape says",
    "out of memory",
    "weights are missing",
    "a row is outside the batch, the vocabulary, the context or the cache",
    "layers outside the network",
    "a number in it is NaN or infinite",
    "an activation is infinite or not a number",
    "the arithmetic is chosen before weights are given",
};

static std::vector<Set> sets() {
  std::vector<Set> out;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool two = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                   __builtin_cpu_supports("f16c");
  if (two && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    const bool vnni = __builtin_cpu_supports("avx512vnni");
    if (vnni && __builtin_cpu_is("amd"))
      out.push_back({"AVX-512-Zen", kernels_zen(), integers_vnni()});
    if (vnni) out.push_back({"AVX-512-VNNI", kernels_avx512(), integers_vnni()});
    out.push_back({"AVX-512", kernels_avx512(), integers_avx2()});
  }
  if (two && integers_avxvnni() && has_avxvnni())
    out.push_back({"AVX2-VNNI", kernels_avx2(), integers_avxvnni()});
  if (two) out.push_back({"AVX2", kernels_avx2(), integers_avx2()});
#elif defined(__aarch64__)
  if (has_dot_product()) out.push_back({"NEON-DOT", kernels_neon(), integers_neon()});
  out.push_back({"NEON", kernels_neon(), integers_portable()});
#endif
  out.push_back({"portable", kernels_portable(), integers_portable()});
  return out;
}

extern "C" {

const char* step_error(int code) {
  return code >= 0 && code < int(sizeof ERRORS / sizeof *ERRORS) ? ERRORS[code] : "unknown";
}

const char* step_sets(void) {
  static const std::string names = [] {
    std::string s;
    for (const Set& set : sets()) s += std::string(s.empty() ? "" : " ") + set.name;
    return s;
  }();
  return names.c_str();
}

void* step_new(const StepConfig* c, int threads, const char* set) {
  const auto bad = [](int32_t x, int32_t most) { return x < 1 || x > most; };
  const int32_t most = 1 << 24;
  if (bad(c->vocab, most) || bad(c->outputs, most) || bad(c->width, 1 << 20) ||
      bad(c->layers, 4096) || bad(c->heads, 4096) || bad(c->kv_heads, c->heads) ||
      bad(c->head, 4096) || bad(c->inner, 1 << 20) || bad(c->context, most) || bad(threads, 1024))
    return nullptr;
  if (c->head % LANES || c->turned < 2 || c->turned > c->head || c->turned % 2 ||
      c->width % BLOCK || c->inner % BLOCK || c->heads % c->kv_heads || !(c->eps >= 0))
    return nullptr;
  const auto positive = [](float x) { return x > 0 && x < INFINITY; };
  if (bad(c->ropes, 16) || c->norms < 0 || c->norms > 15 || c->wide_norms < 0 ||
      c->wide_norms > 1 || c->act < 0 || c->act > 2 || !positive(c->scale) ||
      !(c->cap >= 0 && c->cap < INFINITY) || !(c->final_cap >= 0 && c->final_cap < INFINITY) ||
      !positive(c->embed_scale) || !positive(c->residual) || !positive(c->divide) ||
      (c->act == 2 && !(positive(c->alpha) && positive(c->limit))))
    return nullptr;
  if (c->experts &&
      (bad(c->experts, 4096) || bad(c->used, c->experts) || bad(c->expert_inner, 1 << 20) ||
       c->expert_inner % BLOCK || c->share_used < 0 || c->share_used > 1))
    return nullptr;
  for (const Set& s : sets())
    if (!*set || !strcmp(set, s.name)) return new (std::nothrow) Model(*c, threads, s);
  return nullptr;
}
void step_free(void* model) { delete static_cast<Model*>(model); }
const char* step_set(void* model) { return static_cast<Model*>(model)->set.name; }
int step_compute(void* model, int compute) {
  Model& m = *static_cast<Model*>(model);
  if (compute < 0 || compute >= COMPUTES) return 2;
  if (m.bytes()) return 10;
  m.compute = Compute(compute);
  return 0;
}
int step_keep(void* model, int kept) {
  Model& m = *static_cast<Model*>(model);
  if (kept < 0 || kept >= KEPTS) return 2;
  std::lock_guard<std::mutex> l(m.busy);
  m.kept = Kept(kept);
  return 0;
}

int step_weight(void* model, int layer, int part, int type, const void* data, uint64_t bytes, int n,
                int k, int swap) {
  Model& m = *static_cast<Model*>(model);
  Mat* a = m.matrix(layer, part);
  int want_n, want_k;
  if (!a) return 1;
  if (part == STEP_FUSE || part == STEP_JOIN) {
    if (!m.fits(part, n, k)) return 2;
  } else {
    if (!m.shape_of(part, want_n, want_k)) return 1;
    if (n != want_n || k != want_k) return 2;
  }
  if ((swap && (n % swap || swap % 2)) || type >= FILE_TYPES) return 2;
  if (!shape(*a, m.compute != FLOAT32 && type == Q8_0 ? int(Q8_INT) : type, n, k)) return 2;
  if (!data || bytes != file_row(type, k) * uint64_t(n)) return 3;
  return m.pack(*a, static_cast<const u8*>(data), swap);
}

int step_vector(void* model, int layer, int part, int bias, const float* data, uint64_t count,
                int n, int swap) {
  Model& m = *static_cast<Model*>(model);
  int want_n, want_k;
  float** at;
  if (bias) {
    Mat* a = m.matrix(layer, part);
    if (!a || !m.shape_of(part, want_n, want_k)) return 1;
    at = &a->bias;
  } else {
    at = m.norm(layer, part, want_n);
    if (!at) return 1;
  }
  if (n != want_n || (swap && (n % swap || swap % 2))) return 2;
  if (!data || count != uint64_t(n)) return 3;
  if (!finite_row(F32, reinterpret_cast<const u8*>(data), n)) return 8;
  const size_t room = size_t(n + LANES - 1) / LANES * LANES * 4;
  float* to = reinterpret_cast<float*>(m.arena.take(room));
  if (!to) return 4;
  memset(to, 0, room);
  for (int i = 0; i < n; ++i) to[i] = data[source(i, swap)];
  *at = to;
  return 0;
}

int step_rotary(void* model, int rope, const float* cosine, const float* sine, uint64_t count,
                int positions) {
  Model& m = *static_cast<Model*>(model);
  if (rope < 0 || rope >= m.c.ropes) return 1;
  if (positions < 1 || positions > m.c.context) return 2;
  const size_t n = size_t(positions) * size_t(m.c.turned / 2);
  if (!cosine || !sine || count != n) return 3;
  std::lock_guard<std::mutex> l(m.busy);
  m.rope[size_t(rope)].cosine.assign(cosine, cosine + n);
  m.rope[size_t(rope)].sine.assign(sine, sine + n);
  return 0;
}

int step_windows(void* model, const int32_t* widths, uint64_t count) {
  Model& m = *static_cast<Model*>(model);
  if (!widths || count != uint64_t(m.c.layers)) return 3;
  for (int l = 0; l < m.c.layers; ++l)
    if (widths[l] < 0) return 2;
  m.window.assign(widths, widths + m.c.layers);
  return 0;
}

int step_turns(void* model, const int32_t* ropes, uint64_t count) {
  Model& m = *static_cast<Model*>(model);
  if (!ropes || count != uint64_t(m.c.layers)) return 3;
  for (int l = 0; l < m.c.layers; ++l)
    if (ropes[l] < -1 || ropes[l] >= m.c.ropes) return 2;
  m.turns.assign(ropes, ropes + m.c.layers);
  return 0;
}

int step_sparse(void* model, const int32_t* sparse, uint64_t count) {
  Model& m = *static_cast<Model*>(model);
  if (!sparse || count != uint64_t(m.c.layers)) return 3;
  for (int l = 0; l < m.c.layers; ++l)
    if (sparse[l] < 0 || sparse[l] > 1 || (sparse[l] && !m.c.experts)) return 2;
  m.sparse.assign(sparse, sparse + m.c.layers);
  for (int l = 0; l < m.c.layers; ++l)
    if (!sparse[l]) m.layer[size_t(l)].expert.clear();
  return 0;
}

uint64_t step_press_bytes(void* model, const StepPress* p) {
  return static_cast<Model*>(model)->press_bytes(*p);
}
int step_press(void* model, const StepPress* p, const float* kv, uint64_t count, uint8_t* out,
               uint64_t room) {
  Model& m = *static_cast<Model*>(model);
  const uint64_t size = m.press_bytes(*p);
  if (!size) return 2;
  if (!kv || !out || room != size ||
      count != 2 * uint64_t(m.c.kv_heads) * uint64_t(p->block) * uint64_t(m.c.head))
    return 3;
  return m.press(*p, kv, out);
}

int step_run(void* model, const StepBatch* b) { return static_cast<Model*>(model)->run(*b); }

int step_through(void* model, int part, int rows, const float* in, uint64_t count, float* out,
                 uint64_t room) {
  Model& m = *static_cast<Model*>(model);
  if (part != STEP_FUSE && part != STEP_JOIN) return 1;
  const Mat& a = *m.matrix(0, part);
  if (!a.data) return 5;
  if (rows < 1) return 6;
  if (!in || !out || count != uint64_t(rows) * uint64_t(a.k) ||
      room != uint64_t(rows) * uint64_t(a.n))
    return 3;
  return m.through(a, rows, in, out);
}

int step_even(void* model, int rows, const float* in, uint64_t count, float* out, uint64_t room) {
  const Model& m = *static_cast<Model*>(model);
  if (rows < 1) return 6;
  if (!in || !out || count != uint64_t(rows) * uint64_t(m.c.width) || room != count) return 3;
  m.even(rows, in, out);
  return 0;
}

int step_grow(void* model, StepGrowth* g) { return static_cast<Model*>(model)->grow(*g); }

int step_top(void* model, const float* logits, uint64_t count, int rows, int n, int k, int32_t* top,
             uint64_t room) {
  Model& m = *static_cast<Model*>(model);
  if (rows < 0 || k < 1 || k > n) return 6;
  if (count != uint64_t(rows) * uint64_t(n) || room != uint64_t(rows) * uint64_t(k)) return 3;
  std::lock_guard<std::mutex> l(m.busy);
  Pool& pool = m.pools.get();
  try {
    std::vector<float> value(size_t(pool.size()) * size_t(k));
    pool.run([&](int t) {
      for (int i = t; i < rows; i += pool.size())
        m.k->largest(logits + size_t(i) * size_t(n), n, k, value.data() + size_t(t) * size_t(k),
                     top + size_t(i) * size_t(k));
    });
  } catch (const std::bad_alloc&) {
    return 4;
  }
  return 0;
}

int step_threads(void* model) {
  Model& m = *static_cast<Model*>(model);
  std::lock_guard<std::mutex> l(m.busy);
  return m.choice.threads();
}

void step_learn_threads(void* model, int rows, double seconds, double slept) {
  Model& m = *static_cast<Model*>(model);
  std::lock_guard<std::mutex> l(m.busy);
  m.choice.learn(rows, seconds, slept);
}

void step_profile(void* model, double* seconds) {
  Model& m = *static_cast<Model*>(model);
  for (int i = 0; i < CLOCKS; ++i) {
    seconds[i] = m.spent[i];
    m.spent[i] = 0;
  }
}

int step_row(void* model, int row, float* out, uint64_t count) {
  Model& m = *static_cast<Model*>(model);
  if (!m.embed.data) return 5;
  if (row < 0 || row >= m.c.vocab) return 6;
  if (!out || count != uint64_t(m.c.width)) return 3;
  m.look_up(row, out);
  return 0;
}

uint64_t step_bytes(void* model) { return static_cast<Model*>(model)->bytes(); }

double step_bandwidth(void* model) {
  Model& m = *static_cast<Model*>(model);
  std::lock_guard<std::mutex> l(m.busy);
  Pool& pool = m.pools.get();
  pool.use(pool.most());
  std::atomic<uint64_t> sum{0};
  double best = 0;
  for (int round = 0; round < 4; ++round) {
    const double start = now();
    pool.run([&](int t) {
      uint64_t s[8] = {};
      for (const auto& map : m.arena.maps) {
        const size_t lines = map.used / 64, first = lines * size_t(t) / size_t(pool.size()),
                     last = lines * size_t(t + 1) / size_t(pool.size());
        for (const uint64_t *p = (const uint64_t*)map.at + first * 8,
                            *end = (const uint64_t*)map.at + last * 8;
             p < end; p += 8)
          for (int i = 0; i < 8; ++i) s[i] += p[i];
      }
      for (int i = 0; i < 8; ++i) sum += s[i];
    });
    size_t n = 0;
    for (const auto& map : m.arena.maps) n += map.used;
    best = std::max(best, double(n) / (now() - start));
  }
  return sum == 1 ? 0 : best;  // keeps the sums alive
}

double step_peak(void* model) {
  Model& m = *static_cast<Model*>(model);
  std::lock_guard<std::mutex> l(m.busy);
  Pool& pool = m.pools.get();
  pool.use(pool.most());
  const long turns = m.k->name[0] == 'p' ? 20000 : 2000000;
  double best = 0;
  for (int round = 0; round < 4; ++round) {
    const double start = now();
    pool.run([&](int) {
      alignas(64) float out[LANES] = {};
      m.k->peak(turns, out);
    });
    best = std::max(best, double(turns) * 8 * LANES * 2 * pool.size() / (now() - start));
  }
  return best;
}
}
