// Curves: smoothed, looked up, and what is in sight of them.

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

/**
 * The first index of the values within a range, and the one after the last, both one further, so that lines lead to the
 * edges; [0, 0] for a curve that ends before the range or begins after it. `sorted` is ascending.
 */
export function withNeighbors(sorted, [low, high]) {
  const first = sorted.findIndex((value) => value >= low);
  const end = sorted.findIndex((value) => value > high);
  if (first === -1 || end === 0) return [0, 0];
  return [Math.max(0, first - 1), end === -1 ? sorted.length : end + 1];
}

/** What the vertical axis must hold of a curve: its line up to the chart's edges, and nine tenths of its band's edges. */
export function seenValues({ at, line, low, high, inside }, x) {
  const values = line.slice(...inside);
  for (const edge of [x.low, x.high]) {
    const next = at.findIndex((value) => value > edge);
    if (next < 1) continue;
    const share = (x.share(edge) - x.share(at[next - 1])) / (x.share(at[next]) - x.share(at[next - 1]));
    values.push(line[next - 1] + share * (line[next] - line[next - 1]));
  }
  if (!low) return [values];
  const [lows, highs] = [low.slice(...inside), high.slice(...inside)];
  const tail = Math.floor(lows.length / 10);
  return [values, lows.length ? [lows.toSorted((a, b) => a - b)[tail], highs.toSorted((a, b) => b - a)[tail]] : []];
}
