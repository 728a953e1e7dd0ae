// The gradient of a table of which rows were looked up.

#include "product.h"

struct Arguments {
  Index N, V, columns, threads;
  const Index* ids;     // [N]: the rows of the table that were taken
  const float* d_rows;  // [N, columns]: gradient of what was taken
  float* d_table;       // [V, columns], written: for every row of the table, the sum over its uses
};

namespace {

// Columns that are added up at once: the sums of all rows of the table stay in the caches.
constexpr Index BLOCK = 64;

// Each member adds up columns of its own, in double: a character may occur thousands of times in a window, and the
// error of so long a sum in single precision would show.
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

KERNEL void lookup_gradient(const Arguments* a) {
  run_team(*a, (a->N + a->V) * a->columns, add_up);
}
