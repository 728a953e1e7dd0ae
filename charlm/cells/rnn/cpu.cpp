// One layer of the simple recurrent network over a window, forward and backward: `rnn_layer` of reference.py.
//
// Each thread computes a slice of the hidden units. Forward, one step is: multiply the whole state h_{t−1} by the
// slice's columns of W_hhᵀ, packed once per call; apply φ to the slice's units; barrier. Backward, one step is: compute
// the gradients of φ's arguments for the slice; barrier; multiply all these gradients by the slice's columns of W_hh.

#include "../../native/generate.h"

// Pointers do not overlap and are used only during the call; "written" fields are output, all others are input.
struct Arguments {
  Index T, B, H, threads;
  Index relu;              // φ: 0 is tanh, 1 is relu
  Index bf16;              // multiply in bfloat16; sums and states are float in any case
  const float* weights;    // W_hh [H, H]
  const float* mask;       // [B, H]: state dropout; or null
  const float* kept;       // [kept_rows, H]: zoneout's share of h_{t−1}; null: no zoneout
  Index kept_rows;         // T·B, or 1 for all steps and streams
  const float* inputs;     // [T, B, H]: W_xh x_t + b_x + b_h; with ids [V, H]
  const Index* ids;        // [T, B]: which row of `inputs` each step reads; or null
  float* outputs;          // [1 + T, B, H]: the state before the first step, set by the caller; then h_t, written
  float* made;             // [T, B, H], written: h_t before zoneout; null without zoneout or without a backward pass
  const float* d_outputs;  // [T, B, H]: gradient of h_1 … h_T
  float* d_maps;           // [T, B, H], written: gradient of φ's arguments
  float* d_first;          // [B, H], written: gradient of the state before the first step
  float* operands;         // scratch [2, B, padded(H)] for copies of what products read: forward with mask or bf16,
                           // backward with bf16; else null

  // Multiplications between two barriers, over all threads.
  Index work() const { return B * H * H; }
  Index row_of(Index t, Index b) const { return ids ? ids[t * B + b] : t * B + b; }
  Zoneout zoneout() const { return {kept, kept_rows, H, B}; }
};

namespace {

// max(x, 0); NaN stays NaN.
inline Floats rectified(Floats x) { return x < 0.0f ? Floats{} : x; }

// One member's part of the forward pass. Packs the weights once. Every member constructs one and makes the same calls.
template <class Operand>
class Forward {
 public:
  Forward(const Arguments& a, const Member& member, Scratch& scratch)
      : a(a), member(member), slice(member, a.H), packed(scratch.get<Operand>(packed_size<Operand>(slice, 1, a.H))),
        sums(scratch.get<float>(a.B * slice.columns(1))) {
    pack_gates(slice, 1, H, a.weights, packed);
    operands.begin(slice, member, a.outputs);
  }

  // Step t; steps are called in order. On return, the outputs of all units are written.
  void step(Index t) {
    const Operand* operand = operands.take(a.outputs + t * B * H);
    multiply(B, H, operand, packed, slice.panels(1), sums);
    for (Index b = 0; b < B; b++) {
      const float* input = a.inputs + a.row_of(t, b) * H;
      const float* before = a.outputs + (t * B + b) * H;
      float* after = a.outputs + ((t + 1) * B + b) * H;
      slice.each_group([&](Index u, Index n, Index i) {
        // h_t = φ(W_xh x_t + b_x + W_hh h_{t−1} + b_h)
        const Floats map = load(input + u, n) + load(sums + b * slice.columns(1) + i * W);
        const Floats made = a.relu ? rectified(map) : tanh(map);
        if (a.made) store(a.made + (t * B + b) * H + u, made, n);
        const Floats h = zoneout.mix(t, b, u, n, before + u, made);
        store(after + u, h, n);
        operands.prepare(b, u, n, h);
      });
    }
    member.meet();
  }

  // For generation, which repeats step 0: copy the state after the step over the state before it.
  void carry() const { carry_states(slice, B, a.outputs); }

  const Arguments& a;
  const Member& member;
  const Slice slice;

 private:
  const Index B = a.B, H = a.H;
  Operand* packed;
  float* sums;
  Operands<Operand> operands{B, H, a.mask, a.operands};
  const Zoneout zoneout = a.zoneout();
};

template <class Operand>
void forward(const Arguments& a, const Member& member) {
  Forward<Operand> layer(a, member, fresh_scratch());
  for (Index t = 0; t < a.T; t++) layer.step(t);
}

template <class Operand>
void backward(const Arguments& a, const Member& member) {
  const Index B = a.B, H = a.H;
  const Slice slice(member, H);
  Scratch& scratch = fresh_scratch();
  Operand* packed = scratch.get<Operand>(packed_size<Operand>(slice, 1, H));
  CarriedBack<Operand> mapped(slice, B, H, a.mask, a.operands, scratch);
  const KeptBack kept(a.zoneout(), slice, B, scratch);
  pack_units(slice, H, a.weights, packed);

  for (Index t = a.T - 1; t >= 0; t--) {
    const float* made = a.made ? a.made + t * B * H : a.outputs + (t + 1) * B * H;
    float* d_maps = a.d_maps + t * B * H;
    for (Index b = 0; b < B; b++) {
      slice.each_group([&](Index u, Index n, Index i) {
        const Floats h = load(made + b * H + u, n);
        const Floats d_after = load(a.d_outputs + (t * B + b) * H + u, n) + mapped.get(b, u, n, i);
        const Floats dh = kept.through(t, b, u, n, i, d_after);
        // φ′: 1 − h² for tanh; for relu 1 if h > 0, else 0.
        const Floats d_map = a.relu ? (h <= 0.0f ? Floats{} : dh) : dh * (1.0f - h * h);
        store(d_maps + b * H + u, d_map, n);
        mapped.prepare(b, u, n, d_map);
      });
    }
    member.meet();
    mapped.multiply(d_maps, packed);
  }

  for (Index b = 0; b < B; b++)
    slice.each_group([&](Index u, Index n, Index i) {
      store(a.d_first + b * H + u, mapped.get(b, u, n, i) + kept.get(b, i), n);
    });
}

}  // namespace

KERNEL void rnn_forward(const Arguments* a) { run_team(*a, a->work(), a->bf16 ? forward<Bf16> : forward<float>); }

KERNEL void rnn_backward(const Arguments* a) { run_team(*a, a->work(), a->bf16 ? backward<Bf16> : backward<float>); }

KERNEL void rnn_generate(const Generation* g) { run_generate<Forward<float>, Arguments>(*g); }
