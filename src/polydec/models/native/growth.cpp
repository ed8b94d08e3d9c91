// Trees of guesses of a drafter's layer, grown behind another model's states in one call.
#include <algorithm>
#include <numeric>

#include "model.h"

namespace polydec {

static constexpr int MOST_WIDE = 64, MOST_DEEP = 64, MOST_NODES = 4096, MOST_STATES = 64;

bool Model::fits(int part, int n, int k_) const {
  if (n != c.width || k_ % n) return false;
  return part == STEP_JOIN ? k_ / n == 2 : k_ / n <= MOST_STATES;
}

// A row divided by its root mean square.
static void divided(const Kernels* k, const float* x, int n, float* out) {
  memcpy(out, x, size_t(n) * 4);
  const float f = 1.0f / std::sqrt(k->squares(out, n) / float(n) + 1e-6f);
  for (int d = 0; d < n; ++d) out[d] *= f;
}

// e^x for x <= 0, to 2.5e-7 of itself from -87 on; plain operations in one order, so that every set
// gives the same.
static inline float power(float x) {
  x = std::max(x, -87.0f);
  const float whole = x * 1.44269504f + 0x1.8p23f;  // the nearest integer, in the last bits
  const float n = whole - 0x1.8p23f;
  const float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;  // less n log 2, in two parts
  float y = 1.0f / 720 * r + 1.0f / 120;
  y = y * r + 1.0f / 24;
  y = y * r + 1.0f / 6;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  uint32_t u;
  memcpy(&u, &whole, 4);
  u = (u + 127u) << 23;  // what stands above the integer's last bits is shifted out
  float scale;
  memcpy(&scale, &u, 4);
  return y * scale;
}

// Of the sum of e^(y - most), which is off by 1e-6 of itself at most: few floats are added before
// they count as doubles.
static double log_of_sum(const float* y, int n, float most) {
  double all[LANES] = {};
  for (int first = 0; first < n; first += SPAN) {
    const int stop = std::min(n, first + SPAN);
    float lane[LANES] = {};
    int i = first;
    for (; i + LANES <= stop; i += LANES)
      for (int e = 0; e < LANES; ++e) lane[e] += power(y[i + e] - most);
    for (; i < stop; ++i) lane[0] += power(y[i] - most);
    for (int e = 0; e < LANES; ++e) all[e] += double(lane[e]);
  }
  return std::log(std::accumulate(all, all + LANES, 0.0));
}

namespace {

struct Named {  // a candidate: its path's chance, its own, the candidate above it (-1: the root)
  double path, own;
  int above, token, depth;
};
struct Tip {  // a path that goes on: its last candidate, the row that named it, the slots of its
              // rows
  int named, row;
  std::vector<int32_t> slots;
};

// The arrays of a batch of the one layer.
struct Rows {
  std::vector<int32_t> token, sequence, position, slot, seen, prefix, start, tail, out, at;
  const int32_t layer[1] = {0}, exit[1] = {-1}, half[1] = {3};

