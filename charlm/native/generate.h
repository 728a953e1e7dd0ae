// Draws any number of characters in one call, each from the logits that follow the previous one.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "recurrence.h"

// B streams, M networks that predict together, each of L layers of H units, V characters. Pointers are used only during
// the call, and overlap only where stated.
struct Generation {
  Index count, B, M, H, V, L, threads;
  Index bf16;                     // multiply in bfloat16; sums and states are float in any case
  Index residual;                 // whether layers above the first add their input to their output
  Index top_k;                    // draw among this many most likely characters; 0: all
  double temperature;             // 0: take the most likely
  double top_p;                   // draw among the most likely that together have this probability
  const Arguments* const* layers; // [M, L]: with T = 1, and states [S, 2, B, H]: both halves are the states before the
                                  // call, and overwritten with those after it. The windows of layer 0 are tables of V
                                  // rows, those of the others scratch [1, B, n]
  const float* const* weights;    // [M]: [V, H], of the logits
  const float* const* biases;     // [M]: [V], of the logits
  const double* draws;            // [count, B]: uniform random numbers in [0, 1)
  float* logits;                  // scratch [M, B, V]
  Index* ids;                     // [B], written: the same memory as `ids` of every layer 0
  Index* drawn;                   // [count, B], written: −1 where a logit is not finite
};

// Replace the first network's logits of stream b by the logarithms of the networks' mean probabilities.
inline void mix(const Generation& g, Index b) {
  if (g.M == 1) return;
  const auto row = [&](Index m) { return g.logits + (m * g.B + b) * g.V; };
  for (Index m = 0; m < g.M; m++) {
    float* const logits = row(m);
    const float largest = *std::max_element(logits, logits + g.V);
    double sum = 0;
    for (Index v = 0; v < g.V; v++) sum += std::exp(logits[v] - largest);
    const float log_sum = std::log(sum);
    for (Index v = 0; v < g.V; v++) logits[v] = logits[v] - largest - log_sum;
  }
  for (Index v = 0; v < g.V; v++) {
    // Relative to the largest: small probabilities would underflow.
    float largest = row(0)[v], sum = 0;
    for (Index m = 1; m < g.M; m++) largest = std::max(largest, row(m)[v]);
    for (Index m = 0; m < g.M; m++) sum += std::exp(row(m)[v] - largest);
    row(0)[v] = largest + std::log(sum / g.M);
  }
}

// One character, drawn by inverting the cumulative probabilities in order of probability; −1 if a logit is not finite,
// because NaN cannot be ordered. order, cumulated: scratch.
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
  for (Index i : order) {
    sum += std::exp((double(logits[i]) - logits[order[0]]) / g.temperature);
    cumulated.push_back(sum);
  }
  for (double& c : cumulated) c /= sum;
  // The characters that top-p keeps come first, so scaling the draw by their total probability draws among them. The
  // last sum is exactly 1.
  const auto last = std::lower_bound(cumulated.begin(), cumulated.end(), g.top_p);
  return order[std::min(std::upper_bound(cumulated.begin(), cumulated.end(), draw * *last), last) - cumulated.begin()];
}

// A network's logits of this member's characters: rows of weights [V, H] times a vector per stream, plus a bias.
template <class Operand>
class Decoder {
 public:
  Decoder(const Generation& g, Index m, const Member& member, Scratch& scratch)
      : g(g), biases(g.biases[m]), logits(g.logits + m * g.B * g.V), slice(member, g.V), copy(g.B, g.H, scratch),
        product(Product<Operand>::forward(g.B, g.H, slice, 1, g.weights[m], scratch)) {}

  // y: read [B, H].
  void apply(const float* y) {
    product.multiply(copy.take(y));
    for (Index b = 0; b < g.B; b++)
      slice.each_group([&](Index v, Index n, Index i) {
        store(logits + b * g.V + v, load(product.row(b) + i * W) + load(biases + v, n), n);
      });
  }

 private:
  const Generation& g;
  const float* biases;  // [V]
  float* logits;        // [B, V]
  const Slice slice;
  OwnCopy<Operand> copy;
  const Product<Operand> product;
};

// A layer of any cell, one step at a time.
class Layer {
 public:
  explicit Layer(const Arguments& a) : a(a) {}
  virtual ~Layer() = default;
  // Compute the part before the loop from the layer's input [B, I]; layer 0 reads a table instead.
  virtual void read(const float* x) = 0;
  virtual void step() = 0;
  // Copy this member's units of the states after the step over those before it.
  virtual void carry() const = 0;
  const float* output() const { return a.state(0, 1, 0); }

 protected:
  const Arguments& a;
};

template <class C, class Operand>
class LayerOf : public Layer {
 public:
  LayerOf(const Arguments& a, bool has_table, const Member& member, Scratch& scratch)
      : Layer(a), forward(a, member, scratch) {
    if (!has_table) before = std::make_unique<Before>(a, member, scratch);
  }
  void read(const float* x) override { before->step(x); }
  void step() override { forward.step(0); }
  void carry() const override {
    const Slice& slice = forward.slice_H;
    for (Index s = 0; s < C::STATES; s++)
      for (Index b = 0; b < a.B; b++)
        std::copy(a.state(s, 1, b) + slice.first, a.state(s, 1, b) + slice.end, a.state(s, 0, b) + slice.first);
  }

 private:
  using Before = typename C::template Before<Operand>;
  typename C::template Forward<Operand> forward;
  std::unique_ptr<Before> before;
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

// Generated: see recurrence.cpp.
template <class Function>
void with_cell(Index variant, const Function& function);

// One of the networks, one step at a time.
template <class Operand>
class Network {
 public:
  Network(const Generation& g, Index m, const Member& member, Scratch& scratch)
      : decoder(g, m, member, scratch), below(g, scratch) {
    for (Index l = 0; l < g.L; l++) {
      const Arguments& a = *g.layers[m * g.L + l];
      with_cell(a.variant, [&](auto cell) {
        layers.push_back(std::make_unique<LayerOf<decltype(cell), Operand>>(a, l == 0, member, scratch));
      });
      add(l);
    }
  }

  void decode() { decoder.apply(below.read); }
  void step(Index l) {
    if (l > 0) layers[l]->read(below.read);
    layers[l]->step();
  }
  // Call it after the barrier that follows the step.
  void add(Index l) { below.add(l, layers[l]->output()); }
  void carry() const {
    for (const auto& layer : layers) layer->carry();
  }

 private:
  Decoder<Operand> decoder;
  Below below;
  std::vector<std::unique_ptr<Layer>> layers;
};

template <class Operand>
void generate(const Generation& g, const Member& member) {
  Scratch& scratch = fresh_scratch();
  std::vector<Network<Operand>> networks;
  for (Index m = 0; m < g.M; m++) networks.emplace_back(g, m, member, scratch);
  std::vector<Index> order;
  std::vector<double> cumulated;

  for (Index n = 0; n < g.count; n++) {
    for (auto& network : networks) network.decode();
    member.meet();
    for (Index b = member.begin(g.B); b < member.end(g.B); b++) {
      mix(g, b);
      const Index id = choose(g, g.logits + b * g.V, g.draws[n * g.B + b], order, cumulated);
      g.drawn[n * g.B + b] = id;
      g.ids[b] = std::max<Index>(id, 0);
    }
    member.meet();
    for (Index l = 0; l < g.L; l++) {
      for (auto& network : networks) network.step(l);
      member.meet();
      for (auto& network : networks) network.add(l);
    }
    for (const auto& network : networks) network.carry();
  }
}
