// How many threads of the pool a pass of few rows takes: all, or fewer where another program
// computes. A pass waits for its slowest thread, so a thread whose core is taken away holds up all
// of them, and fewer threads that have cores of their own are faster. The result is the same to the
// bit with any number.
#pragma once
#include <algorithm>
#include <vector>

namespace polydec {

class ThreadChoice {
 public:
  explicit ThreadChoice(int most) {
    for (int n = most; n > 0; n = n == most && n > 2 ? n - 1 : n / 2) levels_.push_back(n);
  }
  int threads() const { return levels_[size_t(trying_ ? tried_ : level_)]; }

  // What a pass over so many rows took, and how long its threads slept for one another, in seconds.
  void learn(int rows, double seconds, double slept) {
    const double cost = seconds / (4 + rows);  // roughly what further rows add
    if (trying_) {
      tried_cost_ += cost / TRIAL;
      --trying_;
      if (trying_ == 0 || tried_cost_ >= BETTER * before_) judge();
      return;
    }
    recent_[passes_ % WATCHED] = cost;
    held_up_ = (held_up_ << 1 | unsigned(slept > HELD_UP * seconds)) & ((1u << WATCHED) - 1);
    ++passes_;
    if (passes_ < WATCHED) return;
    if (__builtin_popcount(held_up_) >= OFTEN && level_ + 1 < int(levels_.size())) {
      if (passes_ >= fewer_after_) attempt(level_ + 1);
    } else if (level_ > 0 && passes_ >= more_after_) {
      attempt(level_ - 1);
    }
  }

 private:
  static constexpr unsigned WATCHED = 8;  // passes that are looked back on
  static constexpr int OFTEN = 4;       // of them that were held up, for a trial with fewer threads
  static constexpr int TRIAL = 6;       // passes of a trial that does not fail earlier
  static constexpr unsigned SOON = 32;  // passes until more threads are tried
  static constexpr unsigned SELDOM = 128;  // the same after trials that failed
  static constexpr double HELD_UP = .2;    // share of a pass's time
  static constexpr double BETTER = .97;    // of the cost before

  void attempt(int level) {
    tried_ = level;
    trying_ = TRIAL;
    tried_cost_ = before_ = 0;
    for (double cost : recent_) before_ += cost / WATCHED;
  }
  void judge() {
    trying_ = 0;
    if (tried_cost_ < BETTER * before_) {
      level_ = tried_;
      fewer_after_ = WATCHED;
      more_after_ = SOON;
    } else {
      unsigned& after = tried_ > level_ ? fewer_after_ : more_after_;
      after = std::min(2 * after, SELDOM);
    }
    passes_ = 0;
    held_up_ = 0;
  }

  std::vector<int> levels_;  // numbers of threads, the largest first
  int level_ = 0, tried_ = 0, trying_ = 0;
  unsigned passes_ = 0, fewer_after_ = WATCHED, more_after_ = SOON;
  unsigned held_up_ = 0;  // a bit for each of the last passes
  double recent_[WATCHED] = {}, before_ = 0, tried_cost_ = 0;
};

}  // namespace polydec
