// Vectors of floats as wide as the CPU's registers, in the vector extensions of GCC and Clang.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(CHARLM_WIDTH)  // Tests set another width than the CPU's.
constexpr int W = CHARLM_WIDTH;
#elif defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

// Functions between a `flatten` function and its innermost loop. GCC's `flatten` inlines all calls below a function,
// Clang's only those in its own text.
#if defined(__clang__)
#define FLATTEN __attribute__((always_inline, flatten))
#else
#define FLATTEN
#endif

using Index = std::ptrdiff_t;

typedef float Floats __attribute__((vector_size(4 * W)));
typedef std::int32_t Ints __attribute__((vector_size(4 * W)));
typedef std::uint32_t Words __attribute__((vector_size(4 * W)));
typedef std::uint16_t Halves __attribute__((vector_size(2 * W)));
typedef float LooseFloats __attribute__((vector_size(4 * W), aligned(4), may_alias));

inline Floats load(const float* p) { return *reinterpret_cast<const LooseFloats*>(p); }
inline void store(float* p, Floats v) { *reinterpret_cast<LooseFloats*>(p) = v; }

// The n ≤ W floats at p, then zeros. Does not read past p + n.
inline Floats load(const float* p, Index n) {
  if (n >= W) return load(p);
  Floats v = {};
  std::memcpy(&v, p, n * sizeof(float));
  return v;
}

// The n ≤ W floats at p, `stride` apart, then zeros.
inline Floats gather(const float* p, Index stride, Index n) {
  if (stride == 1) return load(p, n);
  Floats v = {};
  for (Index i = 0; i < n; i++) v[i] = p[i * stride];
  return v;
}

inline void store(float* p, Floats v, Index n) {
  if (n >= W) return store(p, v);
  std::memcpy(p, &v, n * sizeof(float));
}

// Exchange the elements of a whose index has the bit D with those of b whose index lacks it.
#if defined(__clang__)
template <int D, int... I>
inline void exchange(Floats& a, Floats& b, std::integer_sequence<int, I...>) {
  const Floats low = __builtin_shufflevector(a, b, (I & D ? W + I - D : I)...);
  b = __builtin_shufflevector(a, b, (I & D ? W + I : I + D)...);
  a = low;
}
#else
template <int D, int... I>
inline void exchange(Floats& a, Floats& b, std::integer_sequence<int, I...>) {
  const Floats low = __builtin_shuffle(a, b, Ints{(I & D ? W + I - D : I)...});
  b = __builtin_shuffle(a, b, Ints{(I & D ? W + I : I + D)...});
  a = low;
}
#endif

// Transpose a matrix [W, W].
template <int D = 1>
inline void transpose(Floats (&rows)[W]) {
#pragma GCC unroll 16
  for (int r = 0; r < W; r++)
    if (!(r & D)) exchange<D>(rows[r], rows[r + D], std::make_integer_sequence<int, W>());
  if constexpr (2 * D < W) transpose<2 * D>(rows);
}

// The first n ≤ W elements of v, then zeros.
inline Floats first_lanes(Floats v, Index n) {
  for (Index i = n; i < W; i++) v[i] = 0;
  return v;
}

// Call function(i, n) for consecutive parts i … i + n − 1 of [first, end); n = W except in the last.
template <class Function>
FLATTEN inline void each_vector(Index first, Index end, const Function& function) {
  Index i = first;
  // Separate from the last part, so that n is a constant when the function is inlined here.
  for (; i + W <= end; i += W) function(i, W);
  if (i < end) function(i, end - i);
}

// bfloat16: the upper 16 bits of a float.
struct Bf16 {
  std::uint16_t bits;
};

// The bits of each element as bfloat16, rounded to nearest, ties to even. NaN stays NaN.
inline Words rounded(Floats x) {
  const Words bits = (Words)x, nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return x == x ? nearest : Words{} + 0x7fc0;
}

// Element i of `low` and of `high` as bfloat16, side by side in the lower and upper half of 32 bits.
inline Words rounded_pairs(Floats low, Floats high) {
#if defined(__AVX512BF16__) && !defined(CHARLM_WIDTH)
  // As above in two instructions, but numbers below 2⁻¹²⁶ become 0.
  alignas(64) static constexpr std::uint16_t SIDE_BY_SIDE[] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512bh one_after_the_other = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  return (Words)_mm512_permutexvar_epi16(_mm512_load_si512(SIDE_BY_SIDE), (__m512i)one_after_the_other);
#else
  return rounded(low) | rounded(high) << 16;
#endif
}

inline void store(Bf16* p, Floats v, Index n) {
#if defined(__AVX512BF16__) && !defined(CHARLM_WIDTH)
  const Halves halves = (Halves)_mm512_cvtneps_pbh((__m512)v);
#else
  const Halves halves = __builtin_convertvector(rounded(v), Halves);
#endif
  std::memcpy(p, &halves, (n < W ? n : W) * sizeof *p);
}

inline float sum(Floats v) {
  float total = 0;
  for (int i = 0; i < W; i++) total += v[i];
  return total;
}

// eˣ = power · (1 + rest) for −87 ≤ x ≤ 88, where power is a power of two and |rest| < √2. NaN gives NaN.
struct Exponential {
  Floats power, rest;

