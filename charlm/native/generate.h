// Characters drawn one after another from a stack of layers: any number of them in one call.
#pragma once

#include <cmath>
#include <deque>
#include <numeric>
#include <vector>

#include "recurrence.h"

// Of B streams, L layers of H units with G stacked gates, and V characters.
struct Generation {
  Index count, B, H, G, V, L, threads;
  Index residual;                 // whether a layer's input is added to its output, above the first
  Index top_k;                    // draw among so many of the likeliest; 0: all
  double temperature;             // 0: take the likeliest
  double top_p;                   // draw among the likeliest that together have this probability
  const void* const* layers;      // [L]: the kind's Arguments, T = 1, inputs [1, B, G·H], outputs and other states
                                  // [2, B, H]; the states to start from, and those it ends with, in the second half
  const float* const* weights;    // [L]: W [G·H, H] of a layer's input; the first is not used: layer 0 has a table
  const float* const* biases;     // [L]: [G·H], what is added to W y; the first is not used
  const float* output_weights;    // [V, H]
  const float* output_biases;     // [V]
  const double* draws;            // [count, B]: uniform in [0, 1)
  float* logits;                  // scratch [B, V]
  Index* ids;                     // [B]: the `ids` of layer 0, written
  Index* drawn;                   // [count, B], written
};

// The character at which the cumulated probabilities, likeliest first, pass a draw.
inline Index choose(const Generation& g, const float* logits, double draw, std::vector<Index>& order,
                    std::vector<double>& cumulated) {
  if (g.temperature == 0) return std::max_element(logits, logits + g.V) - logits;
  order.resize(g.V);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](Index i, Index j) { return logits[i] > logits[j]; });
  if (g.top_k > 0 && g.top_k < g.V) order.resize(g.top_k);
  cumulated.clear();
  double sum = 0;
  for (Index i : order) cumulated.push_back(sum += std::exp((double(logits[i]) - logits[order[0]]) / g.temperature));
  for (double& c : cumulated) c /= sum;
  // Those that top-p keeps come first: to draw among them is to scale the draw down to their mass.
  const auto last = std::min(std::lower_bound(cumulated.begin(), cumulated.end(), g.top_p), cumulated.end() - 1);
  return order[std::min(std::upper_bound(cumulated.begin(), cumulated.end(), draw * *last), last) - cumulated.begin()];
}

// The input maps of a layer above the first: W y + bias for a member's units.
class InputMaps {
 public:
  InputMaps(const Generation& g, Index layer, const Slice& slice, Scratch& scratch)
      : g(g), bias(g.biases[layer]), slice(slice),
        packed(scratch.get<float>(packed_size<float>(slice, g.G, g.H))),
        sums(scratch.get<float>(g.B * slice.columns(g.G))) {
    pack_gates(slice, g.G, g.H, g.weights[layer], packed);
  }

  // y [B, H] → maps [B, G·H], this slice's units.
  void map(const float* y, float* maps) const {
    multiply(g.B, g.H, y, packed, slice.panels(g.G), sums);
    for (Index b = 0; b < g.B; b++)
      slice.each_group([&](Index u, Index n, Index i) {
        for (Index k = 0; k < g.G; k++) {
          const Floats sum = load(sums + b * slice.columns(g.G) + (i * g.G + k) * W);
          store(maps + (b * g.G + k) * g.H + u, sum + load(bias + k * g.H + u, n), n);
        }
      });
  }

 private:
  const Generation& g;
  const float* bias;
  const Slice slice;
  float* packed;
  float* sums;
};

// What a layer above the first reads, and the logits: the outputs of the layer below or, with residual connections, the
// sum of those of all below. Every member adds them all up for itself, which takes less time than to meet once more.
class Below {
 public:
  Below(const Generation& g, Scratch& scratch) : g(g), sum(scratch.get<float>(g.residual ? g.B * g.H : 0)) {}

  // With the outputs [B, H] of the next layer, from the first on.
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

// Layer: a kind's Forward<float, …>; `step` makes the second half of its Arguments' `outputs` of the first, `carry`
// makes that the first again.
template <class Layer, class Arguments>
void generate(const Generation& g, const Member& member) {
  Scratch& scratch = fresh_scratch();
  std::deque<Layer> layers;
  std::deque<InputMaps> maps;
  const auto arguments = [&](Index layer) { return static_cast<const Arguments*>(g.layers[layer]); };
  const auto outputs = [&](Index layer) { return arguments(layer)->outputs + g.B * g.H; };
  for (Index l = 0; l < g.L; l++) {
    layers.emplace_back(*arguments(l), member, scratch);
    if (l > 0) maps.emplace_back(g, l, layers[l].slice, scratch);
  }
  const Slice characters(member, g.V);
  const Index panels = characters.panels(1);
  float* packed = scratch.get<float>(packed_size<float>(characters, 1, g.H));
  float* sums = scratch.get<float>(g.B * characters.columns(1));
  pack_gates(characters, 1, g.H, g.output_weights, packed);
  std::vector<Index> order;
  std::vector<double> cumulated;
  Below below(g, scratch);
  for (Index l = 0; l < g.L; l++) below.add(l, outputs(l));

  for (Index n = 0; n < g.count; n++) {
    multiply(g.B, g.H, below.read, packed, panels, sums);
    for (Index b = 0; b < g.B; b++)
      characters.each_group([&](Index v, Index width, Index i) {
        const Floats sum = load(sums + b * characters.columns(1) + i * W);
        store(g.logits + b * g.V + v, sum + load(g.output_biases + v, width), width);
      });
    member.meet();
    for (Index b = member.begin(g.B); b < member.end(g.B); b++)
      g.ids[b] = g.drawn[n * g.B + b] = choose(g, g.logits + b * g.V, g.draws[n * g.B + b], order, cumulated);
    for (Layer& layer : layers) layer.carry();
    member.meet();
    for (Index l = 0; l < g.L; l++) {
      if (l > 0) maps[l - 1].map(below.read, const_cast<float*>(arguments(l)->inputs));
      layers[l].step(0);
      below.add(l, outputs(l));
    }
  }
}

// `generate` with as many threads as one character keeps busy. Fewer than in training: where other programs want the
// cores too, a character waits for the slowest thread at every meeting.
template <class Layer, class Arguments>
void run_generate(const Generation& g) {
  run_team(g, g.B * g.G * g.H * g.H / 8, generate<Layer, Arguments>);
}
