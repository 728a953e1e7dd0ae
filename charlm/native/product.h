// Matrix products with one micro-kernel, which sums a tile of the result in registers.
//
// Operands are float, or Bf16 with sums in float. Bf16 is stored in groups of two elements of K side by side, which the
// dot products of AVX-512 and AMX require. K is then padded with zeros to a multiple of TILE_K.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cpu.h"
#include "team.h"
#include "tiles.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

template <class Operand>
constexpr Index GROUP = sizeof(float) / sizeof(Operand);

// K rounded up: the distance between rows of a matrix [B, K] of operands, in elements.
template <class Operand>
inline Index padded(Index K) {
  constexpr Index STEP = std::is_same_v<Operand, Bf16> ? TILE_K : 1;
  return (K + STEP - 1) / STEP * STEP;
}

// The micro-kernel's tile is ROWS × PANEL: as large as fits in the registers beside a row of the right matrix.
constexpr int VECTORS_OF_PANEL = 2;
constexpr int PANEL = VECTORS_OF_PANEL * W;
#if defined(__AVX512F__) || defined(__aarch64__)  // 32 registers
constexpr int ROWS = 12;
#else
constexpr int ROWS = 6;
#endif

// How many groups of products a register sums before it is added to the result. Short sums keep the rounding error
// small.
constexpr Index SUMMANDS = 256;

// sum + a · b for one group of K: one group of a, and one group of b for each column of the vector.
inline Floats add_products(Floats sum, const float* a, const float* b) { return sum + *a * load(b); }

inline Floats add_products(Floats sum, const Bf16* a, const Bf16* b) {
  std::int32_t pair;
  std::memcpy(&pair, a, sizeof pair);
  const Ints left = Ints{} + pair, right = (Ints)load(reinterpret_cast<const float*>(b));
#if defined(__AVX512BF16__) && !defined(CHARLM_WIDTH)
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)right);
#else
  // The second element of a pair is in the upper half of the 32 bits.
  sum += (Floats)(left << 16) * (Floats)(right << 16);
  return sum + (Floats)(left & -65536) * (Floats)(right & -65536);
#endif
}

// Whether the dot products of AVX512_BF16 are faster than products in float. AMD's CPUs start one in each cycle: an update
// of an LSTM with 512 units takes 0.6 times as long. On Intel's it takes 1.4 times as long.
inline bool has_fast_dot_products() {
#if defined(__AVX512BF16__) && !defined(CHARLM_WIDTH)
  return is_amd();
#else
  return false;
#endif
}

// c[m, :] = Σ_k a[m, k] b[k, :], or c += with `add`, for M rows and the columns of one panel. K counts groups.
// a: read; rows are `a_row` and groups `a_group` elements apart. b: read; a packed panel [K, PANEL, GROUP].
// c: written; rows are `c_row` elements apart. c overlaps neither a nor b. VECTORS: of the panel, from its first.
template <int M, int VECTORS = VECTORS_OF_PANEL, class Operand>
inline void tile(Index K, const Operand* a, Index a_row, Index a_group, const Operand* b, float* c, Index c_row, bool add) {
  Floats sums[M][VECTORS];
#pragma GCC unroll 16
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) sums[m][v] = Floats{};
  for (Index k = 0; k < K; k++) {
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; v++)
        sums[m][v] = add_products(sums[m][v], a + m * a_row + k * a_group, b + (k * PANEL + v * W) * GROUP<Operand>);
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
      float* target = c + m * c_row + v * W;
      store(target, add ? load(target) + sums[m][v] : sums[m][v]);
    }
}

// `tile` for 1 ≤ rows ≤ M.
template <int M, int VECTORS = VECTORS_OF_PANEL, class Operand>
inline void tile_of(Index rows, Index K, const Operand* a, Index a_row, Index a_group, const Operand* b, float* c,
                    Index c_row, bool add) {
  if (rows == M) return tile<M, VECTORS>(K, a, a_row, a_group, b, c, c_row, add);
  if constexpr (M > 1) tile_of<M - 1, VECTORS>(rows, K, a, a_row, a_group, b, c, c_row, add);
}

// c = a · packed, for small B and a matrix packed beforehand.
// a: read [B, K], rows padded(K) elements apart. packed: read [panels, padded(K) / GROUP, PANEL, GROUP].
// c: written [B, panels · PANEL]; overlaps neither.
template <class Operand>
inline void multiply(Index B, Index K, const Operand* a, const Operand* packed, Index panels, float* c) {
  if constexpr (std::is_same_v<Operand, Bf16>)
    if (multiply_by_tiles(B, padded<Bf16>(K), a, packed, panels, c)) return;
  const Index blocks = (B + ROWS - 1) / ROWS, groups = padded<Operand>(K) / GROUP<Operand>, c_row = panels * PANEL;
  for (Index p = 0; p < panels; p++) {
    for (Index k = 0; k < groups; k += SUMMANDS) {
      const Index depth = std::min(SUMMANDS, groups - k);
      const Operand* panel = packed + (p * groups + k) * PANEL * GROUP<Operand>;
      for (Index i = 0; i < blocks; i++) {
        const Index first = B * i / blocks, rows = B * (i + 1) / blocks - first;
        tile_of<ROWS>(rows, depth, a + (first * groups + k) * GROUP<Operand>, padded<Operand>(K), GROUP<Operand>, panel,
                      c + first * c_row + p * PANEL, c_row, k > 0);
      }
    }
  }
}

