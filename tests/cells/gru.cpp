// The C++ that charlm/cells/cpp.py prints for a GRU, which test_programs.py compares without comments.
//
// Names: v6 is node 6 of the pass; window0, static0, product0, saved0 and state0 are vectors of charlm/cells/plan.py. u is
// the first of W units, n how many there are, i the number of the group among those of this thread.

struct Cell0 {
  static constexpr Index STATES = 1;
  static Index work(const Arguments& a) { return a.B * (3 * a.H * a.H) / 1; }  // cpp._work: how many threads are worth their barriers
  template <class Operand>
  struct Forward : Pass {  // cpp._forward; Pass is in recurrence.h
    using Pass::Pass;
    const Slice slice_H{member, a.H};  // cpp._class: this thread's units of each size
    Copies<Operand> copies0{a.B, a.H, a.copies[0], slice_H, a.state(0, 0, 0)};  // cpp._forward: state h is the operand of a product
    const Product<Operand> product0 = Product<Operand>::forward(a.B, a.H, slice_H, 3, a.weights[0], scratch);  // cpp._products: W_hh h, three gates
    void step(Index t) {  // cpp._stages: the order of stages
      member.meet();  // cpp._stages: a stage begins; all threads have written their units of h
      const Operand* read0 = copies0.take(a.state(0, t, 0));
      product0.multiply(read0);  // cpp._begin
      member.each_row(a.B, [&](Index b) { stage1_H(t, b); });
      turn ^= 1;
    }
    [[gnu::flatten]] void stage1_H(Index t, Index b) const {  // LoopText.text: a loop of the plan
      const auto product0_row = product0.row(b);  // CppPass.row, as for all rows
      const auto static0_row = a.vectors[0];
      const auto saved0_row = a.saved[0] + a.saved_row(t, b) * Slice::groups_of(a.H) * W * 4;
      const auto window0_row = a.windows[0] + a.input_row(t, b) * 3 * a.H;
      const auto state0_row = a.state(0, t, b);
      slice_H.each_group([&](Index u, Index n, Index i) {
        const Floats v6 = load(product0_row + i * W * 3 + 0 * W);  // LoopText.loaded: h_r, gate 0 of the product
        const Floats v10 = load(static0_row + 0 * a.H + u, n);  // bias_hh, gate 0
        const Floats v13 = v6 + v10;  // LoopText.computed, from OPERATIONS: W_hr h + b_hr
        const Floats v7 = load(product0_row + i * W * 3 + 1 * W);
        const Floats v11 = load(static0_row + 1 * a.H + u, n);
        const Floats v14 = v7 + v11;
        const Floats v8 = load(product0_row + i * W * 3 + 2 * W);
        const Floats v12 = load(static0_row + 2 * a.H + u, n);
        const Floats v15 = v8 + v12;
        store(saved0_row + u * 4 + 0 * W, v15);  // LoopText.stored: W_hn h + b_hn, for the backward pass
        const Floats v2 = load(window0_row + 0 * a.H + u, n);  // W_ir x + b_ir, computed for all steps before the loop
        const Floats v16 = v2 + v13;
        const Floats v17 = sigmoid(v16);  // (5): r
        store(saved0_row + u * 4 + 1 * W, v17);
        const Floats v3 = load(window0_row + 1 * a.H + u, n);
        const Floats v18 = v3 + v14;
        const Floats v19 = sigmoid(v18);  // (6): z
        store(saved0_row + u * 4 + 2 * W, v19);
        const Floats v20 = v17 * v15;
        const Floats v4 = load(window0_row + 2 * a.H + u, n);
        const Floats v21 = v4 + v20;
        const Floats v22 = tanh(v21);  // (8): n
        store(saved0_row + u * 4 + 3 * W, v22);
        const Floats v0 = load(state0_row + u, n);
        const Floats v23 = v0 - v22;
        const Floats v24 = v19 * v23;
        const Floats v25 = v22 + v24;  // (7): n + z ⊙ (h − n)
        store(a.state(0, t + 1, b) + u, v25, n); copies0.put(b, u, n, v25);  // the new h, also as the operand of the next step
      });
    }
  };
  template <class Operand>
  struct Backward : Pass {  // cpp._backward
    using Pass::Pass;
    const Slice slice_H{member, a.H};
    const StateGradients gradients{a, 1, slice_H, scratch};
    Copies<Operand> copies0{a.B, 3 * a.H, a.copies[0]};
    const Product<Operand> product0 = Product<Operand>::backward(a.B, 3 * a.H, slice_H, a.weights[0], scratch);
    void step(Index t) {
      member.each_row(a.B, [&](Index b) { stage0_H(t, b); });  // stage 0 begins with nothing: the next step's products are done
      member.meet();
      product0.multiply(copies0.take(a.d_products[0] + t * a.B * 3 * a.H));
    }
    [[gnu::flatten]] void stage0_H(Index t, Index b) const {
      const auto state0_row = a.state(0, t, b);
      const auto saved0_row = a.saved[0] + a.saved_row(t, b) * Slice::groups_of(a.H) * W * 4;
      const auto product0_row = product0.row(b);
      const auto d_window0_row = a.d_windows[0] + (t * a.B + b) * 3 * a.H;
      const auto d_product0_row = a.d_products[0] + (t * a.B + b) * 3 * a.H;
      slice_H.each_group([&](Index u, Index n, Index i) {
        const Floats v0 = load(state0_row + u, n);
        const Floats v4 = load(saved0_row + u * 4 + 3 * W);
        const Floats v5 = v0 - v4;
        const Floats v6 = gradients.after_step(0, true, load(product0_row + i * W), t, b, u, n, i);  // LoopText.computed: dh after this step
        const Floats v7 = v6 * v5;
        const Floats v3 = load(saved0_row + u * 4 + 2 * W);
        const Floats v8 = v6 * v3;
        const Floats v11 = v6 - v8;
        const Floats v13 = v4 * v4;
        const Floats v14 = 1.0f - v13;
        const Floats v15 = v11 * v14;
        store(d_window0_row + 2 * a.H + u, v15, n);  // the gradient of W_in x + b_in
        const Floats v1 = load(saved0_row + u * 4 + 0 * W);
        const Floats v16 = v15 * v1;
        const Floats v2 = load(saved0_row + u * 4 + 1 * W);
        const Floats v17 = v15 * v2;
        store(d_product0_row + 2 * a.H + u, v17, n); copies0.put(b, 2 * a.H + u, n, v17);  // the gradient of W_hn h, and its copy in bfloat16
        const Floats v18 = v7 * v3;
        const Floats v19 = 1.0f - v3;
        const Floats v20 = v18 * v19;
        store(d_product0_row + 1 * a.H + u, v20, n); copies0.put(b, 1 * a.H + u, n, v20);
        store(d_window0_row + 1 * a.H + u, v20, n);
        const Floats v21 = v16 * v2;
        const Floats v22 = 1.0f - v2;
        const Floats v23 = v21 * v22;
        store(d_product0_row + 0 * a.H + u, v23, n); copies0.put(b, 0 * a.H + u, n, v23);
        store(d_window0_row + 0 * a.H + u, v23, n);
        gradients.put(0, b, i, v8);  // dh before the step, without the product's share
      });
    }
    // After step 0: store the gradients of the states before it.
    void finish() const {  // cpp._finish
      for (Index b = 0; b < a.B; b++) slice_H.each_group([&](Index u, Index n, Index i) {
        gradients.finish(0, true, load(product0.row(b) + i * W), b, u, n, i);
      });
    }
  };
  template <class Operand>
  struct Before : Pass {  // cpp._before: W_ih x + b_ih, where characters are drawn one by one
    using Pass::Pass;
    const Slice slice_I{member, a.I};
    const Slice slice_H{member, a.H};
    OwnCopy<Operand> copies0{a.B, a.I, scratch};
    const Product<Operand> product0 = Product<Operand>::forward(a.B, a.I, slice_H, 3, a.weights[1], scratch);
    void step(const float* x) {
      const Operand* read0 = copies0.take(x);
      product0.multiply(read0);
      member.each_row(a.B, [&](Index b) { stage1_H(x, b); });
    }
    [[gnu::flatten]] void stage1_H(const float* x, Index b) const {
      const auto product0_row = product0.row(b);
      const auto static1_row = a.vectors[1];
      const auto window_before0_row = const_cast<float*>(a.windows[0]) + b * 3 * a.H;
      slice_H.each_group([&](Index u, Index n, Index i) {
        const Floats v2 = load(product0_row + i * W * 3 + 0 * W);
        const Floats v6 = load(static1_row + 0 * a.H + u, n);
        const Floats v9 = v2 + v6;
        store(window_before0_row + 0 * a.H + u, v9, n);
        const Floats v3 = load(product0_row + i * W * 3 + 1 * W);
        const Floats v7 = load(static1_row + 1 * a.H + u, n);
        const Floats v10 = v3 + v7;
        store(window_before0_row + 1 * a.H + u, v10, n);
        const Floats v4 = load(product0_row + i * W * 3 + 2 * W);
        const Floats v8 = load(static1_row + 2 * a.H + u, n);
        const Floats v11 = v4 + v8;
        store(window_before0_row + 2 * a.H + u, v11, n);
      });
    }
  };
};
template <class Function>
void with_cell(Index variant, const Function& function) {  // cpp.cpp
  if (variant == 0) return function(Cell0{});
}
