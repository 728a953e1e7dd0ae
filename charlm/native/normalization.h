// Layer normalization over the units of all members: LN(a) = gain ⊙ x + shift with x = (a − mean(a)) / σ. It applies to
// each of the G gates and to the second state, the row G of gains and shifts.
#pragma once

#include <cmath>

#include "recurrence.h"

// All-reduce of two floats per row. Each member puts the values of each part of its units; after a barrier every member
// combines the values of all parts, in the same order. Alternating two Partials (gates, second state) needs no further
// barrier: the barrier of each separates the reads of the other from its next writes.
class Partials {
 public:
  // memory: shared by all members, [parts, 2 · rows], `stride` floats from one part to the next; not owned.
  Partials(const Member& member, Index rows, Index H, float* memory, Index stride)
      : member(member), rows(rows), H(H), start(memory), stride(stride) {}

  // part: of all members.
  void put(Index part, Index row, float x, float y) const {
    float* own = start + part * stride;
    own[row] = x;
    own[rows + row] = y;
  }

  // Means over all units, if sums of two quantities were put. Both results: written [rows].
  void average(float* mean_x, float* mean_y) const {
    std::fill(mean_x, mean_x + rows, 0.0f);
    std::fill(mean_y, mean_y + rows, 0.0f);
    each([&](const float* x, const float* y, float) {
      for (Index r = 0; r < rows; r++) mean_x[r] += x[r], mean_y[r] += y[r];
    });
    for (Index r = 0; r < rows; r++) mean_x[r] /= H, mean_y[r] /= H;
  }

  // Mean and 1/√(variance + ε) over all units, if means and sums of squared deviations from them were put
  // (Chan et al. 1979). Unlike E[a²] − E[a]², this stays accurate if the mean is large. Both results: written [rows].
  void merge(float* mean, float* scale, float epsilon) const {
    std::fill(mean, mean + rows, 0.0f);
    std::fill(scale, scale + rows, 0.0f);
    each([&](const float* means, const float*, float n) {
      for (Index r = 0; r < rows; r++) mean[r] += n * means[r];
    });
    for (Index r = 0; r < rows; r++) mean[r] /= H;
    each([&](const float* means, const float* squares, float n) {
      for (Index r = 0; r < rows; r++) scale[r] += squares[r] + n * (means[r] - mean[r]) * (means[r] - mean[r]);
    });
    for (Index r = 0; r < rows; r++) scale[r] = 1.0f / std::sqrt(scale[r] / H + epsilon);
  }

 private:
  const Member& member;
  Index rows, H;
  float* start;
  Index stride;

  // Call function(x, y, n) with the values of each part and its number of units n.
  template <class Function>
  void each(const Function& function) const {
    const int parts = member.size * member.parts;
    for (int p = 0; p < parts; p++) {
      const Slice part(H, p, parts);
      const float* x = start + p * stride;
      if (part.end > part.first) function(x, x + rows, part.end - part.first);
    }
  }
};

// What both passes need: the two all-reduces and their results, [B, G] each, or [B] for the second state.
template <Index G>
struct Norm {
  Norm(const Arguments& a, const Member& member, const Slice& slice, Scratch& scratch)
      : a(a), member(member), slice(slice), of_gates(member, G * a.B, a.H, a.partials, 2 * (G + 1) * a.B),
        of_second(member, a.B, a.H, a.partials + 2 * G * a.B, 2 * (G + 1) * a.B),
        first(scratch.get<float>(2 * G * a.B)), other(first + G * a.B) {}

  const Arguments& a;
  const Member& member;
  const Slice& slice;
  const Partials of_gates, of_second;
  float *first, *other;  // forward: mean and 1/σ; backward: mean(d) and mean(d ⊙ x)

  // Call function(part, units) for each part of this member's units; part: its index among those of all members.
  template <class Function>
  void each_part(const Function& function) const {
    for (int p = 0; p < member.parts; p++) {
      const int part = member.id * member.parts + p;
      function(part, Slice(a.H, part, member.size * member.parts));
    }
  }

  Floats gain(Index k, Index u, Index n) const { return load(a.gains + k * a.H + u, n); }
  Floats shift(Index k, Index u, Index n) const { return load(a.shifts + k * a.H + u, n); }
  float* normals(Index t, Index b, Index u) const { return a.group_of(a.normal, 0, t, b, u, G); }
  float* moments(Index t, Index b) const { return a.moments + a.saved_row(0, t, b) * (G + 2); }
};

// In place of the following for cells without normalization.
struct NoNorm {
  NoNorm(const Arguments&, const Member&, const Slice&, Scratch&) {}
};

