// One layer of the gated recurrent unit over a window, forward and backward: `gru_layer` of reference.py.
//
// Each thread computes a slice of the hidden units. Forward, one step is: multiply the whole state h_{t−1} by the
// slice's columns of W_hhᵀ, packed once per call; apply the gates to the slice's units; barrier. Backward, one step is:
// compute the gradients of the slice's gates; barrier; multiply the gradients of all gates by the slice's columns of
// W_hh.

#include "../../native/generate.h"

// Pointers do not overlap and are used only during the call; "written" fields are output, all others are input.
struct Arguments {
  Index T, B, H, threads;
  Index bf16;              // multiply in bfloat16; sums and states are float in any case
  const float* weights;    // W_hh [3·H, H], gates stacked r, z, n
  const float* biases;     // b_hh [3·H]
  const float* mask;       // [B, H]: state dropout; or null
  const float* kept;       // [kept_rows, H]: zoneout's share of h_{t−1}; null: no zoneout
  Index kept_rows;         // T·B, or 1 for all steps and streams
  const float* inputs;     // [T, B, 3·H]: W_ih x_t + b_ih; with ids [V, 3·H]
  const Index* ids;        // [T, B]: which row of `inputs` each step reads; or null
  float* outputs;          // [1 + T, B, H]: the state before the first step, set by the caller; then h_t, written
  float* gates;            // [T, B, 4, H], written: r, z, n, W_hn h + b_hn; null without a backward pass
  const float* d_outputs;  // [T, B, H]: gradient of h_1 … h_T
  float* d_maps;           // [T, B, 3·H], written: gradient of W_hh h_{t−1} + b_hh
  float* d_inputs;         // [T, B, 3·H], written: gradient of W_ih x_t + b_ih; differs from d_maps in n only
  float* d_first;          // [B, H], written: gradient of the state before the first step
  float* operands;         // scratch for copies of what products read: forward with mask or bf16 [2, B, padded(H)],
                           // backward with bf16 [2, B, padded(3·H)]; else null

  // Multiplications between two barriers, over all threads.
  Index work() const { return B * 3 * H * H; }
  Index row_of(Index t, Index b) const { return ids ? ids[t * B + b] : t * B + b; }
  Zoneout zoneout() const { return {kept, kept_rows, H, B}; }
  float* gates_of(Index t, Index b) const { return gates + (t * B + b) * 4 * H; }
};

namespace {

// One member's part of the forward pass. Packs the weights once. Every member constructs one and makes the same calls.
template <class Operand>
class Forward {
 public:
  Forward(const Arguments& a, const Member& member, Scratch& scratch)
      : a(a), member(member), slice(member, a.H), packed(scratch.get<Operand>(packed_size<Operand>(slice, 3, a.H))),
        sums(scratch.get<float>(a.B * slice.columns(3))) {
    pack_gates(slice, 3, H, a.weights, packed);
    operands.begin(slice, member, a.outputs);
  }