inline Index panels_of(Index columns) { return (columns + PANEL - 1) / PANEL; }

// The hidden units [first, end) of H that one member computes, in groups of W.
// In a product with G gates its columns are ordered by group, then by gate, then by unit.
struct Slice {
  Index H, first, end;

  Slice(const Member& member, Index H) : Slice(H, member.id, member.size) {}

  // The i-th of n slices of H units.
  Slice(Index H, Index i, Index n)
      : H(H), first(groups_of(H) * i / n * W), end(std::min(H, groups_of(H) * (i + 1) / n * W)) {}

  static Index groups_of(Index H) { return (H + W - 1) / W; }
  Index groups() const { return end > first ? groups_of(end - first) : 0; }
  Index panels(Index G) const { return panels_of(groups() * G * W); }
  Index columns(Index G) const { return panels(G) * PANEL; }

  // Call function(u, n, i) for each group i, with units u … u + n − 1; n = W except in the last group.
  template <class Function>
  void each_group(const Function& function) const {
    each_group_of(*this, function);
  }

  // The same for a part of this slice.
  template <class Function>
  FLATTEN void each_group_of(const Slice& part, const Function& function) const {
    each_vector(part.first, part.end, [&](Index u, Index n) FLATTEN { function(u, n, (u - first) / W); });
  }
};

// The start of a column in a packed matrix [panels, padded(K) / GROUP, PANEL, GROUP].
template <class Operand>
inline Operand* packed_column(Operand* packed, Index K, Index column) {
  return packed + column / PANEL * padded<Operand>(K) * PANEL + column % PANEL * GROUP<Operand>;
}

// Pack n columns of one panel, starting at `packed`: element k < K of column j is source[j·across + k·along]. Writes
// nothing else, so the caller clears the padding.
template <class Operand>
inline void pack_columns(const float* source, Index across, Index along, Index n, Index K, Operand* packed) {
  constexpr Index G = GROUP<Operand>;
  if (across == 1) {
    // By rows, in the order of memory; along a column every element would be in another cache line.
    for (Index k = 0; k < K; k += G)
      each_vector(0, n, [&](Index j, Index m) {
        const float* row = source + k * along + j;
        Floats group = load(row, m);
        if constexpr (G == 2)
          group = (Floats)rounded_pairs(group, k + 1 < K ? load(row + along, m) : Floats{});
        store(reinterpret_cast<float*>(packed + k * PANEL + j * G), group, m);
      });
    return;
  }
  for (Index j = 0; j < n; j += W)
    for (Index k = 0; k < K; k += G * W) {
      const Index columns = std::min<Index>(W, n - j), depth = std::min<Index>(G * W, K - k);
      Floats groups[W] = {};
      for (Index column = 0; column < columns; column++) {
        Operand part[G * W] = {};
        for (Index i = 0; i < depth; i += W)
          store(part + i, gather(source + (j + column) * across + (k + i) * along, along, std::min<Index>(W, depth - i)), W);
        groups[column] = load(reinterpret_cast<const float*>(part));
      }
      transpose(groups);
      for (Index i = 0; i < depth; i += G)
        store(reinterpret_cast<float*>(packed + (k + i) * PANEL + j * G), groups[i / G], columns);
    }
}

// Number of elements of a slice's packed columns.
template <class Operand>
inline Index packed_size(const Slice& slice, Index G, Index K) {
  return slice.columns(G) * padded<Operand>(K);
}

// Pack this slice's columns of wᵀ, for the product s · wᵀ. Column g·H + u of the product belongs to row g·H + u of
// w [G·H, K]. packed: written, `packed_size` elements; columns without a unit are zero.
template <class Operand>
inline void pack_gates(const Slice& slice, Index G, Index K, const float* w, Operand* packed) {
  std::fill(packed, packed + packed_size<Operand>(slice, G, K), Operand{});
  slice.each_group([&](Index u, Index n, Index i) {
    for (Index g = 0; g < G; g++)
      pack_columns(w + (g * slice.H + u) * K, K, 1, n, K, packed_column(packed, K, (i * G + g) * W));
  });
}

// Pack this slice's columns of w [K, H], for the product da · w. packed: as in `pack_gates`.
template <class Operand>
inline void pack_units(const Slice& slice, Index K, const float* w, Operand* packed) {
  std::fill(packed, packed + packed_size<Operand>(slice, 1, K), Operand{});
  slice.each_group([&](Index u, Index n, Index i) {
    pack_columns(w + u, 1, slice.H, n, K, packed_column(packed, K, i * W));
  });
}
