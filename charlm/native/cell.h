// What a kind of cell defines in its gates.h: its equations for one vector of units. The loops, threads and memory
// around them are in forward.h and backward.h.
//
// The cell is a struct that inherits from `Cell` and has
//
//   Maps     a struct with a vector for the argument of each gate, W x + R h + biases, in the order of the weights' rows
//   State    a struct with a vector for each state tensor; the first is h: the output, and what R multiplies
//   Saved    a struct with a vector for each number that the backward pass needs besides the states
//   DIRECT   for each state: whether the cell reads its value before the step other than through R h
//
//   forward(maps, before, after, saved)
//       the equations: the state after the step and `saved`, from the arguments of the gates and the state before
//   backward(before, after, saved, d_after, d_maps, d_before)
//       their derivatives: d_maps from d_after; and d_before, where DIRECT, without what comes through R h
//
// gates.h ends with `Variants`, a std::tuple of such cells, which Arguments::variant chooses from.
#pragma once

#include <tuple>

#include "vector.h"

struct Cell {
  // How many of the last gates need W x + b and R h + b apart. Maps then ends with their R h + b.
  static constexpr Index APART = 0;
  // Whether a step may have several micro-steps. Such a cell has one state tensor.
  static constexpr bool DEEP = false;
  // Whether layer normalization applies to the argument of each gate and, where it enters h, to the second state. Such
  // a cell has its equations in two parts, before and after the second normalization:
  //   update(maps, before, after, saved)                     all states but h
  //   output(saved, second) → h                              second: the second state, normalized
  //   output_back(saved, second, d_h, d_last_map, d_second)  also sets the gradient of the last gate's argument
  //   update_back(before, saved, d_second, d_maps, d_before) sets those of the others
  static constexpr bool NORMALIZED = false;
};

// The number of vectors in a struct of vectors, and the k-th of them.
template <class Struct>
constexpr Index COUNT = sizeof(Struct) / sizeof(Floats);

template <class Struct>
inline Floats& at(Struct& vectors, Index k) {
  return reinterpret_cast<Floats*>(&vectors)[k];
}
template <class Struct>
inline const Floats& at(const Struct& vectors, Index k) {
  return reinterpret_cast<const Floats*>(&vectors)[k];
}

// A cell's number of gates, of state tensors, and of vectors saved for the backward pass.
template <class C>
constexpr Index GATES = COUNT<typename C::Maps> - C::APART;
template <class C>
constexpr Index STATES = COUNT<typename C::State>;
template <class C>
constexpr Index SAVED = COUNT<typename C::Saved>;
