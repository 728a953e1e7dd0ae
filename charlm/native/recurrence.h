// What the generated passes of a cell use: arguments, products, normalization, gradients of states.
//
// Each member of the team computes a slice of the units. Between two barriers a stage multiplies whole operands by the
// slice's columns of the matrices, which are packed once per call, and then computes unit by unit.
#pragma once

#include <cmath>

#include "product.h"

// S states, P products, M windows, V vectors, N normalizations. Pointers do not overlap unless stated, and are used only
// during the call. Fields marked "written" are outputs, all others are inputs. A table holds one pointer for each item,
// in the order of charlm/cells/passes.py. The rows of a product are gates · units. charlm/cells/window.py has the same
// fields by the same names, and recurrence.py fills them in.
struct Arguments {
  Index T, B, H, I, threads;
  Index variant;               // which cell of the library
  Index bf16;                  // multiply in bfloat16; sums and states are always float
  Index saved_steps;           // T; 1 without a backward pass: every step then overwrites `saved` and `moments`, and
                               // alternates between two places in `operands`
  const float* const* weights; // [P]: [rows, columns]; then those of the products before the loop
  const float* const* windows; // [M]: [T, B, n]; with ids [R, n]
  const Index* ids;            // [T, B]: which row of the windows each step reads; or null
  const float* const* vectors; // [V]: [n]; then those of the part before the loop
  const float* const* givens;  // what a call gives besides: [T or 1, B or 1, n], see charlm/cells/state_options.py
  const Index* given_strides;  // for each of them how many floats after a step's the next step's begin, and a stream's
  float* states;               // [S, 1 + T, B, H]: before the first step, set by the caller; then before each later
                               // step and after the last, written
  float* const* saved;         // for each size: [steps, B, groups of W units, count, W], written
  float* const* operands;      // operands that are not states: [steps or 2, B, size], written
  float* moments;              // [steps, B, N, 2], written: 1/σ and mean
  float* const* copies;        // for each operand (backward pass: each product): scratch of zeros, [2, B, padded], for
                               // copies of the rows that products read
  float* const* partials;      // for each size: scratch [2, threads, N, 2, B]: sums that members exchange
  const float* x;              // [B, I]: the input of a single step, for the part before the loop
  const float* d_outputs;      // [T, B, H]: gradient of the outputs
  const float* d_last;         // [S, B, H]: gradient of the states after the last step, without the outputs' share, or null
  float* const* d_products;    // [P]: [T, B, rows], written: gradient of the products
  float* const* d_windows;     // [M]: [T, B, n], written; shares memory with d_products where both are equal
  float* const* d_vectors;     // [V]: [n], added to; or null
  float* d_first;              // [S, B, H], written: gradient of the states before the first step

  // Row b of state s before step t.
  float* state(Index s, Index t, Index b) const { return states + ((s * (1 + T) + t) * B + b) * H; }
  const float* given(Index k, Index t, Index b) const {
    return givens[k] + t * given_strides[2 * k] + b * given_strides[2 * k + 1];
  }
  Index saved_step(Index t) const { return saved_steps > 1 ? t : 0; }
  Index saved_row(Index t, Index b) const { return saved_step(t) * B + b; }
  Index input_row(Index t, Index b) const { return ids ? ids[t * B + b] : t * B + b; }
};

// Copies of a product's operand, for a product that cannot read the rows themselves, because it is in bfloat16.
// Double-buffered: the copy for the next product is written while other members still read the current one.
template <class Operand>
class Copies {
 public:
  // K: elements of a row. buffer: scratch of zeros [2, B, padded(K)], shared by all members.
  // always: copy even if the rows themselves could be read.
  Copies(Index B, Index K, float* buffer, bool always = false)
      : copies_(always || std::is_same_v<Operand, Bf16>), B_(B), K_(K), buffer_(reinterpret_cast<Operand*>(buffer)) {}
  // And copy this slice's units of rows [B, K], for the first product. The caller waits at a barrier.
  Copies(Index B, Index K, float* buffer, const Slice& slice, const float* rows)
      : Copies(B, K, buffer) {
    if (!copies_) return;
    for (Index b = 0; b < B_; b++)
      slice.each_group([&](Index u, Index n, Index) { put(b, u, n, load(rows + b * K_ + u, n)); });
  }

  // Copy elements k … k + n − 1 of row b for the next product.
  void put(Index b, Index k, Index n, Floats v) const {
    if (!copies_) return;
    store(next() + b * padded<Operand>(K_) + k, v, n);
  }

  // What the product reads: `rows` [B, K] or their copies. Later calls of `put` are for the next product.
  const Operand* take(const float* rows) {
    if (!copies_) return reinterpret_cast<const Operand*>(rows);
    const Operand* current = next();
    turn_ ^= 1;
    return current;
  }

 private:
  bool copies_;
  Index B_, K_;
  Operand* buffer_;
  int turn_ = 0;

  Operand* next() const { return buffer_ + turn_ * B_ * padded<Operand>(K_); }
};

