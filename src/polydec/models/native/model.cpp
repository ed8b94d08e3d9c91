#include "model.h"

namespace polydec {

static bool alone_with(int rows, int threads) { return rows == 1 || rows * threads <= 32; }
static const auto nothing = [](int, int) {};

static int panel_of(const Mat& a, int t, int threads) {
  return int(int64_t(a.panels) * t / threads);
}

Model::Model(const StepConfig& config, int threads, const Set& kernels)
    : c(config),
      set(kernels),
      k(kernels.floats),
      ints(kernels.integers),
      pools(threads),
      choice(threads),
      layer(size_t(config.layers)),
      rope(size_t(config.ropes)),
      turns(size_t(config.layers), 0),
      sparse(size_t(config.layers), config.experts > 0),
      window(size_t(config.layers), 0),
      own(size_t(threads)),
      own_att(size_t(threads)),
      own_scores(size_t(threads)),
      best(size_t(threads)),
      share((size_t(config.layers) * (5 + 2 * size_t(config.experts)) + 1) * size_t(threads)) {
  for (Layer& y : layer) y.expert.resize(size_t(config.experts));
  for (auto* list : {&own_row, &own_sink, &own_packed}) list->resize(size_t(threads));
  own_asked.resize(size_t(threads));
  picked.resize(size_t(config.experts));
  weighed.resize(size_t(config.experts));
}

Mat* Model::matrix(int l, int part) {
  if (part == STEP_EMBED) return &embed;
  if (part == STEP_HEAD) return &head;
  if (part == STEP_FUSE) return &fuse;
  if (part == STEP_JOIN) return &join;
  if (part < STEP_Q || l < 0 || l >= c.layers) return nullptr;
  Layer& y = layer[size_t(l)];
  if (part == STEP_ROUTER) return &y.router;
  if (part >= STEP_PARTS) {
    const size_t e = size_t(part - STEP_PARTS) / 3;
    if (e >= y.expert.size()) return nullptr;
    Mlp& m = y.expert[e];
    Mat* const three[] = {&m.gate, &m.up, &m.down};
    return three[(part - STEP_PARTS) % 3];
  }
  if (part > STEP_DOWN) return nullptr;
  Mat* const all[] = {&y.q, &y.k, &y.v, &y.o, &y.gate, &y.up, &y.down};
  return all[part - STEP_Q];
}
float** Model::norm(int l, int part, int& n) {
  n = part == STEP_QNORM   ? (c.wide_norms ? c.heads : 1) * c.head
      : part == STEP_KNORM ? (c.wide_norms ? c.kv_heads : 1) * c.head
                           : c.width;
  if (part == STEP_SINKS) n = c.heads;
  if (part == STEP_NORM) return &last_norm;
  if (part < STEP_NORM1 || part > STEP_SINKS || part == STEP_ROUTER || l < 0 || l >= c.layers)
    return nullptr;
  Layer& y = layer[size_t(l)];
  float** const all[] = {&y.norm1,  &y.norm2,  &y.qnorm, &y.knorm,
                         &y.after1, &y.after2, nullptr,  &y.sinks};
  return all[part - STEP_NORM1];
}
bool Model::shape_of(int part, int& n, int& k_) const {
  const int q = c.heads * c.head, kv = c.kv_heads * c.head;
  const int shapes[][2] = {{c.vocab, c.width}, {c.outputs, c.width}, {0, 0},
                           {q, c.width},       {kv, c.width},        {kv, c.width},
                           {c.width, q},       {c.inner, c.width},   {c.inner, c.width},
                           {c.width, c.inner}};
  if (part == STEP_ROUTER) {
    n = c.experts;
    k_ = c.width;
    return c.experts > 0;
  }
  if (part >= STEP_PARTS) {
    const bool down = (part - STEP_PARTS) % 3 == 2;
    n = down ? c.width : c.expert_inner;
    k_ = down ? c.expert_inner : c.width;
    return c.experts > 0;
  }
  if (part < 0 || part > STEP_DOWN || part == STEP_NORM) return false;
  n = shapes[part][0];
  k_ = shapes[part][1];
  return true;
}
int Model::pack(Mat& a, const u8* data, int swap) {
  a.data = arena.take(a.bytes());
  if (!a.data) return 4;
  std::atomic<bool> finite{true};
  const size_t row = file_row(a.type, a.k);
  Pool& pool = pools.get();
  pool.run([&](int t) {
    for (int p = panel_of(a, t, pool.size()); p < panel_of(a, t + 1, pool.size()); ++p) {
      const u8* rows[LANES];
      for (int o = 0; o < LANES; ++o) {
        const int n = p * LANES + o;
        rows[o] = n < a.n ? data + size_t(source(n, swap)) * row : nullptr;
        if (rows[o] && !finite_row(a.type, rows[o], a.k)) finite = false;
      }
      pack_panel(a, p, rows);
    }
  });
  return finite ? 0 : 8;
}
void Model::look_up(int token, float* out) const {
  unpack_row(embed, token, out);
  if (c.embed_scale != 1)
    for (int d = 0; d < c.width; ++d) out[d] *= c.embed_scale;
}
uint64_t Model::bytes() const {
  uint64_t n = top().bytes();
  for (const Layer& y : layer) {
    for (const Mat* a : {&y.q, &y.k, &y.v, &y.o, &y.gate, &y.up, &y.down, &y.router})
      n += a->bytes();
    uint64_t all = 0;
    for (const Mlp& m : y.expert) all += m.gate.bytes() + m.up.bytes() + m.down.bytes();
    if (all) n += all / uint64_t(c.experts) * uint64_t(c.used);  // a row reads so many of them
  }
  return n;
}

// Floats for the integers of `blocks` blocks of a row: scale, total, sums; bytes and words of at
// most 64 bytes each.
static constexpr size_t WHOLE_FLOATS = 2 + SUMS + 16 + 16;

static Whole whole_at(float* at, size_t blocks) {
  float* scale = at + 32 * blocks;  // first what is aligned
  return {reinterpret_cast<int8_t*>(at), reinterpret_cast<int16_t*>(at + 16 * blocks), scale,
          scale + blocks, reinterpret_cast<int32_t*>(scale + 2 * blocks)};
}

// Row i of the tile of M rows from r0 on as integers; false where it holds infinity or NaN.
bool Model::round(int t, const Act& a, int r0, int i, int M, const float* row, const float* weight,
                  float factor, bool bytes, bool words) {
  if (weight) {
    float* normed = own_row[size_t(t)].p;
    k->spread(row, weight, factor, a.k, 1, normed, nullptr, nullptr);
    row = normed;
  }
  const size_t at = size_t(r0) * size_t(a.k / BLOCK) + size_t(i);
  const Whole& w = a.whole;
  int32_t* sums = w.sums + size_t(r0) * size_t(a.k / BLOCK) * SUMS + i;
  return ints->round(row, a.k, compute, M,
                     {bytes ? w.bytes + at * size_t(BYTES[compute]) : nullptr,
                      words ? w.words + at * BLOCK : nullptr, w.scale + at, w.total + at, sums});
}

// Rows become inputs of linear layers, normed where a weight is given. What is little work every
// thread does for itself, without waiting; of more each takes some rows.
Act Model::prepare(const Job& j, int t, int m, int n, const float* src, const int32_t* pick,
                   const float* weight, const Mat* const* readers) {
  const int blocks = n / BLOCK, threads = j.pool.size();
  const bool alone = alone_with(m, threads);
  bool plain = false, scaled = false, sums = false, bytes = false, words = false;
  for (; *readers; ++readers) {
    const int type = (*readers)->type;
    if (in_ints(**readers)) {
      (ints->words[compute][type] ? words : bytes) = true;
      continue;
    }
    const Layout& l = LAYOUT[type];
    (l.scaled ? scaled : plain) = true;
    sums |= l.sums;
  }
  const bool whole = bytes || words;
  const int most = !whole  ? k->rows
                   : plain ? std::min(k->rows, ints->rows[compute])
                           : ints->rows[compute];
  float* base = alone ? own[size_t(t)].p : act.p;
  const size_t size = size_t(m) * size_t(n);
  Act a{base, base + size,    base + 2 * size,
        n,    Tiles(m, most), whole_at(base + size, size_t(m) * size_t(blocks))};
  for (int g = 0; g < a.tiles.count; ++g) {
    const int r0 = a.tiles.first(g), M = a.tiles.first(g + 1) - r0;
    for (int i = 0; i < M; ++i) {
      if (!alone && (r0 + i) % threads != t) continue;
      const float* row = src + size_t(pick ? pick[r0 + i] : r0 + i) * size_t(n);
      const float f = weight ? 1.0f / std::sqrt(k->squares(row, n) / float(n) + c.eps) : 1.0f;
      const size_t at = size_t(r0) * size_t(n) + size_t(i) * BLOCK;
      if (whole && !round(t, a, r0, i, M, row, weight, f, bytes, words)) endless = true;
      if (plain || scaled)
        k->spread(row, weight, f, n, M, plain ? a.plain + at : nullptr,
                  scaled ? a.scaled + at : nullptr,
                  sums ? a.sums + size_t(r0) * size_t(blocks) * SUMS + i : nullptr);
    }
  }
  if (!alone) j.pool.barrier();
  return a;
}

// Calls out(row, output, 16 of A x, 16 of its pair x) for all rows; threads share the panels, and
// done(first, end) tells which are finished. `then` is the matrix that follows.
template <class Fn, class Done>
void Model::linear(const Job& j, int t, int& turn, const Mats& mats, const Act& in, const Mat* then,
                   Fn&& out, Done&& done) {
  alignas(64) float ya[MAXM * 4 * LANES], yb[MAXM * 4 * LANES];
  const int threads = j.pool.size(), blocks = in.k / BLOCK, end = mats.first(t + 1, threads);
  const size_t n = size_t(in.k);
  const u8* next_up = then ? then->data + size_t(int64_t(then->panels) * t / threads) * then->panel
                           : mats.mat[0]->data;
  auto panels = [&](const Mat& A, int p0, int p1, int off, const u8* ahead_a, const u8* ahead_b) {
    for (int g = 0; g < in.tiles.count; ++g) {
      const int r0 = in.tiles.first(g), M = in.tiles.first(g + 1) - r0;
      const int most = in_ints(A) || (mats.pair && in_ints(*mats.pair)) ? 1 : k->wide[M];
      const float* sums = in.sums + size_t(r0) * size_t(blocks) * SUMS;
      auto one = [&](const Mat& a, int p, int wide, const u8* ahead, float* y) {
        const u8* w = a.data + size_t(p) * a.panel;
        const u8* soon = g ? w : ahead + size_t(p - p0) * a.panel;
        if (in_ints(a)) {
          const size_t at = size_t(r0) * size_t(blocks);
          const Whole& q = in.whole;
          ints->tile[compute][a.type][M](
              w, soon, blocks,
              {q.bytes + at * size_t(BYTES[compute]), q.words + at * BLOCK, q.scale + at,
               q.total + at, q.sums + at * SUMS},
              y);
        } else {
          const float* x = (LAYOUT[a.type].scaled ? in.scaled : in.plain) + size_t(r0) * n;
          k->tile[a.type][M][wide == 1      ? 0
                             : wide == most ? 1
                                            : 2](w, soon, a.panel, blocks, x, sums, y);
        }
        if (a.bias)
          for (int i = 0; i < M; ++i)
            for (int e = 0; e < wide * LANES; ++e) y[i * wide * LANES + e] += a.bias[p * LANES + e];
      };
      for (int p = p0, wide; p < p1; p += wide) {
        wide = p1 - p >= most ? most : most == 4 && p1 - p >= 2 ? 2 : 1;
        one(A, p, wide, ahead_a, ya);
        if (mats.pair) one(*mats.pair, p, wide, ahead_b, yb);
        for (int i = 0; i < M; ++i)
          for (int q = 0; q < wide; ++q)
            out(r0 + i, (off + p + q) * LANES, ya + (i * wide + q) * LANES,
                yb + (i * wide + q) * LANES);
      }
    }
  };
  auto range = [&](int p0, int p1, bool last) {  // of the panels of all matrices
    for (int i = 0, off = 0; i < mats.count; off += mats.mat[i++]->panels) {
      const Mat& a = *mats.mat[i];
      const int first = std::max(p0 - off, 0), stop = std::min(p1 - off, a.panels);
      if (first >= stop) continue;
      const bool over = stop == a.panels && i + 1 < mats.count;
      panels(a, first, stop, off,
             last   ? next_up
             : over ? mats.mat[i + 1]->data
                    : a.data + size_t(stop) * a.panel,
             !mats.pair ? nullptr
             : last     ? next_up
                        : mats.pair->data + size_t(stop) * mats.pair->panel);
    }
    done(p0, p1);
  };
  Share* mine = &share[size_t(turn++) * size_t(threads)];
  int step =
      std::max(mats.unit, (in.tiles.count > 2 ? 12 : 4 + mats.unit - 1) / mats.unit * mats.unit);
  if (in_ints(*mats.mat[0])) {  // what is worked on and what is fetched meanwhile share the second
                                // cache
    const size_t room =
        (in.tiles.count > 1 ? 262144 : 131072) / (mats.mat[0]->panel * (mats.pair ? 2 : 1));
    step = std::max(mats.unit, std::min(step, int(room) / mats.unit * mats.unit));
  }
  int p0, p1;
  while (mine[t].take(step, true, p0, p1)) range(p0, p1, p1 >= end);
  for (int v = 1; v < threads; ++v)
    while (mine[(t + v) % threads].take(step, false, p0, p1)) range(p0, p1, true);
}

Mats Model::mats(int l, int which) const {
  const Layer& y = layer[size_t(l)];
  if (which == 0) return {{&y.q, &y.k, &y.v}, 3, c.head / LANES};
  if (which == 1) return {{&y.o}, 1, 1};
  if (which == 2) return {{&y.gate}, 1, 1, &y.up};
  return {{&y.down}, 1, 1};
}

void Model::deal(const Job& j) {
  const StepBatch& b = j.b;
  const int threads = j.pool.size(), units = j.tile ? (b.rows + j.tile - 1) / j.tile * c.kv_heads
                                                    : (j.packed + j.blocks) * (c.heads / j.heads);
  size_t n = 0;
  auto add = [&](const Mats& a) {
    for (int t = 0; t < threads; ++t) share[n++].set(a.first(t, threads), a.first(t + 1, threads));
  };
  for (int at = 0; at < b.layers; ++at) {
    if (b.half[at] & 1) {
      add(mats(b.layer[at], 0));
      for (int t = 0; t < threads; ++t)
        share[n++].set(units * t / threads, units * (t + 1) / threads);
      add(mats(b.layer[at], 1));
    }
    const Layer& y = layer[size_t(b.layer[at])];
    if (!(b.half[at] & 2)) continue;
    if (!sparse[size_t(b.layer[at])]) {
      for (int which = 2; which < 4; ++which) add(mats(b.layer[at], which));
      continue;
    }
    add({{&y.router}, 1, 1});
    for (const Mlp& m : y.expert) {
      add({{&m.gate}, 1, 1, &m.up});
      add({{&m.down}, 1, 1});
    }
  }
  add({{&top()}, 1, 1});
}

// ---------- the step

// What a layer adds goes through its norm into x.
void Model::close(const Job& j, int t, const float* norm) {
  const int D = c.width;
  for (int i = t; i < j.b.rows; i += j.pool.size()) {
    float *to = x.p + size_t(i) * size_t(D), *y = added.p + size_t(i) * size_t(D);
    const float f = 1.0f / std::sqrt(k->squares(y, D) / float(D) + c.eps);
    for (int d = 0; d < D; ++d) to[d] += y[d] * f * norm[d];
  }
  j.pool.barrier();
}

// 16 of the gate's function of g, times what it lets through.
void Model::gated(const float* g, const float* u, float* out) const {
  if (c.act < 2) {
    (c.act ? k->gelu : k->gate)(g, u, out);
    return;
  }
  alignas(64) float a[LANES], b[LANES];
  for (int e = 0; e < LANES; ++e) {
    a[e] = std::min(g[e], c.limit) * c.alpha;
    b[e] = (std::min(std::max(u[e], -c.limit), c.limit) + 1.0f) / c.alpha;
  }
  k->gate(a, b, out);
}

// A row's scores of the experts, moved by so many of their standard deviations.
void Model::move(const float* by, float* s) const {
  const int E = c.experts;
  double mean = 0, square = 0;
  for (int e = 0; e < E; ++e) mean += double(s[e]) / E;
  for (int e = 0; e < E; ++e) square += (s[e] - mean) * (s[e] - mean) / E;
  const float spread = float(std::sqrt(square));
  for (int e = 0; e < E; ++e) s[e] += by[e] * spread;
}

// Which rows go through which experts, and how much each counts, from the router's scores.
// routing: of each row what moves them in this layer, or null.
void Model::choose(int rows, const float* routing) {
  const size_t E = size_t(c.experts), U = size_t(c.used);
  if (routing)
    for (int i = 0; i < rows; ++i)
      move(routing + size_t(i) * size_t(c.layers) * E, route.p + size_t(i) * E);
  std::fill(first.begin(), first.end(), 0);
  for (size_t e = 0; e < E; ++e) {
    picked[e].clear();
    weighed[e].clear();
  }
  size_t* best = first.data();
  float* p = chance.data();
  for (int i = 0; i < rows; ++i) {
    const float* s = route.p + size_t(i) * E;
    size_t have = 0;
    for (size_t e = 0; e < E; ++e) {  // the largest, the first of equals first
      if (have == U && !(s[e] > s[best[U - 1]])) continue;
      size_t at = have < U ? have++ : U - 1;
      for (; at > 0 && s[best[at - 1]] < s[e]; --at) best[at] = best[at - 1];
      best[at] = e;
    }
    float sum = 0;
    for (size_t e = 0; e < E; ++e) p[e] = std::exp(s[e] - s[best[0]]);
    if (c.share_used)
      for (size_t n = 0; n < U; ++n) sum += p[best[n]];
    else
      for (size_t e = 0; e < E; ++e) sum += p[e];
    for (size_t n = 0; n < U; ++n) {
      picked[best[n]].push_back(i);
      weighed[best[n]].push_back(p[best[n]] / sum);
    }
  }
}

// The MLP of a layer of experts: each gathers its rows; a row's results are summed in the order of
// the experts.
void Model::mix(const Job& j, int t, int& turn, int l) {
  const Layer& y = layer[size_t(l)];
  const int m = j.b.rows, D = c.width, I = c.expert_inner, threads = j.pool.size();
  const size_t E = size_t(c.experts);
  const Mat* const to_router[] = {&y.router, nullptr};
  Act a = prepare(j, t, m, D, x.p, nullptr, y.norm2, to_router);
  linear(
      j, t, turn, {{&y.router}, 1, 1}, a, nullptr,
      [&](int i, int n, const float* v, const float*) {
        memcpy(route.p + size_t(i) * E + size_t(n), v, size_t(std::min(LANES, int(E) - n)) * 4);
      },
      nothing);
  for (int i = t; i < m; i += threads) memset(added.p + size_t(i) * size_t(D), 0, size_t(D) * 4);
  j.pool.barrier();
  if (!t) choose(m, j.b.routing ? j.b.routing + size_t(l) * E : nullptr);
  j.pool.barrier();
  for (size_t e = 0; e < E; ++e) {
    const std::vector<int32_t>& rows = picked[e];
    const Mlp& by = y.expert[e];
    int turn1 = turn + 2 * int(e), turn2 = turn1 + 1;
    if (rows.empty()) continue;
    const Mat* const to_gate[] = {&by.gate, &by.up, nullptr};
    a = prepare(j, t, int(rows.size()), D, x.p, rows.data(), y.norm2, to_gate);
    linear(
        j, t, turn1, {{&by.gate}, 1, 1, &by.up}, a, &by.down,
        [&](int i, int n, const float* g, const float* u) {
          gated(g, u, hid.p + size_t(i) * size_t(I) + n);
        },
        nothing);
    j.pool.barrier();
    const Mat* const to_down[] = {&by.down, nullptr};
    a = prepare(j, t, int(rows.size()), I, hid.p, nullptr, nullptr, to_down);
    linear(
        j, t, turn2, {{&by.down}, 1, 1}, a, nullptr,
        [&](int i, int n, const float* v, const float*) {
          float* to = added.p + size_t(rows[size_t(i)]) * size_t(D) + n;
          const float w = weighed[e][size_t(i)];
          for (int d = 0; d < LANES; ++d) to[d] += v[d] * w;
        },
        nothing);
    j.pool.barrier();
  }
  turn += 2 * int(E);
  if (y.after2) {
    close(j, t, y.after2);
    return;
  }
  for (int i = t; i < m; i += threads) {
    float *to = x.p + size_t(i) * size_t(D), *v = added.p + size_t(i) * size_t(D);
    for (int d = 0; d < D; ++d) to[d] += v[d] * c.residual;
  }
  j.pool.barrier();
}

void Model::answer(const Job& j, int t, int& turn) {
  const StepBatch& b = j.b;
  const int R = b.outputs, D = c.width, N = top().n;
  if (b.hidden)
    for (int i = t; i < R; i += j.pool.size())
      memcpy(b.hidden + size_t(i) * size_t(D), x.p + size_t(b.output_row[i]) * size_t(D),
             size_t(D) * 4);
  if (!b.argmax && !b.logits) return;
  const Mat* const reader[] = {&top(), nullptr};
  const Act a = prepare(j, t, R, D, x.p, b.output_row, last_norm, reader);
  lap(t, REST);
  auto& mine = best[size_t(t)];
  for (int i = 0; i < R; ++i)
    mine[size_t(i)] = {-INFINITY, -1};  // nothing lies above it: the row is NaN
  const bool bent = c.final_cap > 0 || c.divide != 1;
  alignas(64) float z[LANES];
  linear(
      j, t, turn, {{&top()}, 1, 1}, a, nullptr,
      [&](int i, int n, const float* y, const float*) {
        if (bent) {
          k->bound(y, c.divide, c.final_cap, z);
          y = z;
        }
        const int count = std::min(LANES, N - n);
        if (b.logits && b.logits_row[i] >= 0)
          memcpy(b.logits + size_t(b.logits_row[i]) * size_t(N) + n, y, size_t(count) * 4);
        Out& o = mine[size_t(i)];
        if (!b.argmax || !k->reaches(y, o.value)) return;
        for (int e = 0; e < count; ++e)
          if (y[e] > o.value || (y[e] == o.value && n + e < o.at)) o = {y[e], n + e};
      },
      nothing);
  j.pool.barrier();
  if (!t && b.argmax)
    for (int i = 0; i < R; ++i) {
      Out o = best[0][size_t(i)];
      for (int other = 1; other < j.pool.size(); ++other) {
        const Out& p = best[size_t(other)][size_t(i)];
        if (p.value > o.value || (p.value == o.value && p.at < o.at)) o = p;
      }
      b.argmax[i] = o.value < INFINITY ? o.at : -1;
    }
  lap(t, HEAD);
}

void Model::work(const Job& j, int t) {
  const Denormals count;
  const StepBatch& b = j.b;
  const int threads = j.pool.size(), m = b.rows, D = c.width, I = c.inner, Q = c.heads * c.head,
            QKV = Q + 2 * c.kv_heads * c.head;
  int turn = 0;
  if (!t) mark = now();
  for (int i = t; i < m; i += threads) {
    float* to = x.p + size_t(i) * size_t(D);
    if (b.token[i] < 0)
      memcpy(to, b.embed + size_t(i) * size_t(D), size_t(D) * 4);
    else
      look_up(b.token[i], to);
  }
  j.pool.barrier();
  auto add = [&](int i, int n, const float* y, const float*) {
    float* to = x.p + size_t(i) * size_t(D) + n;
    for (int e = 0; e < LANES; ++e) to[e] += y[e];
  };
  auto add_scaled = [&](int i, int n, const float* y, const float*) {
    float* to = x.p + size_t(i) * size_t(D) + n;
    for (int e = 0; e < LANES; ++e) to[e] += y[e] * c.residual;
  };
  auto keep = [&](int i, int n, const float* y, const float*) {
    memcpy(added.p + size_t(i) * size_t(D) + n, y, LANES * 4);
  };
  auto grow = [&](const Mats& by, const Act& a, const Mat* then,
                  const float* norm) {  // x by a linear layer
    if (norm)
      linear(j, t, turn, by, a, then, keep, nothing);
    else if (c.residual != 1)
      linear(j, t, turn, by, a, then, add_scaled, nothing);
    else
      linear(j, t, turn, by, a, then, add, nothing);
    j.pool.barrier();
    if (norm) close(j, t, norm);
  };
  const auto gate = c.act == 1 ? k->gelu : k->gate;
  for (int at = 0; at < b.layers; ++at) {
    const int l = b.layer[at];
    const Layer& y = layer[size_t(l)];
    if (b.half[at] & 1) {
      const Mat* const to_qkv[] = {&y.q, &y.k, &y.v, nullptr};
      Act a = prepare(j, t, m, D, x.p, nullptr, y.norm1, to_qkv);
      lap(t, REST);
      linear(
          j, t, turn, mats(l, 0), a, &y.o,
          [&](int i, int n, const float* v, const float*) {
            memcpy(qkv.p + size_t(i) * size_t(QKV) + n, v, LANES * 4);
          },
          [&](int p0, int p1) {
            if (!c.wide_norms) settle(j, l, p0 * LANES / c.head, p1 * LANES / c.head, 0, 1);
          });
      j.pool.barrier();
      if (c.wide_norms) {  // heads wait for one another
        settle(j, l, 0, c.heads + 2 * c.kv_heads, t, threads);
        j.pool.barrier();
      }
      lap(t, LINEAR);
      const float* mixed = attend(j, t, turn, l);
      lap(t, ATTENTION);
      const Mat* const to_o[] = {&y.o, nullptr};
      a = prepare(j, t, m, Q, mixed, nullptr, nullptr, to_o);
      lap(t, REST);
      grow(mats(l, 1), a, b.half[at] & 2 ? first_of_mlp(l) : next(b, at + 1), y.after1);
      lap(t, LINEAR);
    }
    if (b.half[at] & 2 && sparse[size_t(l)]) {
      mix(j, t, turn, l);
    } else if (b.half[at] & 2) {
      const Mat* const to_gate[] = {&y.gate, &y.up, nullptr};
      Act a = prepare(j, t, m, D, x.p, nullptr, y.norm2, to_gate);
      lap(t, REST);
      linear(
          j, t, turn, mats(l, 2), a, &y.down,
          [&](int i, int n, const float* g, const float* u) {
            c.act < 2 ? gate(g, u, hid.p + size_t(i) * size_t(I) + n)
                      : gated(g, u, hid.p + size_t(i) * size_t(I) + n);
          },
          nothing);
      j.pool.barrier();
      lap(t, LINEAR);
      const Mat* const to_down[] = {&y.down, nullptr};
      a = prepare(j, t, m, I, hid.p, nullptr, nullptr, to_down);
      lap(t, REST);
      grow(mats(l, 3), a, next(b, at + 1), y.after2);
    }
    if (b.exit[at] >= 0)
      for (int i = t; i < b.outputs; i += threads)
        memcpy(b.exits + (size_t(b.exit[at]) * size_t(b.outputs) + size_t(i)) * size_t(D),
               x.p + size_t(b.output_row[i]) * size_t(D), size_t(D) * 4);
    lap(t, LINEAR);
  }
  if (b.outputs) answer(j, t, turn);
}

int Model::check(const StepBatch& b, int& longest, int& packed) const {
  longest = packed = 0;
  if (b.rows < 1 || b.outputs < 0 || b.outputs > b.rows || b.sequences < 1 || b.tails < 0) return 6;
  if (b.layers < 0 || b.layers > c.layers) return 7;
  for (int at = 0; at < b.layers; ++at)
    if (b.layer[at] < (at ? b.layer[at - 1] + 1 : 0) || b.layer[at] >= c.layers ||
        (b.exit[at] >= 0 && !b.exits) || b.half[at] < 1 || b.half[at] > 3)
      return 7;
  if (!top().data || !last_norm || top().n != c.outputs) return 5;
  for (const Layer& y : layer) {
    for (const Mat* a : {&y.q, &y.k, &y.v, &y.o})
      if (!a->data) return 5;
    if (sparse[size_t(&y - layer.data())]) {
      if (!y.router.data || y.expert.empty()) return 5;
      for (const Mlp& e : y.expert)
        if (!e.gate.data || !e.up.data || !e.down.data) return 5;
    } else if (!y.gate.data || !y.up.data || !y.down.data)
      return 5;
    const float* const norms[] = {y.norm1, y.after1, y.norm2, y.after2};
    for (int n = 0; n < 4; ++n)
      if (bool(norms[n]) != bool(c.norms >> n & 1)) return 5;
    if (!y.qnorm != !y.knorm) return 5;
  }
  for (int s = 0; s < b.sequences; ++s) {
    const StepCache& cache = b.cache[s];
    int64_t stop = 0;
    if (cache.capacity < 0 || cache.start < 0 || cache.parts < 0 || (cache.parts && !cache.part))
      return 6;
    if (cache.press) {
      if (!press_bytes(*cache.press)) return 2;
      if (cache.base < 0 || cache.blocks < 0 || cache.blocks > c.context || !cache.packed) return 6;
      for (int w : window)
        if (w) return 2;
      stop = cache.base;
      for (int at = 0; at < b.layers; ++at)
        for (int64_t p = 0; p < cache.blocks && b.half[at] & 1; ++p)
          if (!cache.packed[b.layer[at] * cache.blocks + p]) return 6;
    }
    for (int64_t p = 0; p < cache.parts; ++p) {
      const StepShared& part = cache.part[p];
      if (!part.kv || part.first < 0 || part.first > stop || part.stop <= stop ||
          part.stop % SPAN || part.stop - part.first > part.capacity)
        return 6;
      stop = part.stop;
    }
    if (stop != cache.start) return 6;
  }
  size_t ready = size_t(c.context);
  for (const Rotary& r : rope) ready = std::min(ready, r.cosine.size() / size_t(c.turned / 2));
  for (int i = 0; i < b.rows; ++i) {
    if (b.token[i] >= c.vocab || b.position[i] < 0 || size_t(b.position[i]) >= ready ||
        b.sequence[i] < 0 || b.sequence[i] >= b.sequences)
      return 6;
    if (b.token[i] < 0 ? !b.embed : !embed.data) return 6;
    const int64_t start = b.cache[b.sequence[i]].start,
                  room = start + b.cache[b.sequence[i]].capacity;
    if (b.slot[i] < start || b.slot[i] >= room ||
        b.prefix[i] < std::min<int64_t>(start, b.seen[i]) || b.prefix[i] > room || b.seen[i] < 1)
      return 6;
    const int tail = std::max(0, b.seen[i] - b.prefix[i]);
    if (tail && (b.tail_start[i] < 0 || tail > b.tails - b.tail_start[i])) return 6;
    for (int p = 0; p < tail; ++p)
      if (b.tail[b.tail_start[i] + p] < start || b.tail[b.tail_start[i] + p] >= room) return 6;
    const StepCache& cache = b.cache[b.sequence[i]];
    const int hidden = sealed(b, i);
    if (cache.press &&
        (hidden < cache.base || hidden >= b.seen[i] || hidden > cache.blocks * cache.press->block))
      return 6;
    longest = std::max(longest, b.seen[i]);
    packed = std::max(packed, hidden);
  }
  for (int i = 0; i < b.outputs; ++i)
    if (b.output_row[i] < 0 || b.output_row[i] >= b.rows) return 6;
  return 0;
}

// Room for so many rows of at most `wide` numbers as inputs of linear layers.
void Model::need_inputs(int rows, int wide, int threads) {
  const size_t n = size_t(wide), row = n + n / BLOCK * std::max(size_t(BLOCK + SUMS), WHOLE_FLOATS);
  act.need(size_t(rows) * row);
  const int few = std::max(1, 32 / threads);
  for (auto& o : own) o.need(size_t(std::min(rows, few)) * row);
}

static constexpr int ROWS_OF_HEAD = 16;  // of a unit of attention, at most

static constexpr int FEW_ROWS = 16;  // of more, passes are so long that threads make up for one

int Model::run(const StepBatch& b) {
  std::lock_guard<std::mutex> one(busy);
  int longest, hidden;
  if (const int code = check(b, longest, hidden)) return code;
  const bool few = b.rows <= FEW_ROWS;
  pools.get().use(few ? choice.threads() : pools.get().most());
  const size_t m = size_t(b.rows),
               wide = size_t(std::max({c.width, c.inner, c.expert_inner, c.heads * c.head})),
               H = size_t(c.heads);
  const size_t part = size_t(c.head + LANES), G = H / size_t(c.kv_heads);
  const int blocks = (longest + SPAN - 1) / SPAN, packed = (hidden + SPAN - 1) / SPAN,
            threads = pools.get().size();
  // Queries that share a load of keys take about two thirds of the time that they take apart, but
  // leave fewer units to share out.
  auto turns_of = [&](int units) { return (units + threads - 1) / threads; };
  const int shared = turns_of(blocks * c.kv_heads) * int(G), apart = turns_of(blocks * c.heads);
  const Job j{pools.get(),
              b,
              blocks,
              packed,
              2 * shared <= 3 * apart ? int(G) : 1,
              m < 4 || (m < 8 && blocks > 4)
                  ? 0
                  : std::clamp(int(b.rows) * c.kv_heads / (3 * threads), 1, ROWS_OF_HEAD)};
  try {
    x.need(m * size_t(c.width));
    if (c.norms & 10 || c.experts) added.need(m * size_t(c.width));
    qkv.need(m * (H + 2 * size_t(c.kv_heads)) * size_t(c.head));
    att.need(m * H * size_t(c.head));
    hid.need(m * size_t(std::max(c.inner, c.expert_inner)));
    if (c.experts) {
      route.need(m * size_t(c.experts));
      first.resize(size_t(c.used));
      chance.resize(size_t(c.experts));
      for (auto& list : picked) list.reserve(m);
      for (auto& list : weighed) list.reserve(m);
    }
    for (const Layer& y : layer)
      if (y.sinks)
        for (auto& o : own_sink)
          if (!o.n) {
            o.need(part);
            memset(o.p, 0, part * 4);
          }
    need_inputs(b.rows, int(wide), threads);
    if (!j.tile) parts.need(m * H * size_t(packed + blocks) * part);
    if (packed)
      for (auto& o : own_packed)
        o.need(PACKED * (SPAN + FOLDABLE / 2) + FOLDABLE * (1 + 2 * SPAN / LANES));
    if (compute != FLOAT32)
      for (auto& o : own_row) o.need(size_t(c.width));
    for (auto& o : own_att) o.need(4 * H * size_t(c.head));
    for (auto& o : own_scores) o.need(SHARING * SPAN + 2 * size_t(ROWS_OF_HEAD) * G * part);
    for (auto& o : own_asked) {
      o.query.resize(size_t(ROWS_OF_HEAD) * G);
      o.part.resize(size_t(ROWS_OF_HEAD) * G);
    }
    for (auto& o : best) o.resize(size_t(b.outputs));
  } catch (const std::bad_alloc&) {
    return 4;
  }
  deal(j);
  endless = false;
  j.pool.slept();
  const double began = now();
  j.pool.run([&](int t) { work(j, t); });
  if (few && b.layers == c.layers) choice.learn(b.rows, now() - began, j.pool.slept());
  return endless ? 9 : 0;
}

// Rows through one matrix alone.
int Model::through(const Mat& a, int rows, const float* in, float* out) {
  std::lock_guard<std::mutex> one(busy);
  if (!a.data) return 5;
  const StepBatch none{};
  const Job j{pools.get(), none, 0, 0, 0, 0};
  j.pool.use(j.pool.most());
  const int threads = j.pool.size();
  const Mats only{{&a}, 1, 1};
  try {
    need_inputs(rows, a.k, threads);
  } catch (const std::bad_alloc&) {
    return 4;
  }
  for (int t = 0; t < threads; ++t)
    share[size_t(t)].set(only.first(t, threads), only.first(t + 1, threads));
  endless = false;
  j.pool.run([&](int t) {
    const Denormals count;
    const Mat* const reader[] = {&a, nullptr};
    int turn = 0;
    const Act x = prepare(j, t, rows, a.k, in, nullptr, nullptr, reader);
    linear(
        j, t, turn, only, x, nullptr,
        [&](int i, int n, const float* y, const float*) {
          memcpy(out + size_t(i) * size_t(a.n) + n, y, LANES * 4);
        },
        nothing);
  });
  return endless ? 9 : 0;
}

}  // namespace polydec
