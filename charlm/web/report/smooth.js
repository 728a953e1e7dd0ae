// Curves: smoothed, and looked up.

/** Values smoothed along an axis: the mean with weights exp(−distance / width), to both sides, so nothing is shifted.
 *
 * shares: the index of each value on the axis, 0 to 1, ascending. A value counts for the part of the axis around it, so
 * that it does not matter where points lie densely. Values that are not finite count for nothing and stay as they are.
 */
export function smoothed(shares, values, width) {
  if (!(width > 0)) return values;
  const length = values.length;
  const widths = shares.map(
    (share, index) => ((shares[index + 1] ?? share) - (shares[index - 1] ?? share)) / 2 || Number.MIN_VALUE,
  );
  const sums = new Float64Array(length);
  const weights = new Float64Array(length);
  const pass = (first, step) => {
    let [sum, weight] = [0, 0];
    let previous = shares[first];
    for (let index = first; index >= 0 && index < length; index += step) {
      const decay = Math.exp(-Math.abs(shares[index] - previous) / width);
      previous = shares[index];
      sum *= decay;
      weight *= decay;
      sums[index] += sum;
      weights[index] += weight;
      if (Number.isFinite(values[index])) {
        sum += widths[index] * values[index];
        weight += widths[index];
      }
    }
  };
  pass(0, 1);
  pass(length - 1, -1);
  return values.map((value, index) =>
    Number.isFinite(value) ? (sums[index] + widths[index] * value) / (weights[index] + widths[index]) : value,
  );
}

/** The index whose value is nearest; `sorted` is ascending and not empty. */
export function nearest(sorted, value) {
  let [low, high] = [0, sorted.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - sorted[low - 1] <= sorted[low] - value ? low - 1 : low;
}
