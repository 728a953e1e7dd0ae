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

// Pack n ≤ PANEL columns of b as a panel [padded(depth) / GROUP, PANEL, GROUP], with zeros for missing columns.
template <class Operand>
void pack_panel(const float* source, Index across, Index along, Index n, Index depth, Operand* packed) {
  const Index size = padded<Operand>(depth) * PANEL;
  if (n < PANEL || depth < padded<Operand>(depth)) std::fill(packed, packed + size, Operand{});
  pack_columns(source, across, along, n, depth, packed);
}

// Rows of a as `multiply_panel` reads them: row m of a block of ROWS begins m · row after it, its groups are `group` apart,
// and the next block is `block` further.
template <class Operand>
struct Rows {
  const Operand* first;
  Index row, group, block;
};

// n rows of a, of `depth`, which `panels` panels are multiplied by: where they are, or packed as [depth, ROWS] per ROWS
// rows. Packing rows whose elements are far apart pays if many panels read them.
Rows<float> rows_of(const float* source, Index across, Index along, Index n, Index depth, Index panels, float* packed) {
  if (along == 1 || across != 1 || panels <= 4) return {source, across, along, ROWS * across};
  for (Index i = 0; i < depth; i++) {
    Index m = 0;
    for (; m + ROWS <= n; m += ROWS) std::copy_n(source + m + i * along, ROWS, packed + m * depth + i * ROWS);
    std::copy_n(source + m + i * along, n - m, packed + m * depth + i * ROWS);
  }
  return {packed, 1, ROWS, ROWS * depth};
}

Rows<Bf16> rows_of(const float* source, Index across, Index along, Index n, Index depth, Index, Bf16* packed) {
  const Index row = padded<Bf16>(depth);
  if (along == 1) {
    if (depth < row) std::fill(packed, packed + n * row, Bf16{});
    for (Index m = 0; m < n; m++)
      each_vector(0, depth, [&](Index i, Index size) {
        store(packed + m * row + i, load(source + m * across + i, size), size);
      });
    return {packed, row, GROUP<Bf16>, 0};
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
  return {packed, row, GROUP<Bf16>, 0};
}

// c = a b, or c += a b with `add`, for rows of a and a packed panel of b of `depth`; rows of c are c_row apart.
void multiply_panel(Index rows, Index columns, Index depth, Rows<float> a, const float* b, float* c, Index c_row, bool add) {
  for (Index m = 0; m < rows; m += ROWS, a.first += a.block, c += ROWS * c_row) {
    const Index n = std::min<Index>(ROWS, rows - m);
    if (columns == PANEL) {
      tile_of<ROWS>(n, depth, a.first, a.row, a.group, b, c, c_row, add);
      continue;
    }
    alignas(64) float edge[ROWS * PANEL];
    if (columns <= W)
      tile_of<ROWS, 1>(n, depth, a.first, a.row, a.group, b, edge, PANEL, false);
    else
      tile_of<ROWS>(n, depth, a.first, a.row, a.group, b, edge, PANEL, false);
    for (Index r = 0; r < n; r++)
      for (Index j = 0; j < columns; j++) c[r * c_row + j] = edge[r * PANEL + j] + (add ? c[r * c_row + j] : 0.0f);
  }
}

void multiply_panel(Index rows, Index columns, Index depth, Rows<Bf16> a, const Bf16* b, float* c, Index c_row, bool add) {
  alignas(64) float sums[Sizes<Bf16>::BLOCK_M * PANEL];
  multiply(rows, depth, a.first, b, 1, sums);
  for (Index m = 0; m < rows; m++)
    each_vector(0, columns, [&](Index j, Index n) {
      const Floats sum = load(sums + m * PANEL + j);
      float* target = c + m * c_row + j;
      store(target, add ? load(target, n) + sum : sum, n);
    });
}

// One member's share of a product: some rows of c or, if c has more panels than row blocks, some panels. One member packs
// each panel of b. Where members read each other's panels, there is a barrier before; the next panels are packed elsewhere,
// because others may still read these.
template <class Operand>
class MemberShare : Sizes<Operand> {
  using Sizes<Operand>::HEIGHT, Sizes<Operand>::BLOCK_M, Sizes<Operand>::BLOCK_K;

 public:
  // packed: scratch for two packed blocks of b.
  MemberShare(const Arguments& p, const Member& member, Operand* packed)
      : p(p), member(member), packed_b(packed), next_b(packed + panels * BLOCK_K * PANEL), wide(panels > row_blocks),
        first_row(wide ? 0 : member.begin(row_blocks) * HEIGHT),
        end_row(wide ? p.M : std::min(p.M, member.end(row_blocks) * HEIGHT)),
        first_panel(wide ? member.begin(panels) : 0), end_panel(wide ? member.end(panels) : panels) {}

  void compute() {
    begin_sums();
    for (Index k = 0; k < p.K; k += BLOCK_K, std::swap(packed_b, next_b)) {
      const Index depth = std::min(BLOCK_K, p.K - k);
      for (Index panel = member.begin(panels); panel < member.end(panels); panel++)
        pack_panel(p.b + k * p.b_row + panel * PANEL * p.b_column, p.b_column, p.b_row, columns_of(panel), depth,
                   packed_b + panel * BLOCK_K * PANEL);
      if (!wide) member.meet();
      for (Index row = first_row; row < end_row; row += BLOCK_M)
        multiply_block(row, std::min(BLOCK_M, end_row - row), k, depth);
    }
  }

 private:
  const Arguments& p;
  const Member& member;
  const Index panels = panels_of(p.N), row_blocks = (p.M + HEIGHT - 1) / HEIGHT;
  Operand *packed_b, *next_b;
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
    const float* source = p.a + first * p.a_row + k * p.a_column;
    const Rows<Operand> a = rows_of(source, p.a_row, p.a_column, rows, depth, end_panel - first_panel, packed_a);
    for (Index panel = first_panel; panel < end_panel; panel++)
      multiply_panel(rows, columns_of(panel), depth, a, packed_b + panel * BLOCK_K * PANEL,
                     p.c + first * p.N + panel * PANEL, p.N, p.bias || k > 0);
  }
};

template <class Operand>
void multiply_in(const Arguments& p) {
  // Shared by the team. Not `fresh_scratch`: the calling thread restarts that as a member.
  thread_local Scratch shared;
  shared.restart();
  Operand* packed = shared.get<Operand>(2 * panels_of(p.N) * Sizes<Operand>::BLOCK_K * PANEL);
  run_team(p, p.M * p.N * p.K, 1, [packed](const Arguments& p, const Member& member) {
    MemberShare<Operand>(p, member, packed).compute();
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
