// Every kernel of every instruction set that runs here, on the same random inputs: a line for each
// with a hash of what it gave. Sets that agree to the bit print the same lines, on whatever
// processor: test_kernels.py compares them.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <functional>
#include <string>
#include <vector>
#include "integers.h"

using namespace polydec;

namespace {
constexpr int ALL = 8, PANELS = 4, BLOCKS = 16, INPUTS = BLOCKS * BLOCK;

struct Dice {  // xorshift: the same numbers everywhere
  uint64_t x = 88172645463325252ull;
  uint32_t next() {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return uint32_t(x >> 24);
  }
  float number() { return float(int32_t(next() % 200001) - 100000) * 1e-5f; }  // -1 to 1
};

struct Aligned {  // zeroed, at a multiple of 64
  std::vector<u8> room;
  explicit Aligned(size_t n) : room(n + 128) {}
  u8* at() { return room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64; }
  float* floats() { return reinterpret_cast<float*>(at()); }
};

uint64_t hash_of(const void* from, size_t n) {  // FNV
  uint64_t h = 1469598103934665603ull;
  for (size_t i = 0; i < n; ++i) h = (h ^ static_cast<const u8*>(from)[i]) * 1099511628211ull;
  return h;
}
uint64_t hash_of(const std::vector<float>& x) {
  return hash_of(x.data(), x.size() * sizeof(float));
}

void said(const char* set, const std::string& what, uint64_t hash) {
  printf("%s | %s | %016llx\n", set, what.c_str(), (unsigned long long)hash);
}

std::vector<float> numbers(Dice& dice, size_t n, float scale) {
  std::vector<float> out(n);
  for (float& x : out) x = dice.number() * scale;
  return out;
}

size_t panel_bytes(int type) {
  return size_t(BLOCKS) * size_t(LAYOUT[type].bytes) +
         size_t(BLOCKS / 8) * size_t(LAYOUT[type].head);
}

// Packed panels of random codes whose scales are sane numbers: bytes of 0x20 to 0x3b are as pairs
// halves of 0.008 to 0.9.
void fill(Dice& dice, int type, u8* to) {
  const Layout L = LAYOUT[type];
  const bool codes = L.low > 0;
  const int scales = codes ? 64 * (L.low + L.high) : L.bytes;
  for (int b = 0; b < BLOCKS; ++b) {
    if (b % 8 == 0)
      for (int i = 0; i < L.head; ++i) *to++ = u8(0x20 + dice.next() % 28);
    for (int i = 0; i < L.bytes; ++i) {
      const bool low = i % 2 == 0;
      u8 x = u8(dice.next());
      if (type == F32)
        x = i % 4 == 3 ? u8(0x3d + (x & 0x80)) : x;
      else if (type == F16)
        x = low ? x : u8((x & 0x80) | (0x28 + x % 16));
      else if (type == BF16)
        x = low ? x : u8(0x3d | (x & 0x80));
      else if (i >= scales)
        x = type == MXFP4 ? u8(x < 32 ? x % 3 : 120 + x % 16) : u8(0x20 + x % 28);
      *to++ = x;
    }
  }
}

// Rows 0 to ALL - 1 of `width` numbers, worked out by tiles of at most `most` rows: each(r0, M).
void in_tiles(int most, const std::function<void(int, int)>& each) {
  for (int r = 0; r < ALL; r += most) each(r, ALL - r < most ? ALL - r : most);
}

void linear(const Kernels& k, const char* name) {
  Dice dice;
  const std::vector<float> x = numbers(dice, ALL * INPUTS, 3), gains = numbers(dice, INPUTS, 2);
  for (int type = 0; type < FILE_TYPES; ++type) {
    const size_t panel = panel_bytes(type);
    Aligned w(PANELS * panel);
    for (int p = 0; p < PANELS; ++p) fill(dice, type, w.at() + size_t(p) * panel);
    for (int most = 1; most <= k.rows; ++most)
      for (int variant = 0; variant < 3; ++variant) {
        std::vector<float> y(ALL * PANELS * LANES);
        in_tiles(most, [&](int r0, int M) {
          const int side = variant == 0 ? 1 : variant == 1 ? k.wide[M] : k.wide[M] == 4 ? 2 : 1;
          Aligned plain(size_t(M) * INPUTS * 4), scaled(size_t(M) * INPUTS * 4),
              sums(size_t(M) * BLOCKS * SUMS * 4), out(size_t(M) * PANELS * LANES * 4);
          for (int i = 0; i < M; ++i)
            k.spread(x.data() + (r0 + i) * INPUTS, gains.data(), 0.7f, INPUTS, M,
                     plain.floats() + i * BLOCK, scaled.floats() + i * BLOCK, sums.floats() + i);
          for (int p = 0; p < PANELS; p += side) {
            const u8* at = w.at() + size_t(p) * panel;
            k.tile[type][M][variant](at, at, panel, BLOCKS,
                                     LAYOUT[type].scaled ? scaled.floats() : plain.floats(),
                                     sums.floats(), out.floats());
            for (int j = 0; j < M; ++j)
              for (int s = 0; s < side; ++s)
                memcpy(&y[size_t(((r0 + j) * PANELS + p + s) * LANES)],
                       out.floats() + (j * side + s) * LANES, LANES * 4);
          }
        });
        said(name, "linear " + std::to_string(type) + (most == 1 && variant == 0 ? "" : " again"),
             hash_of(y));
      }
  }
}

void integers(const Integers& k, const char* name) {
  Dice dice;
  std::vector<float> x = numbers(dice, ALL * INPUTS, 3);
  for (int i = 0; i < 40; ++i)
    x[size_t(i)] *= i < 32 ? 1e-33f : 1e5f;  // a block that counts as none, and one that is uneven
  for (int compute = INT16; compute < COMPUTES; ++compute)
    for (int type = 0; type < TYPES; ++type) {
      if (!k.tile[compute][type][1]) continue;
      const size_t panel = panel_bytes(type);
      Aligned w(panel);
      fill(dice, type, w.at());
      for (int most = 1; most <= k.rows[compute]; ++most) {
        std::vector<float> y(ALL * LANES);
        in_tiles(most, [&](int r0, int M) {
          Aligned bytes(size_t(M) * INPUTS * 2), words(size_t(M) * INPUTS * 2),
              scale(size_t(M) * BLOCKS * 4), all(size_t(M) * BLOCKS * 4),
              sums(size_t(M) * BLOCKS * SUMS * 4), out(size_t(M) * LANES * 4);
          const Whole whole{reinterpret_cast<int8_t*>(bytes.at()),
                            reinterpret_cast<int16_t*>(words.at()), scale.floats(), all.floats(),
                            reinterpret_cast<int32_t*>(sums.at())};
          const bool reads = k.words[compute][type];
          for (int i = 0; i < M; ++i)
            k.round(x.data() + (r0 + i) * INPUTS, INPUTS, Compute(compute), M,
                    {reads ? nullptr : whole.bytes + i * BYTES[compute],
                     reads ? whole.words + i * BLOCK : nullptr, whole.scale + i, whole.total + i,
                     whole.sums + i});
          k.tile[compute][type][M](w.at(), w.at(), BLOCKS, whole, out.floats());
          memcpy(&y[size_t(r0 * LANES)], out.floats(), size_t(M) * LANES * 4);
        });
        said(name,
             "integers " + std::to_string(compute) + " " + std::to_string(type) +
                 (most == 1 ? "" : " again"),
             hash_of(y));
      }
    }
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> y = x, room(4096);
    y[77] = bad;
    const Whole whole{reinterpret_cast<int8_t*>(room.data()), nullptr, room.data() + 512,
                      room.data() + 1024, reinterpret_cast<int32_t*>(room.data() + 1536)};
    Whole to = whole;
    if (k.words[INT16][Q4_0]) {
      to.words = reinterpret_cast<int16_t*>(whole.bytes);
      to.bytes = nullptr;
    }
    said(name, "endless", k.round(y.data(), INPUTS, INT16, 1, to));
  }
}