// A member's own copy of rows [B, K] in bfloat16; for float the rows themselves. In a short call, copying all rows is
// faster than sharing the work and waiting at a barrier.
template <class Operand>
class OwnCopy {
 public:
  OwnCopy(Index B, Index K, Scratch& scratch) : B_(B), K_(K), copy_(scratch.get<Operand>(B * padded<Operand>(K))) {
    std::fill(copy_, copy_ + B * padded<Operand>(K), Operand{});
  }

  const Operand* take(const float* rows) const {
    if constexpr (std::is_same_v<Operand, float>) {
      return rows;
    } else {
      for (Index b = 0; b < B_; b++)
        each_vector(0, K_, [&](Index k, Index n) {
          store(copy_ + b * padded<Operand>(K_) + k, load(rows + b * K_ + k, n), n);
        });
      return copy_;
    }
  }

 private:
  Index B_, K_;
  Operand* copy_;
};

// What the classes of both passes share, and of the part before the loop. charlm/cells/cpp.py prints them.
struct Pass {
  const Arguments& a;
  const Member& member;
  Scratch& scratch;
  int turn = 0;  // alternates with each step of a forward pass without a backward pass

  Pass(const Arguments& a, const Member& member, Scratch& scratch) : a(a), member(member), scratch(scratch) {}

  // Where step t stores its operands.
  Index operand_step(Index t) const { return a.saved_steps > 1 ? t : turn; }
};

// A product of whole rows by this member's columns of a matrix.
template <class Operand>
class Product {
 public:
  Product(Index B, Index K, const Slice& slice, Index gates, Scratch& scratch)
      : B_(B), K_(K), panels_(slice.panels(gates)), columns_(slice.columns(gates)),
        packed_(scratch.get<Operand>(packed_size<Operand>(slice, gates, K))), sums_(scratch.get<float>(B * columns_)) {
    std::fill(sums_, sums_ + B * columns_, 0.0f);
  }

  // v Wᵀ for v [B, K] and W [gates · units, K], for the slice's units of every gate.
  static Product forward(Index B, Index K, const Slice& slice, Index gates, const float* weights, Scratch& scratch) {
    Product product(B, K, slice, gates, scratch);
    pack_gates(slice, gates, K, weights, product.packed_);
    return product;
  }
  // d W for d [B, K] and W [K, units], for the slice's units.
  static Product backward(Index B, Index K, const Slice& slice, const float* weights, Scratch& scratch) {
    Product product(B, K, slice, 1, scratch);
    pack_units(slice, K, weights, product.packed_);
    return product;
  }

  void multiply(const Operand* rows) const { ::multiply(B_, K_, rows, packed_, panels_, sums_); }

  // Row b of the result, [groups, gates, W]; zeros before the first product.
  const float* row(Index b) const { return sums_ + b * columns_; }

 private:
  Index B_, K_, panels_, columns_;
  Operand* packed_;
  float* sums_;
};

// Values of this member's units that a later stage reads: [B, slots, columns].
class StageBuffer {
 public:
  StageBuffer(Index B, Index slots, const Slice& slice, Scratch& scratch)
      : columns_(slice.columns(1)), slots_(slots), buffer_(scratch.get<float>(B * slots * columns_)) {}
  float* row(Index b, Index slot) const { return buffer_ + (b * slots_ + slot) * columns_; }
  void clear(Index B) const { std::fill(buffer_, buffer_ + B * slots_ * columns_, 0.0f); }

 private:
  Index columns_, slots_;
  float* buffer_;
};

// Sums over streams of the gradients of `count` vectors that all streams share, for this member's units.
class VectorSums {
 public:
  VectorSums(const Slice& slice, Index count, Index units, float* total, Scratch& scratch)
      : slice_(slice), count_(count), units_(units), total_(total), sums_(1, count, slice, scratch) {}

  void clear() const { sums_.clear(1); }
  // [groups, count, W]
  float* row() const { return sums_.row(0, 0); }
  // Add the sums to the total [count, units].
  void add() const {
    for (Index k = 0; k < count_; k++)
      slice_.each_group([&](Index u, Index n, Index i) {
        float* const total = total_ + k * units_ + u;
        store(total, load(total, n) + load(row() + (i * count_ + k) * W), n);
      });
  }

 private:
  const Slice& slice_;
  Index count_, units_;
  float* total_;
  StageBuffer sums_;
};

// All-reduce of two floats per stream for each normalization. Each member puts the values of each part of its units;
// after a barrier every member combines the values of all parts, in the same order.
class Partials {
 public:
  // N normalizations over `units` each; shared: scratch [2, parts, N, 2, B] of all members.
  Partials(const Member& member, Index N, Index B, Index units, float* shared, Scratch& scratch)
      : member_(member), N_(N), B_(B), units_(units), shared_(shared), first_(scratch.get<float>(2 * N * B)) {}

  // Call once a step, so that `put` does not overwrite values of the previous step that others still read.
  void turn() { turn_ ^= 1; }

  // Call function(part, units) for each part of this member's units; part: its index among those of all members.
  template <class Function>
  FLATTEN void each_part(const Function& function) const {
    for (int p = 0; p < member_.parts; p++) {
      const int part = member_.id * member_.parts + p;
      function(part, Slice(units_, part, parts()));
    }
  }

