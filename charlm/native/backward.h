// One recurrent layer over a window of T steps, backward.
//
// Each member of the team computes a slice of the hidden units. A micro-step is: compute the gradients of the slice's
// gates; barrier; multiply the gradients of all gates by the slice's columns of R. Normalization adds two barriers.
#pragma once

#include "normalization.h"

// The gradient [B, slice] of h before a micro-step through the product R h: the gradients of all gates times this
// slice's columns of R, times the mask if there is one.
template <class Operand>
class ThroughProduct {
 public:
  // K: rows of R. buffer: in bfloat16 scratch [2, B, padded(K)] for copies of the gates' gradients, shared by all
  // members and double-buffered as in Operands.
  ThroughProduct(const Slice& slice, Index B, Index K, const float* mask, float* buffer, Scratch& scratch)
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

// One member's part; steps are called from the last to the first.
template <class C, class Operand>
class Backward {
  static constexpr Index G = GATES<C>, S = STATES<C>, LAST = G - 1;
  using Maps = typename C::Maps;
  using State = typename C::State;
  using Saved = typename C::Saved;

 public:
  Backward(const Arguments& a, const Member& member, Scratch& scratch)
      : a(a), member(member), slice(member, a.H), packed(scratch.get<Operand>(a.D * size())),
        product(slice, a.B, G * a.H, a.mask, a.operands, scratch), directs(scratch.get<float>(S * a.B * columns)),
        bypasses(scratch.get<float>(zoneout.keeps() ? S * a.B * columns : 0)), norm(a, member, slice, scratch) {
    for (Index d = 0; d < a.D; d++) pack_units(slice, G * H, a.weights + d * G * H * H, packed + d * size());
    for (Index s = 0; s < S; s++)
      for (Index b = 0; b < B; b++)
        slice.each_group([&](Index u, Index n, Index i) {
          store(direct(s, b, i), load(a.d_last + (s * B + b) * H + u, n));
        });
  }

  void step(Index t) {
    for (Index d = a.D - 1; d >= 0; d--) {
      if constexpr (C::NORMALIZED) {
        norm.begin_step();
        for (Index b = 0; b < B; b++) enter_second(t, b);
        member.meet();
        norm.of_second.average(norm.first, norm.other);
        for (Index b = 0; b < B; b++) enter_gates(t, b);
        member.meet();
        norm.of_gates.average(norm.first, norm.other);
        member.each_row(B, [&](Index b) { leave_gates(t, b); });
        norm.end_step();
      } else {
        member.each_row(B, [&](Index b) { apply(t, d, b); });
      }
      member.meet();
      product.multiply(d_maps(t, d, 0), packed + d * size());
    }
  }

  // After step 0: store the gradients of the states before it.
  void finish() const {
    for (Index s = 0; s < S; s++)
      for (Index b = 0; b < B; b++)
        slice.each_group([&](Index u, Index n, Index i) {
          Floats d = is_direct(s) ? load(direct(s, b, i)) : Floats{};
          if (s == 0) d += product.get(b, u, n, i);
          store(a.d_first + (s * B + b) * H + u, d, n);
        });
  }

 private:
  const Arguments& a;
  const Member& member;
  const Slice slice;
  const Index B = a.B, H = a.H, columns = slice.columns(1);
  const Zoneout zoneout{a, S};
  Operand* packed;
  ThroughProduct<Operand> product;
  float* directs;   // [S, B, columns]: gradient of the states before a micro-step other than through the product
  float* bypasses;  // [S, B, columns]: its part that bypasses the step because of zoneout
  const std::conditional_t<C::NORMALIZED, NormBackward<G>, NoNorm> norm;

  Index size() const { return packed_size<Operand>(slice, 1, G * a.H); }
  float* direct(Index s, Index b, Index i) const { return directs + (s * B + b) * columns + i * W; }
  float* bypass(Index s, Index b, Index i) const { return bypasses + (s * B + b) * columns + i * W; }
  bool is_direct(Index s) const { return C::DIRECT[s] || zoneout.keeps(); }
  float* d_maps(Index t, Index d, Index b) const { return a.d_maps + ((d * a.T + t) * B + b) * G * H; }

  // The states after micro-step (t, d), without zoneout.
  Rows<State> states_made(Index t, Index d, Index b) const {
    const bool from_made = a.made && d == a.D - 1;
    return Rows<State>([&](Index s) { return from_made ? a.made_state(s, t, b) : a.next_state(s, t, d, b); });
  }
  Saved saved(Index t, Index d, Index b, Index u) const {
    return load_group<Saved>(a.group_of(a.saved, d, t, b, u, SAVED<C>));
  }

