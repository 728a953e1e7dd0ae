// Matrix products over whole windows: inputs times weights, and gradients of weights.

#include "product.h"

struct Arguments {
  Index M, N, K, threads;
  Index bf16;             // multiply in bfloat16; sums are float in any case
  Index a_row, a_column;  // a[m, k] is a[m·a_row + k·a_column]
  Index b_row, b_column;  // b[k, n] is b[k·b_row + n·b_column]
  const float* a;         // read [M, K]
  const float* b;         // read [K, N]; may overlap a
  const float* bias;      // read [N], or null
  float* c;               // written [M, N]: a b + bias; overlaps no other
};

namespace {

// Sizes in elements: a block of `a` fits in the second-level cache, a panel of `b` in the first-level cache. HEIGHT:
// rows multiplied at a time.
template <class Operand>
struct Sizes {
  static constexpr Index HEIGHT = ROWS, BLOCK_M = 120 / ROWS * ROWS, BLOCK_K = SUMMANDS;
};
template <>
struct Sizes<Bf16> {
  static constexpr Index HEIGHT = 32, BLOCK_M = 128, BLOCK_K = 2 * SUMMANDS;
};

// Pack n ≤ BLOCK vectors of `depth` numbers as [depth, BLOCK], with zeros for missing vectors. Element i of vector j is
// source[j·across + i·along].
template <Index BLOCK>
void pack(const float* source, Index across, Index along, Index n, Index depth, float* packed) {
  if (n < BLOCK) std::fill(packed, packed + depth * BLOCK, 0.0f);
  const auto copy = [&](auto count, auto step) {
    for (Index i = 0; i < depth; i++)
      for (Index j = 0; j < count; j++) packed[i * BLOCK + j] = source[j * step + i * along];
  };
  // With counts and strides known at compile time the inner loop becomes a few vector moves.
  const std::integral_constant<Index, BLOCK> whole;
  const std::integral_constant<Index, 1> side_by_side;
  if (n == BLOCK)
    across == 1 ? copy(whole, side_by_side) : copy(whole, across);
  else
    copy(n, across);
}

// Pack n ≤ PANEL columns of b as a panel [padded(depth) / GROUP, PANEL, GROUP], with zeros for missing columns.
void pack_panel(const float* source, Index across, Index along, Index n, Index depth, float* packed) {
  pack<PANEL>(source, across, along, n, depth, packed);
}

void pack_panel(const float* source, Index across, Index along, Index n, Index depth, Bf16* packed) {
  const Index size = padded<Bf16>(depth) * PANEL;
  if (n < PANEL || depth < padded<Bf16>(depth)) std::fill(packed, packed + size, Bf16{});
  pack_columns(source, across, along, n, depth, packed);
}

// Pack n rows of a for `multiply_panel`: [depth, ROWS] per ROWS rows for float, [n, padded(depth)] for bfloat16.
void pack_rows(const float* source, Index across, Index along, Index n, Index depth, float* packed) {
  for (Index m = 0; m < n; m += ROWS)
    pack<ROWS>(source + m * across, across, along, std::min<Index>(ROWS, n - m), depth, packed + m * depth);
}

void pack_rows(const float* source, Index across, Index along, Index n, Index depth, Bf16* packed) {
  const Index row = padded<Bf16>(depth);
  if (along == 1) {
    if (depth < row) std::fill(packed, packed + n * row, Bf16{});
    for (Index m = 0; m < n; m++)
      each_vector(0, depth, [&](Index i, Index size) {
        store(packed + m * row + i, load(source + m * across + i, size), size);
      });
    return;
  }
  // Rows are side by side in memory: pack them like columns, TILE_K deep at a time, then move the pairs in place.
  for (Index i = 0; i < depth; i += TILE_K)
    for (Index m = 0; m < n; m += PANEL) {
      const Index rows = std::min<Index>(PANEL, n - m);
      Bf16 panel[TILE_K * PANEL] = {};
      pack_columns(source + m * across + i * along, across, along, rows, std::min(TILE_K, depth - i), panel);
      for (Index r = 0; r < rows; r++)
        for (Index k = 0; k < TILE_K; k += 2)
          std::copy_n(panel + k * PANEL + 2 * r, 2, packed + (m + r) * row + i + k);
    }
}

// c = a b, or c += a b with `add`, for packed rows of a and a packed panel of b of `depth`; rows of c are c_row apart.
void multiply_panel(Index rows, Index columns, Index depth, const float* a, const float* b, float* c, Index c_row, bool add) {
  for (Index m = 0; m < rows; m += ROWS, a += ROWS * depth, c += ROWS * c_row) {
    const Index n = std::min<Index>(ROWS, rows - m);
    if (n == ROWS && columns == PANEL) {
      tile<ROWS>(depth, a, 1, ROWS, b, c, c_row, add);
      continue;
    }
    alignas(64) float edge[ROWS * PANEL];
    tile<ROWS>(depth, a, 1, ROWS, b, edge, PANEL, false);
    for (Index r = 0; r < n; r++)
      for (Index j = 0; j < columns; j++) c[r * c_row + j] = edge[r * PANEL + j] + (add ? c[r * c_row + j] : 0.0f);
  }
}

void multiply_panel(Index rows, Index columns, Index depth, const Bf16* a, const Bf16* b, float* c, Index c_row, bool add) {
  alignas(64) float sums[Sizes<Bf16>::BLOCK_M * PANEL];
  multiply(rows, depth, a, b, 1, sums);
  for (Index m = 0; m < rows; m++)
    each_vector(0, columns, [&](Index j, Index n) {
      const Floats sum = load(sums + m * PANEL + j);
      float* target = c + m * c_row + j;
      store(target, add ? load(target, n) + sum : sum, n);
    });
}

// One member's share of a product: some rows of c or, if c has more panels than row blocks, some panels. One member packs
// each panel of b. Where members read each other's panels there is a barrier before and after.
template <class Operand>
class MemberShare : Sizes<Operand> {
  using Sizes<Operand>::HEIGHT, Sizes<Operand>::BLOCK_M, Sizes<Operand>::BLOCK_K;

