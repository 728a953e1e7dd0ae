// The gradient of a table of which rows were looked up.

#include "product.h"

struct Arguments {
  Index N, V, columns, threads;
  const Index* ids;     // [N]: the rows of the table that were taken
  const float* d_rows;  // [N, columns]: gradient of what was taken
  float* d_table;       // [V, columns], written: for every row of the table, the sum over its uses
};

namespace {

// Each member adds up columns of its own, in double: a character may occur thousands of times in a window, and the
// error of so long a sum in single precision would show.
void add_up(const Arguments& a, const Member& member) {
  const Slice slice(member, a.columns);
  const Index width = slice.end - slice.first;
  double* sums = fresh_scratch().get<double>(a.V * width);
  std::fill(sums, sums + a.V * width, 0.0);
  for (Index n = 0; n < a.N; n++) {
    const float* d_row = a.d_rows + n * a.columns + slice.first;
    double* sum = sums + a.ids[n] * width;
    for (Index i = 0; i < width; i++) sum[i] += d_row[i];
  }
  for (Index v = 0; v < a.V; v++)
    std::copy(sums + v * width, sums + (v + 1) * width, a.d_table + v * a.columns + slice.first);
}

}  // namespace

KERNEL void lookup_gradient(const Arguments* a) {
  run_team(*a, (a->N + a->V) * a->columns, add_up);
}
