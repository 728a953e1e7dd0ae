// Between the outputs of the last layer and the logits: dropout, and the penalties on activations and their changes.

#include <numeric>

#include "team.h"

struct Arguments {
  Index T, B, H, threads;
  Index mask_rows;          // T·B, or B: the same mask in all steps
  Index first;              // the first step whose logits are scored
  double activation;        // gradient of the objective by half a squared feature
  double change;            // by half a squared change of an output
  const float* outputs;     // read [T, B, H]
  const float* mask;        // read [mask_rows, H], or null
  float* features;          // written by output_features, read by output_gradient, [T, B, H]: outputs ⊙ mask
  float* squares;           // [2, T·B]: sums over the units of squared features, and of squared changes
  const float* nats;        // read [(T − first) · B]
  float* objective;         // written: the cross-entropy, and the penalties
  float* cross_entropy;     // written: Σ nats / B
  const float* d_objective; // read: the gradient of the objective
  const float* d_features;  // read [T − first, B, H]: the gradient through the logits
  float* d_outputs;         // written [T, B, H]
};

namespace {

// Call function(row) for this member's rows [T·B].
template <class Function>
void each_row(const Arguments& a, const Member& member, const Function& function) {
  for (Index row = member.begin(a.T * a.B); row < member.end(a.T * a.B); row++) function(row);
}

const float* mask_of(const Arguments& a, Index row) { return a.mask ? a.mask + row % a.mask_rows * a.H : nullptr; }

void features(const Arguments& a, const Member& member) {
  each_row(a, member, [&](Index row) {
    const float *y = a.outputs + row * a.H, *before = row < a.B ? y : y - a.B * a.H, *mask = mask_of(a, row);
    Floats squares = {}, changes = {};
    each_vector(0, a.H, [&](Index u, Index n) {
      const Floats output = load(y + u, n), change = output - load(before + u, n);
      const Floats feature = mask ? output * load(mask + u, n) : output;
      store(a.features + row * a.H + u, feature, n);
      squares += feature * feature;
      changes += change * change;
    });
    a.squares[row] = sum(squares);
    a.squares[a.T * a.B + row] = sum(changes);
  });
}

void gradient(const Arguments& a, const Member& member) {
  const float activation = a.activation * *a.d_objective, change = a.change * *a.d_objective;
  const Index step = a.B * a.H;
  each_row(a, member, [&](Index row) {
    const float *y = a.outputs + row * a.H, *mask = mask_of(a, row);
    const float* d = row < a.first * a.B ? nullptr : a.d_features + (row - a.first * a.B) * a.H;
    const bool is_first = row < a.B, is_last = row >= (a.T - 1) * a.B;
    each_vector(0, a.H, [&](Index u, Index n) {
      Floats d_feature = activation * load(a.features + row * a.H + u, n);
      if (d) d_feature += load(d + u, n);
      Floats d_output = mask ? d_feature * load(mask + u, n) : d_feature;
      if (change != 0) {
        const Floats output = load(y + u, n);
        if (!is_first) d_output += change * (output - load(y - step + u, n));
        if (!is_last) d_output += change * (output - load(y + step + u, n));
      }
      store(a.d_outputs + row * a.H + u, d_output, n);
    });
  });
}

double sum_of(const float* numbers, Index n) { return std::accumulate(numbers, numbers + n, 0.0); }

}  // namespace

extern "C" KERNEL void objective(const Arguments* a) {
  const Index rows = a->T * a->B;
  const double activations = sum_of(a->squares, rows), changes = sum_of(a->squares + rows, rows);
  const double cross_entropy = sum_of(a->nats, rows - a->first * a->B) / a->B;
  *a->cross_entropy = cross_entropy;
  *a->objective = cross_entropy + (a->activation * activations + a->change * changes) / 2;
}

extern "C" KERNEL void output_features(const Arguments* a) { run_team(*a, 2 * a->T * a->B * a->H, 1, features); }
extern "C" KERNEL void output_gradient(const Arguments* a) { run_team(*a, 2 * a->T * a->B * a->H, 1, gradient); }
