// The members of a team, which compute a call together, and scratch memory for each thread.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "threads.h"
#include "vector.h"

// What a kernel uses of threads.cpp. Python sets it when it loads the library.
extern "C" {
KERNEL Threads threads{};
}

// One thread of the team.
struct Member {
  int id;
  int size;
  int parts;  // It divides its share into this many parts and rounds a sum once per part. The parts of all members
              // are the same for every size of the team.
  Barrier* barrier;

  void meet() const {
    if (size > 1) threads.meet(barrier, id, size);
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

// Run function(arguments, member) in each thread of a team.
// steps: how many the call computes. multiplications: of a step, between two barriers. With few multiplications it uses
// fewer threads, because waiting would take longer than the work saved.
template <class Arguments, class Function>
void run_team(const Arguments& arguments, Index multiplications, Index steps, const Function& function) {
  struct Call {
    const Arguments& arguments;
    const Function& function;
    int useful;
  } call{arguments, function, static_cast<int>(std::min(arguments.threads, 1 + multiplications / 16384))};
  const auto job = [](void* data, Barrier* barrier, int id, int size) {
    const Call& call = *static_cast<Call*>(data);
    call.function(call.arguments, Member{id, size, call.useful % size ? 1 : call.useful / size, barrier});
  };
  const void* name = nullptr;
  if constexpr (std::is_pointer_v<Function>) name = reinterpret_cast<const void*>(function);
  threads.run({name, multiplications, steps, call.useful, static_cast<int>(arguments.threads)}, job, &call);
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
      block.memory.reset(::operator new(bytes, std::align_val_t(64)));
      block.size = bytes;
    }
    return static_cast<T*>(block.memory.get());
  }

 private:
  struct Free {
    void operator()(void* p) const { ::operator delete(p, std::align_val_t(64)); }
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
