// The gradient of a table whose rows were looked up.

#include "product.h"

struct Arguments {
  Index N, V, columns, threads;
  const Index* ids;     // read [N]: the row of each lookup
  const float* d_rows;  // read [N, columns]: gradient of each looked-up row
  float* d_table;       // written [V, columns]: for each row of the table, the sum over its lookups; overlaps no other
};

namespace {

// Columns summed at a time, so that the sums of all rows stay in the caches.
constexpr Index BLOCK = 64;

// Each member sums its own columns, in double: a character may occur thousands of times in a window, and the rounding
// error of such a long sum would be visible in single precision.
void add_up(const Arguments& a, const Member& member) {
  const Slice slice(member, a.columns);
  double* sums = fresh_scratch().get<double>(a.V * BLOCK);
  for (Index first = slice.first; first < slice.end; first += BLOCK) {
    const Index width = std::min(BLOCK, slice.end - first);
    std::fill(sums, sums + a.V * BLOCK, 0.0);
    for (Index n = 0; n < a.N; n++) {
      const float* d_row = a.d_rows + n * a.columns + first;
      double* sum = sums + a.ids[n] * BLOCK;
      for (Index i = 0; i < width; i++) sum[i] += d_row[i];
    }
    for (Index v = 0; v < a.V; v++)
      std::copy(sums + v * BLOCK, sums + v * BLOCK + width, a.d_table + v * a.columns + first);
  }
}

}  // namespace

extern "C" KERNEL void lookup_gradient(const Arguments* a) {
  run_team(*a, (a->N + a->V) * a->columns, 1, add_up);
}
