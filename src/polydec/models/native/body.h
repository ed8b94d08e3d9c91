// Everything but linear layers, and the table of kernels. Included once per instruction set, after
// its 16 lanes and ROWS (rows of the largest tile), WIDE (panels side by side by rows) and HEADS
// (queries that share a load of keys).
#pragma once
#include "tile.h"

namespace {

// exp by 2^n * e^r with |r| <= ln(2) / 2 and the Taylor series to r^7 (remainder below 6e-9); 0
// below -87.
inline V exp16(V x) {
  const V low = all(-87.0f), kept = x;
  x = vmin(vmax(x, low), all(88.0f));
  const V n = whole(mul(x, all(1.44269504f)));
  V r = fma(n, all(-0.693359375f), x);
  r = fma(n, all(2.12194440e-4f), r);
  V p = all(1.0f / 5040);
  p = fma(p, r, all(1.0f / 720));
  p = fma(p, r, all(1.0f / 120));
  p = fma(p, r, all(1.0f / 24));
  p = fma(p, r, all(1.0f / 6));
  p = fma(p, r, all(0.5f));
  p = fma(p, r, all(1.0f));
  p = fma(p, r, all(1.0f));
  return keep_from(kept, low, mul(p, pow2(n)));
}

// tanh: below 0.6 by the fifth convergent of its continued fraction (within 2^-31 of itself), from
// there on by exp. NaN and infinity become NaN.
inline V tanh16(V x) {
  const V one = all(1.0f), border = all(0.6f), a = vmin(vmax(x, sub(zero(), x)), all(10.0f)),
          z = mul(a, a);
  const V near = div(mul(a, fma(z, add(z, all(105.0f)), all(945.0f))),
                     fma(z, fma(z, all(15.0f), all(420.0f)), all(945.0f)));
  const V far = sub(one, div(all(2.0f), add(exp16(add(a, a)), one)));
  const V size = add(keep_from(a, border, far), sub(near, keep_from(a, border, near)));
  const V sign = sub(keep_from(x, zero(), all(2.0f)), one);
  return fma(zero(), x, mul(size, sign));
}
inline V bounded(V x, V cap) { return mul(tanh16(div(x, cap)), cap); }

float squares(const float* x, int n) {
  V s = zero();
  for (int k = 0; k < n; k += LANES) {
    const V v = load(x + k);
    s = fma(v, v, s);
  }
  return total(s);
}

const float FACTOR[16] = {LIFT, LIFT * 0x1p-4f, LIFT * 0x1p-8f, LIFT * 0x1p-12f,
                          LIFT, LIFT * 0x1p-4f, LIFT * 0x1p-8f, LIFT * 0x1p-12f,
                          LIFT, LIFT * 0x1p-4f, LIFT * 0x1p-8f, LIFT * 0x1p-12f,
                          LIFT, LIFT * 0x1p-4f, LIFT * 0x1p-8f, LIFT * 0x1p-12f};

void spread(const float* x, const float* weight, float factor, int n, int M, float* plain,
            float* scaled, float* sums) {
  const V f = all(factor), nibble = load(FACTOR);
  V kept[2];
  for (int b = 0; b < n / BLOCK; ++b) {
    V v[2];
    for (int h = 0; h < 2; ++h) {
      const int at = b * BLOCK + h * LANES, to = b * M * BLOCK + h * LANES;
      v[h] = load(x + at);
      if (weight) v[h] = mul(mul(v[h], f), load(weight + at));
      if (plain) store(plain + to, v[h]);
      if (scaled) store(scaled + to, mul(no_dust(v[h]), nibble));
    }
    if (!sums) continue;
    float t[4];
    if (b % 2) {  // two blocks at a time
      total4(kept[0], kept[1], v[0], v[1], t);
      float* s = sums + (b - 1) * SUMS * M;
      s[0] = t[0];
      s[M] = t[1];
      s[2 * M] = t[0] + t[1];
      s[3 * M] = t[2];
      s[4 * M] = t[3];
      s[5 * M] = t[2] + t[3];
    } else if (b + 1 == n / BLOCK) {
      float* s = sums + b * SUMS * M;
      s[0] = total(v[0]);
      s[M] = total(v[1]);
      s[2 * M] = s[0] + s[M];
    } else {
      kept[0] = v[0];
      kept[1] = v[1];
    }
  }
}

// How keys and values are kept, see Kept.
struct AsF32 {
  static constexpr int size = 4;
  static V get(const u8* x, int d) { return load(reinterpret_cast<const float*>(x) + d); }
};
struct AsF16 {
  static constexpr int size = 2;
  static V get(const u8* x, int d) { return halves(x + 2 * d); }
};
struct AsInt8 {
  static constexpr int size = 1;
  static V get(const u8* x, int d) { return signed_bytes(x + d); }
};

// Of integers: a block's numbers [n] times the scales of its entries.
void rescale(const View& v, int p0, int n, int queries, float* out) {
  alignas(64) float scale[SPAN] = {};
  for (int p = 0; p < n; ++p) __builtin_memcpy(scale + p, v.at(p0 + p) + v.head, 4);
  for (int g = 0; g < queries; ++g)
    for (int p = 0; p < n; p += LANES)
      store(out + g * SPAN + p, mul(load(out + g * SPAN + p), load(scale + p)));
}

// How many positions of a block at p0 lie before all that is seen: they need not be there.
inline int unseen(const View& v, int p0) { return v.from > p0 ? v.from - p0 : 0; }

// Scores of G queries in a block of n positions, four at a time: more keys at once come from memory
// more slowly. Meanwhile the block's values are fetched.
template <class E, int G>
void dots(const float* const* q, const View& v, int p0, int n, const u8* soon, float* out) {
  constexpr int P = 4;
  const int head = v.head, last = p0 + n - 1;
  for (int p = p0 + unseen(v, p0) / P * P; p <= last; p += P) {
    const u8* k[P];
    if (p + P - 1 < v.prefix && p + P - 1 <= last)
      for (int j = 0; j < P; ++j) k[j] = v.base + size_t(p + j) * v.entry;
    else
      for (int j = 0; j < P; ++j) k[j] = v.at(p + j < last ? p + j : last);
    if (soon)
      for (size_t e = 0; e < P * v.entry; e += 64)
        __builtin_prefetch(soon + size_t(p) * v.entry + e, 0, 3);
    V s[G * P];
    UNROLL(16)
    for (int i = 0; i < G * P; ++i) s[i] = zero();
    for (int d = 0; d < head; d += LANES) {
      V a[G];
      UNROLL(4)
      for (int g = 0; g < G; ++g) a[g] = load(q[g] + d);
      UNROLL(16)
      for (int j = 0; j < P; ++j) {
        V b = E::get(k[j], d);
        PIN(b);
        UNROLL(4)
        for (int g = 0; g < G; ++g) s[g * P + j] = fma(a[g], b, s[g * P + j]);
      }
    }
    alignas(64) float t[G * P];
    totals<G * P>(s, t);
    UNROLL(4)
    for (int g = 0; g < G; ++g)
      __builtin_memcpy(out + g * SPAN + (p - p0), t + g * P, P * sizeof(float));
  }
}

// Scores [first, n) become weights not yet divided by their sum; what they were relative to, and
// the sum.
void soften(float* s, int first, int n, float* part) {
  for (int p = 0; p < first; ++p) s[p] = -__builtin_inff();
  const int end = (n + LANES - 1) / LANES * LANES;
  for (int p = n; p < end; ++p) s[p] = -__builtin_inff();
  V m = load(s);
  for (int p = LANES; p < end; p += LANES) m = vmax(m, load(s + p));
  part[0] = top(m);
  const V t = all(part[0]);
  V a = zero();
  for (int p = 0; p < end; p += LANES) {
    const V e = exp16(sub(load(s + p), t));
    store(s + p, e);
    a = add(a, e);
  }
  part[1] = total(a);
}

void weigh(float* s, int first, int n, float cap, float* part) {
  if (cap > 0)
    for (int p = 0; p < n; p += LANES) store(s + p, bounded(load(s + p), all(cap)));
  soften(s, first, n, part);
}

// part[g][16 + d ... + 16 N) = sum over a block's positions of weight * value; meanwhile the next
// block's keys are fetched.
template <class E, int G, int N>
void blend(const float* w, const View& v, int p0, int n, int d, const u8* soon,
           float* const* part) {
  V s[G][N];
  UNROLL(4)
  for (int g = 0; g < G; ++g) UNROLL(4)
  for (int e = 0; e < N; ++e) s[g][e] = zero();
  for (int p = unseen(v, p0); p < n; ++p) {
    const u8* x = v.at(p0 + p);
    V a[G];
    UNROLL(4)
    for (int g = 0; g < G; ++g) a[g] = all(w[g * SPAN + p]);
    UNROLL(4)
    for (int e = 0; e < N; ++e) {
      if (soon && e % (4 / E::size) == 0)
        __builtin_prefetch(soon + size_t(p0 + p) * v.entry + (d + e * LANES) * E::size, 0, 3);
      V y = E::get(x, d + e * LANES);
      PIN(y);
      UNROLL(4)
      for (int g = 0; g < G; ++g) s[g][e] = fma(a[g], y, s[g][e]);
    }
  }
  UNROLL(4)
  for (int g = 0; g < G; ++g) UNROLL(4)
  for (int e = 0; e < N; ++e) store(part[g] + LANES + d + e * LANES, s[g][e]);
}

template <class E, int G>
void block_of(const float* const* q, const View& k, const View& v, int p0, bool fetch, float* s,
              float* const* part) {
  const int n = k.seen - p0 < SPAN ? k.seen - p0 : SPAN, head = k.head;
  dots<E, G>(q, k, p0, n, fetch ? v.base : nullptr, s);
  if (E::size == 1) rescale(k, p0, n, G, s);
  for (int g = 0; g < G; ++g) weigh(s + g * SPAN, k.from - p0, n, k.cap, part[g]);
  if (E::size == 1) rescale(v, p0, n, G, s);
  const u8* soon = fetch ? k.base + size_t(SPAN) * k.entry : nullptr;
  int d = 0;
  if constexpr (ROWS == 8)
    for (; d + 4 * LANES <= head; d += 4 * LANES) blend<E, G, 4>(s, v, p0, n, d, soon, part);
  for (; d + 2 * LANES <= head; d += 2 * LANES) blend<E, G, 2>(s, v, p0, n, d, soon, part);
  for (; d < head; d += LANES) blend<E, G, 1>(s, v, p0, n, d, soon, part);
}
template <class E>
void block(const float* const* q, int n, const View& k, const View& v, int p0, bool fetch, float* s,
           float* const* part) {
  static_assert(HEADS <= SHARING, "s has room for SHARING queries");
  for (int g = 0; g < n; g += HEADS) {
    const int some = n - g < HEADS ? n - g : HEADS;
    (some == 1   ? block_of<E, 1>
     : some == 2 ? block_of<E, 2>
     : some == 3 ? block_of<E, 3>
                 : block_of<E, HEADS>)(q + g, k, v, p0, fetch && !g, s, part + g);
  }
}

void widen(const u8* scale, const u8* low, int n, float centre, float* scales, float* middle) {
  for (int d = 0; d < n; d += LANES) {
    const V s = halves(scale + 2 * d);
    store(scales + d, s);
    store(middle + d, fma(all(centre), s, halves(low + 2 * d)));
  }
}
float reach(const float* x, const float* y, int n) {
  V most = zero();
  for (int d = 0; d < n; d += LANES) {
    const V v = y ? mul(load(x + d), load(y + d)) : load(x + d);
    most = vmax(most, vmax(v, sub(zero(), v)));
  }
  return top(most);
}
void raise(float* x, const float* y, int n) {
  for (int d = 0; d < n; d += LANES) store(x + d, vmax(load(x + d), load(y + d)));
}
void fold(const float* const* x, int count, int n, const float* scales, const float* middle,
          const float* factor, int16_t* words, size_t ld, float* offset) {
  V kept[4];
  for (int i = 0; i < count; ++i) {
    const V f = all(factor[i]);
    V sum = zero();
    for (int d = 0; d < n; d += LANES) {
      const V v = load(x[i] + d);
      sum = fma(v, load(middle + d), sum);
      to_words(mul(mul(v, f), load(scales + d)), words + size_t(i) * ld + d);
    }
    kept[i % 4] = sum;
    if (i % 4 == 3)
      total4(kept[0], kept[1], kept[2], kept[3], offset + i - 3);
    else if (i + 1 == count)
      for (int e = i / 4 * 4; e <= i; ++e) offset[e] = total(kept[e % 4]);
  }
}

void join(float* part, const float* next, int head) {
  const bool lower = next[0] <= part[0];
  alignas(64) float f[LANES];
  store(f, exp16(all(lower ? next[0] - part[0] : part[0] - next[0])));
  const V v = all(f[0]);
  if (lower) {
    part[1] = __builtin_fmaf(f[0], next[1], part[1]);
    for (int d = LANES; d < head + LANES; d += LANES)
      store(part + d, fma(v, load(next + d), load(part + d)));
  } else {
    part[0] = next[0];
    part[1] = __builtin_fmaf(f[0], part[1], next[1]);
    for (int d = LANES; d < head + LANES; d += LANES)
      store(part + d, fma(v, load(part + d), load(next + d)));
  }
}
void finish(const float* part, int head, float* out) {
  const V sum = all(part[1]);
  for (int d = 0; d < head; d += LANES) store(out + d, div(load(part + LANES + d), sum));
}

// Pairs (d, d + half) turned by their angles, then scaled.
void turn(const float* x, const float* cosine, const float* sine, int half, float scale,
          float* out) {
  int d = 0;
  for (; d + LANES <= half; d += LANES) {
    const V p = load(x + d), q = load(x + d + half), c = load(cosine + d), s = load(sine + d),
            f = all(scale);
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

// x / (1 + exp(-2 a)) is x / 2 * (1 + tanh(a)), with a = sqrt(2 / pi) * (x + 0.044715 x^3).
void gelu(const float* g, const float* u, float* out) {
  const V v = load(g), a = mul(v, fma(mul(v, v), all(-0.0713548162f), all(-1.5957691216f)));
  store(out, mul(div(v, add(all(1.0f), exp16(a))), load(u)));
}

void bound(const float* y, float divide, float cap, float* out) {
  const V v = div(load(y), all(divide));
  store(out, cap > 0 ? bounded(v, all(cap)) : v);
}

bool reaches(const float* y, float best) { return any_from(load(y), all(best)); }

// The k largest of n, largest first, the first of equals first.
void largest(const float* y, int n, int k, float* value, int32_t* at) {
  int have = 0;
  for (int i = 0; i < n; i += LANES) {
    const bool whole_ = i + LANES <= n;
    if (whole_ && have == k && !any_from(load(y + i), all(value[k - 1]))) continue;
    for (int e = i; e < (whole_ ? i + LANES : n); ++e) {
      if (have == k && !(y[e] > value[k - 1])) continue;
      int j = have < k ? have++ : k - 1;
      for (; j > 0 && value[j - 1] < y[e]; --j) {
        value[j] = value[j - 1];
        at[j] = at[j - 1];
      }
      value[j] = y[e];
      at[j] = e;
    }
  }
}

void peak(long turns, float* out) {
  V s[8];
  UNROLL(8)
  for (int i = 0; i < 8; ++i) s[i] = all(float(i));
  V a = all(0.5f), b = load(out);
  for (long n = 0; n < turns; ++n) {
    PIN(a);
    UNROLL(8)
    for (int i = 0; i < 8; ++i) s[i] = fma(s[i], a, b);
  }
  UNROLL(8)
  for (int i = 0; i < 8; ++i) store(out, add(load(out), s[i]));
}

constexpr Kernels make(const char* name) {
  Kernels k{};
  k.name = name;
  k.rows = ROWS;
  for (int m = 1; m <= ROWS; ++m) k.wide[m] = WIDE[m];
  fill_all<FmtF32, FmtF16, FmtBF16, FmtQ8_0, FmtQ4_0, FmtQ4_1, FmtQ5_0, FmtQ5_1, FmtQ4_K, FmtQ5_K,
           FmtQ6_K, FmtQ2_K, FmtQ3_K, FmtIQ4_NL, FmtIQ4_XS, FmtMXFP4>(k);
  k.squares = squares;
  k.spread = spread;
  k.weigh = weigh;
  k.widen = widen;
  k.reach = reach;
  k.raise = raise;
  k.fold = fold;
  k.join = join;
  k.finish = finish;
  k.turn = turn;
  k.gate = gate;
  k.gelu = gelu;
  k.bound = bound;
  k.block[KEPT_F32] = block<AsF32>;
  k.block[KEPT_F16] = block<AsF16>;
  k.block[KEPT_INT8] = block<AsInt8>;
  k.reaches = reaches;
  k.largest = largest;
  k.peak = peak;
  return k;
}

}  // namespace
