// Curves: smoothed, looked up, and in words.

/** Values smoothed along an axis: the mean with weights exp(−distance / width), to both sides, so nothing is shifted.
 *
 * shares: the place of each value on the axis, 0 to 1, ascending. A value counts for the part of the axis around it, so
 * that it does not matter where points lie densely. Values that are not finite count for nothing and stay as they are.
 */
export function smoothed(shares, values, width) {
  if (!(width > 0)) return values;
  const length = values.length;
  const around = (index) => ((shares[index + 1] ?? shares[index]) - (shares[index - 1] ?? shares[index])) / 2;
  const widths = shares.map((_, index) => around(index) || Number.MIN_VALUE);
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
  const next = sorted.findIndex((other) => other >= value);
  if (next <= 0) return next < 0 ? sorted.length - 1 : 0;
  return value - sorted[next - 1] <= sorted[next] - value ? next - 1 : next;
}

/** What the vertical axis must hold of a curve: its line up to the chart's edges, and nine tenths of its band's edges. */
export function seenValues({ at, line, low, high }, x) {
  const isSeen = (_, index) => at[index] >= x.low && at[index] <= x.high;
  const values = line.filter(isSeen);
  for (const edge of [x.low, x.high]) {
    const next = at.findIndex((value) => value > edge);
    if (next < 1) continue;
    const share = (x.share(edge) - x.share(at[next - 1])) / (x.share(at[next]) - x.share(at[next - 1]));
    values.push(line[next - 1] + share * (line[next] - line[next - 1]));
  }
  if (!low) return values;
  const [lows, highs] = [low, high].map((band) => band.filter(isSeen).sort((a, b) => a - b));
  const tail = Math.floor(lows.length / 10);
  return [...values, ...lows.slice(tail, tail + 1), ...highs.slice(-1 - tail, highs.length - tail)];
}

const MOST = 8; // curves that are told of

/** A chart's text alternative: where each curve in sight begins, ends and is lowest. */
export function chartWords(title, curves, x, text) {
  const told = curves.slice(0, MOST).map(({ name, at, mean }) => {
    const known = mean.filter((value, index) => Number.isFinite(value) && at[index] >= x.low && at[index] <= x.high);
    if (!known.length) return `${name} has no values`;
    const least = known.reduce((low, value) => Math.min(low, value));
    const [first, low, last] = [known[0], least, known.at(-1)].map(text);
    return `${name} from ${first} to ${last}, lowest ${low}`;
  });
  if (curves.length > MOST) told.push(`and ${curves.length - MOST} more`);
  return `${title}: chart; ${told.join("; ") || "nothing to show"}. Arrow keys move through it.`;
}
