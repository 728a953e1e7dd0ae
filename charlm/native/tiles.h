// Products of bfloat16 by AMX, Intel's matrix instructions: 16 times as many multiplications a cycle as of floats.
//
// A tile is a register of 16 rows of 64 bytes. An instruction multiplies 16 rows of a, 32 elements of K each, by 16 rows
// of pairs of 16 columns, half a packed panel as it stands, and adds the products to 16 × 16 floats.
#pragma once

#include <algorithm>

#include "vector.h"

// Elements of K in a row of a tile. Operands are padded to whole ones, so that K has no remainder.
constexpr Index TILE_K = 32;

// With AVX-512, so that a panel is two tiles wide.
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__) && !defined(CHARLM_WIDTH)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

// Whether this process may use tiles. Linux wants to be asked, since the state of each thread grows by 8 KiB, and
// refuses where a thread's signals have a stack without room for that.
inline bool may_use_tiles() {
  constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  static const bool granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
  return granted;
}

// Tiles 0 to 3 are c's, 2 × 2, 4 and 5 a's, one above the other, and 6 and 7 b's, side by side.
inline void shape_tiles(std::uint8_t upper_rows, std::uint8_t lower_rows) {
  const struct alignas(64) {
    std::uint8_t palette, start_row, reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
  } shape = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64},
             {upper_rows, upper_rows, lower_rows, lower_rows, upper_rows, lower_rows, 16, 16}};
  // The compiler does not know what these instructions read: whatever was written so far must be in memory.
  asm volatile("" : : "r"(&shape) : "memory");
  _tile_loadconfig(&shape);
}

// `multiply` of product.h, for padded K; false where tiles cannot be used. Each instruction adds the sum of its own 32
// products: the chain of these, K / 32, is short without limit.
inline bool multiply_by_tiles(Index B, Index K, const Bf16* a, const Bf16* packed, Index panels, float* c) {
  if (!may_use_tiles()) return false;
  constexpr Index SIDE = 16;  // of a tile of c
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
  // Tiles that hold nothing are not saved when threads take turns.
  _tile_release();
  return true;
}

#else

inline bool multiply_by_tiles(Index, Index, const Bf16*, const Bf16*, Index, float*) { return false; }

#endif