  // Step t; steps are called in order. On return, the outputs of all units are written.
  void step(Index t) {
    const Operand* operand = operands.take(a.outputs + t * B * H);
    multiply(B, H, operand, packed, slice.panels(3), sums);
    for (Index b = 0; b < B; b++) apply_gates(t, b);
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

  void apply_gates(Index t, Index b) const {
    const float* before = a.outputs + (t * B + b) * H;
    float* after = a.outputs + ((t + 1) * B + b) * H;
    const float* input = a.inputs + a.row_of(t, b) * 3 * H;
    float* gates = a.gates ? a.gates_of(t, b) : nullptr;
    slice.each_group([&](Index u, Index n, Index i) {
      const float* sum = sums + b * slice.columns(3) + i * 3 * W;
      const auto h_map = [&](Index k) { return load(sum + k * W) + load(a.biases + k * H + u, n); };
      const auto x_map = [&](Index k) { return load(input + k * H + u, n); };
      // r = σ(W_ir x + b_ir + W_hr h + b_hr), z = σ(W_iz x + b_iz + W_hz h + b_hz)   (5), (6)
      const Floats r = sigmoid(x_map(0) + h_map(0)), z = sigmoid(x_map(1) + h_map(1));
      // n = tanh(W_in x + b_in + r ⊙ (W_hn h + b_hn))                               (8)
      const Floats h_n = h_map(2);
      const Floats candidate = tanh(x_map(2) + r * h_n);
      // h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}                                             (7)
      const Floats made = candidate + z * (load(before + u, n) - candidate);
      const Floats h = zoneout.mix(t, b, u, n, before + u, made);
      store(after + u, h, n);
      operands.prepare(b, u, n, h);
      if (gates) {
        store(gates + u, r, n);
        store(gates + H + u, z, n);
        store(gates + 2 * H + u, candidate, n);
        store(gates + 3 * H + u, h_n, n);
      }
    });
  }
};

template <class Operand>
void forward(const Arguments& a, const Member& member) {
  Forward<Operand> layer(a, member, fresh_scratch());
  for (Index t = 0; t < a.T; t++) layer.step(t);
}

template <class Operand>
void backward(const Arguments& a, const Member& member) {
  const Index B = a.B, H = a.H, GH = 3 * H;
  const Slice slice(member, H);
  const Index columns = slice.columns(1);
  Scratch& scratch = fresh_scratch();
  Operand* packed = scratch.get<Operand>(packed_size<Operand>(slice, 1, GH));
  // The gradient of h_{t−1} for this slice: through the product in `mapped`, through z in `carried`.
  CarriedBack<Operand> mapped(slice, B, GH, a.mask, a.operands, scratch);
  const KeptBack kept(a.zoneout(), slice, B, scratch);
  float* carried = scratch.get<float>(B * columns);
  pack_units(slice, GH, a.weights, packed);
  std::fill(carried, carried + B * columns, 0.0f);

  for (Index t = a.T - 1; t >= 0; t--) {
    for (Index b = 0; b < B; b++) {
      const float* gates = a.gates_of(t, b);
      const float* before = a.outputs + (t * B + b) * H;
      float* d_maps = a.d_maps + (t * B + b) * GH;
      float* d_inputs = a.d_inputs + (t * B + b) * GH;
      slice.each_group([&](Index u, Index n, Index i) {
        float* d_state = carried + b * columns + i * W;
        const Floats d_after = load(d_state) + mapped.get(b, u, n, i) + load(a.d_outputs + (t * B + b) * H + u, n);
        const Floats dh = kept.through(t, b, u, n, i, d_after);
        const Floats r = load(gates + u, n), z = load(gates + H + u, n);
        const Floats candidate = load(gates + 2 * H + u, n), h_n = load(gates + 3 * H + u, n);
        // dh_{t−1} through (7) is dh ⊙ z; dz = dh ⊙ (h_{t−1} − n) ⊙ z(1 − z), dn = dh ⊙ (1 − z) ⊙ (1 − n²),
        // dr = dn ⊙ (W_hn h + b_hn) ⊙ r(1 − r), each for the argument of σ or tanh.
        store(d_state, dh * z);
        const Floats d_z = dh * (load(before + u, n) - candidate) * z * (1.0f - z);
        const Floats d_n = dh * (1.0f - z) * (1.0f - candidate * candidate);
        const Floats d_r = d_n * h_n * r * (1.0f - r);
        // r multiplies only the recurrent part of n, so the two products have different gradients for n.
        const Floats d_map[3] = {d_r, d_z, d_n * r}, d_x_map[3] = {d_r, d_z, d_n};
        for (Index k = 0; k < 3; k++) {
          store(d_maps + k * H + u, d_map[k], n);
          mapped.prepare(b, k * H + u, n, d_map[k]);
          store(d_inputs + k * H + u, d_x_map[k], n);
        }
      });
    }
    member.meet();
    mapped.multiply(a.d_maps + t * B * GH, packed);
  }

  for (Index b = 0; b < B; b++)
    slice.each_group([&](Index u, Index n, Index i) {
      store(a.d_first + b * H + u, load(carried + b * columns + i * W) + mapped.get(b, u, n, i) + kept.get(b, i), n);
    });
}

}  // namespace

KERNEL void gru_forward(const Arguments* a) { run_team(*a, a->work(), a->bf16 ? forward<Bf16> : forward<float>); }

KERNEL void gru_backward(const Arguments* a) { run_team(*a, a->work(), a->bf16 ? backward<Bf16> : backward<float>); }

KERNEL void gru_generate(const Generation* g) { run_generate<Forward<float>, Arguments>(*g); }
