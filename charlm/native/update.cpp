// What follows the backward pass of an update: the norm of all gradients, then Adam and the running average of the
// weights in one pass.

#include <cmath>
#include <numeric>

#include "team.h"

struct Arguments {
  Index tensors, threads;
  const Index* sizes;             // read [tensors]: elements of each tensor
  const float* const* gradients;  // read; null: it has none
  float* norm;                    // gradient_norm writes the L2 norm of all gradients
  float* const* weights;          // adam_step reads and writes these and all below; without a gradient only the average
  float* const* averages;         // running average of the weights; null: none
  float* const* means;            // running average of the gradient, m
  float* const* squares;          // running average of its square, v
  float* const* steps;            // [1] each: number of steps, counted here
  const double* rates;            // [2], read: the learning rate, and the decay of the weights' running average
  const float* gradient_scale;    // [1], read: gradients are divided by it; null: 1
  double beta1, beta2, eps;
  double decay;                   // weight decay
  Index decoupled;                // whether it shrinks the weights (AdamW) or is added to the gradient (Adam)
};

namespace {

// Elements of a tensor that one member treats at a time.
constexpr Index CHUNK = 4096;

Index count_chunks(const Arguments& a) {
  Index chunks = 0;
  for (Index t = 0; t < a.tensors; t++) chunks += (a.sizes[t] + CHUNK - 1) / CHUNK;
  return chunks;
}

Index count_elements(const Arguments& a) { return std::accumulate(a.sizes, a.sizes + a.tensors, Index{0}); }

// Call function(tensor, first, end, chunk) for this member's chunks: elements first … end − 1 of the tensor. The chunks
// are the same for every size of the team.
template <class Function>
void each_chunk(const Arguments& a, const Member& member, const Function& function) {
  const Index chunks = count_chunks(a), begin = member.begin(chunks), end = member.end(chunks);
  Index chunk = 0;
  for (Index t = 0; t < a.tensors; t++)
    for (Index first = 0; first < a.sizes[t]; first += CHUNK, chunk++)
      if (begin <= chunk && chunk < end) function(t, first, std::min(first + CHUNK, a.sizes[t]), chunk);
}

typedef float HalfFloats __attribute__((vector_size(2 * W)));
typedef double Doubles __attribute__((vector_size(4 * W)));

// Σ x² in double.
double sum_of_squares(const float* x, Index n) {
  constexpr int LANES = W / 2, VECTORS = 4;
  Doubles sums[VECTORS] = {};
  Index i = 0;
  for (; i + VECTORS * LANES <= n; i += VECTORS * LANES)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
      HalfFloats half;
      std::memcpy(&half, x + i + v * LANES, sizeof half);
      const Doubles values = __builtin_convertvector(half, Doubles);
      sums[v] += values * values;
    }
  double total = 0;
  for (const Doubles& sum : sums)
    for (int lane = 0; lane < LANES; lane++) total += sum[lane];
  for (; i < n; i++) total += static_cast<double>(x[i]) * x[i];
  return total;
}

struct Norm : Arguments {
  double* sums;  // [chunks]
};

void sum_squares(const Norm& a, const Member& member) {
  each_chunk(a, member, [&](Index t, Index first, Index end, Index chunk) {
    a.sums[chunk] = sum_of_squares(a.gradients[t] + first, end - first);
  });
}

// What a tensor's step depends on besides its elements.
struct Factors {
  float rate;  // of m / (√v + eps)
  float eps;
};

struct Step : Arguments {
  const Factors* factors;  // [tensors]
};

void take_steps(const Step& a, const Member& member) {
  const double lr = a.rates[0], average_decay = a.rates[1];
  const float scale = a.gradient_scale ? 1.0 / *a.gradient_scale : 1.0, beta2 = a.beta2, new_mean = 1 - a.beta1, new_square = 1 - a.beta2;
  const float penalty = a.decoupled ? 0 : a.decay, kept = a.decoupled ? 1 - lr * a.decay : 1;
  const float new_average = 1 - average_decay;
  each_chunk(a, member, [&](Index t, Index first, Index end, Index) {
    const float* gradient = a.gradients[t];
    float *weight = a.weights[t], *average = a.averages[t], *mean = a.means[t], *square = a.squares[t];
    const Factors factors = a.factors[t];
    each_vector(first, end, [&](Index i, Index n) {
      Floats w = load(weight + i, n);
      if (gradient) {
        const Floats g = load(gradient + i, n) * scale + w * penalty;
        Floats m = load(mean + i, n), v = load(square + i, n);
        m += (g - m) * new_mean;
        v = v * beta2 + g * g * new_square;
        w = w * kept - m * factors.rate / (square_root(v) + factors.eps);
        store(mean + i, m, n);
        store(square + i, v, n);
        store(weight + i, w, n);
      }
      if (average) {
        const Floats old = load(average + i, n);
        store(average + i, old + (w - old) * new_average, n);
      }
    });
  });
}

}  // namespace

// Each chunk's sum is rounded on its own, and the sums are added in order: the norm does not depend on the threads. It is
// infinite if its square is not a float, as then the squares that Adam averages are not.
extern "C" KERNEL void gradient_norm(const Arguments* a) {
  std::vector<double> sums(count_chunks(*a));
  run_team(Norm{*a, sums.data()}, count_elements(*a) / 4, 1, sum_squares);
  *a->norm = std::sqrt(static_cast<float>(std::accumulate(sums.begin(), sums.end(), 0.0)));
}

// Adam (Kingma & Ba 2014), or AdamW (Loshchilov & Hutter 2017), for the tensors that have a gradient. Then, for all:
// average ← average + (1 − decay) · (weight − average).
extern "C" KERNEL void adam_step(const Arguments* a) {
  std::vector<Factors> factors(a->tensors);
  for (Index t = 0; t < a->tensors; t++) {
    if (!a->gradients[t]) continue;
    const double step = *a->steps[t] += 1;
    // m / (1 − β₁ⁿ) / (√(v / (1 − β₂ⁿ)) + ε), with both corrections of the bias in the factors.
    const double correction = std::sqrt(1 - std::pow(a->beta2, step));
    factors[t] = {static_cast<float>(a->rates[0] * correction / (1 - std::pow(a->beta1, step))),
                  static_cast<float>(a->eps * correction)};
  }
  run_team(Step{*a, factors.data()}, 4 * count_elements(*a), 1, take_steps);
}
