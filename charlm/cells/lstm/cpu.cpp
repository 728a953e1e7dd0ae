// One layer of the LSTM over a window, forward and backward, plain or layer-normalised: `lstm_layer` of reference.py.
//
// Every thread computes a slice of the hidden units. In a step it multiplies the state h_{t−1} of all units by its
// slice of W_h, packed once per call, applies the gates to its units, and meets the others: then h_t is whole.
// Backwards it makes the gates' gradients of its units, meets the others, and multiplies all of them by its columns
// of W_h. Normalisation takes sums over the units of all: each thread adds up its own, and they meet once for those of
// the gates and once for those of c.

#include "../../native/generate.h"
#include "../../native/partials.h"

struct Arguments {
  Index T, B, H, threads;
  Index bf16;                // whether products are taken in bfloat16; sums and states are float then too
  const float* weights;      // W_h [4·H, H]; gates are stacked i, f, g, o, here and everywhere
  double epsilon;            // added to the variances that normalisation divides by
  const float* gains;        // [5, H]: of the normalised i, f, g, o and c; null without normalisation
  const float* shifts;       // [5, H]: what is added to them; null without normalisation
  const float* mask;         // [B, H] or null
  const float* kept;         // [kept_rows, 2·H]: what zoneout keeps of h_{t−1}, and of c_{t−1}; null: nothing
  Index kept_rows;           // T·B or, alike for all steps and streams, 1
  const float* inputs;       // [T, B, 4·H]: W_x x_t + b_x + b_h; with ids [V, 4·H]
  const Index* ids;          // [T, B]: the rows of `inputs` to take, or null
  float* outputs;            // [1 + T, B, H]: the first h, filled by the caller, then h of every step
  float* cells;              // [1 + T, B, H]: the same of c
  float* gates;              // [T, B, 4, H]: σ(i), σ(f), tanh(g), σ(o); null where no backward pass follows
  float* normal;             // [T, B, 4, H]: normalised i, f, g, o before gains; null as `gates`, or without
  float* moments;            // [T, B, 6]: 1/σ of i, f, g, o and the new c, then its mean; null as `normal`
  const float* d_outputs;    // [T, B, H]: gradient of the outputs
  const float* d_last_cell;  // [B, H]: gradient of the last c
  float* d_maps;             // [T, B, 4·H], written: gradient of the linear maps
  float* d_gains;            // [5, H], added to: gradient of the gains; null without normalisation
  float* d_shifts;           // [5, H], added to: gradient of the shifts; null without normalisation
  float* d_first;            // [B, H], written: gradient of the first h
  float* d_first_cell;       // [B, H], written: gradient of the first c
  float* operands;           // scratch for what products read where it is no state or gradient as it stands:
                             // with mask or bf16 [2, B, padded(H)]; backwards with bf16 [2, B, 4·H]
  float* partials;           // scratch for what members say of their units: [threads, 2 · 5 · B]

  // Multiplications between two barriers.
  Index work() const { return B * 4 * H * H; }
  Index row_of(Index t, Index b) const { return ids ? ids[t * B + b] : t * B + b; }
  Zoneout output_zoneout() const { return {kept, kept_rows, 2 * H, B}; }
  Zoneout cell_zoneout() const { return {kept ? kept + H : nullptr, kept_rows, 2 * H, B}; }
  // Where row b of step t starts; outputs and cells of t are those that step t starts from.
  float* output_of(Index t, Index b) const { return outputs + (t * B + b) * H; }
  float* cell_of(Index t, Index b) const { return cells + (t * B + b) * H; }
  float* gates_of(Index t, Index b) const { return gates + (t * B + b) * 4 * H; }
  float* normal_of(Index t, Index b) const { return normal + (t * B + b) * 4 * H; }
  float* moments_of(Index t, Index b) const { return moments + (t * B + b) * 6; }
};

namespace {

constexpr Index GATES = 4, CELL = 4, KINDS = 5;  // the new c is the fifth of what is normalised
constexpr Index CELL_SCALE = 4, CELL_MEAN = 5;   // in `moments`

// One member's part of the forward pass. Its weights are packed once, for any number of steps; every member must make
// one, and call the same functions.
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

  // Step t, after step t − 1. When it returns, the outputs of all units are there.
  void step(Index t) {
    const Operand* operand = operands.take(a.output_of(t, 0));
    multiply(B, H, operand, packed, slice.panels(GATES), sums);
    if constexpr (NORM) {
      for (Index b = 0; b < B; b++) measure_gates(t, b);
      member.meet();
      of_gates.merge(means, scales, a.epsilon);
      for (Index b = 0; b < B; b++) apply_normalised_gates(t, b);
      member.meet();
      of_cell.merge(means, scales, a.epsilon);
      for (Index b = 0; b < B; b++) put_normalised_out(t, b);
    } else {
      for (Index b = 0; b < B; b++) apply_gates(t, b);
    }
    member.meet();
  }