  explicit Exponential(Floats x) {
    // x = n ln 2 + r with |r| ≤ ln(2)/2. Adding 1.5 · 2²³ rounds to an integer and leaves it in the low bits.
    const float magic = 12582912.0f;
    const Floats shifted = x * 1.44269504f + magic;
    const Floats n = shifted - magic;
    const Floats r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    // Taylor series of eʳ − 1; the first omitted term, r⁸/8!, is below 6e-9.
    Floats p = r * (1.0f / 5040) + (1.0f / 720);
    p = p * r + (1.0f / 120);
    p = p * r + (1.0f / 24);
    p = p * r + (1.0f / 6);
    p = p * r + 0.5f;
    rest = p * (r * r) + r;
    power = (Floats)(((Ints)shifted << 23) + 0x3f800000);
  }
};

// eˣ and eˣ − 1 for −87 ≤ x ≤ 88, accurate to about one unit in the last place; eˣ − 1 also near 0.
inline Floats exp_between(Floats x) {
  const Exponential e(x);
  return e.power * e.rest + e.power;
}

inline Floats expm1_between(Floats x) {
  const Exponential e(x);
  return e.power * e.rest + (e.power - 1.0f);
}

inline Floats clamp(Floats x, float bound) {
  x = x > bound ? Floats{} + bound : x;
  return x < -bound ? Floats{} - bound : x;
}

// NaN stays NaN in both.
inline Floats maximum(Floats x, Floats y) { return (x > y) | (x != x) ? x : y; }
inline Floats minimum(Floats x, Floats y) { return (x < y) | (x != x) ? x : y; }

inline Floats relu(Floats x) { return x < 0.0f ? Floats{} : x; }

// eˣ; 0 below −87.3 and infinite above 88.7.
inline Floats exp(Floats x) {
  // Above 87, the product of e⁸⁷ and another power: if it is too large, it becomes infinite.
  const Floats capped = x > 175.0f ? Floats{} + 175.0f : x;
  const Floats rest = capped > 87.0f ? capped - 87.0f : capped;
  const Floats power = exp_between(rest < -87.0f ? Floats{} - 87.0f : rest);
  const Floats result = capped > 87.0f ? power * 6.0760302e37f : power;
  return x < -87.3f ? Floats{} : result;
}

// The natural logarithm, accurate to about one unit in the last place; −∞ for 0 and NaN below.
inline Floats log(Floats x) {
  // x = 2ⁿ m with √½ ≤ m < √2; numbers below 2⁻¹²⁶ count as 0.
  const Ints bits = (Ints)x;
  const Ints above = (bits - 0x3f3504f3) >> 23;
  const Floats n = __builtin_convertvector(above, Floats);
  const Floats m = (Floats)(bits - (above << 23));
  // log m = 2 artanh(s) with s = (m − 1) / (m + 1); |s| < 0.172, and the first omitted term is below 1e-9.
  const Floats s = (m - 1.0f) / (m + 1.0f), q = s * s;
  Floats p = q * (1.0f / 9) + (1.0f / 7);
  p = p * q + (1.0f / 5);
  p = p * q + (1.0f / 3);
  const Floats tail = 2.0f * s * (q * p);
  const Floats result = n * 0.693359375f + (n * -2.12194440e-4f + tail + 2.0f * s);
  const Floats infinity = Floats{} + __builtin_inff();
  const Floats finite = x < 1.1754944e-38f ? -infinity : x >= infinity ? infinity : result;
  return (x < 0.0f) | (x != x) ? Floats{} + __builtin_nanf("") : finite;
}

// log(1 + eˣ) = max(x, 0) + log(1 + e^−|x|), accurate to about one unit in the last place.
inline Floats softplus(Floats x) {
  const Floats positive = x < 0.0f ? Floats{} : x;
  const Floats u = exp_between(clamp(x < 0.0f ? x : -x, 87.0f));
  // log(1 + u) = 2 artanh(s) with s = u / (2 + u) ≤ 1/3; the first omitted term of the series is below 1e-8.
  const Floats s = u / (2.0f + u), q = s * s;
  Floats p = q * (1.0f / 13) + (1.0f / 11);
  p = p * q + (1.0f / 9);
  p = p * q + (1.0f / 7);
  p = p * q + (1.0f / 5);
  p = p * q + (1.0f / 3);
  p = p * q + 1.0f;
  return positive + 2.0f * s * p;
}

inline Floats square_root(Floats x) {
  // By name: because of errno, compilers do not vectorize the loop.
#if defined(__AVX512F__) && !defined(CHARLM_WIDTH)
  return (Floats)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX__) && !defined(CHARLM_WIDTH)
  return (Floats)_mm256_sqrt_ps((__m256)x);
#elif defined(__aarch64__) && !defined(CHARLM_WIDTH)
  return (Floats)vsqrtq_f32((float32x4_t)x);
#else
  Floats roots;
  for (int i = 0; i < W; i++) roots[i] = __builtin_sqrtf(x[i]);
  return roots;
#endif
}

// 1 / (1 + e⁻ˣ)
inline Floats sigmoid(Floats x) { return 1.0f / (expm1_between(clamp(-x, 87.0f)) + 2.0f); }

// (e²ˣ − 1) / (e²ˣ + 1); for x > 10 it is 1 in single precision.
inline Floats tanh(Floats x) {
  Floats e = expm1_between(clamp(x, 10.0f) * 2.0f);
  return e / (e + 2.0f);
}
