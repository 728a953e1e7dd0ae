// A matrix of weights: float32, or int8 with one scale per row. This is the definition; kernel.js computes the same
// products faster.

const LARGEST_SUM = 2 ** 31 - 1;

/** The whole number that stands for the largest value of a vector: no sum of `columns` products with an int8 overflows. */
export function largestWhole(columns) {
  return Math.min(32767, Math.floor(LARGEST_SUM / (127 * columns)));
}

/** Rounds x to whole numbers times a scale, which is returned. The largest of them is ±largest, for the largest |x|. */
export function quantize(x, wholes, largest) {
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
    this.stride = columns; // from one row of `values` to the next
    this.product = new Float32Array(rows);
    this.sums = new Float64Array(rows + 3); // entries past the last row are of no use
  }

  at(row, column) {
    return this.values[row * this.stride + column] * (this.scales ? this.scales[row] : 1);
  }

  row(row) {
    return Float32Array.from({ length: this.columns }, (_, column) => this.at(row, column));
  }

  /** W x: a Float32Array, valid until the next product of this matrix. With scales, x is rounded to 16 bits. */
  multiply(x) {
    const { columns, scales, product, sums } = this;
    let [y, scale] = [x, 1];
    if (scales) {
      // Whole numbers as float32: JavaScript multiplies these faster, and their sums are exact.
      if (this.values instanceof Int8Array) this.values = Float32Array.from(this.values);
      this.wholes ??= new Float32Array(columns);
      y = this.wholes;
      scale = quantize(x, y, largestWhole(columns));
    }
    this.addUp(y);
    for (let row = 0; row < product.length; row++) product[row] = scales ? sums[row] * scales[row] * scale : sums[row];
    return product;
  }

  /** Writes the sums of values · y, four rows at once, since the processor can add to four sums at a time. */
  addUp(y) {
    const { rows, columns, stride, values, sums } = this;
    const start = (row) => Math.min(row, rows - 1) * stride;
    for (let row = 0; row < rows; row += 4) {
      const [a, b, c, d] = [start(row), start(row + 1), start(row + 2), start(row + 3)];
      let [sumA, sumB, sumC, sumD] = [0, 0, 0, 0];
      for (let column = 0; column < columns; column++) {
        const value = y[column];
        sumA += values[a + column] * value;
        sumB += values[b + column] * value;
        sumC += values[c + column] * value;
        sumD += values[d + column] * value;
      }
      sums[row] = sumA;
      sums[row + 1] = sumB;
      sums[row + 2] = sumC;
      sums[row + 3] = sumD;
    }
  }
}
