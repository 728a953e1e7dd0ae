// Sums over the units of all members, for layer normalization.
#pragma once

#include <cmath>

#include "product.h"

// All-reduce of two floats per row. Each member puts the values of its own units; after a barrier every member combines
// the values of all, in the same order. Alternating two Partials (gates, c) needs no further barrier:
// the barrier of each separates the reads of the other from its next writes.
class Partials {
 public:
  // memory: shared by all members, [members, 2 · rows], `stride` floats from one member to the next; not owned.
  Partials(const Member& member, Index rows, Index H, float* memory, Index stride)
      : member(member), rows(rows), H(H), start(memory), stride(stride) {}

  void put(Index row, float x, float y) const {
    own()[row] = x;
    own()[rows + row] = y;
  }

  // Means over all units, if members put sums of two quantities. Both results: written [rows].
  void average(float* mean_x, float* mean_y) const {
    std::fill(mean_x, mean_x + rows, 0.0f);
    std::fill(mean_y, mean_y + rows, 0.0f);
    each([&](const float* x, const float* y, float) {
      for (Index r = 0; r < rows; r++) mean_x[r] += x[r], mean_y[r] += y[r];
    });
    for (Index r = 0; r < rows; r++) mean_x[r] /= H, mean_y[r] /= H;
  }

  // Mean and 1/√(variance + ε) over all units, if members put means and sums of squared deviations from them
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

  float* own() const { return start + member.id * stride; }

  // Call function(x, y, n) with the values of each member and its number of units n.
  template <class Function>
  void each(const Function& function) const {
    for (int id = 0; id < member.size; id++) {
      const Slice slice(Member{id, member.size, member.barrier}, H);
      const float* x = start + id * stride;
      if (slice.end > slice.first) function(x, x + rows, slice.end - slice.first);
    }
  }
};
