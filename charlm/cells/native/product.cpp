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

// Rows `first` … `first + rows` of c, columns of one panel, (+)= a packed block times a packed panel.
template <class Operand>
void multiply_block(const Arguments& p, Index first, Index rows, Index panel, Index depth, const Operand* a,
                    const Operand* b, bool add) {
  const Index columns = std::min<Index>(PANEL, p.N - panel * PANEL), groups = padded<Operand>(depth) / GROUP<Operand>;
  for (Index m = 0; m < rows; m += ROWS, a += padded<Operand>(depth) * ROWS) {
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

template <class Operand>
void multiply_all(const Arguments& p, Operand* packed_b, const Member& member) {
  const Index panels = panels_of(p.N), row_blocks = (p.M + ROWS - 1) / ROWS;
  const Index begin = member.begin(row_blocks) * ROWS, end = std::min(p.M, member.end(row_blocks) * ROWS);
  Operand* packed_a = fresh_scratch().get<Operand>(BLOCK_M * BLOCK_K);
  if (p.bias)
    for (Index m = begin; m < end; m++) std::copy(p.bias, p.bias + p.N, p.c + m * p.N);
  else if (p.K == 0)
    std::fill(p.c + begin * p.N, p.c + std::max(begin, end) * p.N, 0.0f);

  for (Index k = 0; k < p.K; k += BLOCK_K) {
    const Index depth = std::min(BLOCK_K, p.K - k);
    for (Index panel = member.begin(panels); panel < member.end(panels); panel++)
      pack<PANEL>(p.b + k * p.b_row + panel * PANEL * p.b_column, p.b_column, p.b_row,
                  std::min<Index>(PANEL, p.N - panel * PANEL), depth, packed_b + panel * BLOCK_K * PANEL);
    member.meet();
    for (Index first = begin; first < end; first += BLOCK_M) {
      const Index rows = std::min(BLOCK_M, end - first);
      for (Index m = 0; m < rows; m += ROWS)
        pack<ROWS>(p.a + (first + m) * p.a_row + k * p.a_column, p.a_row, p.a_column, std::min<Index>(ROWS, rows - m),
                   depth, packed_a + m * padded<Operand>(depth));
      for (Index panel = 0; panel < panels; panel++)
        multiply_block(p, first, rows, panel, depth, packed_a, packed_b + panel * BLOCK_K * PANEL, p.bias || k > 0);
    }
    member.meet();
  }
}

template <class Operand>
void multiply_in(const Arguments& p) {
  // Shared by the team, so not of the scratch that the calling thread will begin anew as a member of it.
  thread_local Scratch shared;
  shared.restart();
  Operand* packed_b = shared.get<Operand>(panels_of(p.N) * BLOCK_K * PANEL);
  run_team(p.threads, p.M * p.N * p.K, [&](const Member& member) { multiply_all(p, packed_b, member); });
}

}  // namespace

KERNEL void product(const Arguments* p) { p->bf16 ? multiply_in<Bf16>(*p) : multiply_in<float>(*p); }