  void put(Index part, Index k, Index b, float x, float y) const {
    float* pair = of_part(part) + 2 * k * B_ + b;
    pair[0] = x;
    pair[B_] = y;
  }

  // Put the mean and the sum of squared deviations of a part. value(u, n, i): its units, which sum to `total`.
  template <class Value>
  FLATTEN void put_moments(Index part, const Slice& slice, const Slice& units, Index k, Index b, Floats total,
                           const Value& value) const {
    const float mean = sum(total) / (units.end - units.first);
    Floats squares = {};
    slice.each_group_of(units, [&](Index u, Index n, Index i) {
      const Floats deviation = first_lanes(value(u, n, i) - mean, n);
      squares += deviation * deviation;
    });
    put(part, k, b, mean, sum(squares));
  }

  // The means over all units of two quantities whose sums were put.
  void average(Index k) const {
    float *x = first(k), *y = second(k);
    std::fill(x, x + 2 * B_, 0.0f);
    each(k, [&](const float* xs, const float* ys, float) {
      for (Index b = 0; b < B_; b++) x[b] += xs[b], y[b] += ys[b];
    });
    for (Index b = 0; b < B_; b++) x[b] /= units_, y[b] /= units_;
  }

  // Mean and 1/√(variance + ε) over all units, from the moments that were put (Chan et al. 1979). Unlike E[v²] − E[v]²,
  // this stays accurate if the mean is large. Not centered: mean 0 and 1/√(mean v² + ε).
  void merge(Index k, float epsilon, bool centered) const {
    float *mean = first(k), *scale = second(k);
    std::fill(mean, mean + 2 * B_, 0.0f);
    if (centered) {
      each(k, [&](const float* means, const float*, float n) {
        for (Index b = 0; b < B_; b++) mean[b] += n * means[b];
      });
      for (Index b = 0; b < B_; b++) mean[b] /= units_;
    }
    each(k, [&](const float* means, const float* squares, float n) {
      for (Index b = 0; b < B_; b++) scale[b] += squares[b] + n * (means[b] - mean[b]) * (means[b] - mean[b]);
    });
    for (Index b = 0; b < B_; b++) scale[b] = 1.0f / std::sqrt(scale[b] / units_ + epsilon);
  }

  // Store 1/σ and the mean of stream b at moments + b * stride; one of the members does.
  void save(Index k, float* moments, Index stride) const {
    if (member_.id != 0) return;
    for (Index b = 0; b < B_; b++, moments += stride) moments[0] = second(k)[b], moments[1] = first(k)[b];
  }

  // [B] each. Forward: mean and 1/σ; backward: the means of d and of d ⊙ x.
  float* first(Index k) const { return first_ + 2 * k * B_; }
  float* second(Index k) const { return first(k) + B_; }

 private:
  const Member& member_;
  Index N_, B_, units_;
  float *shared_, *first_;
  int turn_ = 0;

  int parts() const { return member_.size * member_.parts; }
  float* of_part(Index part) const { return shared_ + (turn_ * parts() + part) * 2 * N_ * B_; }

  // Call function(x, y, n) with the values of each part and its number of units n.
  template <class Function>
  void each(Index k, const Function& function) const {
    for (int p = 0; p < parts(); p++) {
      const Slice part(units_, p, parts());
      const float* x = of_part(p) + 2 * k * B_;
      if (part.end > part.first) function(x, x + B_, part.end - part.first);
    }
  }
};

// Gradients of the states between two steps, [B, S, columns], without the part through products of the later step.
class StateGradients {
 public:
  StateGradients(const Arguments& a, Index S, const Slice& slice, Scratch& scratch)
      : a(a), skip_(a.B, S, slice, scratch) {
    for (Index s = 0; s < S; s++)
      for (Index b = 0; b < a.B; b++)
        slice.each_group([&](Index u, Index n, Index i) {
          put(s, b, i, a.d_last ? load(a.d_last + (s * a.B + b) * a.H + u, n) : Floats{});
        });
  }

  // The gradient of state s after step t. has_skip: whether the step reads the state other than by products.
  // products: the gradient through the products.
  Floats after_step(Index s, bool has_skip, Floats products, Index t, Index b, Index u, Index n, Index i) const {
    Floats sum = products;
    if (has_skip || t == a.T - 1) sum += load(skip_.row(b, s) + i * W);
    if (s == 0) sum += load(a.d_outputs + (t * a.B + b) * a.H + u, n);
    return sum;
  }

  // Store the gradient of state s before the step.
  void put(Index s, Index b, Index i, Floats d) const { store(skip_.row(b, s) + i * W, d); }

  // After step 0: store the gradient of state s before it.
  void finish(Index s, bool has_skip, Floats products, Index b, Index u, Index n, Index i) const {
    const Floats d = has_skip ? load(skip_.row(b, s) + i * W) : Floats{};
    store(a.d_first + (s * a.B + b) * a.H + u, d + products, n);
  }

 private:
  const Arguments& a;
  const StageBuffer skip_;
};
