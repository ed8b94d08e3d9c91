// Attention over the cache in place. Rows may be nodes of trees over sequences of unequal length.
#include "model.h"

namespace polydec {

View Model::view(const StepBatch& b, int l, int which, int h, int i) const {
  const StepCache& s = b.cache[b.sequence[i]];
  const float* plane = s.kv + ((size_t(l) * 2 + size_t(which)) * size_t(c.kv_heads) + size_t(h)) * size_t(s.capacity) * size_t(c.head);
  return {plane, b.tail + b.tail_start[i], b.prefix[i], b.seen[i], c.head};
}

// Norms and turns queries (scaled as well) and keys; keys and values go to the cache.
void Model::rotate(const Job& j, int t, int l) {
  const StepBatch& b = j.b;
  const Layer& y = layer[size_t(l)];
  const int H = c.heads, KV = c.kv_heads, D = c.head, half = D / 2, all = H + 2 * KV;
  const float scale = 1.0f / std::sqrt(float(D));
  for (int u = t; u < b.rows * all; u += j.pool.size()) {
    const int i = u / all, h = u % all;
    float* from = qkv.p + size_t(u) * size_t(D);
    float* to = from;
    if (h >= H) {
      const StepCache& s = b.cache[b.sequence[i]];
      const size_t plane = (size_t(l) * 2 + (h >= H + KV)) * size_t(KV) + size_t((h - H) % KV);
      to = s.kv + (plane * size_t(s.capacity) + size_t(b.slot[i])) * size_t(D);
    }
    if (h >= H + KV) { memcpy(to, from, size_t(D) * 4); continue; }
    if (const float* w = h < H ? y.qnorm : y.knorm) {
      const float f = 1.0f / std::sqrt(k->squares(from, D) / float(D) + c.eps);
      for (int d = 0; d < D; ++d) from[d] = from[d] * f * w[d];
    }
    const float *co = &cosine[size_t(b.position[i]) * size_t(half)], *si = &sine[size_t(b.position[i]) * size_t(half)];
    k->turn(from, co, si, half, h < H ? scale : 1.0f, to);
  }
}

// Values of rows [r0, r1), head h, dimensions d ... d + 32, block of positions by block.
void Model::values(const Job& j, int l, int h, int d, int r0, int r1, const float* s, int first, const float* inverse) {
  const StepBatch& b = j.b;
  const int G = c.heads / c.kv_heads, H = c.heads, D = c.head, n = std::min(32, D - d);
  int longest = 0;
  for (int i = r0; i < r1; ++i) {
    longest = std::max(longest, b.seen[i]);
    for (int g = 0; g < G; ++g) memset(att.p + (size_t(i) * size_t(H) + size_t(h * G + g)) * size_t(D) + d, 0, size_t(n) * 4);
  }
  for (int p = 0; p < longest; p += SPAN)
    for (int i = r0; i < r1; ++i) {
      if (p >= b.seen[i]) continue;
      k->mix(s + (size_t(i - first) * size_t(H) + size_t(h * G)) * j.ld, j.ld, G, view(b, l, 1, h, i), p, p + SPAN, d,
             att.p + (size_t(i) * size_t(H) + size_t(h * G)) * size_t(D));
    }
  for (int i = r0; i < r1; ++i)
    for (int g = 0; g < G; ++g) {
      float* o = att.p + (size_t(i) * size_t(H) + size_t(h * G + g)) * size_t(D) + d;
      const float f = inverse[(i - first) * H + h * G + g];
      for (int e = 0; e < n; ++e) o[e] *= f;
    }
}

void Model::attend(const Job& j, int t, int l) {
  const StepBatch& b = j.b;
  const int threads = j.pool.size(), m = b.rows, H = c.heads, KV = c.kv_heads, G = H / KV, D = c.head, QKV = (H + 2 * KV) * D;
  rotate(j, t, l);
  if (!t) next = 0;
  j.pool.barrier();
  auto score = [&](int h, int r0, int r1, int p0, int p1, float* s, int first) {
    for (int i = r0; i < r1; ++i)
      if (p0 < b.seen[i])
        k->scores(qkv.p + size_t(i) * size_t(QKV) + size_t(h * G * D), G, view(b, l, 0, h, i), p0, p1,
                  s + (size_t(i - first) * size_t(H) + size_t(h * G)) * j.ld, j.ld);
  };
  if (m <= 32) {   // few rows: positions, then heads, then dimensions are shared out
    for (int p = SPAN * t; p < j.longest; p += SPAN * threads)
      for (int h = 0; h < KV; ++h) score(h, 0, m, p, p + SPAN, scores.p, 0);
    j.pool.barrier();
    float* inverse = scores.p + size_t(m) * size_t(H) * j.ld;
    for (int u = t; u < m * H; u += threads) inverse[u] = k->soften(scores.p + size_t(u) * j.ld, b.seen[u / H]);
    j.pool.barrier();
    const int n = (D + 31) / 32;
    for (int u = t; u < KV * n; u += threads) values(j, l, u / n, u % n * 32, 0, m, scores.p, 0, inverse);
  } else {         // prefill: tiles of 16 rows of one key head, the last first
    const int rows = 16, tiles = (m + rows - 1) / rows;
    float *s = own_scores[size_t(t)].p, *inverse = s + size_t(rows) * size_t(H) * j.ld;
    for (int u; (u = next.fetch_add(1)) < tiles * KV;) {
      const int h = u % KV, r0 = (tiles - 1 - u / KV) * rows, r1 = std::min(m, r0 + rows);
      int n = 0;
      for (int i = r0; i < r1; ++i) n = std::max(n, b.seen[i]);
      for (int p = 0; p < n; p += SPAN) score(h, r0, r1, p, p + SPAN, s, r0);
      for (int i = r0; i < r1; ++i)
        for (int g = 0; g < G; ++g) {
          const int at = (i - r0) * H + h * G + g;
          inverse[at] = k->soften(s + size_t(at) * j.ld, b.seen[i]);
        }
      for (int d = 0; d < D; d += 32) values(j, l, h, d, r0, r1, s, r0, inverse);
    }
  }
  j.pool.barrier();
}

}  // namespace polydec
