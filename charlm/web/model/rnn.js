// The simple recurrent network (Elman 1990), as in charlm/cells/rnn/reference.py.

import { added, tanh, zoneOut } from "./equations.js";

export class Rnn {
  static states = ["h"];

  constructor(parameters, { nonlinearity }, zoneout) {
    this.recurrent = parameters.weight_hh;
    this.inputBias = added(parameters.bias_ih, parameters.bias_hh);
    this.phi = nonlinearity === "relu" ? (a) => Math.max(a, 0) : tanh;
    this.zoneout = zoneout;
  }

  /** One step from W_xh x_t + b_x + b_h; changes the state, whose h is the output. */
  step(x, { h }) {
    const { phi, zoneout } = this;
    const a = this.recurrent.multiply(h);
    for (let unit = 0; unit < h.length; unit++) {
      // h_t = φ(W_xh x_t + b_x + W_hh h_{t−1} + b_h)
      h[unit] = zoneOut(phi(x[unit] + a[unit]), h[unit], zoneout);
    }
  }
}
