// Drafts of copies and counts: what drafters/copy_ngram_mixture.py says in Python, to the bit, in a
// tenth of the time. A pass of a network has just emptied the processor's caches, and Python's many
// small objects are each a trip to memory then. tests/models/native/test_copies.py holds the two
// against each other.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <unordered_map>
#include <vector>

namespace {

constexpr int CHAIN = 64;                     // as in drafters/automaton.py
constexpr int LONGEST = 8;                    // tokens of the longest context that a table may know
constexpr uint64_t MIX = 0x9E3779B97F4A7C15;  // as in learned/kinds/ngrams.py
constexpr uint16_t LAST = 0xFFFF;

// Where a key of 64 bits stands in somebody's list. Keys that are equal share a place: the last one
// given counts.
class Places {
 public:
  explicit Places(size_t most) {
    size_t room = 16;
    while (room < 2 * most) room *= 2;
    place_.assign(room, -1);
    key_.assign(room, 0);
  }
  int32_t find(uint64_t key) const { return place_[slot(key)]; }
  void put(uint64_t key, int32_t place) {
    if (2 * (used_ + 1) > place_.size()) grow();
    const size_t s = slot(key);
    used_ += place_[s] < 0;
    key_[s] = key;
    place_[s] = place;
  }

 private:
  // Its own slot, or the free one where it would go.
  size_t slot(uint64_t key) const {
    const size_t mask = place_.size() - 1;
    size_t s = (key ^ key >> 32) * MIX >> 20 & mask;
    while (place_[s] >= 0 && key_[s] != key) s = (s + 1) & mask;
    return s;
  }
  void grow() {
    Places twice(place_.size());
    for (size_t s = 0; s < place_.size(); ++s)
      if (place_[s] >= 0) twice.put(key_[s], place_[s]);
    *this = std::move(twice);
  }
  std::vector<uint64_t> key_;
  std::vector<int32_t> place_;
  size_t used_ = 0;
};

struct Guess {
  double chance;
  int32_t token;
};

// What follows the last few tokens in other texts. The arrays belong to whoever made the table.
struct Table {
  int order, width;
  const uint16_t* follower;
  const uint8_t* chance;
  Places at;

  Table(int order_, int width_, size_t count, const uint64_t* key, const uint16_t* follower_,
        const uint8_t* chance_)
      : order(order_), width(width_), follower(follower_), chance(chance_), at(count) {
    for (size_t i = 0; i < count; ++i) at.put(key[i], int32_t(i));
  }
  // By the longest context that is known.
  void after(const int32_t* tokens, int count, std::vector<Guess>& out) const {
    uint64_t key = 0;
    int32_t found = -1;
    for (int i = 1; i <= std::min(order, count); ++i) {
      key = (key ^ uint64_t(int64_t(tokens[count - i]) + 1)) * MIX;
      key ^= key >> 29;
      const int32_t place = at.find(key);
      if (place < 0) break;
      found = place;
    }
    out.clear();
    if (found < 0) return;
    for (size_t i = size_t(found) * width; i < size_t(found + 1) * width; ++i)
      if (follower[i] != LAST) out.push_back({chance[i] / 255.0, follower[i]});
  }
};

struct Match {
  int32_t state, length;
};
struct Follower {
  int32_t count, last, token, to;
};

// The suffix automaton of drafters/automaton.py.
class Automaton {
 public:
  Match match() const {
    const int32_t state = std::max(states_[tip_].link, 0);
    return {state, states_[state].length};
  }
  Match resumed(Match m) const { return m.state == tip_ ? match() : m; }

  void extend(int32_t token) {
    ++size_;
    const int32_t made = int32_t(states_.size());
    states_.push_back({states_[tip_].length + 1, 0, 0, 0, -1});
    int32_t p = tip_, edge = -1;
    while (p >= 0 && (edge = find(p, token)) < 0) {
      add(p, token, made);
      p = states_[p].link;
    }
    if (p >= 0) {
      const int32_t q = edges_[edge].to;
      states_[made].link = states_[q].length == states_[p].length + 1 ? q : split(p, q, token);
    }
    tip_ = made;
    int32_t v = made;
    for (int i = 0; i < CHAIN; ++i) {
      states_[v].count += 1;
      states_[v].last = size_;
      v = states_[v].link;
      if (v <= 0) break;
    }
  }
  Match step(Match m, int32_t token) const {
    while (m.state && states_[states_[m.state].link].length >= m.length)
      m.state = states_[m.state].link;
    int32_t edge = find(m.state, token);
    while (m.state && edge < 0) {
      m.state = states_[m.state].link;
      m.length = states_[m.state].length;
      edge = find(m.state, token);
    }
    return edge < 0 ? Match{0, 0} : Match{edges_[edge].to, m.length + 1};
  }
  // The `most` most frequent followers, the latest on a tie; returns how often anything followed.
  int64_t after(int32_t state, size_t most, std::vector<Follower>& out) const {
    int64_t total = 0;
    out.clear();
    for (int32_t e = states_[state].edge; e >= 0; e = edges_[e].next) {
      const State& to = states_[edges_[e].to];
      total += to.count;
      const Follower f{to.count, to.last, edges_[e].token, edges_[e].to};
      const auto at = std::find_if(out.begin(), out.end(), [&f](const Follower& o) {
        return f.count != o.count ? f.count > o.count
               : f.last != o.last ? f.last > o.last
                                  : f.token > o.token;
      });
      if (at == out.end() && out.size() == most) continue;
      out.insert(at, f);
      if (out.size() > most) out.pop_back();
    }
    return total;
  }

