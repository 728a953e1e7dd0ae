// Draws any number of characters in one call, each from the logits that follow the previous one.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <vector>

#include "forward.h"

// B streams, L layers of H units with G stacked gates, V characters. Pointers are used only during the call. They
// overlap only where stated.
struct Generation {
  Index count, B, H, G, V, L, threads;
  Index bf16;                     // multiply in bfloat16; sums and states are float in any case
  Index residual;                 // whether layers above the first add their input to their output
  Index top_k;                    // draw among this many most likely characters; 0: all
  double temperature;             // 0: take the most likely
  double top_p;                   // draw among the most likely that together have this probability
  double min_p;                   // draw among those at least this share as likely as the most likely; 0: all
  const Arguments* const* layers; // [L]: with T = 1, inputs [1, B, G·H] (layer 0: the table [V, G·H]) and states
                                  // [S, 2, B, H]: both halves are the states before the call, and overwritten with
                                  // those after it
  const float* const* weights;    // [L]: input weights W [G·H, H]; the first is not read: layer 0 has a table
  const float* const* biases;     // [L]: [G·H], added to W y; the first is not read
  const float* output_weights;    // [V, H]
  const float* output_biases;     // [V]
  const double* draws;            // [count, B]: uniform random numbers in [0, 1)
  float* logits;                  // scratch [B, V]
  Index* ids;                     // [B], written: the same memory as `ids` of layer 0
  Index* drawn;                   // [count, B], written: −1 where a logit is not finite
};

// One character, drawn by inverting the cumulative probabilities in order of probability; −1 if a logit is not finite,
// because NaN has no place in an order. order, cumulated: scratch.
inline Index choose(const Generation& g, const float* logits, double draw, std::vector<Index>& order,
                    std::vector<double>& cumulated) {
  if (!std::all_of(logits, logits + g.V, [](float logit) { return std::isfinite(logit); })) return -1;
  if (g.temperature == 0) return std::max_element(logits, logits + g.V) - logits;
  order.resize(g.V);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](Index i, Index j) { return logits[i] > logits[j]; });
  if (g.top_k > 0 && g.top_k < g.V) order.resize(g.top_k);
  cumulated.clear();
  double sum = 0;
  Index likely = 0;  // characters that min-p keeps
  for (Index i : order) {
    const double ratio = std::exp((double(logits[i]) - logits[order[0]]) / g.temperature);
    cumulated.push_back(sum += ratio);
    likely += ratio >= g.min_p;
  }
  for (double& c : cumulated) c /= sum;
  // The characters that top-p and min-p keep come first, so scaling the draw by their total probability draws among
  // them.
  const auto most = cumulated.begin() + std::max<Index>(likely - 1, 0);
  const auto last = std::min(std::lower_bound(cumulated.begin(), cumulated.end(), g.top_p), most);
  return order[std::min(std::upper_bound(cumulated.begin(), cumulated.end(), draw * *last), last) - cumulated.begin()];
}

// Products of a vector per stream, y [B, K], with weights [G·rows, K] plus a bias, for one member's rows.
template <class Operand>
class Linear {
 public:
  // weights, bias: as for `pack_gates`; slice: of `rows`.
  Linear(Index B, Index G, Index K, const float* weights, const float* bias, const Slice& slice, Scratch& scratch)
      : B(B), G(G), K(K), bias(bias), slice(slice), packed(scratch.get<Operand>(packed_size<Operand>(slice, G, K))),
        sums(scratch.get<float>(B * slice.columns(G))), copy(scratch.get<Operand>(B * padded<Operand>(K))) {
    pack_gates(slice, G, K, weights, packed);
    std::fill(copy, copy + B * padded<Operand>(K), Operand{});
  }

  // y: read [B, K]; result: written [B, G·rows], this slice's rows only.
  void apply(const float* y, float* result) const {
    multiply(B, K, operand(y), packed, slice.panels(G), sums);
    for (Index b = 0; b < B; b++)
      slice.each_group([&](Index u, Index n, Index i) {
        for (Index k = 0; k < G; k++) {
          const Floats sum = load(sums + b * slice.columns(G) + (i * G + k) * W);
          store(result + (b * G + k) * slice.H + u, sum + load(bias + k * slice.H + u, n), n);
        }
      });
  }

 private:
  const Index B, G, K;
  const float* bias;
  const Slice slice;
  Operand* packed;
  float* sums;
  Operand* copy;  // of y, in bfloat16; every member makes its own, which is faster than another barrier

  const Operand* operand(const float* y) const {
    if constexpr (std::is_same_v<Operand, float>) {
      return y;
    } else {
      for (Index b = 0; b < B; b++)
        each_vector(0, K, [&](Index k, Index n) {
          store(copy + b * padded<Operand>(K) + k, load(y + b * K + k, n), n);
        });
      return copy;
    }
  }
};

// The input of a layer above the first and of the logits: the outputs of the layer below or, with residual connections,
// the sum of the outputs of all layers below. Every member computes the whole sum: that is faster than another barrier.
class Below {
 public:
  Below(const Generation& g, Scratch& scratch) : g(g), sum(scratch.get<float>(g.residual ? g.B * g.H : 0)) {}

  // Add the outputs [B, H] of a layer; called from the first layer to the last.
  void add(Index layer, const float* outputs) {
    read = outputs;
    if (!g.residual) return;
    for (Index i = 0; i < g.B * g.H; i++) sum[i] = layer == 0 ? outputs[i] : sum[i] + outputs[i];
    read = sum;
  }

  const float* read = nullptr;  // [B, H]

 private:
  const Generation& g;
  float* sum;
};

// C: the kind's cell.
template <class C, class Operand>
void generate(const Generation& g, const Member& member) {
  Scratch& scratch = fresh_scratch();
  std::deque<Forward<C, Operand>> layers;
  std::deque<Linear<Operand>> inputs;  // of the layers above the first
  const auto outputs = [&](Index layer) { return g.layers[layer]->state(0, 1, 0, 0); };
  for (Index l = 0; l < g.L; l++) {
    layers.emplace_back(*g.layers[l], member, scratch);
    if (l > 0) inputs.emplace_back(g.B, g.G, g.H, g.weights[l], g.biases[l], layers[l].slice, scratch);
  }
  const Linear<Operand> decoder(g.B, 1, g.H, g.output_weights, g.output_biases, Slice(member, g.V), scratch);
  std::vector<Index> order;
  std::vector<double> cumulated;
  Below below(g, scratch);
  for (Index l = 0; l < g.L; l++) below.add(l, outputs(l));

  for (Index n = 0; n < g.count; n++) {
    decoder.apply(below.read, g.logits);
    member.meet();
    for (Index b = member.begin(g.B); b < member.end(g.B); b++) {
      const Index id = choose(g, g.logits + b * g.V, g.draws[n * g.B + b], order, cumulated);
      g.drawn[n * g.B + b] = id;
      g.ids[b] = std::max<Index>(id, 0);
    }
    member.meet();
    for (Index l = 0; l < g.L; l++) {
      if (l > 0) inputs[l - 1].apply(below.read, const_cast<float*>(g.layers[l]->inputs));
      layers[l].step(0);
      below.add(l, outputs(l));
    }
    for (const auto& layer : layers) layer.carry();
  }
}
