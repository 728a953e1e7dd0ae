// What the generated passes of a cell are made of: arguments, products, zoneout and resets, normalization.
//
// Each member of the team computes a slice of the units. Between two meetings of all members a stage multiplies whole
// operands by the slice's columns of the matrices, which are packed once per call, and then computes unit by unit.
#pragma once

#include <cmath>

#include "product.h"

// S states, P products, M windows, V vectors, N normalizations. Pointers do not overlap, unless said, and are used only
// during the call; "written" fields are output, all others are input. Tables hold a pointer for each of their kind, in
// the order of charlm/cells/passes.py. Sizes: rows of a product are gates · units.
struct Arguments {
  Index T, B, H, I, threads;
  Index variant;               // which of the library's cells
  Index bf16;                  // multiply in bfloat16; sums and states are float in any case
  Index saved_steps;           // T; 1 without a backward pass: every step then writes to the same place in `saved`,
                               // `made` and `moments`, and to two places in turn in `operands`
  Index kept_rows;             // T·B, or 1 for all steps and streams
  const float* const* weights; // [P]: [rows, columns]; after them those of the products before the loop
  const float* const* windows; // [M]: [T, B, n]; with ids [R, n]
  const Index* ids;            // [T, B]: which row of the windows each step reads; or null
  const float* const* vectors; // [V]: [n]; after them those before the loop
  const float* mask;           // [B, H]: state dropout, multiplies operands of size H; or null
  const float* kept;           // [kept_rows, S·H]: zoneout's share of the states before the step; or null
  const float* carried;        // [T, B]: 0 where a stream's states are set to zero before the step, else 1; row 0 is not
                               // read: the caller sets the states before the first step; or null
  float* outputs;              // [T, B, H], written: the first state after each step; null without `carried`: then it
                               // is in `states`
  float* states;               // [S, 1 + T, B, H]: before the first step, set by the caller; then before each later
                               // step and after the last, written
  float* made;                 // [S, steps, B, H], written: the states after each step, before zoneout; null without
                               // zoneout and without `carried`: then they are in `states`
  float* const* saved;         // for each size: [steps, B, groups of W units, count, W], written
  float* const* operands;      // operands that are no states: [steps or 2, B, size], written
  float* moments;              // [steps, B, N, 2], written: 1/σ and mean
  float* const* copies;        // scratch of zeros for copies of what products read, for each operand [2, B, padded];
                               // in the backward pass for each product
  float* const* partials;      // for each size: scratch [2, threads, N, 2, B]: sums that members exchange
  const float* x;              // [B, I]: the input of a single step, for what comes before the loop
  const float* d_outputs;      // [T, B, H]: gradient of the outputs
  const float* d_last;         // [S, B, H]: gradient of the states after the last step, besides that of the outputs
  float* const* d_products;    // [P]: [T, B, rows], written: gradient of the products
  float* const* d_windows;     // [M]: [T, B, n], written; the same memory as d_products where both are equal
  float* const* d_vectors;     // [V]: [n], added to; or null
  float* d_first;              // [S, B, H], written: gradient of the states before the first step

  // Row b of state s before step t.
  float* state(Index s, Index t, Index b) const { return states + ((s * (1 + T) + t) * B + b) * H; }
  // The same after step t, before zoneout and resets.
  float* after(Index s, Index t, Index b) const {
    return made ? made + ((s * saved_steps + saved_step(t)) * B + b) * H : state(s, t + 1, b);
  }
  Index saved_step(Index t) const { return saved_steps > 1 ? t : 0; }
  Index saved_row(Index t, Index b) const { return saved_step(t) * B + b; }
  Index input_row(Index t, Index b) const { return ids ? ids[t * B + b] : t * B + b; }
  // Whether the states of stream b after step t are set to zero before the next.
  bool ends(Index t, Index b) const { return carried && t + 1 < T && carried[(t + 1) * B + b] == 0; }
};

// Copies of what a product reads, where it cannot read the rows themselves: with a mask, or in bfloat16. They are
// double-buffered: one is written for the next product while other members still read the other.
template <class Operand>
class Copies {
 public:
  // K: elements of a row. mask: [B, K] or null. buffer: scratch of zeros [2, B, padded(K)], shared by all members.
  // always: also where the rows themselves could be read.
  Copies(Index B, Index K, const float* mask, float* buffer, bool always = false)
      : copies_(always || mask || std::is_same_v<Operand, Bf16>), B_(B), K_(K), mask_(mask),
        buffer_(reinterpret_cast<Operand*>(buffer)) {}

  // Before the first product: copy this slice's units of rows [B, K]. The caller lets the members meet.
  void begin(const Slice& slice, const float* rows) const {
    if (!copies_) return;
    for (Index b = 0; b < B_; b++)
      slice.each_group([&](Index u, Index n, Index) { put(b, u, n, load(rows + b * K_ + u, n)); });
  }

