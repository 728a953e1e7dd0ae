// Dropout masks.

#include "product.h"

struct Arguments {
  Index rows, size, threads;
  Index first, stride;  // row r holds the elements first + r · stride … + size of the whole mask
  Index seed;           // any 64 bits
  Index keep;           // each element is kept with probability keep / 65536
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

// Element 4 n + i of the whole mask is decided by the i-th 16 bits of the n-th output.
void fill(const Arguments& a, const Member& member) {
  const float scale = 65536.0f / a.keep;
  for (Index row = 0; row < a.rows; row++) {
    const Index begin = a.first + row * a.stride, end = begin + a.size;
    const Index before = begin / 4, groups = (end + 3) / 4 - before;
    float* mask = a.mask + row * a.size - begin;
    for (Index n = before + member.begin(groups); n < before + member.end(groups); n++) {
      const std::uint64_t bits = random_bits(a.seed, n);
      for (Index i = 0; i < 4; i++) {
        const Index k = 4 * n + i;
        if (k >= begin && k < end) mask[k] = static_cast<Index>(bits >> (16 * i) & 0xffff) < a.keep ? scale : 0.0f;
      }
    }
  }
}

}  // namespace

extern "C" KERNEL void random_mask(const Arguments* a) {
  run_team(*a, a->rows * a->size, 1, fill);
}
