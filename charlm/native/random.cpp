// Dropout masks.

#include <bit>

#include "team.h"

struct Arguments {
  Index rows, size, threads;
  Index first, stride;  // row r holds the elements first + r · stride … + size of the whole mask
  Index keep;           // each element is kept with probability keep / 65536
  const Index* seed;    // any 64 bits
  float* mask;          // written [rows, size]: 65536 / keep, or 0
};

namespace {

// The n-th output of SplitMix64 (Steele, Lea & Flood 2014). Any thread can start at any n.
inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t n) {
  std::uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Element 4 n + i of the whole mask is decided by the i-th 16 bits of the n-th output. Outputs are drawn a block at a
// time, in loops that compilers vectorize.
void fill(const Arguments& a, const Member& member) {
  static_assert(std::endian::native == std::endian::little);
  constexpr Index BLOCK = 64;
  const float scale = 65536.0f / a.keep;
  const int keep = a.keep;
  const std::uint64_t seed = *a.seed;
  for (Index row = 0; row < a.rows; row++) {
    const Index begin = a.first + row * a.stride, end = begin + a.size;
    const Index before = begin / 4, groups = (end + 3) / 4 - before, last = before + member.end(groups);
    float* mask = a.mask + row * a.size - begin;
    for (Index n = before + member.begin(groups); n < last; n += BLOCK) {
      std::uint64_t outputs[BLOCK];
      std::uint16_t bits[4 * BLOCK];
      for (Index i = 0; i < BLOCK; i++) outputs[i] = random_bits(seed, n + i);
      std::memcpy(bits, outputs, sizeof bits);
      for (Index k = std::max(4 * n, begin); k < std::min(4 * std::min(n + BLOCK, last), end); k++)
        mask[k] = bits[k - 4 * n] < keep ? scale : 0.0f;
    }
  }
}

}  // namespace

extern "C" KERNEL void random_mask(const Arguments* a) {
  run_team(*a, a->rows * a->size, 1, fill);
}