  // Copy elements k … k + n − 1 of row b for the next product.
  void put(Index b, Index k, Index n, Floats v) const {
    if (!copies_) return;
    store(next() + b * padded<Operand>(K_) + k, mask_ ? v * load(mask_ + b * K_ + k, n) : v, n);
  }

  // What the product reads: `rows` [B, K] or their copies. Later calls of `put` are for the next product.
  const Operand* take(const float* rows) {
    if (!copies_) return reinterpret_cast<const Operand*>(rows);
    const Operand* taken = next();
    turn_ ^= 1;
    return taken;
  }

 private:
  bool copies_;
  Index B_, K_;
  const float* mask_;
  Operand* buffer_;
  int turn_ = 0;

  Operand* next() const { return buffer_ + turn_ * B_ * padded<Operand>(K_); }
};

// A member's own copy of rows [B, K] in bfloat16, or the rows themselves: for a short call copying all is faster than to
// meet for a part each.
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

// A product of whole rows by this member's columns of a matrix.
template <class Operand>
class Product {
 public:
  Product(Index B, Index K, const Slice& slice, Index gates, Scratch& scratch)
      : B_(B), K_(K), gates_(gates), panels_(slice.panels(gates)), columns_(slice.columns(gates)),
        packed(scratch.get<Operand>(packed_size<Operand>(slice, gates, K))), sums_(scratch.get<float>(B * columns_)) {
    std::fill(sums_, sums_ + B * columns_, 0.0f);
  }

  // v Wᵀ for v [B, K] and W [gates · units, K], for the slice's units of every gate.
  static Product forward(Index B, Index K, const Slice& slice, Index gates, const float* weights, Scratch& scratch) {
    Product product(B, K, slice, gates, scratch);
    pack_gates(slice, gates, K, weights, product.packed);
    return product;
  }
  // d W for d [B, K] and W [K, units], for the slice's units.
  static Product backward(Index B, Index K, const Slice& slice, const float* weights, Scratch& scratch) {
    Product product(B, K, slice, 1, scratch);
    pack_units(slice, K, weights, product.packed);
    return product;
  }

  void multiply(const Operand* rows) const { ::multiply(B_, K_, rows, packed, panels_, sums_); }

  // Row b of the result, [groups, gates, W]; zeros before the first product.
  const float* row(Index b) const { return sums_ + b * columns_; }

 private:
  Index B_, K_, gates_, panels_, columns_;
  Operand* packed;
  float* sums_;
};

// Values of this member's units that wait for a later stage: [B, slots, columns].
class Waiting {
 public:
  Waiting(Index B, Index slots, const Slice& slice, Scratch& scratch)
      : columns_(slice.columns(1)), slots_(slots), memory_(scratch.get<float>(B * slots * columns_)) {}
  float* row(Index b, Index slot) const { return memory_ + (b * slots_ + slot) * columns_; }
  void clear(Index B) const { std::fill(memory_, memory_ + B * slots_ * columns_, 0.0f); }

 private:
  Index columns_, slots_;
  float* memory_;
};

// Zoneout (Krueger et al. 2017): units keep a share of their value from before a step. In training the share is 0 or 1.
class Zoneout {
 public:
  Zoneout(const Arguments& a, Index S) : kept_(a.kept), row_(a.kept_rows > 1 ? S * a.H : 0), B_(a.B), H_(a.H) {}

  bool keeps() const { return kept_; }
  Floats share(Index s, Index t, Index b, Index u, Index n) const {
    return load(kept_ + (t * B_ + b) * row_ + s * H_ + u, n);
  }

 private:
  const float* kept_;
  Index row_, B_, H_;
};

// Store state s after step t, with zoneout and resets; returns what the next step reads.
inline Floats put_state(const Arguments& a, const Zoneout& zoneout, Index s, Index t, Index b, Index u, Index n,
                        Floats made) {
  Floats state = made;
  if (a.made) store(a.after(s, t, b) + u, made, n);
  if (zoneout.keeps()) {
    const Floats kept = zoneout.share(s, t, b, u, n);
    state = kept * load(a.state(s, t, b) + u, n) + (1.0f - kept) * made;
  }
  if (a.outputs && s == 0) store(a.outputs + (t * a.B + b) * a.H + u, state, n);
  if (a.ends(t, b)) state = Floats{};
  store(a.state(s, t + 1, b) + u, state, n);
  return state;
}

// All-reduce of two floats per stream for each normalization. Each member puts the values of each part of its units;
// after a meeting every member combines the values of all parts, in the same order.
class Partials {
 public:
  // N normalizations over `units` each; memory: shared by all members, [2, parts, N, 2, B].
  Partials(const Member& member, Index N, Index B, Index units, float* memory, Scratch& scratch)
      : member_(member), N_(N), B_(B), units_(units), memory_(memory), first_(scratch.get<float>(2 * N * B)) {}

