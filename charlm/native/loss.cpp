// Cross-entropy of logits and its gradient, in one pass.

#include <cmath>

#include "product.h"

struct Arguments {
  Index N, V, threads;
  double scale;          // of the gradient
  const float* logits;   // read [N, V]
  const Index* targets;  // read [N]: from 0 to V − 1
  float* nats;           // written [N]: −ln softmax(logits)[target]
  float* d_logits;       // written [N, V]: scale · (softmax(logits) − one-hot(target)); null without a backward pass
};

namespace {

void score(const Arguments& a, const Member& member) {
  const float scale = a.scale;
  float* powers = fresh_scratch().get<float>(a.V + W);
  for (Index i = member.begin(a.N); i < member.end(a.N); i++) {
    const float* logits = a.logits + i * a.V;
    const float largest = *std::max_element(logits, logits + a.V);
    Floats sums = {};
    each_vector(0, a.V, [&](Index v, Index n) {
      const Floats power = first_lanes(exp_between(clamp(load(logits + v, n) - largest, 87.0f)), n);
      store(powers + v, power);
      sums += power;
    });
    const float total = sum(sums);
    a.nats[i] = std::log(total) + (largest - logits[a.targets[i]]);
    if (!a.d_logits) continue;
    float* d_logits = a.d_logits + i * a.V;
    each_vector(0, a.V, [&](Index v, Index n) { store(d_logits + v, load(powers + v) * (scale / total), n); });
    d_logits[a.targets[i]] -= scale;
  }
}

}  // namespace

extern "C" KERNEL void cross_entropy(const Arguments* a) {
  // An exponential takes about as long as 16 multiplications in a matrix product.
  run_team(*a, 16 * a->N * a->V, 1, score);
}
