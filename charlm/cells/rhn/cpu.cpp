// One layer of the recurrent highway network over a window, forward and backward: `rhn_layer` of reference.py.
//
// Each thread computes a slice of the hidden units. Forward, one micro-step (t, d) is: multiply the whole state s_{d−1}
// by the slice's columns of R_dᵀ, packed once per call; apply the gates to the slice's units; barrier. Backward, one
// micro-step is: compute the gradients of the slice's gates; barrier; multiply the gradients of all gates by the
// slice's columns of R_d.

#include "../../native/generate.h"

// Pointers do not overlap and are used only during the call; "written" fields are output, all others are input.
struct Arguments {
  Index T, B, H, D, G, threads;  // G: 2 for coupled gates (h, g), 3 with a carry gate of its own (h, g, c)
  Index bf16;                    // multiply in bfloat16; sums and states are float in any case
  const float* weights;          // R [D, G·H, H]
  const float* biases;           // [D, G·H]; the first row is not read: `inputs` contain it
  const float* mask;             // [B, H]: state dropout; or null
  const float* kept;             // [kept_rows, H]: zoneout's share of s_0 of a step; null: no zoneout
  Index kept_rows;               // T·B, or 1 for all steps and streams
  const float* inputs;           // [T, B, G·H]: W x_t + b_1; with ids [V, G·H]
  const Index* ids;              // [T, B]: which row of `inputs` each step reads; or null
  float* inner;                  // [D − 1, T, B, H], written: s_1 … s_{D−1}; [D − 1, 1, B, H], one step's, if `gates`
                                 // is null
  float* outputs;                // [1 + T, B, H]: the state before the first step, set by the caller; then the state
                                 // after each step, written
  float* gates;                  // [D, T, B, G, H], written: h, g and c; null without a backward pass
  const float* d_outputs;        // [T, B, H]: gradient of the states after each step
  float* d_maps;                 // [D, T, B, G·H], written: gradient of the arguments of tanh and σ
  float* d_first;                // [B, H], written: gradient of the state before the first step
  float* operands;               // scratch for copies of what products read: forward with mask or bf16
                                 // [2, B, padded(H)], backward with bf16 [2, B, padded(G·H)]; else null

  // Multiplications between two barriers, over all threads.
  Index work() const { return B * G * H * H; }
  Index row_of(Index t, Index b) const { return ids ? ids[t * B + b] : t * B + b; }
  Zoneout zoneout() const { return {kept, kept_rows, H, B}; }
  Index inner_steps() const { return gates ? T : 1; }
  // The state before micro-step (t, d), for d from 0 to D − 1.
  float* state_before(Index t, Index d) const {
    return d == 0 ? outputs + t * B * H : inner + ((d - 1) * inner_steps() + t % inner_steps()) * B * H;
  }
  float* state_after(Index t, Index d) const { return state_before(t + (d + 1) / D, (d + 1) % D); }
  float* gates_of(Index t, Index d) const { return gates + (d * T + t) * B * G * H; }
  float* d_maps_of(Index t, Index d) const { return d_maps + (d * T + t) * B * G * H; }
};

namespace {

// One member's part of the forward pass. Packs the weights once. Every member constructs one and makes the same calls.
template <class Operand, int G>
class Forward {
 public:
  Forward(const Arguments& a, const Member& member, Scratch& scratch)
      : a(a), member(member), slice(member, a.H), packed(scratch.get<Operand>(a.D * size())),
        sums(scratch.get<float>(a.B * slice.columns(G))) {
    for (Index d = 0; d < a.D; d++) pack_gates(slice, G, H, a.weights + d * GH * H, packed + d * size());
    operands.begin(slice, member, a.outputs);
  }

  // Step t; steps are called in order. On return, the outputs of all units are written.
  void step(Index t) {
    for (Index d = 0; d < a.D; d++) {
      const Operand* operand = operands.take(a.state_before(t, d));
      multiply(B, H, operand, packed + d * size(), slice.panels(G), sums);
      for (Index b = 0; b < B; b++) apply_gates(t, d, b);
      member.meet();
    }
  }

  // For generation, which repeats step 0: copy the state after the step over the state before it.
  void carry() const { carry_states(slice, B, a.outputs); }

  const Arguments& a;
  const Member& member;
  const Slice slice;

 private:
  const Index B = a.B, H = a.H, GH = G * H;
  Operand* packed;
  float* sums;
  Operands<Operand> operands{B, H, a.mask, a.operands};
  const Zoneout zoneout = a.zoneout();

  Index size() const { return packed_size<Operand>(slice, G, a.H); }

