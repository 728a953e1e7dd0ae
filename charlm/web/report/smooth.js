// Curves: smoothed, and looked up.

/** Values smoothed along an axis: the mean with weights exp(−distance / width), to both sides, so nothing is shifted.
 *
 * shares: the place of each value on the axis, 0 to 1, ascending. A value counts for the part of the axis around it, so
 * that it does not matter where points lie densely. Values that are not finite count for nothing and stay as they are.
 */
export function smoothed(shares, values, width) {
  if (!(width > 0)) return values;
  const length = values.length;
  const parts = shares.map(
    (share, place) => ((shares[place + 1] ?? share) - (shares[place - 1] ?? share)) / 2 || Number.MIN_VALUE,
  );
  const sums = new Float64Array(length);
  const weights = new Float64Array(length);
  const pass = (first, step) => {
    let [sum, weight] = [0, 0];
    let before = shares[first];
    for (let place = first; place >= 0 && place < length; place += step) {
      const decay = Math.exp(-Math.abs(shares[place] - before) / width);
      before = shares[place];
      sum *= decay;
      weight *= decay;
      sums[place] += sum;
      weights[place] += weight;
      if (Number.isFinite(values[place])) {
        sum += parts[place] * values[place];
        weight += parts[place];
      }
    }
  };
  pass(0, 1);
  pass(length - 1, -1);
  return values.map((value, place) =>
    Number.isFinite(value) ? (sums[place] + parts[place] * value) / (weights[place] + parts[place]) : value,
  );
}

/** The place whose value is nearest; `sorted` is ascending and not empty. */
export function nearest(sorted, value) {
  let [low, high] = [0, sorted.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - sorted[low - 1] <= sorted[low] - value ? low - 1 : low;
}
