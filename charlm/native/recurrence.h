// What the recurrences of all kinds share: the operands of their products, forwards and backwards.
#pragma once

#include "product.h"

// What recurrent products read: states as they stand or, where there is a mask or the products are in bfloat16, copies
// of them, in a buffer [2, B, padded(H)] that is written for the next product while this one may still read.
template <class Operand>
class Operands {
 public:
  Operands(Index B, Index H, const float* mask, float* buffer)
      : copies_(mask || std::is_same_v<Operand, Bf16>), B_(B), H_(H), mask_(mask),
        buffer_(reinterpret_cast<Operand*>(buffer)) {}

  // Before the first product: copy this slice's units of the first state [B, H], and meet the others.
  void begin(const Slice& slice, const Member& member, const float* state) const {
    if (!copies_) return;
    for (Index b = 0; b < B_; b++)
      slice.each_group([&](Index u, Index n, Index) { prepare(b, u, n, load(state + b * H_ + u, n)); });
    member.meet();
  }

  // What this product reads, `state` [B, H] or the copy of it; what is prepared from here on is for the next.
  const Operand* take(const float* state) {
    if (!copies_) return reinterpret_cast<const Operand*>(state);
    const Operand* taken = next();
    turn_ ^= 1;
    return taken;
  }

  // Give units u … u + n − 1 of row b of the state to the next product.
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

// The gradient of a slice's states that the linear maps of the step behind carry back, [B, slice]: the product of all
// units' map gradients with this slice's columns of the weights, times the mask where there is one.
template <class Operand>
class CarriedBack {
 public:
  // Of K maps. buffer: with bf16 [2, B, padded(K)], for the copies that products then read; written for the next
  // product while another member may still read those of this one.
  CarriedBack(const Slice& slice, Index B, Index K, const float* mask, float* buffer, Scratch& scratch)
      : slice_(slice), B_(B), K_(K), mask_(mask), buffer_(reinterpret_cast<Operand*>(buffer)),
        sums_(scratch.get<float>(B * slice.columns(1))) {
    std::fill(sums_, sums_ + B * slice.columns(1), 0.0f);
  }

  // Give the gradients of maps k … k + n − 1 of row b to the next product, beside writing them where they belong.
  void prepare(Index b, Index k, Index n, Floats d) const {
    if constexpr (std::is_same_v<Operand, Bf16>) store(next() + b * padded<Operand>(K_) + k, d, n);
  }

  // The product with the gradients of all maps, d_maps [B, K] or what was prepared of them, when all have met.
  void multiply(const float* d_maps, const Operand* packed) {
    const Operand* operand = std::is_same_v<Operand, Bf16> ? next() : reinterpret_cast<const Operand*>(d_maps);
    turn_ ^= 1;
    ::multiply(B_, K_, operand, packed, slice_.panels(1), sums_);
  }

  // Units u … u + n − 1 of row b, the slice's i-th group; zero before the first product.
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

// Zoneout (Krueger et al. 2017): units keep a part of the value that they had before a step, in training all or none.
class Zoneout {
 public:
  // kept: of every step and stream or, if there is one row, alike for all; rows `row` apart. Null: nothing is kept.
  Zoneout(const float* kept, Index rows, Index row, Index B) : kept_(kept), per_row_(rows > 1 ? row : 0), B_(B) {}

  bool keeps() const { return kept_; }
  Floats share(Index t, Index b, Index u, Index n) const { return load(kept_ + (t * B_ + b) * per_row_ + u, n); }

  // Units u … u + n − 1 of row b after step t: kept ⊙ old + (1 − kept) ⊙ new. old: where they stood before the step.
  Floats mix(Index t, Index b, Index u, Index n, const float* old, Floats made) const {
    if (!kept_) return made;
    const Floats kept = share(t, b, u, n);
    return kept * load(old, n) + (1.0f - kept) * made;
  }

 private:
  const float* kept_;
  Index per_row_, B_;
};

// The gradient of a slice's units that goes past the steps in which they keep their value.
class KeptBack {
 public:
  KeptBack(const Zoneout& zoneout, const Slice& slice, Index B, Scratch& scratch)
      : zoneout_(zoneout), columns_(slice.columns(1)), sums_(scratch.get<float>(zoneout.keeps() ? B * columns_ : 0)) {
    if (zoneout.keeps()) std::fill(sums_, sums_ + B * columns_, 0.0f);
  }

  // The gradient of what step t has made of units, from d, that of their value after it but for what went past step
  // t + 1. The units are the slice's i-th group.
  Floats through(Index t, Index b, Index u, Index n, Index i, Floats d) const {
    if (!zoneout_.keeps()) return d;
    float* sum = sums_ + b * columns_ + i * W;
    d += load(sum);
    const Floats kept = zoneout_.share(t, b, u, n);
    store(sum, kept * d);
    return (1.0f - kept) * d;
  }

  // What has gone past the step done last.
  Floats get(Index b, Index i) const { return zoneout_.keeps() ? load(sums_ + b * columns_ + i * W) : Floats{}; }

 private:
  const Zoneout zoneout_;
  Index columns_;
  float* sums_;
};

// For calls of one step at a time, of states [2, B, H]: this slice's after the step become those before the next.
inline void carry_states(const Slice& slice, Index B, float* states) {
  for (Index b = 0; b < B; b++) {
    float* before = states + b * slice.H;
    std::copy(before + B * slice.H + slice.first, before + B * slice.H + slice.end, before + slice.first);
  }
}
