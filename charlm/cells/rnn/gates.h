// The equations of the simple recurrent network (Elman 1990) and their derivatives: `rnn_layer` of reference.py.

#include "../../native/cell.h"

// φ: max(x, 0) if RELU, else tanh.
template <bool RELU>
struct Rnn : Cell {
  struct Maps {
    Floats h;
  };
  struct State {
    Floats h;
  };
  struct Saved {};
  static constexpr bool DIRECT[] = {false};

  static void forward(const Maps& a, const State&, State& after, Saved&) {
    // h_t = φ(W x_t + b_x + R h_{t−1} + b_h)
    if (RELU)
      after.h = a.h < 0.0f ? Floats{} : a.h;  // NaN stays NaN.
    else
      after.h = tanh(a.h);
  }

  static void backward(const State&, const State& after, const Saved&, const State& d, Maps& da, State&) {
    // da = dh ⊙ φ′(a): for relu 1 if h > 0, else 0; for tanh 1 − h².
    if (RELU)
      da.h = after.h <= 0.0f ? Floats{} : d.h;
    else
      da.h = d.h * (1.0f - after.h * after.h);
  }
};

using Variants = std::tuple<Rnn<false>, Rnn<true>>;
