// A pool of threads whose number changes from run to run, with pauses in which its threads fall
// asleep: every thread that is meant works in each run, and no other. Under the thread sanitizer it
// shows whether all that threads read was written before; test_pool_threads.py builds and runs it.
#include "pool.h"
#include <stdlib.h>
#include <unistd.h>
#include <cstdio>

int main(int, char** arguments) {
  const int runs = atoi(arguments[1]);
  constexpr int APART = 64;  // places between the counters of two threads
  for (int threads : {2, 3}) {
    polydec::Pool pool(threads);
    std::vector<long> worked(size_t(APART * threads));
    unsigned dice = 1;
    long wanted = 0, done = 0;
    for (int i = 0; i < runs; ++i) {
      dice = dice * 1664525 + 1013904223;
      pool.use(1 + int(dice >> 24) % threads);
      if ((dice >> 8) % 16 == 0) usleep((dice >> 12) % 200);
      wanted += 2 * pool.size();
      pool.run([&](int t) {
        ++worked[size_t(APART * t)];
        pool.barrier();
        ++worked[size_t(APART * t)];
      });
    }
    for (long count : worked) done += count;
    std::printf("%d threads worked %ld times of %ld\n", threads, done, wanted);
  }
}
