// The equations of the sLSTM with one head (Beck et al. 2024) and their derivatives: `slstm_layer` of reference.py, with
// the numbers of the paper.

#include "../../native/cell.h"

// log σ(x) = min(x, 0) − log(1 + e^−|x|), accurate to about one unit in the last place.
inline Floats log_sigmoid(Floats x) {
  const Floats most = x < 0.0f ? x : Floats{};
  const Floats u = exp_between(clamp(x < 0.0f ? x : -x, 87.0f));
  // log(1 + u) = 2 artanh(s) with s = u / (2 + u) ≤ 1/3; the first omitted term of the series is below 1e-8.
  const Floats s = u / (2.0f + u), q = s * s;
  Floats p = q * (1.0f / 13) + (1.0f / 11);
  p = p * q + (1.0f / 9);
  p = p * q + (1.0f / 7);
  p = p * q + (1.0f / 5);
  p = p * q + (1.0f / 3);
  p = p * q + 1.0f;
  return most - 2.0f * s * p;
}

// f_t = σ(a_f) if SIGMOID, else exp(a_f).
template <bool SIGMOID>
struct Slstm : Cell {
  struct Maps {
    Floats i, f, z, o;
  };
  struct State {
    Floats h, c, n, m;
  };
  struct Saved {
    Floats i, f, z, o;  // i', f', z, o
    Floats slope;       // d log f_t / d a_f
  };
  static constexpr bool DIRECT[] = {false, true, true, true};

  static void forward(const Maps& a, const State& before, State& after, Saved& s) {
    // i_t = exp(a_i), f_t = σ(a_f) or exp(a_f)                        (12), (13)
    const Floats log_f = SIGMOID ? log_sigmoid(a.f) : a.f;
    s.slope = SIGMOID ? sigmoid(-a.f) : Floats{} + 1.0f;
    // m_t = max(log f_t + m_{t−1}, log i_t)                           (15)
    const Floats old = log_f + before.m;
    after.m = old > a.i ? old : a.i;
    // i'_t = exp(log i_t − m_t), f'_t = exp(log f_t + m_{t−1} − m_t)  (16), (17)
    s.i = exp_between(clamp(a.i - after.m, 87.0f));
    s.f = exp_between(clamp(old - after.m, 87.0f));
    // c_t = f'_t ⊙ c_{t−1} + i'_t ⊙ z_t, z_t = tanh(a_z)              (8), (11)
    s.z = tanh(a.z);
    after.c = s.f * before.c + s.i * s.z;
    // n_t = f'_t ⊙ n_{t−1} + i'_t                                     (9)
    after.n = s.f * before.n + s.i;
    // h_t = o_t ⊙ c_t / n_t, o_t = σ(a_o)                             (10), (14)
    s.o = sigmoid(a.o);
    after.h = s.o * (after.c / after.n);
  }

  static void backward(const State& before, const State& after, const Saved& s, const State& d, Maps& da,
                       State& d_before) {
    // (10): d(c/n) = dh ⊙ o, which adds to dc and dn; (14): do = dh ⊙ c/n ⊙ o(1 − o)
    const Floats y = after.c / after.n, dy = d.h * s.o / after.n;
    const Floats dc = d.c + dy, dn = d.n - dy * y;
    da.o = d.h * y * s.o * (1.0f - s.o);
    // (8), (11): dz = dc ⊙ i' ⊙ (1 − z²)
    da.z = dc * s.i * (1.0f - s.z * s.z);
    // (8), (9)
    d_before.c = dc * s.f;
    d_before.n = dn * s.f;
    // (16), (17): gradients of the exponents log i − m and log f + m_{t−1} − m
    // i' at its bound, e^−87 = 1.646e-38, has no gradient. f' at its bound makes d_f 0 without a test.
    const Floats d_i = s.i <= 1.65e-38f ? Floats{} : (dc * s.z + dn) * s.i;
    const Floats d_f = (dc * before.c + dn * before.n) * s.f;
    // (15): the gradient of m goes to the greater of the two, whose gate after stabilization is 1.
    const Floats dm = d.m - d_i - d_f;
    const auto forgets = s.f == 1.0f;
    const Floats d_log_f = forgets ? d_f + dm : d_f;
    da.i = forgets ? d_i : d_i + dm;
    d_before.m = d_log_f;
    // (13)
    da.f = d_log_f * s.slope;
  }
};

using Variants = std::tuple<Slstm<true>, Slstm<false>>;
