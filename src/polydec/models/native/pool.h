// A pool of threads whose caller is thread 0. Whoever waits spins for a moment, so that the next
// piece of work finds it awake, then sleeps. Where there are more threads than cores it sleeps at
// once: it holds the core that others need.
#pragma once
#include <stdint.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#endif
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace polydec {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void breathe() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline int cores() {  // that this process may use
#if defined(__linux__)
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
#endif
  return int(std::thread::hardware_concurrency());
}

class Pool {
 public:
  explicit Pool(int n) : n_(n), used_(n), spins_(n <= cores() ? 4000 : 50) {
    for (int t = 1; t < n; ++t) threads_.emplace_back([this, t] { serve(t); });
  }
  ~Pool() {
    stop_ = true;
    ticket_.store(next_ticket(n_));
    wake(ticket_);
    for (auto& t : threads_) t.join();
  }
  Pool(const Pool&) = delete;
  int most() const { return n_; }
  int size() const { return used_; }  // threads that work
  // The first so many threads work from the next run on; the others sleep.
  void use(int n) { used_ = n; }
  // Seconds that threads slept at barriers since this was asked last.
  double slept() { return double(slept_.exchange(0)) * 1e-9; }

  template <class Fn>
  void run(Fn&& fn) {
    if (used_ == 1) {
      fn(0);
      return;
    }
    call_ = [](void* f, int t) { (*static_cast<std::remove_reference_t<Fn>*>(f))(t); };
    argument_ = &fn;
    ticket_.store(next_ticket(used_));
    if (asleep_.load()) wake(ticket_);
    fn(0);
    barrier();
  }
  void barrier() {
    // Read before this thread is counted: once all are, the caller may change it for the next run.
    const int used = used_;
    if (used == 1) return;
    const unsigned phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == used) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1);
      if (sleepers_.load()) wake(phase_);
      return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase;) {
      if (++spins < spins_) {
        breathe();
        continue;
      }
      const double began = now();
      ++sleepers_;  // somebody else needs the core, perhaps the one that all wait for
      wait(phase_, phase);
      --sleepers_;
      slept_ += int64_t((now() - began) * 1e9);
    }
  }

 private:
  // A ticket holds its number of threads, so that who wakes late knows whether it was meant.
  static constexpr unsigned MEANT = 2048;
  unsigned next_ticket(int threads) const {
    return (ticket_.load() / MEANT + 1) * MEANT + unsigned(threads);
  }
  // Sleep until woken, unless `at` is no longer `value`.
  static void wait(std::atomic<unsigned>& at, unsigned value) {
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<unsigned*>(&at), FUTEX_WAIT_PRIVATE, value, nullptr,
            nullptr, 0);
#else
    if (at.load() == value) std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
  }
  static void wake(std::atomic<unsigned>& at) {
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<unsigned*>(&at), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr,
            nullptr, 0);
#else
    (void)at;
#endif
  }
  void serve(int t) {
    unsigned seen = 0;
    for (;;) {
      for (int spins = 0; ticket_.load(std::memory_order_acquire) == seen; ++spins) {
        if (spins < spins_) {
          breathe();
          continue;
        }
        // Counted before the ticket is compared: who writes a new one either sees the count, or
        // wrote before the comparison.
        ++asleep_;
        wait(ticket_, seen);
        --asleep_;
      }
      seen = ticket_.load();
      if (stop_) return;
      if (unsigned(t) >= seen % MEANT) continue;
      call_(argument_, t);
      barrier();
    }
  }
  const int n_;
  int used_;  // changes between two runs alone
  const int spins_;
  bool stop_ = false;
  void (*call_)(void*, int) = nullptr;
  void* argument_ = nullptr;
  alignas(64) std::atomic<unsigned> ticket_{0};
  std::atomic<int> asleep_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<int64_t> slept_{0};     // nanoseconds
  std::vector<std::thread> threads_;  // last: they begin when everything else is there
};

// After a fork the child has none of its parent's threads: it gets a pool of its own, the old one
// is left where it lies.
class Pools {
 public:
  explicit Pools(int n) : n_(n), owner_(getpid()), pool_(new Pool(n)) {}
  ~Pools() {
    if (owner_ == getpid()) delete pool_;
  }
  Pool& get() {
    if (owner_ != getpid()) {
      owner_ = getpid();
      pool_ = new Pool(n_);
    }
    return *pool_;
  }

 private:
  int n_;
  pid_t owner_;
  Pool* pool_;
};

// What is left to do of one matrix in one thread's share: the owner takes from the front, others
// steal at the back, so that a core that is held up does not hold up the rest.
struct alignas(64) Share {
  std::atomic<uint64_t> left{0};  // first | end << 32
  void set(int first, int end) {
    left.store(uint32_t(first) | uint64_t(uint32_t(end)) << 32, std::memory_order_relaxed);
  }
  bool take(int n, bool front, int& a, int& b) {
    uint64_t now = left.load(std::memory_order_relaxed);
    for (;;) {
      const int first = int(uint32_t(now)), end = int(now >> 32);
      if (first >= end || (!front && end - first < 2 * n && n > 1))
        return false;  // the owner is about to be done
      a = front ? first : (end - n > first ? end - n : first);
      b = front ? (first + n < end ? first + n : end) : end;
      const uint64_t rest = front ? uint32_t(b) | uint64_t(uint32_t(end)) << 32
                                  : uint32_t(first) | uint64_t(uint32_t(a)) << 32;
      if (left.compare_exchange_weak(now, rest, std::memory_order_relaxed)) return true;
    }
  }
};

}  // namespace polydec
