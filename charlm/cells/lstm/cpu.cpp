// One layer of the LSTM over a window, forward and backward, optionally with layer normalization: `lstm_layer` of
// reference.py.
//
// Each thread computes a slice of the hidden units. Forward, one step is: multiply the whole state h_{t−1} by the
// slice's columns of W_hᵀ, packed once per call; apply the gates to the slice's units; barrier. Backward, one step is:
// compute the gradients of the slice's gates; barrier; multiply the gradients of all gates by the slice's columns of
// W_h. Layer normalization adds two barriers per step, to exchange sums over all units for the gates and for c.

#include "../../native/generate.h"
#include "norm.h"

// Pointers do not overlap and are used only during the call; "written" fields are output, all others are input.
struct Arguments {
  Index T, B, H, threads;
  Index bf16;                // multiply in bfloat16; sums and states are float in any case
  const float* weights;      // W_h [4·H, H]; gates are always stacked i, f, g, o
  double epsilon;            // added to the variance in layer normalization
  const float* gains;        // [5, H]: gains of layer normalization for i, f, g, o, c; null without it
  const float* shifts;       // [5, H]: biases of layer normalization; null without it
  const float* mask;         // [B, H]: state dropout; or null
  const float* kept;         // [kept_rows, 2·H]: zoneout's share of h_{t−1}, then of c_{t−1}; null: no zoneout
  Index kept_rows;           // T·B, or 1 for all steps and streams
  const float* inputs;       // [T, B, 4·H]: W_x x_t + b_x + b_h; with ids [V, 4·H]
  const Index* ids;          // [T, B]: which row of `inputs` each step reads; or null
  float* outputs;            // [1 + T, B, H]: h before the first step, set by the caller; then h_t, written
  float* cells;              // [1 + T, B, H]: c before the first step, set by the caller; then c_t, written
  float* gates;              // [T, B, 4, H], written: σ(i), σ(f), tanh(g), σ(o); null without a backward pass
  float* normal;             // [T, B, 4, H], written: normalized i, f, g, o before gains; null if `gates` or `gains` is
  float* moments;            // [T, B, 6], written: 1/σ of i, f, g, o, c, and the mean of c; null if `normal` is
  const float* d_outputs;    // [T, B, H]: gradient of h_1 … h_T
  const float* d_last_cell;  // [B, H]: gradient of c_T
  float* d_maps;             // [T, B, 4·H], written: gradient of i, f, g, o before normalization
  float* d_gains;            // [5, H], added to: gradient of the gains; null without normalization
  float* d_shifts;           // [5, H], added to: gradient of the shifts; null without normalization
  float* d_first;            // [B, H], written: gradient of h_0
  float* d_first_cell;       // [B, H], written: gradient of c_0
  float* operands;           // scratch for copies of what products read; forward with mask or bf16: [2, B, padded(H)],
                             // backward with bf16: [2, B, padded(4·H)]; else null
  float* partials;           // scratch [threads, 2 · 5 · B]: sums that threads exchange in normalization

  // Multiplications between two barriers, over all threads.
  Index work() const { return B * 4 * H * H; }
  Index row_of(Index t, Index b) const { return ids ? ids[t * B + b] : t * B + b; }
  Zoneout output_zoneout() const { return {kept, kept_rows, 2 * H, B}; }
  Zoneout cell_zoneout() const { return {kept ? kept + H : nullptr, kept_rows, 2 * H, B}; }
  // Row b of step t; for outputs and cells this is the state before step t.
  float* output_of(Index t, Index b) const { return outputs + (t * B + b) * H; }
  float* cell_of(Index t, Index b) const { return cells + (t * B + b) * H; }
  float* gates_of(Index t, Index b) const { return gates + (t * B + b) * 4 * H; }
  float* normal_of(Index t, Index b) const { return normal + (t * B + b) * 4 * H; }
  float* moments_of(Index t, Index b) const { return moments + (t * B + b) * 6; }
};