 private:
  struct State {
    int32_t length, link, count, last, edge;
  };  // edge: the first of its transitions
  struct Edge {
    int32_t token, to, next;
  };  // next: another transition of the same state
  static uint64_t key(int32_t state, int32_t token) {
    return uint64_t(uint32_t(state)) << 32 | uint32_t(token);
  }
  int32_t find(int32_t state, int32_t token) const { return at_.find(key(state, token)); }
  void add(int32_t state, int32_t token, int32_t to) {
    const int32_t edge = int32_t(edges_.size());
    edges_.push_back({token, to, states_[state].edge});
    states_[state].edge = edge;
    at_.put(key(state, token), edge);
  }
  int32_t split(int32_t p, int32_t q, int32_t token) {
    const int32_t twin = int32_t(states_.size());
    const State old = states_[q];
    states_.push_back({states_[p].length + 1, old.link, old.count, old.last, -1});
    for (int32_t e = old.edge; e >= 0; e = edges_[e].next) add(twin, edges_[e].token, edges_[e].to);
    states_[q].link = twin;
    for (int32_t edge; p >= 0 && (edge = find(p, token)) >= 0 && edges_[edge].to == q;
         p = states_[p].link)
      edges_[edge].to = twin;
    return twin;
  }
  std::vector<State> states_{{0, -1, 0, 0, -1}};
  std::vector<Edge> edges_;
  Places at_{16};
  int32_t tip_ = 0, size_ = 0;
};

struct Tail {
  int count = 0;
  int32_t token[LONGEST] = {};
  void push(int32_t x, int most) {
    if (count == most) std::copy(token + 1, token + count--, token);
    if (most) token[count++] = x;
  }
};

struct Options {
  double trust;
  int min_match, copies, width;
};

class Copies {
 public:
  Copies(const Table* table, const Options& o, const double* prior, int cells)
      : table_(table), o_(o), prior_(prior, prior + cells), right_(cells), tried_(cells) {}

  void read(const int32_t* tokens, size_t count) {
    for (size_t i = 0; i < count; ++i) extend(tokens[i]);
  }
  void learn(int32_t token) {
    const Match m = automaton_.match();
    const int64_t total = m.length ? automaton_.after(m.state, 1, followers_) : 0;
    if (total) {
      const int cell = index(m.length, followers_[0].count);
      right_[cell] += followers_[0].token == token;
      tried_[cell] += double(followers_[0].count) / double(total);
    }
    extend(token);
  }
  // The likeliest paths first, as drafters/_walk.py grows them; returns how many nodes, the root
  // among them.
  int propose(int32_t root, int depth, int nodes, double floor, int32_t* token, int32_t* parent,
              double* chance) {
    heap_.clear();
    depth_.assign(1, 0);
    token[0] = root;
    parent[0] = -1;
    chance[0] = 1.0;
    int node = 0, count = 0;
    double product = 1.0;
    Place at{automaton_.match(), tail_};
    while (true) {
      if (depth_[node] < depth) {
        after(at, product, floor);
        for (const Child& c : children_) {
          heap_.push_back({product * c.chance, ++count, node, c.chance, c.token, c.place});
          std::push_heap(heap_.begin(), heap_.end(), later);
        }
      }
      if (heap_.empty() || node >= nodes) return node + 1;
      std::pop_heap(heap_.begin(), heap_.end(), later);
      const Item& best = heap_.back();
      product = best.product;
      at = best.place;
      ++node;
      token[node] = best.token;
      parent[node] = best.above;
      chance[node] = std::min(best.chance, 1.0);
      depth_.push_back(depth_[best.above] + 1);
      heap_.pop_back();
    }
  }

