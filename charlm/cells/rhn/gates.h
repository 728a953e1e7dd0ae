// The equations of the recurrent highway network (Zilly et al. 2017) and their derivatives, for one of the D highway
// layers of a step: `rhn_layer` of reference.py, with the numbers of the paper.

#include "../../native/cell.h"

struct Coupled {
  Floats h, g;
};
struct Uncoupled {
  Floats h, g, c;
};

// Vectors: Coupled, where c = 1 − g, or Uncoupled.
template <class Vectors>
struct Rhn : Cell {
  static constexpr bool COUPLED = std::is_same_v<Vectors, Coupled>;
  using Maps = Vectors;
  struct State {
    Floats s;
  };
  using Saved = Vectors;  // h_d, g_d and c_d
  static constexpr bool DIRECT[] = {true};
  static constexpr bool DEEP = true;

  // c_d = 1 − g_d, or σ(W_c x [d = 1] + R_c s_{d−1} + b_c)             (9)
  static Floats carried(const Saved& s) {
    if constexpr (COUPLED)
      return 1.0f - s.g;
    else
      return s.c;
  }

  static void forward(const Maps& a, const State& before, State& after, Saved& s) {
    // h_d = tanh(W_h x [d = 1] + R_h s_{d−1} + b_h)                      (7)
    s.h = tanh(a.h);
    // g_d = σ(W_g x [d = 1] + R_g s_{d−1} + b_g)                         (8)
    s.g = sigmoid(a.g);
    if constexpr (!COUPLED) s.c = sigmoid(a.c);
    // s_d = h_d ⊙ g_d + s_{d−1} ⊙ c_d                                    (6)
    after.s = s.h * s.g + before.s * carried(s);
  }

  static void backward(const State& before, const State&, const Saved& s, const State& d, Maps& da, State& d_before) {
    const Floats c = carried(s);
    // (6): ds_{d−1} = ds ⊙ c
    d_before.s = d.s * c;
    // (6), (7): dh = ds ⊙ g ⊙ (1 − h²)
    da.h = d.s * s.g * (1.0f - s.h * s.h);
    if constexpr (COUPLED) {
      // (6), (8) with c = 1 − g: dg = ds ⊙ (h − s_{d−1}) ⊙ g(1 − g)
      da.g = d.s * (s.h - before.s) * s.g * c;
    } else {
      // (6), (8): dg = ds ⊙ h ⊙ g(1 − g)
      da.g = d.s * s.h * s.g * (1.0f - s.g);
      // (6), (9): dc = ds ⊙ s_{d−1} ⊙ c(1 − c)
      da.c = d.s * before.s * c * (1.0f - c);
    }
  }
};

using Variants = std::tuple<Rhn<Coupled>, Rhn<Uncoupled>>;
