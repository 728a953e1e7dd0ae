// Matrices of weights in the memory of WebAssembly: float32, or int8 with one scale per row. kernel.c has their products.

import { bytesOf } from "../shared/unpack.js";

const PAGE = 65536; // bytes of a page of memory
const LARGEST_SUM = 2 ** 31 - 1;
const padded = (count, multiple) => Math.ceil(count / multiple) * multiple;

/** The compiled kernel, and memory for matrices. */
export class Kernel {
  /** code: compiled, as base64. */
  static async open(code) {
    const memory = new WebAssembly.Memory({ initial: 2 });
    const { instance } = await WebAssembly.instantiate(bytesOf(code), { env: { memory } });
    return Object.assign(new Kernel(), { memory, exports: instance.exports, end: padded(instance.exports.__heap_base.value, 16) });
  }

  /** Makes room for these matrices. Memory that grows has new buffers, so all of it is taken at once. */
  reserve(matrices) {
    const bytes = matrices.reduce((sum, matrix) => sum + matrix.bytes, 0);
    this.memory.grow(Math.max(0, Math.ceil((this.end + bytes - this.memory.buffer.byteLength) / PAGE)));
  }

  /** An array filled with zeros, aligned for vectors of 16 bytes. */
  take(Type, length) {
    const start = this.end;
    this.end += padded(length * Type.BYTES_PER_ELEMENT, 16);
    return new Type(this.memory.buffer, start, length);
  }
}

/** Rounds x to whole numbers times a scale, which is returned. The largest of them is ±largest, for the largest |x|. */
function quantize(x, wholes, largest) {
  let peak = 0;
  for (let index = 0; index < x.length; index++) peak = Math.max(peak, Math.abs(x[index]));
  if (!(peak > 0)) {
    wholes.fill(0);
    return 0;
  }
  const scale = largest / peak;
  for (let index = 0; index < x.length; index++) wholes[index] = Math.round(x[index] * scale);
  return peak / largest;
}

/** W [rows, columns]. With scales, W is scales[row] · values[row, column]. */
export class Matrix {
  constructor({ rows, columns, values, scales }) {
    Object.assign(this, { rows, columns, values, scales });
    [this.paddedRows, this.stride] = [padded(rows, 4), padded(columns, 8)];
    this.bytes = this.paddedRows * this.stride * values.BYTES_PER_ELEMENT + 8 * this.paddedRows + 4 * this.stride + 64;
    // No sum of products of such whole numbers with an int8 overflows.
    this.largest = Math.min(32767, Math.floor(LARGEST_SUM / (127 * columns)));
  }

  /** Moves the weights into the memory of the kernel, for which it has room. */
  move(kernel) {
    const { rows, columns, values, scales, paddedRows, stride } = this;
    this.kernel = kernel.exports;
    this.values = kernel.take(values.constructor, paddedRows * stride);
    for (let row = 0; row < rows; row++) this.values.set(values.subarray(row * columns, (row + 1) * columns), row * stride);
    this.x = kernel.take(scales ? Int16Array : Float32Array, stride);
    this.product = kernel.take(Float32Array, paddedRows);
    this.scales = scales && kernel.take(Float32Array, paddedRows);
    this.scales?.set(scales);
    this.input = this.x.subarray(0, columns);
    this.output = this.product.subarray(0, rows);
  }

  row(row) {
    const scale = this.scales ? this.scales[row] : 1;
    return Float32Array.from(this.values.subarray(row * this.stride, row * this.stride + this.columns), (value) => value * scale);
  }

  /** W x: a Float32Array, valid until the next product of this matrix. With scales, x is rounded to 16 bits. */
  multiply(vector) {
    const { kernel, paddedRows, stride, values, x, scales, product } = this;
    if (scales) {
      const scale = quantize(vector, this.input, this.largest);
      kernel.multiply_int8(paddedRows, stride, values.byteOffset, x.byteOffset, scales.byteOffset, scale, product.byteOffset);
    } else {
      this.input.set(vector);
      kernel.multiply_float32(paddedRows, stride, values.byteOffset, x.byteOffset, product.byteOffset);
    }
    return this.output;
  }

  /** y = Wᵀ x, in double precision, without the kernel. */
  multiplyTransposed(y, x) {
    const sums = new Float64Array(this.columns);
    for (let row = 0; row < this.rows; row++) {
      const factor = (this.scales?.[row] ?? 1) * x[row];
      const start = row * this.stride;
      for (let column = 0; column < this.columns; column++) sums[column] += factor * this.values[start + column];
    }
    y.set(sums);
  }
}