  void apply_gates(Index t, Index d, Index b) const {
    const float* before = a.state_before(t, d) + b * H;
    float* after = a.state_after(t, d) + b * H;
    // The first micro-step adds the inputs, which contain its biases; the others add only their biases.
    const float* added = d == 0 ? a.inputs + a.row_of(t, b) * GH : a.biases + d * GH;
    float* gates = a.gates ? a.gates_of(t, d) + b * GH : nullptr;
    slice.each_group([&](Index u, Index n, Index i) {
      const float* sum = sums + b * slice.columns(G) + i * G * W;
      const Floats s = load(before + u, n);
      // h_d = tanh(W_h x [d = 1] + R_h s_{d−1} + b_h)                                    (7)
      const Floats h = tanh(load(sum) + load(added + u, n));
      // g_d = σ(W_g x [d = 1] + R_g s_{d−1} + b_g)                                       (8)
      const Floats g = sigmoid(load(sum + W) + load(added + H + u, n));
      // c_d = 1 − g_d, or σ(W_c x [d = 1] + R_c s_{d−1} + b_c)                           (9)
      Floats c = 1.0f - g;
      if constexpr (G == 3) c = sigmoid(load(sum + 2 * W) + load(added + 2 * H + u, n));
      // s_d = h_d ⊙ g_d + s_{d−1} ⊙ c_d                                                  (6)
      Floats s_new = h * g + s * c;
      if (d == a.D - 1) s_new = zoneout.mix(t, b, u, n, a.state_before(t, 0) + b * H + u, s_new);
      store(after + u, s_new, n);
      operands.prepare(b, u, n, s_new);
      if (gates) {
        store(gates + u, h, n);
        store(gates + H + u, g, n);
        if constexpr (G == 3) store(gates + 2 * H + u, c, n);
      }
    });
  }
};

template <class Operand, int G>
void forward(const Arguments& a, const Member& member) {
  Forward<Operand, G> layer(a, member, fresh_scratch());
  for (Index t = 0; t < a.T; t++) layer.step(t);
}

template <class Operand, int G>
void backward(const Arguments& a, const Member& member) {
  const Index B = a.B, H = a.H, GH = G * H;
  const Slice slice(member, H);
  const Index columns = slice.columns(1), size = packed_size<Operand>(slice, 1, GH);
  Scratch& scratch = fresh_scratch();
  Operand* packed = scratch.get<Operand>(a.D * size);
  // The gradient of s_{d−1} for this slice: through the products in `mapped`, through the carry gate in `carried`.
  CarriedBack<Operand> mapped(slice, B, GH, a.mask, a.operands, scratch);
  const KeptBack kept(a.zoneout(), slice, B, scratch);
  float* carried = scratch.get<float>(B * columns);
  for (Index d = 0; d < a.D; d++) pack_units(slice, GH, a.weights + d * GH * H, packed + d * size);
  std::fill(carried, carried + B * columns, 0.0f);

  for (Index step = a.T * a.D - 1; step >= 0; step--) {
    const Index t = step / a.D, d = step % a.D;
    const float* before = a.state_before(t, d);
    for (Index b = 0; b < B; b++) {
      const float* gates = a.gates_of(t, d) + b * GH;
      float* d_maps = a.d_maps_of(t, d) + b * GH;
      slice.each_group([&](Index u, Index n, Index i) {
        float* d_state = carried + b * columns + i * W;
        Floats ds = load(d_state) + mapped.get(b, u, n, i);
        if (d == a.D - 1) ds = kept.through(t, b, u, n, i, ds + load(a.d_outputs + (t * B + b) * H + u, n));
        const Floats s = load(before + b * H + u, n);
        const Floats h = load(gates + u, n), g = load(gates + H + u, n);
        const Floats c = G == 3 ? load(gates + (G - 1) * H + u, n) : 1.0f - g;
        // For the arguments of tanh and σ: dh = ds ⊙ g ⊙ (1 − h²), and for separate gates dg = ds ⊙ h ⊙ g(1 − g) and
        // dc = ds ⊙ s_{d−1} ⊙ c(1 − c); for coupled gates dg = ds ⊙ (h − s_{d−1}) ⊙ g(1 − g).
        Floats d_map[G] = {ds * g * (1.0f - h * h)};
        if constexpr (G == 3) {
          d_map[1] = ds * h * g * (1.0f - g);
          d_map[2] = ds * s * c * (1.0f - c);
        } else {
          d_map[1] = ds * (h - s) * g * c;
        }
        store(d_state, ds * c);
        for (Index k = 0; k < G; k++) {
          store(d_maps + k * H + u, d_map[k], n);
          mapped.prepare(b, k * H + u, n, d_map[k]);
        }
      });
    }
    member.meet();
    mapped.multiply(a.d_maps_of(t, d), packed + d * size);
  }

  for (Index b = 0; b < B; b++)
    slice.each_group([&](Index u, Index n, Index i) {
      store(a.d_first + b * H + u, load(carried + b * columns + i * W) + mapped.get(b, u, n, i) + kept.get(b, i), n);
    });
}

}  // namespace

KERNEL void rhn_forward(const Arguments* a) {
  if (a->bf16)
    run_team(*a, a->work(), a->G == 2 ? forward<Bf16, 2> : forward<Bf16, 3>);
  else
    run_team(*a, a->work(), a->G == 2 ? forward<float, 2> : forward<float, 3>);
}

KERNEL void rhn_backward(const Arguments* a) {
  if (a->bf16)
    run_team(*a, a->work(), a->G == 2 ? backward<Bf16, 2> : backward<Bf16, 3>);
  else
    run_team(*a, a->work(), a->G == 2 ? backward<float, 2> : backward<float, 3>);
}

KERNEL void rhn_generate(const Generation* g) {
  g->G == 2 ? run_generate<Forward<float, 2>, Arguments>(*g) : run_generate<Forward<float, 3>, Arguments>(*g);
}
