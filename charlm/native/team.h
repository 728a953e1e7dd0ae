// Threads of one call: torch's OpenMP pool, a barrier, and scratch memory per thread.
#pragma once

#include <sched.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>
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

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A barrier for all members of a team. Everything written before it is visible to all of them after it.
class Barrier {
 public:
  explicit Barrier(int members) : slots_(members) {}

  void wait(int id, int size) {
    // Each member counts in its own cache line; a shared counter would move between the cores.
    Slot& own = slots_[id];
    const unsigned arrival = own.arrivals.load(std::memory_order_relaxed) + 1;
    own.arrivals.store(arrival);
    if (own.sleepers.load()) wake(own.arrivals);
    for (int m = 0; m < size; m++) await(slots_[m], arrival, own.slept_s);
  }

  // Seconds that a member yielded or slept in `wait`.
  double slept_s(int id) const { return slots_[id].slept_s; }

 private:
  struct alignas(64) Slot {
    std::atomic<unsigned> arrivals{0};
    std::atomic<unsigned> sleepers{0};  // members that sleep until this one arrives
    double slept_s = 0;
  };
  std::vector<Slot> slots_;

  static void await(Slot& other, unsigned arrival, double& slept_s) {
    const auto has_arrived = [&] { return other.arrivals.load(std::memory_order_acquire) >= arrival; };
    // Waiting takes a few microseconds if every member has its own core.
    for (int spins = 0; spins < 1000; spins++) {
      if (has_arrived()) return;
      pause();
    }
    // The other member has lost its core. If a virtual machine's host took the core, it soon gives it back, while waking
    // a sleeping member takes long: sleeping cost 10 % of the time on one such machine.
    const double start_s = seconds();
    while (!has_arrived() && seconds() - start_s < 500e-6) sched_yield();
    // If another process took it, sleep: the system soon schedules a member that wakes, but one that spins uses up its
    // time slice.
    if (!has_arrived()) {
      other.sleepers.fetch_add(1);
      for (unsigned count; (count = other.arrivals.load()) < arrival;) sleep_while(other.arrivals, count);
      other.sleepers.fetch_sub(1);
    }
    slept_s += seconds() - start_s;
  }

#if defined(__linux__)
  static void sleep_while(std::atomic<unsigned>& count, unsigned value) {
    constexpr int FUTEX_WAIT_PRIVATE = 128;
    syscall(SYS_futex, &count, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  }
  static void wake(std::atomic<unsigned>& count) {
    constexpr int FUTEX_WAKE_PRIVATE = 129;
    syscall(SYS_futex, &count, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
#else
  static void sleep_while(std::atomic<unsigned>&, unsigned) { sched_yield(); }
  static void wake(std::atomic<unsigned>&) {}
#endif

  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
};

// How many members a team has: at most half as many while other processes use the cores, if that turns out to be
// faster. A member that has lost its core holds up all others.
class TeamSize {
 public:
  // `largest`, or its largest proper divisor, so that the parts of the work can stay the same.
  int choose(int largest) {
    if (halved_ && seconds() >= retry_s_) halved_ = false, late_calls_ = 1;
#if defined(CHARLM_HALF_TEAM)  // Tests compare the results of both sizes.
    halved_ = true;
#endif
    int half = std::max(largest / 2, 1);
    while (largest % half) half--;
    return halved_ ? half : largest;
  }

  // Note the time of a call with this number of steps, and the average share of it that members spent waiting.
  void report(double call_s, Index steps, double idle_share) {
    if (call_s < 0.0005) return;  // a short call waits for threads to start, on an idle machine too
    double& average_s = halved_ ? half_s_ : whole_s_;
    const double step_s = call_s / steps;
    average_s = average_s == 0 ? step_s : (average_s + step_s) / 2;
    if (halved_) {
      if (++half_calls_ == 2 && half_s_ > 0.9 * whole_s_) change(false);
    } else if (idle_share < 0.3) {
      late_calls_ = 0;
      pause_s_ = SHORTEST_PAUSE_S;
    } else if (++late_calls_ > 1 && seconds() >= retry_s_) {  // a single late call can have any cause
      change(true);
    }
  }

 private:
  static constexpr double SHORTEST_PAUSE_S = 0.1, LONGEST_PAUSE_S = 3.2;
  bool halved_ = false;
  int late_calls_ = 0, half_calls_ = 0;
  double whole_s_ = 0, half_s_ = 0;  // moving averages over calls of the time for a step
  double retry_s_ = 0, pause_s_ = SHORTEST_PAUSE_S;  // when to try the other size again

  void change(bool halved) {
    halved_ = halved;
    half_calls_ = 0;
    half_s_ = 0;
    retry_s_ = seconds() + pause_s_;
    pause_s_ = std::min(2 * pause_s_, LONGEST_PAUSE_S);
  }
};

// One thread of the team.
struct Member {
  int id;
  int size;
  int parts;  // It divides its share into this many parts and rounds a sum once per part. The parts of all members
              // are the same for every size of the team.
  Barrier& barrier;

  void meet() const {
    if (size > 1) barrier.wait(id, size);
  }

  // This member's part of the range [0, n); parts differ by at most one.
  Index begin(Index n) const { return n * id / size; }
  Index end(Index n) const { return n * (id + 1) / size; }

  // Call function(b) for each row b < B, every member beginning at another row: where two members' units of a row share
  // a cache line, writing them at the same time takes several times as long.
  template <class Function>
  void each_row(Index B, const Function& function) const {
    const Index first = begin(B);
    for (Index b = first; b < B; b++) function(b);
    for (Index b = 0; b < first; b++) function(b);
  }
};

// Run function(arguments, member) on torch's threads.
// steps: how many the call computes. multiplications: of a step, between two barriers. With few multiplications it uses
// fewer threads, because waiting would take longer than the work saved. The runtime may also provide fewer.
template <class Arguments, class Function>
void run_team(const Arguments& arguments, Index multiplications, Index steps, const Function& function) {
  const int useful = static_cast<int>(std::min(arguments.threads, 1 + multiplications / 16384));
  // One for each function, problem size and calling thread.
  thread_local std::map<std::pair<const void*, Index>, TeamSize> team_sizes;
  const void* name = nullptr;
  if constexpr (std::is_pointer_v<Function>) name = reinterpret_cast<const void*>(function);
  TeamSize& team_size = team_sizes[{name, multiplications}];
  const int size = team_size.choose(useful);
  const double start_s = seconds();
  struct Job {
    const Arguments& arguments;
    const Function& function;
    int useful, size;
    Barrier barrier;
    std::atomic<double> busy_s{0};
  } job{arguments, function, useful, size, Barrier(size)};
  if (size == 1) {
    function(arguments, Member{0, 1, useful, job.barrier});
    return team_size.report(seconds() - start_s, steps, 0);
  }
  auto entry = [](void* data) {
    Job& job = *static_cast<Job*>(data);
    const int size = std::min(job.size, omp_get_num_threads());
    const int id = omp_get_thread_num();
    if (id >= size) return;
    const double start_s = seconds();
    job.function(job.arguments, Member{id, size, job.useful % size ? 1 : job.useful / size, job.barrier});
    const double busy_s = seconds() - start_s - job.barrier.slept_s(id);
    for (double sum = job.busy_s; !job.busy_s.compare_exchange_weak(sum, sum + busy_s);) {
    }
  };
  // Start all of torch's threads, even if some have nothing to do: for a smaller team the runtime ends the others, and
  // starts them again for torch's next operation.
  GOMP_parallel(entry, &job, arguments.threads, 0);
  const double call_s = seconds() - start_s;
  team_size.report(call_s, steps, 1 - job.busy_s / (size * call_s));
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