template <Index G>
struct NormForward : Norm<G> {
  using Norm<G>::a, Norm<G>::slice, Norm<G>::first, Norm<G>::other;
  using Norm<G>::Norm;

  // Put the mean and the squared deviations of a part of row b's units: N rows of `values`, [groups, N, W], with sums
  // `totals`.
  template <Index N>
  void put(const Partials& partials, int part, const Slice& units, Index b, const Floats (&totals)[N],
           const float* values) const {
    float means[N];
    Floats squares[N] = {};
    for (Index k = 0; k < N; k++) means[k] = sum(totals[k]) / (units.end - units.first);
    slice.each_group_of(units, [&](Index, Index n, Index i) {
      for (Index k = 0; k < N; k++) {
        const Floats deviation = first_lanes(load(values + (i * N + k) * W) - means[k], n);
        squares[k] += deviation * deviation;
      }
    });
    for (Index k = 0; k < N; k++) partials.put(part, b * N + k, means[k], sum(squares[k]));
  }

  // LN of gate k, whose argument is a. Keeps the normalized value for the backward pass.
  Floats gate(Index t, Index b, Index k, Index u, Index n, Floats a_k) const {
    const Floats x = (a_k - first[b * G + k]) * other[b * G + k];
    store(this->normals(t, b, u) + k * W, x);
    return x * this->gain(k, u, n) + this->shift(k, u, n);
  }

  Floats second(Index b, Index u, Index n, Floats x) const {
    return (x - first[b]) * other[b] * this->gain(G, u, n) + this->shift(G, u, n);
  }

  // Keep the moments for the backward pass; one member calls this.
  void keep_gates(Index t, Index b) const { std::copy_n(other + b * G, G, this->moments(t, b)); }
  void keep_second(Index t, Index b) const {
    this->moments(t, b)[G] = other[b];
    this->moments(t, b)[G + 1] = first[b];
  }
};

// `enter` takes the gradients of LN(a) of all units of a member; after a barrier and an average, `through` gives the
// gradients of a.
template <Index G>
struct NormBackward : Norm<G> {
  using Norm<G>::a, Norm<G>::slice, Norm<G>::first, Norm<G>::other;

  NormBackward(const Arguments& a, const Member& member, const Slice& slice, Scratch& scratch)
      : Norm<G>(a, member, slice, scratch), columns(slice.columns(1)),
        d_normals(scratch.get<float>(a.B * (G + 1) * columns)), d_gains(scratch.get<float>(2 * (G + 1) * columns)),
        d_shifts(d_gains + (G + 1) * columns) {}

  void begin_step() const { std::fill(d_gains, d_gains + 2 * (G + 1) * columns, 0.0f); }

  // The gradient of x of row b and gate k (G: the second state), for the units of the slice's i-th group.
  float* d_normal(Index b, Index k, Index i) const { return d_normals + (b * (G + 1) + k) * columns + i * W; }

  // x of the second state, whose value is `second`.
  Floats normal_second(Index t, Index b, Floats second) const {
    return (second - this->moments(t, b)[G + 1]) * this->moments(t, b)[G];
  }

  // d: gradient of LN(a). Adds to the gradients of gain and shift, stores the gradient of x, and adds it to the sums
  // `total` of d and `product` of d ⊙ x.
  void enter(Index b, Index k, Index u, Index n, Index i, Floats d, Floats x, Floats& total, Floats& product) const {
    const Index at = k * columns + i * W;
    store(d_gains + at, load(d_gains + at) + d * x);
    store(d_shifts + at, load(d_shifts + at) + d);
    d *= this->gain(k, u, n);
    store(d_normal(b, k, i), d);
    total += d;
    product += d * x;
  }

  // The gradient of a: (d − mean(d) − x ⊙ mean(d ⊙ x)) / σ. d: gradient of x; row: b · G + k, or b for the second state;
  // scale: 1/σ.
  Floats through(Index row, Floats d, Floats x, float scale) const { return (d - first[row] - x * other[row]) * scale; }

  // Add the step's gradients to those of the window: adding whole steps rounds less.
  void end_step() const {
    slice.each_group([&](Index u, Index n, Index i) {
      for (Index k = 0; k <= G; k++) {
        float *gain = a.d_gains + k * a.H + u, *shift = a.d_shifts + k * a.H + u;
        store(gain, load(gain, n) + load(d_gains + k * columns + i * W), n);
        store(shift, load(shift, n) + load(d_shifts + k * columns + i * W), n);
      }
    });
  }

 private:
  const Index columns;
  float* d_normals;           // [B, G + 1, columns]
  float *d_gains, *d_shifts;  // [G + 1, columns], sums over one step
};