 public:
  MemberShare(const Arguments& p, const Member& member, Operand* packed_b)
      : p(p), member(member), packed_b(packed_b), wide(panels > row_blocks),
        first_row(wide ? 0 : member.begin(row_blocks) * HEIGHT),
        end_row(wide ? p.M : std::min(p.M, member.end(row_blocks) * HEIGHT)),
        first_panel(wide ? member.begin(panels) : 0), end_panel(wide ? member.end(panels) : panels) {}

  void compute() {
    begin_sums();
    for (Index k = 0; k < p.K; k += BLOCK_K) {
      const Index depth = std::min(BLOCK_K, p.K - k);
      for (Index panel = member.begin(panels); panel < member.end(panels); panel++)
        pack_panel(p.b + k * p.b_row + panel * PANEL * p.b_column, p.b_column, p.b_row, columns_of(panel), depth,
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
  const Index panels = panels_of(p.N), row_blocks = (p.M + HEIGHT - 1) / HEIGHT;
  const bool wide;
  const Index first_row, end_row, first_panel, end_panel;
  Operand* packed_a = fresh_scratch().get<Operand>(BLOCK_M * BLOCK_K);

  Index columns_of(Index panel) const { return std::min<Index>(PANEL, p.N - panel * PANEL); }

  // Initialize c: with the bias, or with zeros if K = 0.
  void begin_sums() const {
    const Index first = first_panel * PANEL, n = std::min(p.N, end_panel * PANEL) - first;
    for (Index m = first_row; m < end_row && n > 0; m++) {
      if (p.bias)
        std::copy_n(p.bias + first, n, p.c + m * p.N + first);
      else if (p.K == 0)
        std::fill_n(p.c + m * p.N + first, n, 0.0f);
    }
  }

  // Rows first … first + rows − 1 of c += columns k … k + depth − 1 of a times the packed b.
  void multiply_block(Index first, Index rows, Index k, Index depth) {
    pack_rows(p.a + first * p.a_row + k * p.a_column, p.a_row, p.a_column, rows, depth, packed_a);
    for (Index panel = first_panel; panel < end_panel; panel++)
      multiply_panel(rows, columns_of(panel), depth, packed_a, packed_b + panel * BLOCK_K * PANEL,
                     p.c + first * p.N + panel * PANEL, p.N, p.bias || k > 0);
  }
};

template <class Operand>
void multiply_in(const Arguments& p) {
  // Shared by the team. Not `fresh_scratch`: the calling thread restarts that as a member.
  thread_local Scratch shared;
  shared.restart();
  Operand* packed_b = shared.get<Operand>(panels_of(p.N) * Sizes<Operand>::BLOCK_K * PANEL);
  run_team(p, p.M * p.N * p.K, 1, [packed_b](const Arguments& p, const Member& member) {
    MemberShare<Operand>(p, member, packed_b).compute();
  });
}

// Sums over the rows of a [M, K], rows a_row apart, in c [K]. The partial sums of BLOCK rows are added up, so that rounding
// errors stay small. Members sum other columns, so results do not depend on their number.
void sum_columns(const Arguments& p, const Member& member) {
  constexpr Index BLOCK = 64;
  const Slice columns(member, p.K);
  columns.each_group([&](Index k, Index n, Index) {
    Floats total = {};
    for (Index first = 0; first < p.M; first += BLOCK) {
      Floats part = {};
      for (Index m = first; m < std::min(p.M, first + BLOCK); m++) part += load(p.a + m * p.a_row + k, n);
      total += part;
    }
    store(p.c + k, total, n);
  });
}

}  // namespace

// Set `bf16` to the instructions that multiply bfloat16 faster than float here: 2: AMX, 1: AVX512_BF16, 0: none.
extern "C" KERNEL void product_fast_bf16(Arguments* p) { p->bf16 = may_use_tiles() ? 2 : has_fast_dot_products(); }

extern "C" KERNEL void product(const Arguments* p) { p->bf16 ? multiply_in<Bf16>(*p) : multiply_in<float>(*p); }

extern "C" KERNEL void column_sums(const Arguments* p) { run_team(*p, p->M * p->K, 1, sum_columns); }
