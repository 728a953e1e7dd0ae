// Long short-term memory (Hochreiter & Schmidhuber 1997), as in charlm/cells/lstm/reference.py.

import { added, sigmoid, tanh, zoneOut } from "./equations.js";

const LAYER_NORM_EPS = 1e-5;

/** Layer normalization (Ba et al. 2016) of the H values from `start` on, in place. */
function normalize(values, start, H, gains, biases) {
  let mean = 0;
  let variance = 0;
  for (let place = start; place < start + H; place++) mean += values[place] / H;
  for (let place = start; place < start + H; place++) variance += (values[place] - mean) ** 2 / H;
  const scale = 1 / Math.sqrt(variance + LAYER_NORM_EPS);
  for (let place = start; place < start + H; place++) {
    values[place] = (values[place] - mean) * scale * gains[place] + biases[place];
  }
}

export class Lstm {
  static states = ["h", "c"];

  constructor(parameters, _, zoneout) {
    this.recurrent = parameters.weight_hh;
    this.inputBias = added(parameters.bias_ih, parameters.bias_hh);
    this.norm = parameters.weight_ln_gates && parameters;
    this.zoneout = zoneout;
    this.a = new Float32Array(this.inputBias.length);
    const H = this.a.length / 4;
    this.output = new Float32Array(H); // σ(o)
    this.fresh = new Float32Array(H); // c_t before zoneout
    this.cell = new Float32Array(H); // c_t, or LN(c_t)
  }

  /** One step from W_x x_t + b_x + b_h; changes the state, whose h is the output. Gates are stacked i, f, g, o. */
  step(x, { h, c }) {
    const { a, norm, output, fresh, cell, zoneout } = this;
    const H = h.length;
    // i, f, g, o = W_x x_t + b_x + W_h h_{t−1} + b_h
    const product = this.recurrent.multiply(h);
    for (let row = 0; row < a.length; row++) a[row] = x[row] + product[row];
    if (norm) {
      for (let gate = 0; gate < 4; gate++) normalize(a, gate * H, H, norm.weight_ln_gates, norm.bias_ln_gates);
    }
    for (let unit = 0; unit < H; unit++) {
      const i = sigmoid(a[unit]);
      const f = sigmoid(a[H + unit]);
      // c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g)
      fresh[unit] = f * c[unit] + i * tanh(a[2 * H + unit]);
      output[unit] = sigmoid(a[3 * H + unit]);
    }
    // h_t = σ(o) ⊙ tanh(c_t), or σ(o) ⊙ tanh(LN(c_t)), with c_t before zoneout
    cell.set(fresh);
    if (norm) normalize(cell, 0, H, norm.weight_ln_cell, norm.bias_ln_cell);
    for (let unit = 0; unit < H; unit++) {
      h[unit] = zoneOut(output[unit] * tanh(cell[unit]), h[unit], zoneout);
      c[unit] = zoneOut(fresh[unit], c[unit], zoneout);
    }
  }
}
