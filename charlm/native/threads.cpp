// The threads of all kernels of a process: those of torch's OpenMP runtime, or a pool of our own.
//
// This library runs on any CPU; all others are given its functions.

#include "cpu.h"
#include "threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>
#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Counts up. What a thread wrote before it raised the count is visible to those that have seen it raised.
struct alignas(64) Count {  // in its own cache line; a shared one would move between the cores
  std::atomic<unsigned> value{0};

  void raise() {
    value.fetch_add(1);
    value.notify_all();
  }

  // Wait until the count has reached `least`; return the seconds that this thread yielded or slept.
  double await(unsigned least, double yield_s) const {
    const auto is_reached = [&] { return static_cast<int>(value.load(std::memory_order_acquire) - least) >= 0; };
    // Waiting takes a few microseconds if every thread has its own core.
    for (int spins = 0; spins < 1000; spins++) {
      if (is_reached()) return 0;
      pause();
    }
    // The other thread has lost its core. If a virtual machine's host took the core, it soon gives it back, while waking
    // a sleeping thread takes long: sleeping cost 10 % of the time on one such machine.
    const double start_s = seconds();
    while (!is_reached() && seconds() - start_s < yield_s) std::this_thread::yield();
    // If another process took it, sleep: the system soon schedules a thread that wakes, but one that spins uses up its
    // time slice.
    for (unsigned seen; static_cast<int>((seen = value.load()) - least) < 0;) value.wait(seen);
    return seconds() - start_s;
  }
};

}  // namespace

struct Barrier {
  struct Member {
    Count arrivals;
    double waited_s = 0;  // beyond spinning
  };
  std::vector<Member> members;
};

namespace {

constexpr double YIELD_S = 500e-6;

void meet(Barrier* barrier, int id, int size) {
  Barrier::Member& own = barrier->members[id];
  own.arrivals.raise();
  const unsigned arrival = own.arrivals.value.load(std::memory_order_relaxed);
  for (int m = 0; m < size; m++) own.waited_s += barrier->members[m].arrivals.await(arrival, YIELD_S);
}

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
  void report(double call_s, std::ptrdiff_t steps, double idle_share) {
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

// Threads that wait for jobs.
class Pool {
 public:
  // Call job(data, id, size) for each id < size at the same time; for id 0 in the calling thread.
  void run(int size, void (*job)(void* data, int id, int size), void* data) {
    for (int id = static_cast<int>(workers_.size()) + 1; id < size; id++) {
      workers_.emplace_back();
      std::thread([this, id, &worker = workers_.back()] { work(worker, id); }).detach();
    }
    job_ = job, data_ = data, size_ = size;
    for (int id = 1; id < size; id++) workers_[id - 1].given.raise();
    job(data, 0, size);
    for (int id = 1; id < size; id++) {
      const Worker& worker = workers_[id - 1];
      worker.done.await(worker.given.value.load(std::memory_order_relaxed), YIELD_S);
    }
  }

  std::mutex in_use;

 private:
  // A worker yields this long before it sleeps: between two kernels of an update it should stay awake.
  static constexpr double IDLE_S = 2e-3;

  struct Worker {
    Count given, done;  // jobs
  };
  std::deque<Worker> workers_;  // its elements do not move
  void (*job_)(void* data, int id, int size) = nullptr;
  void* data_ = nullptr;
  int size_ = 0;

  void work(Worker& own, int id) {
    for (unsigned number = 1;; number++) {
      own.given.await(number, IDLE_S);
      job_(data_, id, size_);
      own.done.raise();
    }
  }
};

// The pool of this process. A forked child has only the thread that forked, and makes another pool. No pool is ever
// freed: its threads run until the process ends.
Pool& pool() {
  static std::mutex making;
  static Pool* made = nullptr;
  const std::lock_guard lock(making);
#if defined(_WIN32)
  if (!made) made = new Pool;
#else
  static pid_t owner = 0;
  if (owner != getpid()) made = new Pool, owner = getpid();
#endif
  return *made;
}

// The functions of torch's OpenMP runtime, if it has GCC's interface; else null.
struct OpenMP {
  void (*parallel)(void (*function)(void*), void* data, unsigned threads, unsigned flags);
  int (*thread)();
  int (*threads)();
} openmp{};

// Call job(data, id, size) in `size` threads at the same time, or in fewer: then `size` is their number.
void run_on_threads(int size, int most, void (*job)(void* data, int id, int size), void* data) {
  if (openmp.parallel) {
    struct Call {
      int size;
      void (*job)(void* data, int id, int size);
      void* data;
    } call{size, job, data};
    const auto entry = [](void* data) {
      const Call& call = *static_cast<Call*>(data);
      const int size = std::min(call.size, openmp.threads()), id = openmp.thread();
      if (id < size) call.job(call.data, id, size);
    };
    // Start all of torch's threads, even if some have nothing to do: for a smaller team the runtime ends the others, and
    // starts them again for torch's next operation.
    return openmp.parallel(entry, &call, most, 0);
  }
  Pool& shared = pool();
  const std::unique_lock lock(shared.in_use, std::try_to_lock);
  if (lock)
    shared.run(size, job, data);
  else  // another thread's call has the pool
    job(data, 0, 1);
}

void run(const Work& work, Job job, void* data) {
  // One for each function, problem size and calling thread.
  thread_local std::map<std::pair<const void*, std::ptrdiff_t>, TeamSize> team_sizes;
  TeamSize& team_size = team_sizes[{work.name, work.multiplications}];
  const int size = team_size.choose(work.useful);
  const double start_s = seconds();
  struct Call {
    Job job;
    void* data;
    Barrier barrier;
    std::atomic<double> busy_s{0};
  } call{job, data, {std::vector<Barrier::Member>(size)}};
  if (size == 1) {
    job(data, &call.barrier, 0, 1);
    return team_size.report(seconds() - start_s, work.steps, 0);
  }
  const auto entry = [](void* data, int id, int size) {
    Call& call = *static_cast<Call*>(data);
    const double start_s = seconds();
    call.job(call.data, &call.barrier, id, size);
    const double busy_s = seconds() - start_s - call.barrier.members[id].waited_s;
    for (double sum = call.busy_s; !call.busy_s.compare_exchange_weak(sum, sum + busy_s);) {
    }
  };
  run_on_threads(size, work.threads, entry, &call);
  const double call_s = seconds() - start_s;
  team_size.report(call_s, work.steps, 1 - call.busy_s / (size * call_s));
}

}  // namespace

extern "C" {

// For the other libraries.
KERNEL Threads threads{run, meet};

// Use torch's threads from now on. Two pools would compete for the cores: an update then takes 1.05 times as long.
KERNEL void use_openmp(decltype(OpenMP::parallel) parallel, decltype(OpenMP::thread) thread,
                       decltype(OpenMP::threads) threads) {
  openmp = {parallel, thread, threads};
}

// The levels for which charlm may come with libraries that this CPU runs, the fastest first.
KERNEL const char* cpu_levels() {
#if defined(__x86_64__)
  return x86_levels();
#elif defined(__aarch64__)
  return "arm64";
#else
  return "";
#endif
}

}  // extern "C"
