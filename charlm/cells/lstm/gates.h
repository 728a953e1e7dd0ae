// The equations of the LSTM (Hochreiter & Schmidhuber 1997; forget gate: Gers et al. 2000) and their derivatives:
// `lstm_layer` of reference.py. With layer normalization, the arguments of the gates and the c that `output` reads are
// normalized; c_t itself is not.

#include "../../native/cell.h"

template <bool NORM>
struct Lstm : Cell {
  struct Maps {
    Floats i, f, g, o;
  };
  struct State {
    Floats h, c;
  };
  using Saved = Maps;  // σ(i), σ(f), tanh(g), σ(o)
  static constexpr bool DIRECT[] = {false, true};
  static constexpr bool NORMALIZED = NORM;

  static void forward(const Maps& a, const State& before, State& after, Saved& s) {
    update(a, before, after, s);
    after.h = output(s, after.c);
  }

  static void update(const Maps& a, const State& before, State& after, Saved& s) {
    // i, f, g, o = W x_t + b_x + R h_{t−1} + b_h
    s = {sigmoid(a.i), sigmoid(a.f), tanh(a.g), sigmoid(a.o)};
    // c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g)
    after.c = s.f * before.c + s.i * s.g;
  }

  static Floats output(const Saved& s, Floats c) {
    // h_t = σ(o) ⊙ tanh(c_t), or σ(o) ⊙ tanh(LN(c_t))
    return s.o * tanh(c);
  }

  static void backward(const State& before, const State& after, const Saved& s, const State& d, Maps& da,
                       State& d_before) {
    Floats dc;
    output_back(s, after.c, d.h, da.o, dc);
    update_back(before, s, d.c + dc, da, d_before);
  }

  static void output_back(const Saved& s, Floats c, Floats dh, Floats& d_o, Floats& dc) {
    const Floats y = tanh(c);
    // do = dh ⊙ tanh(c) ⊙ σ(o)(1 − σ(o))
    d_o = dh * y * s.o * (1.0f - s.o);
    // dc = dh ⊙ σ(o) ⊙ (1 − tanh²(c))
    dc = dh * s.o * (1.0f - y * y);
  }

  static void update_back(const State& before, const Saved& s, Floats dc, Maps& da, State& d_before) {
    // dc_{t−1} = dc ⊙ σ(f)
    d_before.c = dc * s.f;
    // di = dc ⊙ tanh(g) ⊙ σ(i)(1 − σ(i))
    da.i = dc * s.g * s.i * (1.0f - s.i);
    // df = dc ⊙ c_{t−1} ⊙ σ(f)(1 − σ(f))
    da.f = dc * before.c * s.f * (1.0f - s.f);
    // dg = dc ⊙ σ(i) ⊙ (1 − tanh²(g))
    da.g = dc * s.i * (1.0f - s.g * s.g);
  }
};

using Variants = std::tuple<Lstm<false>, Lstm<true>>;
