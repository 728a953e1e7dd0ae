// One layer of the recurrent highway network over a window, forward and backward: `rhn_layer` of reference.py.
//
// Every thread computes a slice of the hidden units. In a micro-step (t, d) it multiplies the state s_{d−1} of all
// units by its slice of R_d, packed once per call, applies the gates to its units, and meets the others: then s_d is
// whole. Backwards it makes the gates' gradients of its units, meets the others, and multiplies all of them by its
// columns of R_d.

#include "../../native/generate.h"

struct Arguments {
  Index T, B, H, D, G, threads;  // G: 2 for coupled gates (h, g), 3 with a carry gate of their own (h, g, c)
  Index bf16;                    // whether products are taken in bfloat16; sums and states are float then too
  const float* weights;          // [D, G·H, H]
  const float* biases;           // [D, G·H]; the first row is part of `inputs`
  const float* mask;             // [B, H] or null
  const float* kept;             // [kept_rows, H]: what zoneout keeps of the s_0 of a step; null: nothing
  Index kept_rows;               // T·B or, alike for all steps and streams, 1
  const float* inputs;           // [T, B, G·H]: W x_t + b_1; with ids [V, G·H]
  const Index* ids;              // [T, B]: the rows of `inputs` to take, or null
  float* inner;                  // [D − 1, T, B, H]: s_1 … s_{D−1}; with `gates` null [D − 1, 1, B, H], one step's
  float* outputs;                // [1 + T, B, H]: the first state, filled by the caller, then that after every step
  float* gates;                  // [D, T, B, G, H]: tanh and σ of every gate; null where no backward pass follows
  const float* d_outputs;        // [T, B, H]: gradient of the outputs
  float* d_maps;                 // [D, T, B, G·H], written: gradient of the linear maps
  float* d_first;                // [B, H], written: gradient of the first state
  float* operands;               // scratch for what products read where it is no state or gradient as it stands:
                                 // with mask or bf16 [2, B, padded(H)]; backwards with bf16 [2, B, padded(G·H)]

  // Multiplications between two barriers.
  Index work() const { return B * G * H * H; }
  Index row_of(Index t, Index b) const { return ids ? ids[t * B + b] : t * B + b; }
  Zoneout zoneout() const { return {kept, kept_rows, H, B}; }
  Index inner_steps() const { return gates ? T : 1; }
  // s_{d−1} of step t, d counting from 0: what micro-step (t, d) starts from.
  float* state_before(Index t, Index d) const {
    return d == 0 ? outputs + t * B * H : inner + ((d - 1) * inner_steps() + t % inner_steps()) * B * H;
  }
  float* state_after(Index t, Index d) const { return state_before(t + (d + 1) / D, (d + 1) % D); }
  float* gates_of(Index t, Index d) const { return gates + (d * T + t) * B * G * H; }
  float* d_maps_of(Index t, Index d) const { return d_maps + (d * T + t) * B * G * H; }
};

namespace {

// One member's part of the forward pass. Its weights are packed once, for any number of steps; every member must make
// one, and call the same functions.
template <class Operand, int G>
class Forward {
 public:
  Forward(const Arguments& a, const Member& member, Scratch& scratch)
      : a(a), member(member), slice(member, a.H), packed(scratch.get<Operand>(a.D * size())),
        sums(scratch.get<float>(a.B * slice.columns(G))) {
    for (Index d = 0; d < a.D; d++) pack_gates(slice, G, H, a.weights + d * GH * H, packed + d * size());
    operands.begin(slice, member, a.outputs);
  }

  // Step t, after step t − 1. When it returns, the outputs of all units are there.
  void step(Index t) {
    for (Index d = 0; d < a.D; d++) {
      const Operand* operand = operands.take(a.state_before(t, d));
      multiply(B, H, operand, packed + d * size(), slice.panels(G), sums);
      for (Index b = 0; b < B; b++) apply_gates(t, d, b);
      member.meet();
    }
  }

  // For calls of one step at a time: the state after step 0 becomes the one before it.
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
    // The inputs, with their biases, enter the first micro-step; the others have biases alone.
    const float* added = d == 0 ? a.inputs + a.row_of(t, b) * GH : a.biases + d * GH;
    float* gates = a.gates ? a.gates_of(t, d) + b * GH : nullptr;
    slice.each_group([&](Index u, Index n, Index i) {
      const float* sum = sums + b * slice.columns(G) + i * G * W;
      const Floats s = load(before + u, n);
      const Floats h = tanh(load(sum) + load(added + u, n));
      const Floats g = sigmoid(load(sum + W) + load(added + H + u, n));
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
  // The gradient of this slice's states: what the linear maps carry back, and what the gates do.
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
