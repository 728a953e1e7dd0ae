// Shared by the recurrences of all kinds: operands of the recurrent products, zoneout, forward and backward.
#pragma once

#include "product.h"

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
  void prepare(Index b, Index u, Index n, Floats s) const {
    if (!copies_) return;
    if (mask_) s *= load(mask_ + b * H_ + u, n);
    store(next() + b * padded<Operand>(H_) + u, s, n);
  }

 private:
  bool copies_;
  Index B_, H_;
  const float* mask_;
  Operand* buffer_;
  int turn_ = 0;

  Operand* next() const { return buffer_ + turn_ * B_ * padded<Operand>(H_); }
};

// The gradient [B, slice] of the states before a step through the recurrent product: the gradients of all gates times
// this slice's columns of the weights, times the mask if there is one.
template <class Operand>
class CarriedBack {
 public:
  // K: rows of the weights. mask: read [B, H] or null. buffer: in bfloat16 scratch [2, B, padded(K)] for copies of the
  // gates' gradients, shared by all members and double-buffered as in Operands.
  CarriedBack(const Slice& slice, Index B, Index K, const float* mask, float* buffer, Scratch& scratch)
      : slice_(slice), B_(B), K_(K), mask_(mask), buffer_(reinterpret_cast<Operand*>(buffer)),
        sums_(scratch.get<float>(B * slice.columns(1))) {
    std::fill(sums_, sums_ + B * slice.columns(1), 0.0f);
  }

  // Copy the gradients k … k + n − 1 of row b for the next product. The caller also stores them in d_maps.
  void prepare(Index b, Index k, Index n, Floats d) const {
    if constexpr (std::is_same_v<Operand, Bf16>) store(next() + b * padded<Operand>(K_) + k, d, n);
  }

  // Multiply, after a barrier: d_maps [B, K], or its copies in bfloat16.
  void multiply(const float* d_maps, const Operand* packed) {
    const Operand* operand = std::is_same_v<Operand, Bf16> ? next() : reinterpret_cast<const Operand*>(d_maps);
    turn_ ^= 1;
    ::multiply(B_, K_, operand, packed, slice_.panels(1), sums_);
  }

  // The gradient of units u … u + n − 1 of row b, the slice's i-th group; zero before the first product.
  Floats get(Index b, Index u, Index n, Index i) const {
    const Floats d = load(sums_ + b * slice_.columns(1) + i * W);
    return mask_ ? d * load(mask_ + b * slice_.H + u, n) : d;
  }

 private:
  const Slice& slice_;
  Index B_, K_;
  const float* mask_;
  Operand* buffer_;
  float* sums_;
  int turn_ = 0;

  Operand* next() const { return buffer_ + turn_ * B_ * padded<Operand>(K_); }
};

// Zoneout (Krueger et al. 2017): units keep a share of their value from before a step. In training the share is 0 or 1.
class Zoneout {
 public:
  // kept: read [rows, …], `row` floats apart; rows = T·B, or 1 for all steps and streams. Null: no zoneout.
  Zoneout(const float* kept, Index rows, Index row, Index B) : kept_(kept), per_row_(rows > 1 ? row : 0), B_(B) {}

  bool keeps() const { return kept_; }
  Floats share(Index t, Index b, Index u, Index n) const { return load(kept_ + (t * B_ + b) * per_row_ + u, n); }

  // Units u … u + n − 1 of row b after step t: kept ⊙ old + (1 − kept) ⊙ made. old: their values before the step.
  Floats mix(Index t, Index b, Index u, Index n, const float* old, Floats made) const {
    if (!kept_) return made;
    const Floats kept = share(t, b, u, n);
    return kept * load(old, n) + (1.0f - kept) * made;
  }

 private:
  const float* kept_;
  Index per_row_, B_;
};

// The gradient that bypasses a step because units keep their value; for one slice.
class KeptBack {
 public:
  KeptBack(const Zoneout& zoneout, const Slice& slice, Index B, Scratch& scratch)
      : zoneout_(zoneout), columns_(slice.columns(1)), sums_(scratch.get<float>(zoneout.keeps() ? B * columns_ : 0)) {
    if (zoneout.keeps()) std::fill(sums_, sums_ + B * columns_, 0.0f);
  }

  // d: gradient after step t, without zoneout's bypass from t + 1. Adds the bypass, stores kept ⊙ d for t − 1, and
  // returns (1 − kept) ⊙ d, the gradient of the value before zoneout. The units are the slice's i-th group.
  Floats through(Index t, Index b, Index u, Index n, Index i, Floats d) const {
    if (!zoneout_.keeps()) return d;
    float* sum = sums_ + b * columns_ + i * W;
    d += load(sum);
    const Floats kept = zoneout_.share(t, b, u, n);
    store(sum, kept * d);
    return (1.0f - kept) * d;
  }

  // The bypass gradient that the last call of `through` stored.
  Floats get(Index b, Index i) const { return zoneout_.keeps() ? load(sums_ + b * columns_ + i * W) : Floats{}; }

 private:
  const Zoneout zoneout_;
  Index columns_;
  float* sums_;
};

// For generation: copy this slice of states[1] over states[0], for states [2, B, H].
inline void carry_states(const Slice& slice, Index B, float* states) {
  for (Index b = 0; b < B; b++) {
    float* before = states + b * slice.H;
    std::copy(before + B * slice.H + slice.first, before + B * slice.H + slice.end, before + slice.first);
  }
}