 private:
  struct Place {
    Match match;
    Tail tail;
  };
  struct Child {
    double chance;
    int32_t token;
    Match match;
    bool copied;
    Place place;
  };
  struct Item {
    double product;
    int32_t found, above;
    double chance;
    int32_t token;
    Place place;
  };
  static bool later(const Item& a, const Item& b) {
    return a.product != b.product ? a.product < b.product : a.found > b.found;
  }
  int index(int length, int count) const {
    int bits = 0;
    for (int c = count; c; c >>= 1) ++bits;
    return std::min(length + bits - 1, int(prior_.size())) - 1;
  }
  double worth(int length, int count, int64_t total) const {
    const int cell = index(length, count);
    return double(count) / double(total) *
           std::min((right_[cell] + o_.trust * prior_[cell]) / (tried_[cell] + o_.trust), 1.0);
  }
  void extend(int32_t token) {
    automaton_.extend(token);
    tail_.push(token, table_->order);
  }
  // The children of a node: copies, and what the table says of the chance that they leave.
  void after(const Place& at, double product, double floor) {
    const Match m = automaton_.resumed(at.match);
    double left = 1.0;
    children_.clear();
    if (m.length >= o_.min_match) {
      const int64_t total = automaton_.after(m.state, size_t(o_.copies), followers_);
      for (const Follower& f : followers_) {
        const double p = worth(m.length, f.count, total);
        children_.push_back({p, f.token, {f.to, m.length + 1}, true, {}});
        left -= p;
      }
    }
    if (product * left >= floor) {
      table_->after(at.tail.token, at.tail.count, said_);
      for (const Guess& g : said_) {
        const auto same = std::find_if(children_.begin(), children_.end(),
                                       [&g](const Child& c) { return c.token == g.token; });
        if (same == children_.end())
          children_.push_back({0.0 + left * g.chance, g.token, {}, false, {}});
        else
          same->chance += left * g.chance;
      }
    }
    children_.erase(std::remove_if(children_.begin(), children_.end(),
                                   [=](const Child& c) { return !(product * c.chance >= floor); }),
                    children_.end());
    std::sort(children_.begin(), children_.end(), [](const Child& a, const Child& b) {
      return a.chance != b.chance ? a.chance > b.chance : a.token < b.token;
    });
    if (children_.size() > size_t(o_.width)) children_.resize(size_t(o_.width));
    for (Child& c : children_) {
      c.place = {c.copied ? c.match : automaton_.step(m, c.token), at.tail};
      c.place.tail.push(c.token, table_->order);
    }
  }

  const Table* table_;
  Options o_;
  std::vector<double> prior_, right_, tried_;
  Automaton automaton_;
  Tail tail_;
  std::vector<int32_t> depth_;  // what follows is used again by each call
  std::vector<Item> heap_;
  std::vector<Child> children_;
  std::vector<Follower> followers_;
  std::vector<Guess> said_;
};

// What a call gives where memory is not enough.
template <class F, class T>
auto guarded(F f, T otherwise) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception&) {
    return otherwise;
  }
}

}  // namespace

extern "C" {

void* copies_table(int order, int width, uint64_t count, const void* key, const void* follower,
                   const void* chance) {
  if (order < 1 || order > LONGEST || width < 0 || count > INT32_MAX) return nullptr;
  return guarded(
      [=] {
        return static_cast<void*>(new Table(order, width, count, static_cast<const uint64_t*>(key),
                                            static_cast<const uint16_t*>(follower),
                                            static_cast<const uint8_t*>(chance)));
      },
      nullptr);
}
void copies_table_free(void* table) { delete static_cast<Table*>(table); }

void* copies_new(const void* table, double trust, int min_match, int copies, int width,
                 const void* prior, int cells) {
  return guarded(
      [=] {
        return static_cast<void*>(new Copies(static_cast<const Table*>(table),
                                             {trust, min_match, copies, width},
                                             static_cast<const double*>(prior), cells));
      },
      nullptr);
}
void* copies_copy(const void* c) {
  return guarded([=] { return static_cast<void*>(new Copies(*static_cast<const Copies*>(c))); },
                 nullptr);
}
void copies_free(void* c) { delete static_cast<Copies*>(c); }

// Each gives 0, or how many nodes there are; -1 where memory is not enough.
int copies_read(void* c, const void* tokens, uint64_t count) {
  return guarded(
      [=] { return static_cast<Copies*>(c)->read(static_cast<const int32_t*>(tokens), count), 0; },
      -1);
}
int copies_learn(void* c, int token) {
  return guarded([=] { return static_cast<Copies*>(c)->learn(token), 0; }, -1);
}
int copies_propose(void* c, int root, int depth, int nodes, double floor, void* token, void* parent,
                   void* chance) {
  return guarded(
      [=] {
        return static_cast<Copies*>(c)->propose(
            root, depth, nodes, floor, static_cast<int32_t*>(token), static_cast<int32_t*>(parent),
            static_cast<double*>(chance));
      },
      -1);
}

}  // extern "C"
