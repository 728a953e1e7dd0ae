// What this CPU is and can do.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstring>
#include <initializer_list>

// Whether AMD made it. Where a wheel is built there is no library for __builtin_cpu_is.
inline bool is_amd() {
  unsigned eax, words[3];
  return __get_cpuid(0, &eax, &words[0], &words[2], &words[1]) && !std::memcmp(words, "AuthenticAMD", 12);
}

// The levels of x86-64 (as in its psABI) that the CPU and the system support, the highest first, down to the third;
// "bf16" beyond the fourth: with AVX512_BF16.
inline const char* x86_levels() {
  struct Registers {
    unsigned a = 0, b = 0, c = 0, d = 0;
  };
  const auto leaf = [](unsigned number, unsigned part) {
    Registers r;
    __get_cpuid_count(number, part, &r.a, &r.b, &r.c, &r.d);
    return r;
  };
  const auto has = [](unsigned word, std::initializer_list<int> bits) {
    for (const int bit : bits)
      if (!(word >> bit & 1)) return false;
    return true;
  };
  const Registers basic = leaf(1, 0), wide = leaf(7, 0), wider = leaf(7, 1), amd = leaf(0x80000001, 0);
  // SSE3, SSSE3, FMA, CMPXCHG16B, SSE4.1, SSE4.2, MOVBE, POPCNT, OSXSAVE, AVX, F16C
  if (!has(basic.c, {0, 9, 12, 13, 19, 20, 22, 23, 27, 28, 29})) return "";
  if (!has(wide.b, {3, 5, 8}) || !has(amd.c, {0, 5})) return "";  // BMI1, AVX2, BMI2; LAHF, LZCNT
  unsigned saved, upper;  // the registers that the system saves
  asm volatile("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
  if (!has(saved, {1, 2})) return "";  // SSE, AVX
  // AVX512F, DQ, CD, BW, VL, and their masks and registers
  if (!has(wide.b, {16, 17, 28, 30, 31}) || !has(saved, {5, 6, 7})) return "x86-64-v3";
  return has(wider.a, {5}) ? "x86-64-v4-bf16 x86-64-v4 x86-64-v3" : "x86-64-v4 x86-64-v3";
}
#endif
