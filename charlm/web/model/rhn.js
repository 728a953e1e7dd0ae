// The recurrent highway network (Zilly et al. 2017), as in charlm/cells/rhn/reference.py.

import { sigmoid, tanh, zoneOut } from "./equations.js";

export class Rhn {
  static states = ["s"];

  constructor(parameters, { couple_gates: coupled }, zoneout) {
    this.recurrents = parameters.weight_hh; // one for each depth
    const G = parameters.bias_hh.length / this.recurrents.length;
    this.biases = this.recurrents.map((_, depth) => parameters.bias_hh.subarray(depth * G, (depth + 1) * G));
    this.inputBias = this.biases[0];
    this.coupled = coupled;
    this.zoneout = zoneout;
    this.first = new Float32Array(this.recurrents[0].columns); // s_0
  }

  /** One step from W x_t + b_1; changes the state, whose s is the output. Gates are stacked h, g, c. */
  step(x, { s }) {
    const { first, zoneout } = this;
    first.set(s);
    for (let depth = 0; depth < this.recurrents.length; depth++) {
      this.highway(this.recurrents[depth].multiply(s), depth ? this.biases[depth] : x, s);
    }
    if (zoneout) for (let unit = 0; unit < s.length; unit++) s[unit] = zoneOut(s[unit], first[unit], zoneout);
  }

  highway(a, b, s) {
    const H = s.length;
    for (let unit = 0; unit < H; unit++) {
      const G = H + unit;
      const C = 2 * H + unit;
      // h_d = tanh(W_h x [d = 1] + R_h s_{d−1} + b_h)                           (7)
      const h = tanh(a[unit] + b[unit]);
      // g_d = σ(W_g x [d = 1] + R_g s_{d−1} + b_g)                              (8)
      const g = sigmoid(a[G] + b[G]);
      // c_d = σ(W_c x [d = 1] + R_c s_{d−1} + b_c), or 1 − g_d                  (9)
      const c = this.coupled ? 1 - g : sigmoid(a[C] + b[C]);
      // s_d = h_d ⊙ g_d + s_{d−1} ⊙ c_d                                         (6)
      s[unit] = h * g + s[unit] * c;
    }
  }
}
