// What the passes of a recurrent layer share: the arguments, operands of the recurrent products, zoneout.
#pragma once

#include "cell.h"
#include "product.h"

// G gates, S state tensors. Pointers do not overlap and are used only during the call; "written" fields are output, all
// others are input.
struct Arguments {
  Index T, B, H, D, threads;
  Index variant;           // which of the kind's Variants
  Index saved_count;       // written by recurrence_sizes only: SAVED of the cell
  Index apart_count;       // written by recurrence_sizes only: APART of the cell
  Index bf16;              // multiply in bfloat16; sums and states are float in any case
  const float* weights;    // R [D, G·H, H]
  const float* biases;     // [D, G·H]: added to R h; for d = 0 only those of gates that stay apart are read; or null
  double epsilon;          // added to the variance in normalization
  const float* gains;      // [G + 1, H]: normalization of the gates, then of the second state; or null
  const float* shifts;     // [G + 1, H]
  const float* mask;       // [B, H]: state dropout, multiplies h in the products; or null
  const float* kept;       // [kept_rows, S·H]: zoneout's share of the states before the step; or null
  Index kept_rows;         // T·B, or 1 for all steps and streams
  const float* carried;    // [T, B]: 0 where a stream's states are set to zero before the step, else 1; row 0 is not
                           // read: the caller sets the states before the first step; or null
  float* outputs;          // [T, B, H], written: h after each step; null without `carried`: then it is in `states`
  const float* inputs;     // [T, B, G·H]: W x_t and its biases; with ids [V, G·H]
  const Index* ids;        // [T, B]: which row of `inputs` each step reads; or null
  float* states;           // [S, 1 + T, B, H]: before the first step, set by the caller; then before each later step and
                           // after the last, written
  Index saved_steps;       // T; 1 without a backward pass: every step then writes to the same place in the following
  float* inner;            // [D − 1, T, B, H], written: h after each micro-step but the last
  float* saved;            // [D, T, B, groups of W units, SAVED, W], written; like `normal` with room for the widest W
  float* made;             // [S, T, B, H], written: the states after each step, before zoneout; null without zoneout and
                           // without `carried`: then they are in `states`
  float* normal;           // [T, B, groups of W units, G, W], written: normalized gates before gains; null without
                           // normalization
  float* moments;          // [T, B, G + 2], written: 1/σ of each gate and the second state, and the latter's mean
  const float* d_outputs;  // [T, B, H]: gradient of the outputs
  const float* d_last;     // [S, B, H]: gradient of the states after the last step, besides that of the outputs
  float* d_maps;           // [D, T, B, G·H], written: gradient of R h + b
  float* d_inputs;         // [T, B, G·H], written: gradient of W x + b; null if no gate stays apart: then it is d_maps
  float* d_gains;          // [G + 1, H], added to
  float* d_shifts;         // [G + 1, H], added to
  float* d_first;          // [S, B, H], written: gradient of the states before the first step
  float* operands;         // scratch for copies of what products read: forward with mask or bf16 [2, B, padded(H)],
                           // backward with bf16 [2, B, padded(G·H)]; else null
  float* partials;         // scratch [threads, 2 · (G + 1) · B]: sums that members exchange in normalization

  // Row b of state s before micro-step (t, d). A cell with several micro-steps has one state.
  float* state(Index s, Index t, Index d, Index b) const {
    return d == 0 ? states + ((s * (1 + T) + t) * B + b) * H
                  : inner + saved_row(d - 1, t, b) * H;
  }
  // The same after the micro-step and zoneout.
  float* next_state(Index s, Index t, Index d, Index b) const {
    return d + 1 < D ? state(s, t, d + 1, b) : state(s, t + 1, 0, b);
  }
  float* made_state(Index s, Index t, Index b) const { return made + saved_row(s, t, b) * H; }
  // Row b of step t in the i-th of several [saved_steps, B, …].
  Index saved_row(Index i, Index t, Index b) const { return (i * saved_steps + (saved_steps > 1 ? t : 0)) * B + b; }
  // In [D, saved_steps, B, groups, n, W], the n vectors of the group that begins with unit u.
  float* group_of(float* memory, Index d, Index t, Index b, Index u, Index n) const {
    return memory + (saved_row(d, t, b) * Slice::groups_of(H) * W + u) * n;
  }
  Index input_row(Index t, Index b) const { return ids ? ids[t * B + b] : t * B + b; }
  // Whether the states of stream b after step t are set to zero before the next.
  bool ends(Index t, Index b) const { return carried && t + 1 < T && carried[(t + 1) * B + b] == 0; }
};