void attention(const Kernels& k, const char* name) {
  Dice dice;
  constexpr int HEAD = 48, SEEN = 200, QUERIES = 3;
  for (int kept = 0; kept < KEPTS; ++kept)
    for (const float cap : {0.0f, 2.5f})
      for (const int from : {0, 70}) {
        const size_t entry = kept_bytes(kept, HEAD);
        Aligned keys(entry * SEEN), values(entry * SEEN);
        for (Aligned* a : {&keys, &values})
          for (int p = 0; p < SEEN; ++p)
            for (int d = 0; d < HEAD; ++d) {
              u8* at = a->at() + size_t(p) * entry;
              const float number = dice.number(), scale = 0.01f;
              const uint16_t half = uint16_t(0x2800 + dice.next() % 0x1800);
              if (kept == KEPT_F32) memcpy(at + 4 * d, &number, 4);
              if (kept == KEPT_F16) memcpy(at + 2 * d, &half, 2);
              if (kept == KEPT_INT8) {
                at[d] = u8(int8_t(dice.next() % 255) - 127);
                memcpy(at + HEAD, &scale, 4);
              }
            }
        std::vector<int32_t> tail;  // positions from 100 on, in another order
        for (int p = 100; p < SEEN; ++p) tail.push_back(100 + (p * 7) % 100);
        const std::vector<float> q = numbers(dice, QUERIES * HEAD, 2);
        const View kv{keys.at(), entry, tail.data(), 100, from, SEEN, HEAD, cap},
            vv{values.at(), entry, tail.data(), 100, from, SEEN, HEAD, 0};
        std::vector<float> out(QUERIES * HEAD);
        Aligned s(SHARING * SPAN * 4), first(QUERIES * (HEAD + LANES) * 4),
            next(QUERIES * (HEAD + LANES) * 4);
        const float* query[QUERIES];
        float *a[QUERIES], *b[QUERIES];
        for (int g = 0; g < QUERIES; ++g) {
          query[g] = q.data() + g * HEAD;
          a[g] = first.floats() + g * (HEAD + LANES);
          b[g] = next.floats() + g * (HEAD + LANES);
        }
        k.block[kept](query, QUERIES, kv, vv, 0, true, s.floats(), a);
        k.block[kept](query, QUERIES, kv, vv, SPAN, false, s.floats(), b);
        for (int g = 0; g < QUERIES; ++g) {
          k.join(a[g], b[g], HEAD);
          k.finish(a[g], HEAD, out.data() + g * HEAD);
        }
        said(name,
             "attention " + std::to_string(kept) + (cap > 0 ? " capped" : "") +
                 (from ? " window" : ""),
             hash_of(out));
      }
}

