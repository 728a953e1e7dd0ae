// The instructions of AMX that tiles.h uses, in plain C++, so that any x86-64 CPU can test it. Include it before all
// other files: g++ -include software_tiles.h
#pragma once

#include <immintrin.h>
#include <sys/syscall.h>

#include <cstdint>
#include <cstring>

#if !defined(__AMX_TILE__)
#define __AMX_TILE__
#endif
#if !defined(__AMX_BF16__)
#define __AMX_BF16__
#endif
#if !defined(__AVX512F__)
#define __AVX512F__
#endif

// A system call that succeeds, in place of the one that asks for tiles.
#undef SYS_arch_prctl
#define SYS_arch_prctl SYS_sched_yield

struct SoftwareTiles {
  struct Shape {
    std::uint8_t palette, start_row, reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
  } shape;
  alignas(64) std::uint8_t tiles[8][16][64];

  float* floats(int tile, int row) { return reinterpret_cast<float*>(tiles[tile][row]); }

  void load(int tile, const void* base, long stride) {
    zero(tile);
    for (int row = 0; row < shape.rows[tile]; row++)
      std::memcpy(tiles[tile][row], static_cast<const char*>(base) + row * stride, shape.row_bytes[tile]);
  }
  void store(int tile, void* base, long stride) const {
    for (int row = 0; row < shape.rows[tile]; row++)
      std::memcpy(static_cast<char*>(base) + row * stride, tiles[tile][row], shape.row_bytes[tile]);
  }
  void zero(int tile) { std::memset(tiles[tile], 0, sizeof tiles[tile]); }

  // The k-th bfloat16 in a row of a tile, as a float.
  float element(int tile, int row, int k) const {
    std::uint16_t half;
    std::memcpy(&half, tiles[tile][row] + 2 * k, sizeof half);
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  // c[m, n] += Σ_k a[m, k] b[k / 2, 2 n + k % 2]
  void multiply(int c, int a, int b) {
    if (shape.rows[c] != shape.rows[a] || 4 * shape.rows[b] != shape.row_bytes[a]) __builtin_trap();
    for (int m = 0; m < shape.rows[c]; m++)
      for (int n = 0; n < shape.row_bytes[c] / 4; n++)
        for (int k = 0; k < shape.row_bytes[a] / 2; k++)
          floats(c, m)[n] += element(a, m, k) * element(b, k / 2, 2 * n + k % 2);
  }
};

inline thread_local SoftwareTiles software_tiles;

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) std::memcpy(&software_tiles.shape, config, sizeof software_tiles.shape)
#define _tile_release() std::memset(&software_tiles, 0, sizeof software_tiles)
#define _tile_loadd(tile, base, stride) software_tiles.load(tile, base, stride)
#define _tile_stored(tile, base, stride) software_tiles.store(tile, base, stride)
#define _tile_zero(tile) software_tiles.zero(tile)
#define _tile_dpbf16ps(c, a, b) software_tiles.multiply(c, a, b)
