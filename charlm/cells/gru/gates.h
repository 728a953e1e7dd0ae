// The equations of the gated recurrent unit (Cho et al. 2014, as in torch.nn.GRU) and their derivatives: `gru_layer` of
// reference.py, with the numbers used there.

#include "../../native/cell.h"

struct Gru : Cell {
  // r multiplies only the recurrent part of n, so n's two parts stay apart: n_x = W_in x + b_in, n_h = W_hn h + b_hn.
  struct Maps {
    Floats r, z, n_x, n_h;
  };
  static constexpr Index APART = 1;
  struct State {
    Floats h;
  };
  struct Saved {
    Floats r, z, n, n_h;  // σ(r), σ(z), the candidate n, and n_h
  };
  static constexpr bool DIRECT[] = {true};

  static void forward(const Maps& a, const State& before, State& after, Saved& s) {
    // r = σ(W_ir x + b_ir + W_hr h_{t−1} + b_hr)                          (5)
    s.r = sigmoid(a.r);
    // z = σ(W_iz x + b_iz + W_hz h_{t−1} + b_hz)                          (6)
    s.z = sigmoid(a.z);
    // n = tanh(W_in x + b_in + r ⊙ (W_hn h_{t−1} + b_hn))                 (8)
    s.n_h = a.n_h;
    s.n = tanh(a.n_x + s.r * a.n_h);
    // h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}                                     (7)
    after.h = s.n + s.z * (before.h - s.n);
  }

  static void backward(const State& before, const State&, const Saved& s, const State& d, Maps& da, State& d_before) {
    // (7): dh_{t−1} = dh ⊙ z
    d_before.h = d.h * s.z;
    // (6), (7): dz = dh ⊙ (h_{t−1} − n) ⊙ z(1 − z)
    da.z = d.h * (before.h - s.n) * s.z * (1.0f - s.z);
    // (7), (8): dn = dh ⊙ (1 − z) ⊙ (1 − n²); through r it reaches n_h.
    da.n_x = d.h * (1.0f - s.z) * (1.0f - s.n * s.n);
    da.n_h = da.n_x * s.r;
    // (5), (8): dr = dn ⊙ n_h ⊙ r(1 − r)
    da.r = da.n_x * s.n_h * s.r * (1.0f - s.r);
  }
};

using Variants = std::tuple<Gru>;