  // Call once a step: what is put now does not overwrite what others still read of the step before.
  void turn() { turn_ ^= 1; }

  // Call function(part, units) for each part of this member's units; part: its index among those of all members.
  template <class Function>
  void each_part(const Function& function) const {
    for (int p = 0; p < member_.parts; p++) {
      const int part = member_.id * member_.parts + p;
      function(part, Slice(units_, part, parts()));
    }
  }

  void put(Index part, Index k, Index b, float x, float y) const {
    float* own = of_part(part) + 2 * k * B_ + b;
    own[0] = x;
    own[B_] = y;
  }

  // Put the mean and the squared deviations of a part: `values` are its rows [groups, W], with sum `total`.
  void put_moments(Index part, const Slice& slice, const Slice& units, Index k, Index b, Floats total,
                   const float* values) const {
    const float mean = sum(total) / (units.end - units.first);
    Floats squares = {};
    slice.each_group_of(units, [&](Index, Index n, Index i) {
      const Floats deviation = first_lanes(load(values + i * W) - mean, n);
      squares += deviation * deviation;
    });
    put(part, k, b, mean, sum(squares));
  }

  // Means over all units, if sums of two quantities were put.
  void average(Index k) const {
    float *x = first(k), *y = second(k);
    std::fill(x, x + 2 * B_, 0.0f);
    each(k, [&](const float* xs, const float* ys, float) {
      for (Index b = 0; b < B_; b++) x[b] += xs[b], y[b] += ys[b];
    });
    for (Index b = 0; b < B_; b++) x[b] /= units_, y[b] /= units_;
  }

  // Mean and 1/√(variance + ε) over all units, if moments were put (Chan et al. 1979). Unlike E[v²] − E[v]², this stays
  // accurate if the mean is large. Not centered: mean 0 and 1/√(mean v² + ε).
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

  // [B] each. Forward: mean and 1/σ; backward: the means of d and of d ⊙ x.
  float* first(Index k) const { return first_ + 2 * k * B_; }
  float* second(Index k) const { return first(k) + B_; }

 private:
  const Member& member_;
  Index N_, B_, units_;
  float *memory_, *first_;
  int turn_ = 0;

  int parts() const { return member_.size * member_.parts; }
  float* of_part(Index part) const { return memory_ + (turn_ * parts() + part) * 2 * N_ * B_; }

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

// Gradients of the states after a step: what the later step left, in `direct` and `bypass` [B, S, columns].
class StateGradients {
 public:
  StateGradients(const Arguments& a, Index S, const Slice& slice, Scratch& scratch)
      : a(a), zoneout(a, S), direct_(a.B, S, slice, scratch), bypass_(zoneout.keeps() ? a.B : 0, S, slice, scratch) {
    for (Index s = 0; s < S; s++)
      for (Index b = 0; b < a.B; b++)
        slice.each_group([&](Index u, Index n, Index i) {
          store(direct_.row(b, s) + i * W, load(a.d_last + (s * a.B + b) * a.H + u, n));
        });
  }

  // The gradient of state s after step t, without zoneout. Call it once: it sets zoneout's bypass.
  // is_direct: whether the step reads the state other than through products. products: the gradient through these.
  Floats made(Index s, bool is_direct, Floats products, Index t, Index b, Index u, Index n, Index i) const {
    Floats sum{};
    if (!a.ends(t, b)) {
      if (is_direct || zoneout.keeps() || t == a.T - 1) sum = load(direct_.row(b, s) + i * W);
      sum += products;
    }
    if (s == 0) sum += load(a.d_outputs + (t * a.B + b) * a.H + u, n);
    if (!zoneout.keeps()) return sum;
    const Floats kept = zoneout.share(s, t, b, u, n);
    store(bypass_.row(b, s) + i * W, kept * sum);
    return (1.0f - kept) * sum;
  }

  // Keep the gradient of state s before the step, other than through products.
  void put(Index s, Index b, Index i, Floats d) const {
    if (zoneout.keeps()) d += load(bypass_.row(b, s) + i * W);
    store(direct_.row(b, s) + i * W, d);
  }
  // The same where there is none.
  void put_none(Index s, Index b, Index i) const {
    if (zoneout.keeps()) put(s, b, i, Floats{});
  }

  // After step 0: store the gradient of state s before it.
  void finish(Index s, bool is_direct, Floats products, Index b, Index u, Index n, Index i) const {
    const Floats d = is_direct || zoneout.keeps() ? load(direct_.row(b, s) + i * W) : Floats{};
    store(a.d_first + (s * a.B + b) * a.H + u, d + products, n);
  }

 private:
  const Arguments& a;
  const Zoneout zoneout;
  const Waiting direct_, bypass_;
};
