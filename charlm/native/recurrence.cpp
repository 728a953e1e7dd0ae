// The functions that native/recurrence.py and layers/generation.py call for a cell.
//
// A text that charlm/cells/cpp.py generates follows this file. It has a class `Cell…` for each variant of the cell's step,
// with the classes `Forward`, `Backward` and `Before`, whose function `step` computes a step; and
// with_cell(variant, function), which calls function(Cell…{}). This prints the text of a GRU:
//
//   python -c "from charlm.cells import GRU; from charlm.native.kernels import kernel_of; print(kernel_of(GRU()).text)"

#include "generate.h"

template <class C, class Operand>
void forward(const Arguments& a, const Member& member) {
  typename C::template Forward<Operand> layer(a, member, fresh_scratch());
  for (Index t = 0; t < a.T; t++) layer.step(t);
}

template <class C, class Operand>
void backward(const Arguments& a, const Member& member) {
  typename C::template Backward<Operand> layer(a, member, fresh_scratch());
  for (Index t = a.T - 1; t >= 0; t--) layer.step(t);
  layer.finish();
}

extern "C" KERNEL void recurrence_forward(const Arguments* a) {
  with_cell(a->variant, [a](auto cell) {
    using C = decltype(cell);
    run_team(*a, C::work(*a), a->T, a->bf16 ? forward<C, Bf16> : forward<C, float>);
  });
}

extern "C" KERNEL void recurrence_backward(const Arguments* a) {
  with_cell(a->variant, [a](auto cell) {
    using C = decltype(cell);
    run_team(*a, C::work(*a), a->T, a->bf16 ? backward<C, Bf16> : backward<C, float>);
  });
}

extern "C" KERNEL void recurrence_generate(const Generation* g) {
  with_cell(g->layers[0]->variant, [g](auto cell) {
    // As many threads as one character keeps busy. That is fewer than in training: if other programs use the cores too,
    // every barrier waits for the slowest thread.
    const Index work = decltype(cell)::work(*g->layers[0]) / 8;
    run_team(*g, work, g->count, g->bf16 ? generate<Bf16> : generate<float>);
  });
}
