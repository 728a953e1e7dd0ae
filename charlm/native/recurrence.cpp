// The functions that Python calls for a kind of cell, whose folder the compiler searches for gates.h.

#include "gates.h"

#include "backward.h"
#include "generate.h"

namespace {

// Call function(cell), where cell is the variant-th of the kind's Variants.
template <std::size_t I = 0, class Function>
void with_cell(Index variant, const Function& function) {
  if (variant == I) return function(std::tuple_element_t<I, Variants>{});
  if constexpr (I + 1 < std::tuple_size_v<Variants>) with_cell<I + 1>(variant, function);
}

// Multiplications between two barriers, over all threads.
template <class C>
Index work(const Arguments& a) { return a.B * GATES<C> * a.H * a.H; }

}  // namespace

KERNEL void recurrence_forward(const Arguments* a) {
  with_cell(a->variant, [a](auto cell) {
    using C = decltype(cell);
    run_team(*a, work<C>(*a), a->T * a->D, a->bf16 ? forward<C, Bf16> : forward<C, float>);
  });
}

KERNEL void recurrence_backward(const Arguments* a) {
  with_cell(a->variant, [a](auto cell) {
    using C = decltype(cell);
    run_team(*a, work<C>(*a), a->T * a->D, a->bf16 ? backward<C, Bf16> : backward<C, float>);
  });
}

KERNEL void recurrence_generate(const Generation* g) {
  with_cell(g->layers[0]->variant, [g](auto cell) {
    using C = decltype(cell);
    // As many threads as one character keeps busy. That is fewer than in training: if other programs use the cores too,
    // every barrier waits for the slowest thread.
    run_team(*g, g->B * g->G * g->H * g->H / 8, g->count, g->bf16 ? generate<C, Bf16> : generate<C, float>);
  });
}

KERNEL void recurrence_sizes(Arguments* a) {
  with_cell(a->variant, [a](auto cell) {
    a->saved_count = SAVED<decltype(cell)>;
    a->apart_count = decltype(cell)::APART;
  });
}
