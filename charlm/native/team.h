// Threads of one call: torch's OpenMP pool, a barrier, and scratch memory per thread.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <vector>

#include "vector.h"

// Marks the functions that Python calls; all others are hidden in the library.
#define KERNEL extern "C" __attribute__((visibility("default")))

// The binary interface of the OpenMP runtime that torch has loaded. Using it directly needs no compiler flag and starts
// no second pool of threads, which would compete with torch's for the cores.
extern "C" {
void GOMP_parallel(void (*function)(void*), void* data, unsigned num_threads, unsigned flags);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
}

// A barrier for all threads of a team. Everything written before it is visible to all threads after it.
class Barrier {
 public:
  explicit Barrier(int most) : arrivals_(most) {}

  void wait(int id, int size) {
    // Each thread counts in its own cache line; a shared counter would move between the cores.
    const unsigned arrival = arrivals_[id].count.load(std::memory_order_relaxed) + 1;
    arrivals_[id].count.store(arrival, std::memory_order_release);
    for (int m = 0; m < size; m++) {
      // Waiting takes less than a microsecond if every thread has its own core. If not, yield the core.
      for (int spins = 0; arrivals_[m].count.load(std::memory_order_acquire) < arrival; spins++) {
        if (spins < 1000)
          pause();
        else
          sched_yield();
      }
    }
  }

 private:
  struct alignas(64) Arrivals {
    std::atomic<unsigned> count{0};
  };
  std::vector<Arrivals> arrivals_;

  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
};

// One thread of the team.
struct Member {
  int id;
  int size;
  Barrier& barrier;

  void meet() const {
    if (size > 1) barrier.wait(id, size);
  }

  // This member's part of the range [0, n); parts differ by at most one.
  Index begin(Index n) const { return n * id / size; }
  Index end(Index n) const { return n * (id + 1) / size; }
};

// Run function(arguments, member) on torch's threads. With few multiplications between two barriers it uses fewer
// threads, because waiting would take longer than the work saved. The runtime may also provide fewer.
template <class Arguments, class Function>
void run_team(const Arguments& arguments, Index multiplications, const Function& function) {
  const int useful = static_cast<int>(std::min(arguments.threads, 1 + multiplications / 16384));
  struct Job {
    const Arguments& arguments;
    const Function& function;
    int useful;
    Barrier barrier;
  } job{arguments, function, useful, Barrier(useful)};
  if (useful == 1) return function(arguments, Member{0, 1, job.barrier});
  auto entry = [](void* data) {
    Job& job = *static_cast<Job*>(data);
    const int size = std::min(job.useful, omp_get_num_threads());
    const int id = omp_get_thread_num();
    if (id < size) job.function(job.arguments, Member{id, size, job.barrier});
  };
  // Start all of torch's threads, even if some have nothing to do: for a smaller team the runtime ends the others, and
  // starts them again for torch's next operation.
  GOMP_parallel(entry, &job, arguments.threads, 0);
}

// One thread's scratch memory, kept between calls: mapping new pages takes longer than filling them.
class Scratch {
 public:
  // Begin a call: frees all blocks of the call before.
  void restart() { next_ = 0; }

  // A block of `count` elements, aligned for vectors, uninitialized. Valid until the next restart().
  template <class T>
  T* get(Index count) {
    if (next_ == blocks_.size()) blocks_.emplace_back();
    Block& block = blocks_[next_++];
    const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    if (bytes > block.size) {
      block.size = 0;
      block.memory.reset(std::aligned_alloc(64, bytes));
      if (!block.memory) std::abort();
      block.size = bytes;
    }
    return static_cast<T*>(block.memory.get());
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  struct Block {
    std::unique_ptr<void, Free> memory;
    std::size_t size = 0;
  };
  std::vector<Block> blocks_;
  std::size_t next_ = 0;
};

// The calling thread's scratch memory, restarted.
inline Scratch& fresh_scratch() {
  thread_local Scratch scratch;
  scratch.restart();
  return scratch;
}
