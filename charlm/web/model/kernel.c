// Products of matrices and vectors in WebAssembly, for matrix.js.
//
// kernel.wasm is compiled from this file by scripts/wasm, with clang 14.0.6.
// The command is: clang --target=wasm32 -O3 -msimd128 -ffreestanding -nostdlib -Wl,--no-entry -Wl,--import-memory
// -Wl,--export=__heap_base -Wl,--strip-all -o kernel.wasm kernel.c

#include <wasm_simd128.h>

// A group of rows is computed at once: each vector of x is loaded once for all of them.
enum { GROUP = 4 };

// The sums of four vectors' lanes, as one vector.
static inline v128_t sum_floats(const v128_t* s) {
  const v128_t a = wasm_f32x4_add(wasm_i32x4_shuffle(s[0], s[1], 0, 4, 1, 5), wasm_i32x4_shuffle(s[0], s[1], 2, 6, 3, 7));
  const v128_t b = wasm_f32x4_add(wasm_i32x4_shuffle(s[2], s[3], 0, 4, 1, 5), wasm_i32x4_shuffle(s[2], s[3], 2, 6, 3, 7));
  return wasm_f32x4_add(wasm_i32x4_shuffle(a, b, 0, 1, 4, 5), wasm_i32x4_shuffle(a, b, 2, 3, 6, 7));
}

static inline int sum_wholes(v128_t s) {
  const v128_t pairs = wasm_i32x4_add(s, wasm_i32x4_shuffle(s, s, 2, 3, 0, 1));
  return wasm_i32x4_extract_lane(pairs, 0) + wasm_i32x4_extract_lane(pairs, 1);
}

// product [rows] = W x. W [rows, columns] and x [columns] are padded with zeros: rows to a multiple of 4, columns to
// one of 8. All pointers are aligned to 16 bytes.
__attribute__((export_name("multiply_float32"))) void multiply_float32(int rows, int columns, const float* weights,
                                                                        const float* x, float* product) {
  for (int row = 0; row < rows; row += GROUP, weights += GROUP * columns) {
    v128_t sums[GROUP] = {0};
    for (int k = 0; k < columns; k += 4) {
      const v128_t x4 = wasm_v128_load(x + k);
      for (int r = 0; r < GROUP; r++) {
        sums[r] = wasm_f32x4_add(sums[r], wasm_f32x4_mul(wasm_v128_load(weights + r * columns + k), x4));
      }
    }
    wasm_v128_store(product + row, sum_floats(sums));
  }
}

// product [rows] = scale · scales [row] · (W x), with whole numbers W and x; padded and aligned as above. No sum may
// overflow 32 bits.
__attribute__((export_name("multiply_int8"))) void multiply_int8(int rows, int columns, const signed char* weights,
                                                                  const short* x, const float* scales, double scale,
                                                                  float* product) {
  for (int row = 0; row < rows; row += GROUP, weights += GROUP * columns) {
    v128_t sums[GROUP] = {0};
    for (int k = 0; k < columns; k += 8) {
      const v128_t x8 = wasm_v128_load(x + k);
      for (int r = 0; r < GROUP; r++) {
        const v128_t w8 = wasm_i16x8_load8x8(weights + r * columns + k);
        sums[r] = wasm_i32x4_add(sums[r], wasm_i32x4_dot_i16x8(w8, x8));
      }
    }
    for (int r = 0; r < GROUP; r++) {
      product[row + r] = (float)((double)sum_wholes(sums[r]) * (double)scales[row + r] * scale);
    }
  }
}
