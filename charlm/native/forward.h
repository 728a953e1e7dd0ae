// One recurrent layer over a window of T steps, forward.
//
// Each member of the team computes a slice of the hidden units. A step is: multiply the whole state h by the slice's
// columns of Rᵀ, packed once per call; apply the cell's equations to the slice's units; barrier. Normalization adds two
// barriers, to exchange sums over all units. A recurrent highway network repeats this D times per step.
#pragma once

#include "normalization.h"

// One member's part. Every member constructs one and makes the same calls.
template <class C, class Operand>
class Forward {
  static constexpr Index G = GATES<C>, S = STATES<C>;
  using Maps = typename C::Maps;
  using State = typename C::State;
  using Saved = typename C::Saved;
  static_assert(!C::DEEP || (S == 1 && C::DIRECT[0]));
  static_assert(!C::NORMALIZED || (!C::DEEP && !C::APART && S > 1 && SAVED<C> <= G));

 public:
  Forward(const Arguments& a, const Member& member, Scratch& scratch)
      : a(a), member(member), slice(member, a.H), packed(scratch.get<Operand>(a.D * size())),
        sums(scratch.get<float>(a.B * columns)), norm(a, member, slice, scratch),
        seconds(scratch.get<float>(C::NORMALIZED ? a.B * slice.columns(1) : 0)) {
    for (Index d = 0; d < a.D; d++) pack_gates(slice, G, H, a.weights + d * G * H * H, packed + d * size());
    operands.begin(slice, member, a.states);
  }

  // Step t; steps are called in order. On return, the states of all units are written.
  void step(Index t) {
    for (Index d = 0; d < a.D; d++) {
      multiply(B, H, operands.take(a.state(0, t, d, 0)), packed + d * size(), slice.panels(G), sums);
      if constexpr (C::NORMALIZED) {
        member.each_row(B, [&](Index b) { measure_gates(t, b); });
        member.meet();
        norm.of_gates.merge(norm.first, norm.other, a.epsilon);
        member.each_row(B, [&](Index b) { update(t, b); });
        member.meet();
        norm.of_second.merge(norm.first, norm.other, a.epsilon);
        member.each_row(B, [&](Index b) { put_output(t, b); });
      } else {
        member.each_row(B, [&](Index b) { apply(t, d, b); });
      }
      member.meet();
    }
  }

  // For generation, which repeats step 0: copy this slice of the states after the step over those before it.
  void carry() const {
    for (Index s = 0; s < S; s++)
      for (Index b = 0; b < B; b++) {
        const float* after = a.state(s, 1, 0, b);
        std::copy(after + slice.first, after + slice.end, a.state(s, 0, 0, b) + slice.first);
      }
  }

  const Arguments& a;
  const Member& member;
  const Slice slice;

 private:
  const Index B = a.B, H = a.H, columns = slice.columns(G);
  Operand* packed;
  float* sums;  // [B, columns]: the product, for this slice's units
  const std::conditional_t<C::NORMALIZED, NormForward<G>, NoNorm> norm;
  float* seconds;  // [B, columns of one gate]: the second state before it is normalized
  Operands<Operand> operands{B, H, a.mask, a.operands};
  const Zoneout zoneout{a, S};

  Index size() const { return packed_size<Operand>(slice, G, a.H); }
  float* sum_of(Index b, Index i) const { return sums + b * columns + i * G * W; }
  float* second_of(Index b, Index i) const { return seconds + b * slice.columns(1) + i * W; }

  // The arguments of the gates: W x + R h + biases.
  Maps maps_of(Index t, Index d, Index b, Index u, Index n, Index i) const {
    const float* sum = sum_of(b, i);
    // The first micro-step adds the inputs, which contain its biases; the others add their biases only.
    const float* added = (d == 0 ? a.inputs + a.input_row(t, b) * G * H : a.biases + d * G * H) + u;
    Maps maps;
    for (Index k = 0; k < G - C::APART; k++) at(maps, k) = load(sum + k * W) + load(added + k * H, n);
    for (Index k = G - C::APART; k < G; k++) {
      at(maps, k) = load(added + k * H, n);
      at(maps, k + C::APART) = load(sum + k * W) + load(a.biases + k * H + u, n);
    }
    return maps;
  }