  // For calls of one step at a time: the state after step 0 becomes the one before it.
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
  float* sums;                                // [B, columns]: linear maps of this slice's units
  float *means = nullptr, *scales = nullptr;  // [B, 4] or, of c, [B]: mean and 1/σ over all units
  Operands<Operand> operands{B, H, a.mask, a.operands};
  const Zoneout output_zoneout = a.output_zoneout(), cell_zoneout = a.cell_zoneout();

  void put_out(Index t, Index b, Index u, Index n, Floats made) const {
    const Floats h = output_zoneout.mix(t, b, u, n, a.output_of(t, b) + u, made);
    store(a.output_of(t + 1, b) + u, h, n);
    operands.prepare(b, u, n, h);
  }

  struct Updated {
    Floats c, o;
  };

  // Of units, from i, f, g, o: the new c, which h is made of, and σ(o). Stores c_t, what zoneout makes of the new c.
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

  // Complete the linear maps in `sums`, and put the moments of each gate's.
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

  // c_t from the normalised gates, and the new c's moments; leaves it in g's place in `sums`, and σ(o) in o's.
  void apply_normalised_gates(Index t, Index b) const {
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

  void put_normalised_out(Index t, Index b) const {
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

// One member's part of the backward pass, step by step from the last.
template <class Operand, bool NORM>
class Backward {
 public:
  Backward(const Arguments& a, const Member& member, Scratch& scratch)
      : a(a), member(member), slice(member, a.H),
        packed(scratch.get<Operand>(packed_size<Operand>(slice, 1, GATES * a.H))),
        mapped(slice, B, GATES * H, a.mask, a.operands, scratch), kept_output(a.output_zoneout(), slice, B, scratch),
        kept_cell(a.cell_zoneout(), slice, B, scratch), d_cells(scratch.get<float>(B * columns)) {
    pack_units(slice, GATES * H, a.weights, packed);
    for (Index b = 0; b < B; b++)
      slice.each_group([&](Index u, Index n, Index i) { store(d_cell(b, i), load(a.d_last_cell + b * H + u, n)); });
    if constexpr (NORM) {
      d_normals = scratch.get<float>(B * KINDS * columns);
      means = scratch.get<float>(2 * GATES * B);
      products = means + GATES * B;
      d_gains = scratch.get<float>(2 * KINDS * columns);
      d_shifts = d_gains + KINDS * columns;
    }
  }

  // Step t, after step t + 1.
  void step(Index t) {
    if constexpr (NORM) {
      std::fill(d_gains, d_gains + 2 * KINDS * columns, 0.0f);
      for (Index b = 0; b < B; b++) enter_cell(t, b);
      member.meet();
      of_cell.average(means, products);
      for (Index b = 0; b < B; b++) enter_gates(t, b);
      member.meet();
      of_gates.average(means, products);
      for (Index b = 0; b < B; b++) apply_normalised(t, b);
      add_up_gains();
    } else {
      for (Index b = 0; b < B; b++) apply(t, b);
    }
    member.meet();
    mapped.multiply(a.d_maps + t * B * GATES * H, packed);
  }

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
  const Partials of_gates{member, GATES * B, H, a.partials, 2 * KINDS * B};
  const Partials of_cell{member, B, H, a.partials + 2 * GATES * B, 2 * KINDS * B};
  Operand* packed;
  CarriedBack<Operand> mapped;
  const KeptBack kept_output, kept_cell;
  float* d_cells;  // [B, columns]: gradients of c from the steps behind

  // With normalisation:
  float* d_normals = nullptr;                     // [B, 5, columns]: gradients of normalised i, f, g, o, c
  float *means = nullptr, *products = nullptr;    // [B, 4] or, of c, [B]: means of d and d ⊙ normalised over all units
  float *d_gains = nullptr, *d_shifts = nullptr;  // [5, columns]: of one step; a sum of sums errs less than a long one

  float* d_cell(Index b, Index i) const { return d_cells + b * columns + i * W; }
  float* d_normal(Index b, Index k, Index i) const { return d_normals + (b * KINDS + k) * columns + i * W; }

  // The gradient of what step t has made of h; once for each step.
  Floats d_output(Index t, Index b, Index u, Index n, Index i) const {
    return kept_output.through(t, b, u, n, i, mapped.get(b, u, n, i) + load(a.d_outputs + (t * B + b) * H + u, n));
  }

  // The part of the new c's gradient that comes by c_t; the other comes by h, which is made before zoneout mixes c.
  Floats d_by_next(Index t, Index b, Index u, Index n, Index i) const {
    return kept_cell.through(t, b, u, n, i, load(d_cell(b, i)));
  }

  void put_map(Index t, Index b, Index k, Index u, Index n, Floats d) const {
    const Index at = b * GATES * H + k * H + u;
    store(a.d_maps + t * B * GATES * H + at, d, n);
    mapped.prepare(b, k * H + u, n, d);
  }

  // The new c of step t: with zoneout computed once more, since `cells` has what that made of it.
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
      const Floats dc = d_by_next(t, b, u, n, at) + dh * o * (1.0f - c * c);
      store(d_cell(b, at), dc * f);
      put_map(t, b, 0, u, n, dc * g * i * (1.0f - i));
      put_map(t, b, 1, u, n, dc * load(a.cell_of(t, b) + u, n) * f * (1.0f - f));
      put_map(t, b, 2, u, n, dc * i * (1.0f - g * g));
      put_map(t, b, 3, u, n, dh * c * o * (1.0f - o));
    });
  }