namespace {

constexpr Index CELL_SCALE = 4, CELL_MEAN = 5;  // indices in `moments`

// One member's part of the forward pass. Packs the weights once. Every member constructs one and makes the same calls.
template <class Operand, bool NORM>
class Forward {
 public:
  Forward(const Arguments& a, const Member& member, Scratch& scratch)
      : a(a), member(member), slice(member, a.H),
        packed(scratch.get<Operand>(packed_size<Operand>(slice, GATES, a.H))),
        sums(scratch.get<float>(a.B * columns)) {
    if constexpr (NORM) {
      means = scratch.get<float>(2 * GATES * B);
      scales = means + GATES * B;
    }
    pack_gates(slice, GATES, H, a.weights, packed);
    operands.begin(slice, member, a.outputs);
  }

  // Step t; steps are called in order. On return, the outputs of all units are written.
  void step(Index t) {
    const Operand* operand = operands.take(a.output_of(t, 0));
    multiply(B, H, operand, packed, slice.panels(GATES), sums);
    if constexpr (NORM) {
      for (Index b = 0; b < B; b++) measure_gates(t, b);
      member.meet();
      of_gates.merge(means, scales, a.epsilon);
      for (Index b = 0; b < B; b++) apply_normalized_gates(t, b);
      member.meet();
      of_cell.merge(means, scales, a.epsilon);
      for (Index b = 0; b < B; b++) put_normalized_out(t, b);
    } else {
      for (Index b = 0; b < B; b++) apply_gates(t, b);
    }
    member.meet();
  }

  // For generation, which repeats step 0: copy the state after the step over the state before it.
  void carry() const {
    carry_states(slice, B, a.outputs);
    carry_states(slice, B, a.cells);
  }

  const Arguments& a;
  const Member& member;
  const Slice slice;

 private:
  const Index B = a.B, H = a.H, columns = slice.columns(GATES);
  const float units = slice.end - slice.first;
  const Partials of_gates{member, GATES * B, H, a.partials, 2 * KINDS * B};
  const Partials of_cell{member, B, H, a.partials + 2 * GATES * B, 2 * KINDS * B};
  Operand* packed;
  float* sums;                                // [B, columns]: the product, for this slice's units
  float *means = nullptr, *scales = nullptr;  // [B, 4], or [B] for c: mean and 1/σ over all units
  Operands<Operand> operands{B, H, a.mask, a.operands};
  const Zoneout output_zoneout = a.output_zoneout(), cell_zoneout = a.cell_zoneout();

  // Store h_t and its copy for the next product.
  void put_out(Index t, Index b, Index u, Index n, Floats made) const {
    const Floats h = output_zoneout.mix(t, b, u, n, a.output_of(t, b) + u, made);
    store(a.output_of(t + 1, b) + u, h, n);
    operands.prepare(b, u, n, h);
  }

  struct Updated {
    Floats c, o;
  };

  // From i, f, g, o: the new c and σ(o). Stores c_t, which is the new c after zoneout; h_t uses the new c itself.
  Updated update_cell(Index t, Index b, Index u, Index n, const Floats (&maps)[GATES]) const {
    const Floats i = sigmoid(maps[0]), f = sigmoid(maps[1]), g = tanh(maps[2]), o = sigmoid(maps[3]);
    // c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g)
    const float* before = a.cell_of(t, b) + u;
    const Floats c = f * load(before, n) + i * g;
    store(a.cell_of(t + 1, b) + u, cell_zoneout.mix(t, b, u, n, before, c), n);
    if (a.gates) {
      float* gates = a.gates_of(t, b) + u;
      store(gates, i, n);
      store(gates + H, f, n);
      store(gates + 2 * H, g, n);
      store(gates + 3 * H, o, n);
    }
    return {c, o};
  }

  void apply_gates(Index t, Index b) const {
    const float* added = a.inputs + a.row_of(t, b) * GATES * H;
    slice.each_group([&](Index u, Index n, Index i) {
      const float* sum = sums + b * columns + i * GATES * W;
      Floats maps[GATES];
      // i, f, g, o = W_x x_t + b_x + W_h h_{t−1} + b_h
      for (Index k = 0; k < GATES; k++) maps[k] = load(sum + k * W) + load(added + k * H + u, n);
      const auto [c, o] = update_cell(t, b, u, n, maps);
      // h_t = σ(o) ⊙ tanh(c_t)
      put_out(t, b, u, n, o * tanh(c));
    });
  }

