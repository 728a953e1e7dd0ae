// Threads that share one call: torch's own OpenMP pool, a barrier, memory that stays with each thread.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <vector>

#include "vector.h"

// What Python calls; all else stays inside the library.
#define KERNEL extern "C" __attribute__((visibility("default")))

// The OpenMP runtime that torch has loaded, by its binary interface: no compiler flag, and no second pool of threads
// that would fight torch's for the cores.
extern "C" {
void GOMP_parallel(void (*function)(void*), void* data, unsigned num_threads, unsigned flags);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
}

// All threads of a team meet here; what each wrote before is seen by all after.
class Barrier {
 public:
  explicit Barrier(int most) : arrivals_(most) {}

  void wait(int id, int size) {
    // Each announces itself in a cache line of its own: to count in one place, they would have to take turns.
    const unsigned arrival = arrivals_[id].count.load(std::memory_order_relaxed) + 1;
    arrivals_[id].count.store(arrival, std::memory_order_release);
    for (int m = 0; m < size; m++) {
      // Less than a microsecond where every thread has a core of its own; else make room.
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

// One thread's place in the team.
struct Member {
  int id;
  int size;
  Barrier& barrier;

  void meet() const {
    if (size > 1) barrier.wait(id, size);
  }

  // This member's part of the range [0, n), as even as can be.
  Index begin(Index n) const { return n * id / size; }
  Index end(Index n) const { return n * (id + 1) / size; }
};

// Run function(arguments, member) on torch's threads, or so many of them as so many multiplications between two
// barriers keep busy: with less work, waiting costs more than it saves. The runtime may give fewer.
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
  // All of torch's threads, even if some have nothing to do: to a smaller team the runtime would give up the others,
  // and start them anew for torch's next operation.
  GOMP_parallel(entry, &job, arguments.threads, 0);
}

// Memory of one thread that lives on between calls: fresh pages cost more than the packing that fills them.
class Scratch {
 public:
  // Begin a call: what was handed out before is free again.
  void restart() { next_ = 0; }

  // The next block, at least so large, aligned for vectors, with any content.
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

// The calling thread's, begun anew.
inline Scratch& fresh_scratch() {
  thread_local Scratch scratch;
  scratch.restart();
  return scratch;
}
