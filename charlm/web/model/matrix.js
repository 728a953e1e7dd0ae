// A matrix of weights: float32, or int8 with one scale per row. This is the definition; kernel.js computes the same
// products faster.

const LARGEST_SUM = 2 ** 31 - 1;

/** The whole number that stands for the largest value of a vector: no sum of `columns` products with an int8 overflows. */
export function largestWhole(columns) {
  return Math.min(32767, Math.floor(LARGEST_SUM / (127 * columns)));
}

/** Rounds x to whole numbers times a scale, which is returned. The largest of them is ±largest, for the largest |x|. */
export function quantize(x, wholes, largest) {
  let most = 0;
  for (let place = 0; place < x.length; place++) most = Math.max(most, Math.abs(x[place]));
  if (!(most > 0)) {
    wholes.fill(0);
    return 0;
  }
  const scale = largest / most;
  for (let place = 0; place < x.length; place++) wholes[place] = Math.round(x[place] * scale);
  return most / largest;
}

/** W [rows, columns]. With scales, W is scales[row] · values[row, column]. */
export class Matrix {
  constructor({ rows, columns, values, scales }) {
    Object.assign(this, { rows, columns, values, scales });
    this.stride = columns; // from one row of `values` to the next
    this.product = new Float32Array(rows);
    this.wholes = scales && new Int16Array(columns);
  }

  at(row, column) {
    return this.values[row * this.stride + column] * (this.scales ? this.scales[row] : 1);
  }

  row(row) {
    return Float32Array.from({ length: this.columns }, (_, column) => this.at(row, column));
  }

  column(column) {
    return Float32Array.from({ length: this.rows }, (_, row) => this.at(row, column));
  }

  /** W x: a Float32Array, valid until the next product of this matrix. With scales, x is rounded to 16 bits. */
  multiply(x) {
    const { rows, columns, stride, values, scales, product, wholes } = this;
    const scale = scales ? quantize(x, wholes, largestWhole(columns)) : 1;
    const y = scales ? wholes : x;
    for (let row = 0, start = 0; row < rows; row++, start += stride) {
      let sum = 0;
      for (let column = 0; column < columns; column++) sum += values[start + column] * y[column];
      product[row] = scales ? sum * scales[row] * scale : sum;
    }
    return product;
  }
}
