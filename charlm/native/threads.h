// What threads.cpp offers to the kernels.
#pragma once

#include <cstddef>

// Marks what Python calls or sets; everything else is hidden in the library.
#define KERNEL __attribute__((visibility("default")))

struct Barrier;

// Runs in each thread of a team; id < size.
using Job = void (*)(void* data, Barrier* barrier, int id, int size);

// What is known of a call. Its name and multiplications tell apart the calls whose speed is compared.
struct Work {
  const void* name;
  std::ptrdiff_t multiplications, steps;
  int useful;   // threads that the call keeps busy
  int threads;  // threads that torch uses
};

struct Threads {
  // Run the job in `work.useful` threads, or in fewer. The caller is one of them.
  void (*run)(const Work& work, Job job, void* data);
  // Wait until all members of a team have come here. What they wrote before is then visible to all of them.
  void (*meet)(Barrier* barrier, int id, int size);
};