  // Store state s after micro-step (t, d), with zoneout after the last one, and h's copy for the next product.
  void put_state(Index s, Index t, Index d, Index b, Index u, Index n, Floats made) const {
    Floats state = made;
    if (d == a.D - 1) {
      if (a.made) store(a.made_state(s, t, b) + u, made, n);
      if (zoneout.keeps()) {
        const Floats kept = zoneout.share(s, t, b, u, n);
        state = kept * load(a.state(s, t, 0, b) + u, n) + (1.0f - kept) * made;
      }
      if (a.outputs && s == 0) store(a.outputs + (t * B + b) * H + u, state, n);
      if (a.ends(t, b)) state = Floats{};
    }
    store(a.next_state(s, t, d, b) + u, state, n);
    if (s == 0) operands.prepare(b, u, n, state);
  }

  // `flatten` inlines all that a function calls: with calls between the equations of a vector, whose registers must be
  // saved around each, a layer takes 1.2 times as long.
  [[gnu::flatten]] void apply(Index t, Index d, Index b) const {
    const Rows<State> before = states_before<State>(a, t, d, b);
    slice.each_group([&](Index u, Index n, Index i) {
      State after;
      Saved saved;
      C::forward(maps_of(t, d, b, u, n, i), before.load(u, n), after, saved);
      store_group(a.group_of(a.saved, d, t, b, u, SAVED<C>), saved);
      for (Index s = 0; s < S; s++) put_state(s, t, d, b, u, n, at(after, s));
    });
  }

  // In `sums`, replace the products by the arguments of the gates, and exchange their moments.
  [[gnu::flatten]] void measure_gates(Index t, Index b) const {
    norm.each_part([&](int part, const Slice& units) {
      Floats totals[G] = {};
      slice.each_group_of(units, [&](Index u, Index n, Index i) {
        const Maps maps = maps_of(t, 0, b, u, n, i);
        store_group(sum_of(b, i), maps);
        for (Index k = 0; k < G; k++) totals[k] += at(maps, k);
      });
      norm.put(norm.of_gates, part, units, b, totals, sum_of(b, 0));
    });
  }

  // Compute all states but h from the normalized gates, and exchange the moments of the second. In `sums`, what the
  // output needs replaces the gates.
  [[gnu::flatten]] void update(Index t, Index b) const {
    const Rows<State> before = states_before<State>(a, t, 0, b);
    norm.each_part([&](int part, const Slice& units) {
      Floats totals[1] = {};
      slice.each_group_of(units, [&](Index u, Index n, Index i) {
        float* sum = sum_of(b, i);
        Maps maps;
        State after;
        Saved saved;
        for (Index k = 0; k < G; k++) at(maps, k) = norm.gate(t, b, k, u, n, load(sum + k * W));
        C::update(maps, before.load(u, n), after, saved);
        store_group(a.group_of(a.saved, 0, t, b, u, SAVED<C>), saved);
        store_group(sum, saved);
        for (Index s = 1; s < S; s++) put_state(s, t, 0, b, u, n, at(after, s));
        store(second_of(b, i), at(after, 1));
        totals[0] += at(after, 1);
      });
      norm.put(norm.of_second, part, units, b, totals, second_of(b, 0));
    });
    if (member.id == 0) norm.keep_gates(t, b);
  }

  [[gnu::flatten]] void put_output(Index t, Index b) const {
    slice.each_group([&](Index u, Index n, Index i) {
      const Saved saved = load_group<Saved>(sum_of(b, i));
      put_state(0, t, 0, b, u, n, C::output(saved, norm.second(b, u, n, load(second_of(b, i)))));
    });
    if (member.id == 0) norm.keep_second(t, b);
  }
};

template <class C, class Operand>
void forward(const Arguments& a, const Member& member) {
  Forward<C, Operand> layer(a, member, fresh_scratch());
  for (Index t = 0; t < a.T; t++) layer.step(t);
}