  // From the gradient d of the k-th kind behind its gain and shift: theirs, that before them, and its part of sums.
  void enter(Index b, Index k, Index u, Index n, Index i, Floats d, Floats normal, Floats& total,
             Floats& product) const {
    const Index at = k * columns + i * W;
    store(d_gains + at, load(d_gains + at) + d * normal);
    store(d_shifts + at, load(d_shifts + at) + d);
    d *= load(a.gains + k * H + u, n);
    store(d_normal(b, k, i), d);
    total += d;
    product += d * normal;
  }

  // The gradient of what is normalised to x, from that of x: (d − mean(d) − x ⊙ mean(d ⊙ x)) / σ
  Floats through_normal(Index row, Floats d, Floats normal, float scale) const {
    return (d - means[row] - normal * products[row]) * scale;
  }

  Floats normal_cell(Index t, Index b, Index u, Index n) const {
    const float* moments = a.moments_of(t, b);
    return (made_cell(t, b, u, n) - moments[CELL_MEAN]) * moments[CELL_SCALE];
  }

  // The gradients of LN(c), and of o behind its gain: that stays in its place in d_normals until `enter_gates`.
  void enter_cell(Index t, Index b) const {
    Floats total = {}, product = {};
    slice.each_group([&](Index u, Index n, Index i) {
      const Floats normal = normal_cell(t, b, u, n), o = load(a.gates_of(t, b) + 3 * H + u, n);
      const Floats c = tanh(normal * load(a.gains + CELL * H + u, n) + load(a.shifts + CELL * H + u, n));
      const Floats dh = d_output(t, b, u, n, i);
      enter(b, CELL, u, n, i, dh * o * (1.0f - c * c), normal, total, product);
      store(d_normal(b, 3, i), dh * c * o * (1.0f - o));
    });
    of_cell.put(b, sum(total), sum(product));
  }

  void enter_gates(Index t, Index b) const {
    Floats total[GATES] = {}, product[GATES] = {};
    slice.each_group([&](Index u, Index n, Index at) {
      const float *gates = a.gates_of(t, b) + u, *normal = a.normal_of(t, b) + u;
      const Floats i = load(gates, n), f = load(gates + H, n), g = load(gates + 2 * H, n);
      const Floats by_next = d_by_next(t, b, u, n, at);
      const Floats d_seen = through_normal(b, load(d_normal(b, CELL, at)), normal_cell(t, b, u, n),
                                           a.moments_of(t, b)[CELL_SCALE]);
      const Floats dc = by_next + d_seen;
      store(d_cell(b, at), dc * f);
      const Floats d[GATES] = {dc * g * i * (1.0f - i), dc * load(a.cell_of(t, b) + u, n) * f * (1.0f - f),
                               dc * i * (1.0f - g * g), load(d_normal(b, 3, at))};
      for (Index k = 0; k < GATES; k++) enter(b, k, u, n, at, d[k], load(normal + k * H, n), total[k], product[k]);
    });
    for (Index k = 0; k < GATES; k++) of_gates.put(b * GATES + k, sum(total[k]), sum(product[k]));
  }

  void apply_normalised(Index t, Index b) const {
    const float *normal = a.normal_of(t, b), *scales = a.moments_of(t, b);
    slice.each_group([&](Index u, Index n, Index i) {
      for (Index k = 0; k < GATES; k++) {
        const Floats d = load(d_normal(b, k, i)), x = load(normal + k * H + u, n);
        put_map(t, b, k, u, n, through_normal(b * GATES + k, d, x, scales[k]));
      }
    });
  }

  void add_up_gains() const {
    slice.each_group([&](Index u, Index n, Index i) {
      for (Index k = 0; k < KINDS; k++) {
        float *gain = a.d_gains + k * H + u, *shift = a.d_shifts + k * H + u;
        store(gain, load(gain, n) + load(d_gains + k * columns + i * W), n);
        store(shift, load(shift, n) + load(d_shifts + k * columns + i * W), n);
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
