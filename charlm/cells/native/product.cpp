// Products of whole windows: inputs with their weights, and the gradients of weights.

#include "product.h"

struct Arguments {
  Index M, N, K, threads;
  Index bf16;             // whether to take the products in bfloat16; sums are float then too
  Index a_row, a_column;  // a[m, k] is a[m·a_row + k·a_column]
  Index b_row, b_column;  // b[k, n] is b[k·b_row + n·b_column]
  const float* a;         // [M, K]
  const float* b;         // [K, N]
  const float* bias;      // [N] or null
  float* c;               // [M, N], written: a b + bias
};

namespace {

// A block of `a` stays in a core's second-level cache, a panel of `b` in its first. In elements.
constexpr Index BLOCK_K = SUMMANDS, BLOCK_M = 120 / ROWS * ROWS;

// n ≤ BLOCK vectors of `depth` numbers as [depth / GROUP, BLOCK, GROUP], zeros where there is none: element i of vector
// j is source[j·across + i·along].
template <Index BLOCK, class Operand>
void pack(const float* source, Index across, Index along, Index n, Index depth, Operand* packed) {
  constexpr Index G = GROUP<Operand>;
  if (n < BLOCK || depth % G) std::fill(packed, packed + padded<Operand>(depth) * BLOCK, Operand{});
  const auto copy = [&](auto count, auto step) {
    for (Index i = 0; i < depth; i++)
      for (Index j = 0; j < count; j++)
        packed[(i / G * BLOCK + j) * G + i % G] = convert<Operand>(source[j * step + i * along]);
  };
  // Known at compile time where it can be: the inner loop becomes a few moves of vectors.
  const std::integral_constant<Index, BLOCK> whole;
  const std::integral_constant<Index, 1> side_by_side;
  if (n == BLOCK)
    across == 1 ? copy(whole, side_by_side) : copy(whole, across);
  else
    copy(n, across);
}

// A product's part that one member computes: rows of its own or, where c is wider than high, panels of its own. Panels
// of b are packed by one member each; all meet where they read those of others.
template <class Operand>
class Part {
 public:
  Part(const Arguments& p, const Member& member, Operand* packed_b)
      : p(p), member(member), packed_b(packed_b), wide(panels > row_blocks),
        first_row(wide ? 0 : member.begin(row_blocks) * ROWS),
        end_row(wide ? p.M : std::min(p.M, member.end(row_blocks) * ROWS)),
        first_panel(wide ? member.begin(panels) : 0), end_panel(wide ? member.end(panels) : panels) {}

  void compute() {
    begin_sums();
    for (Index k = 0; k < p.K; k += BLOCK_K) {
      const Index depth = std::min(BLOCK_K, p.K - k);
      for (Index panel = member.begin(panels); panel < member.end(panels); panel++)
        pack<PANEL>(p.b + k * p.b_row + panel * PANEL * p.b_column, p.b_column, p.b_row, columns_of(panel), depth,
                    packed_b + panel * BLOCK_K * PANEL);
      if (!wide) member.meet();
      for (Index row = first_row; row < end_row; row += BLOCK_M)
        multiply_block(row, std::min(BLOCK_M, end_row - row), k, depth);
      if (!wide) member.meet();
    }
  }

 private:
  const Arguments& p;
  const Member& member;
  Operand* packed_b;
  const Index panels = panels_of(p.N), row_blocks = (p.M + ROWS - 1) / ROWS;
  const bool wide;
  const Index first_row, end_row, first_panel, end_panel;
  Operand* packed_a = fresh_scratch().get<Operand>(BLOCK_M * BLOCK_K);

  Index columns_of(Index panel) const { return std::min<Index>(PANEL, p.N - panel * PANEL); }

  // What the products are added to: the bias, or zero where there are no products.
  void begin_sums() const {
    const Index first = first_panel * PANEL, n = std::min(p.N, end_panel * PANEL) - first;
    for (Index m = first_row; m < end_row && n > 0; m++) {
      if (p.bias)
        std::copy_n(p.bias + first, n, p.c + m * p.N + first);
      else if (p.K == 0)
        std::fill_n(p.c + m * p.N + first, n, 0.0f);
    }
  }

  // Rows `first` … `first + rows` (+)= a's columns k … k + depth times a packed b.
  void multiply_block(Index first, Index rows, Index k, Index depth) {
    const Index groups = padded<Operand>(depth) / GROUP<Operand>;
    const bool add = p.bias || k > 0;
    for (Index m = 0; m < rows; m += ROWS)
      pack<ROWS>(p.a + (first + m) * p.a_row + k * p.a_column, p.a_row, p.a_column, std::min<Index>(ROWS, rows - m),
                 depth, packed_a + m * padded<Operand>(depth));
    for (Index panel = first_panel; panel < end_panel; panel++) {
      const Operand* b = packed_b + panel * BLOCK_K * PANEL;
      const Index columns = columns_of(panel);
      for (Index m = 0; m < rows; m += ROWS) {
        const Operand* a = packed_a + m * padded<Operand>(depth);
        float* c = p.c + (first + m) * p.N + panel * PANEL;
        const Index n = std::min<Index>(ROWS, rows - m);
        if (n == ROWS && columns == PANEL) {
          tile<ROWS>(groups, a, GROUP<Operand>, ROWS * GROUP<Operand>, b, c, p.N, add);
          continue;
        }
        alignas(64) float edge[ROWS * PANEL];
        tile<ROWS>(groups, a, GROUP<Operand>, ROWS * GROUP<Operand>, b, edge, PANEL, false);
        for (Index r = 0; r < n; r++)
          for (Index j = 0; j < columns; j++) c[r * p.N + j] = edge[r * PANEL + j] + (add ? c[r * p.N + j] : 0.0f);
      }
    }
  }
};

template <class Operand>
void multiply_in(const Arguments& p) {
  // Shared by the team, so not of the scratch that the calling thread will begin anew as a member of it.
  thread_local Scratch shared;
  shared.restart();
  Operand* packed_b = shared.get<Operand>(panels_of(p.N) * BLOCK_K * PANEL);
  run_team(p, p.M * p.N * p.K, [packed_b](const Arguments& p, const Member& member) {
    Part<Operand>(p, member, packed_b).compute();
  });
}

}  // namespace

KERNEL void product(const Arguments* p) { p->bf16 ? multiply_in<Bf16>(*p) : multiply_in<float>(*p); }
