// bfloat16 products with AMX, Intel's matrix instructions: 16 times as many multiplications per cycle as with floats.
//
// A tile is a register of 16 rows of 64 bytes. One instruction multiplies 16 rows of a, with 32 elements of K each, by
// the matching 32 elements of 16 columns of b, and adds the result to 16 × 16 floats. Two elements of K stand side by
// side in a row of b's tile, as in half a packed panel.
#pragma once

#include <algorithm>

#include "vector.h"

// Elements of K in a row of a tile. Operands are padded to a multiple, so there is no remainder.
constexpr Index TILE_K = 32;

// Requires AVX-512: then a panel is exactly two tiles wide.
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__) && !defined(CHARLM_WIDTH)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

// Whether this process may use tiles. Linux grants them only on request, because they add 8 KiB to each thread's saved
// state, and refuses if a thread's signal stack is too small.
inline bool may_use_tiles() {
  constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  static const bool granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
  return granted;
}

// Tiles 0 to 3 hold 2 × 2 tiles of c; 4 and 5 two of a, one above the other; 6 and 7 two of b, side by side.
inline void shape_tiles(std::uint8_t upper_rows, std::uint8_t lower_rows) {
  const struct alignas(64) {
    std::uint8_t palette, start_row, reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
  } shape = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64},
             {upper_rows, upper_rows, lower_rows, lower_rows, upper_rows, lower_rows, 16, 16}};
  // The compiler does not know that the instruction reads `shape`: force the writes to memory first.
  asm volatile("" : : "r"(&shape) : "memory");
  _tile_loadconfig(&shape);
}

// `multiply` of product.h for padded K; false if tiles cannot be used. Each instruction sums 32 products before adding
// them to c, so the chain of K / 32 additions is short enough without further splitting.
inline bool multiply_by_tiles(Index B, Index K, const Bf16* a, const Bf16* packed, Index panels, float* c) {
  if (!may_use_tiles()) return false;
  constexpr Index SIDE = 16;  // rows and columns of a tile of c
  const Index a_bytes = K * sizeof *a, b_bytes = 4 * SIDE * sizeof *packed;
  const Index c_row = panels * 2 * SIDE, c_bytes = c_row * sizeof *c;
  for (Index first = 0; first < B; first += 2 * SIDE) {
    const Index rows = std::min(2 * SIDE, B - first);
    const bool lower = rows > SIDE;
    shape_tiles(lower ? SIDE : rows, lower ? rows - SIDE : SIDE);
    for (Index p = 0; p < panels; p++) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (Index k = 0; k < K; k += TILE_K) {
        const Bf16 *upper_a = a + first * K + k, *b = packed + (p * K + k) * 2 * SIDE;
        _tile_loadd(4, upper_a, a_bytes);
        _tile_loadd(6, b, b_bytes);
        _tile_loadd(7, b + 2 * SIDE, b_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (!lower) continue;
        _tile_loadd(5, upper_a + SIDE * K, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      float* upper_c = c + first * c_row + p * 2 * SIDE;
      _tile_stored(0, upper_c, c_bytes);
      _tile_stored(1, upper_c + SIDE, c_bytes);
      if (!lower) continue;
      _tile_stored(2, upper_c + SIDE * c_row, c_bytes);
      _tile_stored(3, upper_c + SIDE * c_row + SIDE, c_bytes);
    }
  }
  // Released tiles are not saved at context switches.
  _tile_release();
  return true;
}

#else

inline bool may_use_tiles() { return false; }
inline bool multiply_by_tiles(Index, Index, const Bf16*, const Bf16*, Index, float*) { return false; }

#endif