  // Add the inputs to `sums`, and put the mean and the squared deviations of each gate.
  void measure_gates(Index t, Index b) const {
    const float* added = a.inputs + a.row_of(t, b) * GATES * H;
    Floats total[GATES] = {}, squares[GATES] = {};
    float mean[GATES];
    slice.each_group([&](Index u, Index n, Index i) {
      float* sum = sums + b * columns + i * GATES * W;
      for (Index k = 0; k < GATES; k++) {
        // i, f, g, o = W_x x_t + b_x + W_h h_{t−1} + b_h
        const Floats map = load(sum + k * W) + load(added + k * H + u, n);
        store(sum + k * W, map);
        total[k] += map;
      }
    });
    for (Index k = 0; k < GATES; k++) mean[k] = sum(total[k]) / units;
    slice.each_group([&](Index, Index n, Index i) {
      for (Index k = 0; k < GATES; k++) {
        const Floats deviation = first_lanes(load(sums + b * columns + (i * GATES + k) * W) - mean[k], n);
        squares[k] += deviation * deviation;
      }
    });
    for (Index k = 0; k < GATES; k++) of_gates.put(b * GATES + k, mean[k], sum(squares[k]));
  }

  // Compute the new c from the normalized gates, and put its mean and squared deviations. In `sums`, the new c
  // then replaces g, and σ(o) replaces o.
  void apply_normalized_gates(Index t, Index b) const {
    const float *mean = means + b * GATES, *scale = scales + b * GATES;
    Floats total = {}, squares = {};
    slice.each_group([&](Index u, Index n, Index i) {
      float* sum = sums + b * columns + i * GATES * W;
      Floats maps[GATES];
      for (Index k = 0; k < GATES; k++) {
        // LN(a) = (a − mean) / √(variance + ε) ⊙ gain + shift
        const Floats normal = (load(sum + k * W) - mean[k]) * scale[k];
        if (a.normal) store(a.normal_of(t, b) + k * H + u, normal, n);
        maps[k] = normal * load(a.gains + k * H + u, n) + load(a.shifts + k * H + u, n);
      }
      const auto [c, o] = update_cell(t, b, u, n, maps);
      store(sum + 2 * W, c);
      store(sum + 3 * W, o);
      total += c;
    });
    const float cell_mean = sum(total) / units;
    slice.each_group([&](Index, Index n, Index i) {
      const Floats deviation = first_lanes(load(sums + b * columns + (i * GATES + 2) * W) - cell_mean, n);
      squares += deviation * deviation;
    });
    of_cell.put(b, cell_mean, sum(squares));
    if (a.moments && member.id == 0) std::copy(scale, scale + GATES, a.moments_of(t, b));
  }

  void put_normalized_out(Index t, Index b) const {
    slice.each_group([&](Index u, Index n, Index i) {
      const float* sum = sums + b * columns + i * GATES * W;
      const Floats c = load(sum + 2 * W), o = load(sum + 3 * W);
      const Floats normal = (c - means[b]) * scales[b];
      // h_t = σ(o) ⊙ tanh(LN(c_t))
      put_out(t, b, u, n, o * tanh(normal * load(a.gains + CELL * H + u, n) + load(a.shifts + CELL * H + u, n)));
    });
    if (a.moments && member.id == 0) {
      a.moments_of(t, b)[CELL_SCALE] = scales[b];
      a.moments_of(t, b)[CELL_MEAN] = means[b];
    }
  }
};

template <class Operand, bool NORM>
void forward(const Arguments& a, const Member& member) {
  Forward<Operand, NORM> layer(a, member, fresh_scratch());
  for (Index t = 0; t < a.T; t++) layer.step(t);
}

// One member's part of the backward pass; steps are called from the last to the first.
template <class Operand, bool NORM>
class Backward {
 public:
  Backward(const Arguments& a, const Member& member, Scratch& scratch)
      : a(a), member(member), slice(member, a.H),
        packed(scratch.get<Operand>(packed_size<Operand>(slice, 1, GATES * a.H))),
        mapped(slice, B, GATES * H, a.mask, a.operands, scratch), kept_output(a.output_zoneout(), slice, B, scratch),
        kept_cell(a.cell_zoneout(), slice, B, scratch), d_cells(scratch.get<float>(B * columns)),
        norm(member, slice, B, NORM ? a.gains : nullptr, a.partials, scratch) {
    pack_units(slice, GATES * H, a.weights, packed);
    for (Index b = 0; b < B; b++)
      slice.each_group([&](Index u, Index n, Index i) { store(d_cell(b, i), load(a.d_last_cell + b * H + u, n)); });
  }

