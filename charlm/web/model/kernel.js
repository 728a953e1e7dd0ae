// The products of matrices by WebAssembly, see kernel.c.

import { largestWhole, quantize } from "./matrix.js";
import { bytesOf } from "../shared/unpack.js";

const PAGE = 65536; // bytes of a page of memory
const padded = (count, multiple) => Math.ceil(count / multiple) * multiple;

/** Hands out memory, aligned for vectors of 16 bytes and filled with zeros. Memory that grows has new buffers. */
class Heap {
  constructor(memory, start) {
    Object.assign(this, { memory, end: padded(start, 16) });
  }

  reserve(bytes) {
    this.memory.grow(Math.max(0, Math.ceil((this.end + bytes - this.memory.buffer.byteLength) / PAGE)));
  }

  take(Type, length) {
    const start = this.end;
    this.end += padded(length * Type.BYTES_PER_ELEMENT, 16);
    return new Type(this.memory.buffer, start, length);
  }
}

const paddedRows = ({ rows }) => padded(rows, 4);
const paddedColumns = ({ columns }) => padded(columns, 8);

function bytesFor(matrix) {
  const [rows, columns] = [paddedRows(matrix), paddedColumns(matrix)];
  return rows * columns * matrix.values.BYTES_PER_ELEMENT + 8 * rows + 4 * columns + 64; // 64 for alignment
}

/** Moves the weights of a matrix into the heap, and replaces its product by the kernel's. */
function move(matrix, heap, kernel) {
  const { rows, columns, values } = matrix;
  const [R, K] = [paddedRows(matrix), paddedColumns(matrix)];
  const moved = heap.take(values.constructor, R * K);
  for (let row = 0; row < rows; row++) moved.set(values.subarray(row * columns, (row + 1) * columns), row * K);
  const x = heap.take(matrix.scales ? Int16Array : Float32Array, K);
  const product = heap.take(Float32Array, R);
  const scales = heap.take(Float32Array, R);
  if (matrix.scales) scales.set(matrix.scales);
  const [input, outputs] = [x.subarray(0, columns), product.subarray(0, rows)];
  const largest = largestWhole(columns);
  Object.assign(matrix, { values: moved, stride: K });
  matrix.multiply = (vector) => {
    if (matrix.scales) {
      const scale = quantize(vector, input, largest);
      kernel.multiply_int8(R, K, moved.byteOffset, x.byteOffset, scales.byteOffset, scale, product.byteOffset);
    } else {
      input.set(vector);
      kernel.multiply_float32(R, K, moved.byteOffset, x.byteOffset, product.byteOffset);
    }
    return outputs;
  };
}

/** Lets the kernel, compiled code as base64, compute the products of these matrices. Throws where it cannot run. */
export async function accelerate(matrices, base64) {
  const memory = new WebAssembly.Memory({ initial: 2 });
  const { instance } = await WebAssembly.instantiate(bytesOf(base64), { env: { memory } });
  const heap = new Heap(memory, instance.exports.__heap_base.value);
  heap.reserve(matrices.reduce((bytes, matrix) => bytes + bytesFor(matrix), 0));
  for (const matrix of matrices) move(matrix, heap, instance.exports);
}
