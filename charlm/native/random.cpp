// Dropout masks.

#include "product.h"

struct Arguments {
  Index size, threads;
  Index seed;   // any 64 bits
  Index kept;   // each element is kept with probability kept / 65536
  float* mask;  // written [size]: 65536 / kept, or 0
};

namespace {

// The n-th output of SplitMix64 (Steele, Lea & Flood 2014). Any thread can start at any n.
inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t n) {
  std::uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void fill(const Arguments& a, const Member& member) {
  const float scale = 65536.0f / a.kept;
  const Index groups = (a.size + 3) / 4;
  for (Index n = member.begin(groups); n < member.end(groups); n++) {
    const std::uint64_t bits = random_bits(a.seed, n);
    for (Index i = 0; i < std::min<Index>(4, a.size - 4 * n); i++)
      a.mask[4 * n + i] = static_cast<Index>(bits >> (16 * i) & 0xffff) < a.kept ? scale : 0.0f;
  }
}

}  // namespace

KERNEL void random_mask(const Arguments* a) {
  run_team(*a, a->size, 1, fill);
}