  void step(Index t) {
    if constexpr (NORM) {
      norm.begin_step();
      for (Index b = 0; b < B; b++) enter_cell(t, b);
      member.meet();
      norm.average_cell();
      for (Index b = 0; b < B; b++) enter_gates(t, b);
      member.meet();
      norm.average_gates();
      for (Index b = 0; b < B; b++) apply_normalized(t, b);
      norm.end_step(a.d_gains, a.d_shifts);
    } else {
      for (Index b = 0; b < B; b++) apply(t, b);
    }
    member.meet();
    mapped.multiply(a.d_maps + t * B * GATES * H, packed);
  }

  // After step 0: store the gradients of h_0 and c_0.
  void finish() const {
    for (Index b = 0; b < B; b++)
      slice.each_group([&](Index u, Index n, Index i) {
        store(a.d_first + b * H + u, mapped.get(b, u, n, i) + kept_output.get(b, i), n);
        store(a.d_first_cell + b * H + u, load(d_cell(b, i)) + kept_cell.get(b, i), n);
      });
  }

 private:
  const Arguments& a;
  const Member& member;
  const Slice slice;
  const Index B = a.B, H = a.H, columns = slice.columns(1);
  Operand* packed;
  CarriedBack<Operand> mapped;
  const KeptBack kept_output, kept_cell;
  float* d_cells;  // [B, columns]: gradient of c_t that comes from step t + 1
  const NormBack norm;

  float* d_cell(Index b, Index i) const { return d_cells + b * columns + i * W; }

  // Gradient of the new h of step t, before zoneout. Call it once per step: it updates zoneout's bypass.
  Floats d_output(Index t, Index b, Index u, Index n, Index i) const {
    return kept_output.through(t, b, u, n, i, mapped.get(b, u, n, i) + load(a.d_outputs + (t * B + b) * H + u, n));
  }

  // Gradient of the new c through c_t. The rest comes through h_t. Call it once per step: it updates zoneout's bypass.
  Floats d_by_next(Index t, Index b, Index u, Index n, Index i) const {
    return kept_cell.through(t, b, u, n, i, load(d_cell(b, i)));
  }

  // Store the gradient of gate k before normalization, and its copy for the product.
  void put_map(Index t, Index b, Index k, Index u, Index n, Floats d) const {
    const Index at = b * GATES * H + k * H + u;
    store(a.d_maps + t * B * GATES * H + at, d, n);
    mapped.prepare(b, k * H + u, n, d);
  }

  // The new c of step t. With zoneout it is recomputed, because `cells` has c_t after zoneout.
  Floats made_cell(Index t, Index b, Index u, Index n) const {
    if (!a.kept) return load(a.cell_of(t + 1, b) + u, n);
    const float* gates = a.gates_of(t, b) + u;
    return load(gates + H, n) * load(a.cell_of(t, b) + u, n) + load(gates, n) * load(gates + 2 * H, n);
  }

  void apply(Index t, Index b) const {
    slice.each_group([&](Index u, Index n, Index at) {
      const float* gates = a.gates_of(t, b) + u;
      const Floats i = load(gates, n), f = load(gates + H, n), g = load(gates + 2 * H, n), o = load(gates + 3 * H, n);
      const Floats c = tanh(made_cell(t, b, u, n));
      const Floats dh = d_output(t, b, u, n, at);
      // dc = dc_t + dh ⊙ σ(o) ⊙ (1 − tanh²(c)); dc_{t−1} = dc ⊙ σ(f)
      const Floats dc = d_by_next(t, b, u, n, at) + dh * o * (1.0f - c * c);
      store(d_cell(b, at), dc * f);
      // di = dc ⊙ tanh(g) ⊙ σ′(i), df = dc ⊙ c_{t−1} ⊙ σ′(f), dg = dc ⊙ σ(i) ⊙ tanh′(g), do = dh ⊙ tanh(c) ⊙ σ′(o)
      put_map(t, b, 0, u, n, dc * g * i * (1.0f - i));
      put_map(t, b, 1, u, n, dc * load(a.cell_of(t, b) + u, n) * f * (1.0f - f));
      put_map(t, b, 2, u, n, dc * i * (1.0f - g * g));
      put_map(t, b, 3, u, n, dh * c * o * (1.0f - o));
    });
  }

