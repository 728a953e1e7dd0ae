// The gated recurrent unit (Cho et al. 2014), as in charlm/cells/gru/reference.py.

import { sigmoid, tanh, zoneOut } from "./equations.js";

export class Gru {
  static states = ["h"];

  constructor(parameters, _, zoneout) {
    this.recurrent = parameters.weight_hh;
    this.recurrentBias = parameters.bias_hh;
    this.inputBias = parameters.bias_ih;
    this.zoneout = zoneout;
  }

  /** One step from W_i x_t + b_i; changes the state, whose h is the output. Gates are stacked r, z, n. */
  step(x, { h }) {
    const { recurrentBias: bias, zoneout } = this;
    const H = h.length;
    const a = this.recurrent.multiply(h);
    for (let unit = 0; unit < H; unit++) {
      const Z = H + unit;
      const N = 2 * H + unit;
      // r = σ(W_ir x + b_ir + W_hr h + b_hr), z = σ(W_iz x + b_iz + W_hz h + b_hz)   (5), (6)
      const r = sigmoid(x[unit] + a[unit] + bias[unit]);
      const z = sigmoid(x[Z] + a[Z] + bias[Z]);
      // n = tanh(W_in x + b_in + r ⊙ (W_hn h + b_hn))                               (8)
      const n = tanh(x[N] + r * (a[N] + bias[N]));
      // h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}                                             (7)
      h[unit] = zoneOut(n + z * (h[unit] - n), h[unit], zoneout);
    }
  }
}
