// Attention over the cache in place. Rows may be nodes of trees over sequences of unequal length.
#include "model.h"

namespace polydec {

// What row i sees from position p0 on, for one block: a block lies in one storage.
View Model::view(const StepBatch& b, int l, int which, int h, int i, int p0) const {
  const StepCache& s = b.cache[b.sequence[i]];
  const u8* kv = s.kv;
  int64_t capacity = s.capacity, first = s.start;
  const int at = std::max(p0, from(b, l, i));  // what lies before that may be there packed only
  if (at < s.start) {
    const StepShared* part = s.part;
    while (at >= part->stop) ++part;
    kv = part->kv;
    capacity = part->capacity;
    first = part->first;
  }
  const int64_t plane = (int64_t(l) * 2 + which) * c.kv_heads + h;
  const size_t entry = kept_bytes(kept, c.head);
  const u8* base = reinterpret_cast<const u8*>(  // where position 0 would be
      reinterpret_cast<uintptr_t>(kv) + uintptr_t((plane * capacity - first) * int64_t(entry)));
  return {base,   entry, b.tail + b.tail_start[i], b.prefix[i], from(b, l, i), b.seen[i],
          c.head, c.cap};
}

// The end of the rows behind row i (below `end`) that see of the block at p0 what row i sees: all
// of it, in place.
int Model::alike(const StepBatch& b, int l, int i, int end, int p0) const {
  auto whole = [&](int r) {
    return from(b, l, r) <= p0 && p0 + SPAN <= std::min(b.seen[r], b.prefix[r]);
  };
  int e = i + 1;
  if (whole(i))
    while (e < end && b.sequence[e] == b.sequence[i] && whole(e)) ++e;
  return e;
}

// The end of the rows behind row i (below `end`) that see of the packed positions from p0 on, in
// one block of attention, what row i sees.
int Model::alike_packed(const StepBatch& b, int i, int end, int p0) const {
  auto stop = [&](int r) { return std::min(sealed(b, r), p0 + SPAN); };
  int e = i + 1;
  while (e < end && b.sequence[e] == b.sequence[i] && stop(e) == stop(i)) ++e;
  return e;
}

// A head's key or value goes to the cache.
void Model::keep(const float* x, u8* to) {
  const int D = c.head;
  if (kept == KEPT_F32) {
    memcpy(to, x, size_t(D) * 4);
    return;
  }
  float most = 0;
  bool fits = true;
  for (int d = 0; d < D; ++d) {
    const float size = std::fabs(x[d]);
    fits &= size < (kept == KEPT_F16 ? 65520.0f : INFINITY);  // the least that rounds to infinity
    most = std::max(most, size);
  }
  if (!fits) endless = true;
  if (kept == KEPT_F16) {
    for (int d = 0; d < D; ++d) {
      const uint16_t h = float_to_half(x[d]);
      memcpy(to + 2 * d, &h, 2);
    }
    return;
  }
  const float scale = most / 127, inverse = most > 0x1p-100f ? 127 / most : 0;
  for (int d = 0; d < D; ++d) {  // nearest, ties to even: its last bits are those of the sum
    const float near = x[d] * inverse + 0x1.8p23f;
    uint32_t u;
    memcpy(&u, &near, 4);
    to[d] = u8(u);
  }
  memcpy(to + D, &scale, 4);
}

// Heads [u0, u1) of queries, keys, values of every step-th row: norms and turns queries (scaled as
// well) and keys; keys and values go to the cache.
void Model::settle(const Job& j, int l, int u0, int u1, int first, int step) {
  const StepBatch& b = j.b;
  const Layer& y = layer[size_t(l)];
  const int H = c.heads, KV = c.kv_heads, D = c.head, half = c.turned / 2, all = H + 2 * KV;
  const float scale = c.scale;
  const Rotary* turn = turns[size_t(l)] < 0 ? nullptr : &rope[size_t(turns[size_t(l)])];
  auto factor = [&](const float* at, int n) {
    return 1.0f / std::sqrt(k->squares(at, n) / float(n) + c.eps);
  };
  for (int i = first; i < b.rows; i += step) {
    float wide[2] = {};  // of all queries, of all keys
    if (c.wide_norms && y.qnorm) {
      const float* row = qkv.p + size_t(i) * size_t(all) * size_t(D);
      wide[0] = factor(row, H * D);
      wide[1] = factor(row + H * D, KV * D);
    }
    for (int h = u0; h < u1; ++h) {
      float* x = qkv.p + (size_t(i) * size_t(all) + size_t(h)) * size_t(D);
      u8* to = nullptr;
      if (h >= H) {
        const StepCache& s = b.cache[b.sequence[i]];
        const size_t plane = (size_t(l) * 2 + (h >= H + KV)) * size_t(KV) + size_t((h - H) % KV);
        to =
            s.kv + (plane * size_t(s.capacity) + size_t(b.slot[i] - s.start)) * kept_bytes(kept, D);
      }
      if (h >= H + KV) {
        keep(x, to);
        continue;
      }
      if (const float* w = h < H ? y.qnorm : y.knorm) {
        const float f = c.wide_norms ? wide[h >= H] : factor(x, D);
        if (c.wide_norms) w += size_t(h < H ? h : h - H) * size_t(D);
        for (int d = 0; d < D; ++d) x[d] = x[d] * f * w[d];
      }
      if (turn) {
        const size_t at = size_t(b.position[i]) * size_t(half);
        k->turn(x, &turn->cosine[at], &turn->sine[at], half, h < H ? scale : 1.0f, x);
      }
      if (h < H)
        for (int d = turn ? c.turned : 0; d < D; ++d) x[d] *= scale;
      else
        keep(x, to);
    }
  }
}

// Of a head with a sink: a block of one score and no value, which takes its part of the weight.
const float* Model::sink(int t, int l, int h) {
  float* at = own_sink[size_t(t)].p;
  at[0] = layer[size_t(l)].sinks[h];
  at[1] = 1;
  return at;
}

// Returns where the rows' results are: the thread's own copy where a row is so little work that
// each thread does it all.
const float* Model::attend(const Job& j, int t, int& turn, int l) {
  const StepBatch& b = j.b;
  const int threads = j.pool.size(), m = b.rows, H = c.heads, G = H / c.kv_heads, D = c.head,
            blocks = j.blocks;
  const size_t ld = size_t(D + LANES);
  float* s = own_scores[size_t(t)].p;
  auto query = [&](int i, int h) {
    return qkv.p + (size_t(i) * size_t(H + 2 * c.kv_heads) + size_t(h)) * size_t(D);
  };
  Asked& asked = own_asked[size_t(t)];
  // The block at p0 of rows [i, end), which see the same of it, and of n heads of queries from h
  // on.
  auto ask = [&](int i, int end, int h, int n, int p0, bool fetch, auto&& part) {
    size_t count = 0;
    for (int r = i; r < end; ++r)
      for (int g = 0; g < n; ++g, ++count) {
        asked.query[count] = query(r, h + g);
        asked.part[count] = part(r, g);
      }
    k->block[kept](asked.query.data(), int(count), view(b, l, 0, h / G, i, p0),
                   view(b, l, 1, h / G, i, p0), p0, fetch, s, asked.part.data());
  };
  // The same of what is packed from p0 on.
  auto ask_old = [&](int i, int end, int h, int n, int p0, auto&& part) {
    size_t count = 0;
    for (int r = i; r < end; ++r)
      for (int g = 0; g < n; ++g, ++count) {
        asked.query[count] = query(r, h + g);
        asked.part[count] = part(r, g);
      }
    ask_packed(b.cache[b.sequence[i]], t, l, h / G, p0, std::min(sealed(b, i), p0 + SPAN),
               asked.query.data(), int(count), asked.part.data());
  };
  Share* mine = &share[size_t(turn++) * size_t(threads)];
  int u, end;
  if (!j.tile) {  // few rows: blocks and heads are shared out, first those that are packed
    const int all = j.packed + blocks;
    auto part = [&](int i, int h, int p) {
      return parts.p + ((size_t(p) * size_t(m) + size_t(i)) * size_t(H) + size_t(h)) * ld;
    };
    for (int v = 0; v < threads; ++v)
      while (mine[(t + v) % threads].take(1, !v, u, end)) {
        const int h = u / all * j.heads, p = u % all - j.packed;
        if (p < 0) {
          const int old = u % all;
          for (int i = 0, next; i < m; i = next) {
            next = alike_packed(b, i, m, old * SPAN);
            if (old * SPAN < sealed(b, i))
              ask_old(i, next, h, j.heads, old * SPAN,
                      [&](int r, int g) { return part(r, h + g, old); });
          }
          continue;
        }
        for (int i = 0, next; i < m; i = next) {
          next = alike(b, l, i, m, p * SPAN);
          if (p * SPAN >= b.seen[i] || (p + 1) * SPAN <= from(b, l, i)) continue;
          const bool fetch = !i || b.sequence[i] != b.sequence[i - 1];
          ask(i, next, h, j.heads, p * SPAN, fetch,
              [&](int r, int g) { return part(r, h + g, j.packed + p); });
        }
      }
    j.pool.barrier();
    const bool alone = m < 4 && m * blocks <= 16;
    float* to = alone ? own_att[size_t(t)].p : att.p;
    for (int v = alone ? 0 : t; v < m * H; v += alone ? 1 : threads) {
      const int i = v / H, h = v % H;
      const int old = sealed(b, i);
      int p = from(b, l, i) / SPAN;
      memcpy(s, part(i, h, old ? 0 : j.packed + p++), ld * 4);
      for (int q = 1; q * SPAN < old; ++q) k->join(s, part(i, h, q), D);
      for (; p * SPAN < b.seen[i]; ++p) k->join(s, part(i, h, j.packed + p), D);
      if (layer[size_t(l)].sinks) k->join(s, sink(t, l, h), D);
      k->finish(s, D, to + size_t(v) * size_t(D));
    }
    if (!alone) j.pool.barrier();
    return to;
  }
  // Tiles of rows of one key head, the last first.
  const int rows = j.tile, tiles = (m + rows - 1) / rows, KV = c.kv_heads;
  float *state = s + SHARING * SPAN,
        *news = state + size_t(rows * G) * ld;  // of the blocks so far, of the next one
  for (int v = 0; v < threads; ++v)
    while (mine[(t + v) % threads].take(1, !v, u, end)) {
      const int h = u % KV, r0 = (tiles - 1 - u / KV) * rows, r1 = std::min(m, r0 + rows);
      int n = 0;
      for (int i = r0; i < r1; ++i) n = std::max(n, b.seen[i]);
      auto at = [&](float* parts, int r, int g) { return parts + size_t((r - r0) * G + g) * ld; };
      for (int p = 0; p < j.packed * SPAN; p += SPAN)
        for (int i = r0, next; i < r1; i = next) {
          next = alike_packed(b, i, r1, p);
          if (p >= sealed(b, i)) continue;
          ask_old(i, next, h * G, G, p, [&](int r, int g) { return at(p ? news : state, r, g); });
          for (int r = i; r < next; ++r)
            for (int g = 0; g < G && p; ++g) k->join(at(state, r, g), at(news, r, g), D);
        }
      for (int p = 0; p < n; p += SPAN)
        for (int i = r0, next; i < r1; i = next) {
          next = alike(b, l, i, r1, p);
          if (p >= b.seen[i] || p + SPAN <= from(b, l, i)) continue;
          auto first = [&](int r) { return p <= from(b, l, r) && !sealed(b, r); };
          ask(i, next, h * G, G, p, i == r0 || b.sequence[i] != b.sequence[i - 1],
              [&](int r, int g) { return at(first(r) ? state : news, r, g); });
          for (int r = i; r < next; ++r)
            for (int g = 0; g < G && !first(r); ++g) k->join(at(state, r, g), at(news, r, g), D);
        }
      for (int i = r0; i < r1; ++i)
        for (int g = 0; g < G; ++g) {
          if (layer[size_t(l)].sinks)
            k->join(state + size_t((i - r0) * G + g) * ld, sink(t, l, h * G + g), D);
          k->finish(state + size_t((i - r0) * G + g) * ld, D,
                    att.p + (size_t(i) * size_t(H) + size_t(h * G + g)) * size_t(D));
        }
    }
  j.pool.barrier();
  return att.p;
}

}  // namespace polydec