  // Gradient of state s after micro-step (t, d), without zoneout. Call it once: it sets zoneout's bypass.
  Floats d_made(Index s, Index t, Index d, Index b, Index u, Index n, Index i) const {
    const bool last = d == a.D - 1;
    Floats sum{};
    if (!last || !a.ends(t, b)) {
      if (is_direct(s) || t == a.T - 1) sum = load(direct(s, b, i));
      if (s == 0) sum += product.get(b, u, n, i);
    }
    if (s == 0 && last) sum += load(a.d_outputs + (t * B + b) * H + u, n);
    if (!zoneout.keeps() || !last) return sum;
    const Floats kept = zoneout.share(s, t, b, u, n);
    store(bypass(s, b, i), kept * sum);
    return (1.0f - kept) * sum;
  }

  // Keep the direct gradient of the states before micro-step (t, d).
  void put_direct(Index d, Index b, Index i, const State& d_before) const {
    for (Index s = 0; s < S; s++) {
      if (!is_direct(s)) continue;
      Floats sum = C::DIRECT[s] ? at(d_before, s) : Floats{};
      if (zoneout.keeps() && d == 0) sum += load(bypass(s, b, i));
      store(direct(s, b, i), sum);
    }
  }

  // Store the gradient of gate k of R h + b, and its copy for the product.
  void put_map(Index t, Index d, Index b, Index k, Index u, Index n, Floats value) const {
    store(d_maps(t, d, b) + k * H + u, value, n);
    product.prepare(b, k * H + u, n, value);
  }

  // `flatten`: as in forward.h.
  [[gnu::flatten]] void apply(Index t, Index d, Index b) const {
    const Rows<State> before = states_before<State>(a, t, d, b), after = states_made(t, d, b);
    slice.each_group([&](Index u, Index n, Index i) {
      State d_after, d_before;
      Maps maps;
      for (Index s = 0; s < S; s++) at(d_after, s) = d_made(s, t, d, b, u, n, i);
      C::backward(before.load(u, n), after.load(u, n), saved(t, d, b, u), d_after, maps, d_before);
      put_direct(d, b, i, d_before);
      for (Index k = 0; k < G; k++) {
        const bool apart = k >= G - C::APART;
        put_map(t, d, b, k, u, n, at(maps, apart ? k + C::APART : k));
        if (C::APART) store(a.d_inputs + ((t * B + b) * G + k) * H + u, at(maps, k), n);
      }
    });
  }

  // Pass the gradient of h through the output, and that of the second state into its normalization. The gradient of the
  // last gate waits in its row of d_normal until `enter_gates`.
  [[gnu::flatten]] void enter_second(Index t, Index b) const {
    const Rows<State> after = states_made(t, 0, b);
    norm.each_part([&](int part, const Slice& units) {
      Floats total = {}, products = {};
      slice.each_group_of(units, [&](Index u, Index n, Index i) {
        const Floats x = norm.normal_second(t, b, load(after.rows[1] + u, n));
        Floats d_last_map, d_second;
        C::output_back(saved(t, 0, b, u), x * norm.gain(G, u, n) + norm.shift(G, u, n),
                       d_made(0, t, 0, b, u, n, i), d_last_map, d_second);
        norm.enter(b, G, u, n, i, d_second, x, total, products);
        store(norm.d_normal(b, LAST, i), d_last_map);
      });
      norm.of_second.put(part, b, sum(total), sum(products));
    });
  }

  [[gnu::flatten]] void enter_gates(Index t, Index b) const {
    const Rows<State> before = states_before<State>(a, t, 0, b), after = states_made(t, 0, b);
    norm.each_part([&](int part, const Slice& units) {
      Floats totals[G] = {}, products[G] = {};
      slice.each_group_of(units, [&](Index u, Index n, Index i) {
        const Floats x = norm.normal_second(t, b, load(after.rows[1] + u, n));
        const Floats through = norm.through(b, load(norm.d_normal(b, G, i)), x, norm.moments(t, b)[G]);
        State d_before;
        Maps maps;
        C::update_back(before.load(u, n), saved(t, 0, b, u), d_made(1, t, 0, b, u, n, i) + through,
                       maps, d_before);
        put_direct(0, b, i, d_before);
        at(maps, LAST) = load(norm.d_normal(b, LAST, i));
        const float* normal = norm.normals(t, b, u);
        for (Index k = 0; k < G; k++)
          norm.enter(b, k, u, n, i, at(maps, k), load(normal + k * W), totals[k], products[k]);
      });
      for (Index k = 0; k < G; k++) norm.of_gates.put(part, b * G + k, sum(totals[k]), sum(products[k]));
    });
  }

  [[gnu::flatten]] void leave_gates(Index t, Index b) const {
    slice.each_group([&](Index u, Index n, Index i) {
      const float* normal = norm.normals(t, b, u);
      for (Index k = 0; k < G; k++) {
        const Floats d = load(norm.d_normal(b, k, i)), x = load(normal + k * W);
        put_map(t, 0, b, k, u, n, norm.through(b * G + k, d, x, norm.moments(t, b)[k]));
      }
    });
  }
};

template <class C, class Operand>
void backward(const Arguments& a, const Member& member) {
  Backward<C, Operand> layer(a, member, fresh_scratch());
  for (Index t = a.T - 1; t >= 0; t--) layer.step(t);
  layer.finish();
}