  void add(int where, int to, int length, const std::vector<int32_t>& path) {
    token.push_back(-1);
    sequence.push_back(0);
    position.push_back(where);
    slot.push_back(to);
    prefix.push_back(path.empty() ? to + 1 : length);
    seen.push_back(prefix.back() + int(path.size()));
    start.push_back(int(tail.size()));
    tail.insert(tail.end(), path.begin(), path.end());
  }
  void answer(int row) {
    out.push_back(row);
    at.push_back(int(at.size()));
  }
  StepBatch batch(const StepCache* cache, const float* embed, float* logits, float* hidden) {
    StepBatch b{};
    b.rows = int(token.size());
    b.sequences = b.layers = 1;
    b.tails = int(tail.size());
    b.outputs = int(out.size());
    b.cache = cache;
    b.layer = layer;
    b.exit = exit;
    b.half = half;
    b.token = token.data();
    b.sequence = sequence.data();
    b.position = position.data();
    b.slot = slot.data();
    b.seen = seen.data();
    b.prefix = prefix.data();
    b.tail_start = start.data();
    b.tail = tail.data();
    b.embed = embed;
    b.output_row = out.data();
    b.logits_row = at.data();
    b.logits = logits;
    b.hidden = hidden;
    return b;
  }
};

}  // namespace

void Model::even(int rows, const float* in, float* out) const {
  const Denormals count;
  const size_t wide = size_t(c.width);
  for (size_t i = 0; i < size_t(rows); ++i) divided(k, in + i * wide, c.width, out + i * wide);
}

// `joined` holds rows of tokens beside states: through the join and the layer. What left it lies in
// `above`.
int Model::level(const StepCache* cache, void* rows, float* logits) {
  Rows& some = *static_cast<Rows*>(rows);
  const size_t m = some.token.size(), wide = size_t(c.width);
  entering.need(m * wide);
  if (const int code = through(join, int(m), joined.p, entering.p)) return code;
  above.need(some.out.size() * wide);
  return run(some.batch(cache, entering.p, logits, above.p));
}

int Model::grow(StepGrowth& g) {
  std::lock_guard<std::mutex> one(growing);
  const Denormals count;
  const int S = c.width, N = c.outputs;
  const auto outside = [](int32_t x, int32_t most) { return x < 1 || x > most; };
  g.found = 0;
  if (!head.data || c.layers != 1) return 5;
  if (outside(g.width, std::min(MOST_WIDE, N)) || outside(g.tips, MOST_WIDE) || !(g.floor <= 1) ||
      outside(g.depth, MOST_DEEP) || outside(g.nodes, MOST_NODES) || g.rows < 0 ||
      g.rows > c.context || g.length < 0 || g.length > c.context || !g.cache || !g.table ||
      !g.tip || !g.logits || !g.token || !g.parent || !g.chance)
    return 6;
  if (g.rows && (!fuse.data || !g.embed || !g.state)) return 5;
  if (g.rows && int64_t(g.states) * S != fuse.k) return 3;
  try {
    const size_t wide = size_t(S);
    if (g.rows) {  // true states
      const size_t m = size_t(g.rows), k_ = size_t(fuse.k);
      fusing.need(m * k_);
      fused.need(m * wide);
      joined.need(m * 2 * wide);
      for (size_t i = 0; i < m * size_t(g.states); ++i)
        divided(k, g.state + i * wide, S, fusing.p + i * wide);
      if (const int code = through(fuse, g.rows, fusing.p, fused.p)) return code;
      Rows rows;
      for (size_t i = 0; i < m; ++i) {
        divided(k, g.embed + i * wide, S, joined.p + 2 * i * wide);
        divided(k, fused.p + i * wide, S, joined.p + (2 * i + 1) * wide);
        rows.add(g.length + int(i), g.length + int(i), 0, {});
      }
      rows.answer(g.rows - 1);
      if (const int code = level(g.cache, &rows, g.logits)) return code;
      memcpy(g.tip, above.p, wide * 4);
    }
    const int base = g.length + g.rows;
    int free = base;
    std::vector<Named> named;
    std::vector<Tip> tips{{-1, 0, {}}};
    std::vector<float> value(size_t(g.width));
    std::vector<int32_t> at(size_t(g.width));
    laws.need(size_t(g.tips) * size_t(N));
    states.need(size_t(g.tips) * wide);
    memcpy(states.p, g.tip, wide * 4);
    for (int depth = 1; depth <= g.depth && !tips.empty(); ++depth) {
      if (depth > 1) {
        joined.need(tips.size() * 2 * wide);
        Rows rows;
        for (size_t i = 0; i < tips.size(); ++i) {
          Tip& tip = tips[i];
          const size_t token = size_t(named[size_t(tip.named)].token);
          divided(k, g.table + token * wide, S, joined.p + 2 * i * wide);
          divided(k, states.p + size_t(tip.row) * wide, S, joined.p + (2 * i + 1) * wide);
          tip.slots.push_back(free);
          rows.add(base + depth - 2, free++, base, tip.slots);
          rows.answer(int(i));
        }
        if (const int code = level(g.cache, &rows, laws.p)) return code;
        memcpy(states.p, above.p, tips.size() * wide * 4);
      }
      std::vector<std::pair<Named, int>> fresh;  // and the tip that it stands below
      for (size_t i = 0; i < tips.size(); ++i) {
        const float* law = depth > 1 ? laws.p + i * size_t(N) : g.logits;
        k->largest(law, N, g.width, value.data(), at.data());
        const double all = log_of_sum(law, N, value[0]);
        if (!std::isfinite(all)) return 9;  // NaN or infinity, wherever it stands
        const double path = tips[i].named < 0 ? 1.0 : named[size_t(tips[i].named)].path;
        for (int n = 0; n < g.width; ++n) {
          const double q = std::exp(double(float(double(value[size_t(n)] - value[0]) - all)));
          if (q > 0 && path * q >= g.floor)
            fresh.push_back({{path * q, q, tips[i].named, at[size_t(n)], depth}, int(i)});
        }
      }
      std::stable_sort(fresh.begin(), fresh.end(),
                       [](const auto& a, const auto& b) { return a.first.path > b.first.path; });
      std::vector<Tip> next;
      for (const auto& [one, row] : fresh) {
        if (int(next.size()) < g.tips)
          next.push_back({int(named.size()), row, tips[size_t(row)].slots});
        named.push_back(one);
      }
      tips.swap(next);
    }
    std::vector<int> order(named.size()), place(named.size(), -1);
    std::iota(order.begin(), order.end(), 0);
    const auto& all = named;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return all[size_t(a)].path > all[size_t(b)].path;  // of equals the one that was named first
    });
    order.resize(std::min(order.size(), size_t(g.nodes)));
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return all[size_t(a)].depth < all[size_t(b)].depth; });
    for (const int i : order) {
      const Named& one = named[size_t(i)];
      g.token[g.found] = one.token;
      g.parent[g.found] = one.above < 0 ? -1 : place[size_t(one.above)];
      g.chance[g.found] = one.own;
      place[size_t(i)] = g.found++;
    }
  } catch (const std::bad_alloc&) {
    return 4;
  }
  return 0;
}

}  // namespace polydec