  Floats normal_cell(Index t, Index b, Index u, Index n) const {
    const float* moments = a.moments_of(t, b);
    return (made_cell(t, b, u, n) - moments[CELL_MEAN]) * moments[CELL_SCALE];
  }

  // Pass the gradient of LN(c) to `norm`. Keeps the gradient of o in row 3 of d_normal until `enter_gates`.
  void enter_cell(Index t, Index b) const {
    Floats total = {}, product = {};
    slice.each_group([&](Index u, Index n, Index i) {
      const Floats normal = normal_cell(t, b, u, n), o = load(a.gates_of(t, b) + 3 * H + u, n);
      const Floats c = tanh(normal * load(a.gains + CELL * H + u, n) + load(a.shifts + CELL * H + u, n));
      const Floats dh = d_output(t, b, u, n, i);
      norm.enter(b, CELL, u, n, i, dh * o * (1.0f - c * c), normal, total, product);
      store(norm.d_normal(b, 3, i), dh * c * o * (1.0f - o));
    });
    norm.put_cell(b, total, product);
  }

  void enter_gates(Index t, Index b) const {
    Floats total[GATES] = {}, product[GATES] = {};
    slice.each_group([&](Index u, Index n, Index at) {
      const float *gates = a.gates_of(t, b) + u, *normal = a.normal_of(t, b) + u;
      const Floats i = load(gates, n), f = load(gates + H, n), g = load(gates + 2 * H, n);
      const Floats by_next = d_by_next(t, b, u, n, at);
      const Floats d_seen = norm.through(b, load(norm.d_normal(b, CELL, at)), normal_cell(t, b, u, n),
                                         a.moments_of(t, b)[CELL_SCALE]);
      const Floats dc = by_next + d_seen;
      store(d_cell(b, at), dc * f);
      const Floats d[GATES] = {dc * g * i * (1.0f - i), dc * load(a.cell_of(t, b) + u, n) * f * (1.0f - f),
                               dc * i * (1.0f - g * g), load(norm.d_normal(b, 3, at))};
      for (Index k = 0; k < GATES; k++)
        norm.enter(b, k, u, n, at, d[k], load(normal + k * H, n), total[k], product[k]);
    });
    for (Index k = 0; k < GATES; k++) norm.put_gate(b, k, total[k], product[k]);
  }

  void apply_normalized(Index t, Index b) const {
    const float *normal = a.normal_of(t, b), *scales = a.moments_of(t, b);
    slice.each_group([&](Index u, Index n, Index i) {
      for (Index k = 0; k < GATES; k++) {
        const Floats d = load(norm.d_normal(b, k, i)), x = load(normal + k * H + u, n);
        put_map(t, b, k, u, n, norm.through(b * GATES + k, d, x, scales[k]));
      }
    });
  }
};

template <class Operand, bool NORM>
void backward(const Arguments& a, const Member& member) {
  Backward<Operand, NORM> layer(a, member, fresh_scratch());
  for (Index t = a.T - 1; t >= 0; t--) layer.step(t);
  layer.finish();
}

}  // namespace

KERNEL void lstm_forward(const Arguments* a) {
  if (a->bf16)
    run_team(*a, a->work(), a->gains ? forward<Bf16, true> : forward<Bf16, false>);
  else
    run_team(*a, a->work(), a->gains ? forward<float, true> : forward<float, false>);
}

KERNEL void lstm_backward(const Arguments* a) {
  if (a->bf16)
    run_team(*a, a->work(), a->gains ? backward<Bf16, true> : backward<Bf16, false>);
  else
    run_team(*a, a->work(), a->gains ? backward<float, true> : backward<float, false>);
}

KERNEL void lstm_generate(const Generation* g) {
  if (static_cast<const Arguments*>(g->layers[0])->gains)
    run_generate<Forward<float, true>, Arguments>(*g);
  else
    run_generate<Forward<float, false>, Arguments>(*g);
}
