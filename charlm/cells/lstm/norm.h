// Layer normalization in the LSTM's backward pass: LN(a) = gain ⊙ x + shift with x = (a − mean(a)) / σ.
#pragma once

#include "../../native/partials.h"

constexpr Index GATES = 4, CELL = 4, KINDS = 5;  // five kinds of rows are normalized: i, f, g, o and the new c

// One member's part. `enter` takes the gradients of LN(a) of all its units; after a barrier and `average`, `through`
// gives the gradients of a.
class NormBack {
 public:
  // gains [5, H] or null: without normalization no function may be called. memory: see `partials` of Arguments.
  NormBack(const Member& member, const Slice& slice, Index B, const float* gains, float* memory, Scratch& scratch)
      : slice(slice), gains(gains), columns(slice.columns(1)),
        of_gates(member, GATES * B, slice.H, memory, 2 * KINDS * B),
        of_cell(member, B, slice.H, memory + 2 * GATES * B, 2 * KINDS * B),
        d_normals(scratch.get<float>(gains ? B * KINDS * columns : 0)),
        means(scratch.get<float>(gains ? 2 * GATES * B : 0)), products(means + (gains ? GATES * B : 0)),
        d_gains(scratch.get<float>(gains ? 2 * KINDS * columns : 0)),
        d_shifts(d_gains + (gains ? KINDS * columns : 0)) {}

  void begin_step() const { std::fill(d_gains, d_gains + 2 * KINDS * columns, 0.0f); }

  // The gradient of x of row b and kind k, for the units of the slice's i-th group.
  float* d_normal(Index b, Index k, Index i) const { return d_normals + (b * KINDS + k) * columns + i * W; }

  // d: gradient of LN(a); normal: x. Adds to the gradients of gain and shift, stores the gradient of x, and adds it to
  // the sums `total` of d and `product` of d ⊙ x.
  void enter(Index b, Index k, Index u, Index n, Index i, Floats d, Floats normal, Floats& total,
             Floats& product) const {
    const Index at = k * columns + i * W;
    store(d_gains + at, load(d_gains + at) + d * normal);
    store(d_shifts + at, load(d_shifts + at) + d);
    d *= load(gains + k * slice.H + u, n);
    store(d_normal(b, k, i), d);
    total += d;
    product += d * normal;
  }

  // The gradient of a: (d − mean(d) − x ⊙ mean(d ⊙ x)) / σ. d: gradient of x; row: b · GATES + k, or b for the cell;
  // scale: 1/σ.
  Floats through(Index row, Floats d, Floats normal, float scale) const {
    return (d - means[row] - normal * products[row]) * scale;
  }

  // This member's sums for one row, and the means over all units once every member has put its sums.
  void put_gate(Index b, Index k, Floats total, Floats product) const {
    of_gates.put(b * GATES + k, sum(total), sum(product));
  }
  void put_cell(Index b, Floats total, Floats product) const { of_cell.put(b, sum(total), sum(product)); }
  void average_gates() const { of_gates.average(means, products); }
  void average_cell() const { of_cell.average(means, products); }

  // Add the step's gradients to those of the window, [5, H] each.
  void end_step(float* window_gains, float* window_shifts) const {
    slice.each_group([&](Index u, Index n, Index i) {
      for (Index k = 0; k < KINDS; k++) {
        float *gain = window_gains + k * slice.H + u, *shift = window_shifts + k * slice.H + u;
        store(gain, load(gain, n) + load(d_gains + k * columns + i * W), n);
        store(shift, load(shift, n) + load(d_shifts + k * columns + i * W), n);
      }
    });
  }

 private:
  const Slice& slice;
  const float* gains;
  const Index columns;
  const Partials of_gates, of_cell;
  float* d_normals;            // [B, 5, columns]
  float *means, *products;     // [B, 4], or [B] for the cell: mean(d) and mean(d ⊙ x) over all units
  float *d_gains, *d_shifts;   // [5, columns], sums over one step; adding whole steps rounds less
};