// One row of every state tensor, or of several other tensors. Make it outside of loops over units: there the compiler
// cannot know that the addresses stay the same.
template <class Vectors>
struct Rows {
  const float* rows[COUNT<Vectors>];

  // row(k): the k-th row.
  template <class Row>
  explicit Rows(const Row& row) {
    for (Index k = 0; k < COUNT<Vectors>; k++) rows[k] = row(k);
  }

  // Units u … u + n − 1 of all rows.
  Vectors load(Index u, Index n) const {
    Vectors vectors;
    for (Index k = 0; k < COUNT<Vectors>; k++) at(vectors, k) = ::load(rows[k] + u, n);
    return vectors;
  }
};

// The vectors of a group of units, side by side in memory, which is faster to read and write than a row for each.
template <class Vectors>
inline Vectors load_group(const float* group) {
  Vectors vectors;
  for (Index k = 0; k < COUNT<Vectors>; k++) at(vectors, k) = load(group + k * W);
  return vectors;
}
template <class Vectors>
inline void store_group(float* group, const Vectors& vectors) {
  for (Index k = 0; k < COUNT<Vectors>; k++) store(group + k * W, at(vectors, k));
}

// The states of row b before micro-step (t, d).
template <class State>
inline Rows<State> states_before(const Arguments& a, Index t, Index d, Index b) {
  return Rows<State>([&](Index s) { return a.state(s, t, d, b); });
}

// Operands of the recurrent products: the states themselves or, with a mask or in bfloat16, copies of them. Copies are
// double-buffered: one is written for the next product while other members still read the other.
template <class Operand>
class Operands {
 public:
  // mask: read [B, H] or null; buffer: scratch [2, B, padded(H)], shared by all members, or null without copies.
  Operands(Index B, Index H, const float* mask, float* buffer)
      : copies_(mask || std::is_same_v<Operand, Bf16>), B_(B), H_(H), mask_(mask),
        buffer_(reinterpret_cast<Operand*>(buffer)) {}

  // Before the first product: copy this slice's units of the first state [B, H]; then a barrier.
  void begin(const Slice& slice, const Member& member, const float* state) const {
    if (!copies_) return;
    for (Index b = 0; b < B_; b++)
      slice.each_group([&](Index u, Index n, Index) { prepare(b, u, n, load(state + b * H_ + u, n)); });
    member.meet();
  }

  // The operand of this product: `state` [B, H] or its copy. Later calls of `prepare` are for the next product.
  const Operand* take(const float* state) {
    if (!copies_) return reinterpret_cast<const Operand*>(state);
    const Operand* taken = next();
    turn_ ^= 1;
    return taken;
  }

  // Copy units u … u + n − 1 of row b for the next product.
  void prepare(Index b, Index u, Index n, Floats h) const {
    if (!copies_) return;
    const Floats operand = mask_ ? h * load(mask_ + b * H_ + u, n) : h;
    store(next() + b * padded<Operand>(H_) + u, operand, n);
  }

 private:
  bool copies_;
  Index B_, H_;
  const float* mask_;
  Operand* buffer_;
  int turn_ = 0;

  Operand* next() const { return buffer_ + turn_ * B_ * padded<Operand>(H_); }
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