// Packed keys and values: numbers folded with scales, and their products with codes of 2, 4 and 8
// bits.
void packed(const Kernels& k, const Integers& n, const char* name) {
  Dice dice;
  constexpr int N = 48, COUNT = 11, PANELS_OF = 3;
  Aligned halves(4 * N), scales(4 * N), middle(4 * N), most(4 * N), codes(PANELS_OF * N * LANES);
  for (int i = 0; i < 4 * N; ++i) halves.at()[i] = u8(0x20 + dice.next() % 28);
  for (int i = 0; i < PANELS_OF * N * LANES; ++i) codes.at()[i] = u8(dice.next());
  const std::vector<float> x = numbers(dice, COUNT * N, 4);
  std::vector<float> offset(COUNT), unit(COUNT), factor(COUNT), weight(SPAN), part(LANES);
  std::vector<int16_t> words(COUNT * N);
  const float* row[COUNT];
  k.widen(halves.at(), halves.at() + 2 * N, N, 8, scales.floats(), middle.floats());
  memcpy(most.at(), middle.at(), 4 * N);
  k.raise(most.floats(), scales.floats(), N);
  for (int i = 0; i < COUNT; ++i) {
    row[i] = x.data() + i * N;
    const float reach = k.reach(row[i], i ? most.floats() : nullptr, N);
    unit[size_t(i)] = reach / FOLDED;
    factor[size_t(i)] = FOLDED / reach;
  }
  k.fold(row, COUNT, N, scales.floats(), middle.floats(), factor.data(), words.data(), N,
         offset.data());
  said(name, "folded", hash_of(words.data(), words.size() * 2) ^ hash_of(offset) ^ hash_of(unit));
  for (int i = 0; i < SPAN; ++i) weight[size_t(i)] = dice.number() * 9;
  k.weigh(weight.data(), 3, 112, 2.5f, part.data());
  said(name, "weighed", hash_of(weight) ^ hash_of(part.data(), 8));
  for (int bits = 0; bits < 3; ++bits) {
    std::vector<float> out(COUNT * PANELS_OF * LANES, 1.0f);
    float* y[COUNT];
    for (int i = 0; i < COUNT; ++i) y[i] = out.data() + i * PANELS_OF * LANES;
    for (const bool more : {false, true})
      n.products[bits](codes.at(), PANELS_OF, N, COUNT, words.data(), N, unit.data(), offset.data(),
                       more, more ? codes.at() : nullptr, y);
    said(name, "products " + std::to_string(bits), hash_of(out));
  }
}

void others(const Kernels& k, const char* name) {
  Dice dice;
  const std::vector<float> x = numbers(dice, 512, 20), y = numbers(dice, 512, 3),
                           angle = numbers(dice, 512, 1);
  std::vector<float> out;
  out.push_back(k.squares(x.data(), 512));
  float row[64];
  k.turn(x.data(), angle.data(), y.data(), 24, 0.3f, row);
  out.insert(out.end(), row, row + 48);
  for (const auto call : {k.gate, k.gelu})
    for (int i = 0; i < 512; i += LANES) {
      call(x.data() + i, y.data() + i, row);
      out.insert(out.end(), row, row + LANES);
    }
  for (const float cap : {0.0f, 5.0f})
    for (int i = 0; i < 512; i += LANES) {
      k.bound(x.data() + i, 0.7f, cap, row);
      out.insert(out.end(), row, row + LANES);
    }
  for (int i = 0; i < 512; i += LANES) out.push_back(k.reaches(x.data() + i, 19.0f));
  float value[9];
  int32_t at[9];
  k.largest(x.data(), 509, 9, value, at);
  out.insert(out.end(), value, value + 9);
  out.insert(out.end(), at, at + 9);
  said(name, "others", hash_of(out));
}

void all_of(const char* name, const Kernels* k, const Integers* n) {
  linear(*k, name);
  attention(*k, name);
  packed(*k, *n, name);
  others(*k, name);
  integers(*n, name);
}
}  // namespace

int main() {
  all_of("portable", kernels_portable(), integers_portable());
#if defined(__aarch64__)
  all_of("NEON-DOT", kernels_neon(), integers_neon());
#elif defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c"))
    all_of("AVX2", kernels_avx2(), integers_avx2());
  if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    all_of("AVX-512", kernels_avx512(), integers_vnni());
#endif
}
