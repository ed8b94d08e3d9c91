// Everything but linear layers, and the table of kernels. Included once per instruction set, after its 16 lanes and
// ROWS (rows of the largest tile), WIDE (panels side by side by rows) and HEADS (queries that share a load of keys).
#pragma once
#include "tile.h"

namespace {

// exp by 2^n * e^r with |r| <= ln(2) / 2 and the Taylor series to r^7 (remainder below 6e-9); 0 below -87.
inline V exp16(V x) {
  const V low = all(-87.0f), kept = x;
  x = vmin(vmax(x, low), all(88.0f));
  const V n = whole(mul(x, all(1.44269504f)));
  V r = fma(n, all(-0.693359375f), x);
  r = fma(n, all(2.12194440e-4f), r);
  V p = all(1.0f / 5040);
  p = fma(p, r, all(1.0f / 720)); p = fma(p, r, all(1.0f / 120)); p = fma(p, r, all(1.0f / 24));
  p = fma(p, r, all(1.0f / 6)); p = fma(p, r, all(0.5f)); p = fma(p, r, all(1.0f)); p = fma(p, r, all(1.0f));
  return keep_from(kept, low, mul(p, pow2(n)));
}

float squares(const float* x, int n) {
  V s = zero();
  for (int k = 0; k < n; k += LANES) { const V v = load(x + k); s = fma(v, v, s); }
  return total(s);
}

const float FACTOR[16] = {LIFT, LIFT * 0x1p-4f, LIFT * 0x1p-8f, LIFT * 0x1p-12f, LIFT, LIFT * 0x1p-4f, LIFT * 0x1p-8f, LIFT * 0x1p-12f,
                          LIFT, LIFT * 0x1p-4f, LIFT * 0x1p-8f, LIFT * 0x1p-12f, LIFT, LIFT * 0x1p-4f, LIFT * 0x1p-8f, LIFT * 0x1p-12f};

void scatter(float* to, V v, int M) {
  if (M == 1) { store(to, v); return; }
  alignas(64) float t[LANES];
  store(t, v);
  for (int i = 0; i < LANES; ++i) to[size_t(i) * M] = t[i];
}

void spread(const float* x, const float* weight, float factor, int n, int M, float* plain, float* scaled, float* sums) {
  const V f = all(factor), nibble = load(FACTOR);
  for (int k = 0; k < n; k += BLOCK) {
    V v[2];
    for (int h = 0; h < 2; ++h) {
      const int at = k + h * LANES;
      v[h] = load(x + at);
      if (weight) v[h] = mul(mul(v[h], f), load(weight + at));
      if (plain) scatter(plain + size_t(at) * M, v[h], M);
      if (scaled) scatter(scaled + size_t(at) * M, mul(no_dust(v[h]), nibble), M);
    }
    if (sums) {
      const float a = total(v[0]), b = total(v[1]);
      sums[0] = a; sums[M] = b; sums[2 * M] = a + b;
      sums += SUMS * M;
    }
  }
}

constexpr int AHEAD = 24;   // positions fetched in advance

// Scores of G queries at positions [p0, p1), four at a time.
template <int G> void dots(const float* q, const View& v, int p0, int p1, float* out, size_t ld) {
  const int head = v.head;
  for (int p = p0; p < p1; p += 4) {
    const int last = v.seen - 1;
    const float* k[4];
    if (p + 3 < v.prefix && p + 3 <= last) for (int j = 0; j < 4; ++j) k[j] = v.base + size_t(p + j) * head;
    else for (int j = 0; j < 4; ++j) k[j] = v.at(p + j < last ? p + j : last);
    V s[G][4];
    UNROLL(4) for (int g = 0; g < G; ++g)
      UNROLL(4) for (int j = 0; j < 4; ++j) s[g][j] = zero();
    for (int d = 0; d < 4 * head; d += LANES) __builtin_prefetch(k[0] + AHEAD * head + d, 0, 3);
    for (int d = 0; d < head; d += LANES) {
      V a[G];
      UNROLL(4) for (int g = 0; g < G; ++g) a[g] = load(q + g * head + d);
      UNROLL(4) for (int j = 0; j < 4; ++j) {
        V b = load(k[j] + d);
        PIN(b);
        UNROLL(4) for (int g = 0; g < G; ++g) s[g][j] = fma(a[g], b, s[g][j]);
      }
    }
    UNROLL(4) for (int g = 0; g < G; ++g) total4(s[g][0], s[g][1], s[g][2], s[g][3], out + g * ld + p);
  }
}
void scores(const float* q, int heads, const View& v, int p0, int p1, float* out, size_t ld) {
  if (p1 > v.seen) p1 = v.seen;
  for (int g = 0; g < heads; g += HEADS) {
    const int n = heads - g < HEADS ? heads - g : HEADS;
    (n == 1 ? dots<1> : n == 2 ? dots<2> : n == 3 ? dots<3> : dots<HEADS>)(q + g * v.head, v, p0, p1, out + g * ld, ld);
  }
}

float soften(float* s, int n) {
  const int end = (n + LANES - 1) / LANES * LANES;
  for (int p = n; p < end; ++p) s[p] = -__builtin_inff();
  V m = load(s);
  for (int p = LANES; p < end; p += LANES) m = vmax(m, load(s + p));
  const V t = all(top(m));
  V a = zero();
  for (int p = 0; p < end; p += LANES) {
    const V e = exp16(sub(load(s + p), t));
    store(s + p, e);
    a = add(a, e);
  }
  return 1.0f / total(a);
}

// out[g][d ... d + 16 N) += sum over positions [p0, p1) of weight * value.
template <int G, int N> void blend(const float* w, size_t ld, const View& v, int p0, int p1, int d, float* out) {
  V s[G][N];
  UNROLL(4) for (int g = 0; g < G; ++g)
    UNROLL(4) for (int e = 0; e < N; ++e) s[g][e] = zero();
  for (int p = p0; p < p1; ++p) {
    const float* x = v.at(p) + d;
    V a[G];
    UNROLL(4) for (int g = 0; g < G; ++g) a[g] = all(w[g * ld + p]);
    UNROLL(4) for (int e = 0; e < N; ++e) {
      __builtin_prefetch(x + AHEAD * v.head + e * LANES, 0, 3);
      V y = load(x + e * LANES);
      PIN(y);
      UNROLL(4) for (int g = 0; g < G; ++g) s[g][e] = fma(a[g], y, s[g][e]);
    }
  }
  UNROLL(4) for (int g = 0; g < G; ++g)
    UNROLL(4) for (int e = 0; e < N; ++e) {
      float* o = out + size_t(g) * v.head + d + e * LANES;
      store(o, add(load(o), s[g][e]));
    }
}
template <int N> void blend_heads(const float* w, size_t ld, int heads, const View& v, int p0, int p1, int d, float* out) {
  for (int g = 0; g < heads; g += HEADS) {
    const int n = heads - g < HEADS ? heads - g : HEADS;
    const float* wg = w + g * ld;
    float* o = out + size_t(g) * v.head;
    (n == 1 ? blend<1, N> : n == 2 ? blend<2, N> : n == 3 ? blend<3, N> : blend<HEADS, N>)(wg, ld, v, p0, p1, d, o);
  }
}
// 32 dimensions from d on, or the 16 that are left.
void mix(const float* w, size_t ld, int heads, const View& v, int p0, int p1, int d, float* out) {
  (v.head - d >= 2 * LANES ? blend_heads<2> : blend_heads<1>)(w, ld, heads, v, p0, p1 < v.seen ? p1 : v.seen, d, out);
}

// Pairs (d, d + half) turned by their angles, then scaled.
void turn(const float* x, const float* cosine, const float* sine, int half, float scale, float* out) {
  int d = 0;
  for (; d + LANES <= half; d += LANES) {
    const V p = load(x + d), q = load(x + d + half), c = load(cosine + d), s = load(sine + d), f = all(scale);
    store(out + d, mul(fma(p, c, sub(zero(), mul(q, s))), f));
    store(out + d + half, mul(fma(q, c, mul(p, s)), f));
  }
  for (; d < half; ++d) {
    const float p = x[d], q = x[d + half];
    out[d] = __builtin_fmaf(p, cosine[d], 0.0f - q * sine[d]) * scale;
    out[d + half] = __builtin_fmaf(q, cosine[d], p * sine[d]) * scale;
  }
}

void gate(const float* g, const float* u, float* out) {
  const V v = load(g);
  store(out, mul(div(v, add(all(1.0f), exp16(sub(zero(), v)))), load(u)));
}

bool reaches(const float* y, float best) { return any_from(load(y), all(best)); }

void peak(long turns, float* out) {
  V s[8];
  UNROLL(8) for (int i = 0; i < 8; ++i) s[i] = all(float(i));
  V a = all(0.5f), b = load(out);
  for (long n = 0; n < turns; ++n) {
    PIN(a);
    UNROLL(8) for (int i = 0; i < 8; ++i) s[i] = fma(s[i], a, b);
  }
  UNROLL(8) for (int i = 0; i < 8; ++i) store(out, add(load(out), s[i]));
}

constexpr Kernels make(const char* name) {
  Kernels k{};
  k.name = name;
  k.rows = ROWS;
  for (int m = 1; m <= ROWS; ++m) k.wide[m] = WIDE[m];
  fill_all<FmtF32, FmtF16, FmtBF16, FmtQ8_0, FmtQ4_0, FmtQ4_1, FmtQ5_0, FmtQ5_1, FmtQ4_K, FmtQ5_K, FmtQ6_K>(k);
  k.squares = squares; k.spread = spread; k.scores = scores; k.soften = soften; k.mix = mix; k.turn = turn; k.gate = gate;
  k.reaches = reaches; k.peak = peak;
  return k;
}

}  // namespace
