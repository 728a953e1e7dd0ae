// The sLSTM with one head (Beck et al. 2024), as in charlm/cells/slstm/reference.py.

import { sigmoid, tanh, zoneOut } from "./equations.js";

const LEAST_EXPONENT = -87;
const logSigmoid = (a) => Math.min(a, 0) - Math.log1p(Math.exp(-Math.abs(a)));
const stabilized = (exponent) => Math.exp(Math.max(exponent, LEAST_EXPONENT));

export class Slstm {
  static states = ["h", "c", "n", "m"];

  constructor(parameters, { forget_gate: forgetGate }, zoneout) {
    this.recurrent = parameters.weight_hh;
    this.inputBias = parameters.bias;
    this.logForget = forgetGate === "sigmoid" ? logSigmoid : (a) => a;
    this.zoneout = zoneout;
  }

  /** One step from W x_t + b; changes the state, whose h is the output. Gates are stacked i, f, z, o. */
  step(x, { h, c, n, m }) {
    const { logForget, zoneout } = this;
    const H = h.length;
    // a = W x_t + R h_{t−1} + b
    const a = this.recurrent.multiply(h);
    for (let unit = 0; unit < H; unit++) {
      const F = H + unit;
      const Z = 2 * H + unit;
      const O = 3 * H + unit;
      // i_t = exp(a_i), f_t = σ(a_f) or exp(a_f)                        (12), (13)
      const logI = Math.fround(x[unit] + a[unit]);
      const logF = logForget(x[F] + a[F]);
      // m_t = max(log f_t + m_{t−1}, log i_t)                           (15)
      // Rounded as charlm does, because m, which grows without bound, is kept in single precision.
      const old = Math.fround(Math.fround(logF) + m[unit]);
      m[unit] = Math.max(old, logI);
      // i'_t = exp(log i_t − m_t), f'_t = exp(log f_t + m_{t−1} − m_t)  (16), (17)
      const i = stabilized(logI - m[unit]);
      const f = stabilized(old - m[unit]);
      // c_t = f'_t ⊙ c_{t−1} + i'_t ⊙ z_t, z_t = tanh(a_z)              (8), (11)
      c[unit] = f * c[unit] + i * tanh(x[Z] + a[Z]);
      // n_t = f'_t ⊙ n_{t−1} + i'_t                                     (9)
      n[unit] = f * n[unit] + i;
      // h_t = o_t ⊙ c_t / n_t, o_t = σ(a_o)                             (10), (14)
      h[unit] = zoneOut(sigmoid(x[O] + a[O]) * (c[unit] / n[unit]), h[unit], zoneout);
    }
  }

  /** c and n depend on the scale e^−m; c / n does not. */
  static shown({ h, c, n }) {
    return { h, c: c.map((value, unit) => (n[unit] ? value / n[unit] : 0)) };
  }
}
