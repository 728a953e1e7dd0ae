// Axes: from values to pixels, and where the marks are.

/** An axis from values [low, high] to pixels [from, to]. On a logarithmic one, values must be above 0. */
export function makeScale(low, high, from, to, log) {
  const transform = log ? Math.log : (value) => value;
  const inverse = log ? Math.exp : (value) => value;
  const [first, last] = [transform(low), transform(high)];
  const span = last - first || 1;
  return {
    low,
    high,
    log,
    pixel: (value) => from + ((transform(value) - first) / span) * (to - from),
    value: (pixel) => inverse(first + ((pixel - from) / (to - from)) * span),
    /** 0 to 1 over the axis. */
    share: (value) => (transform(value) - first) / span,
  };
}

const MOST_TRIES = 6;

/** Round values inside an axis, about `count` of them and at least two. */
export function ticksOf({ low, high, log }, count) {
  let ticks = [];
  for (let tries = 0; ticks.length < 2 && tries < MOST_TRIES; tries++) {
    ticks = (log ? logTicks : evenTicks)(low, high, count * 2 ** tries);
  }
  return ticks;
}

function evenTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0)) return [low];
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((size) => size >= rough);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 1.2) return evenTicks(low, high, count).filter((value) => value >= low);
  const every = Math.max(1, Math.ceil(decades / count));
  const factors = decades < count / 3 ? [1, 2, 5] : decades < count / 2 ? [1, 3] : [1];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) {
    if (power % every) continue;
    for (const factor of factors) {
      const value = Number((factor * 10 ** power).toPrecision(12));
      if (value >= low && value <= high) ticks.push(value);
    }
  }
  return ticks;
}

/** Least and greatest of numbers, those not finite left out, and of an axis with `log` those not above 0; null if none. */
export function extent(arrays, log) {
  let [low, high] = [Infinity, -Infinity];
  for (const values of arrays) {
    for (const value of values) {
      if (!Number.isFinite(value) || (log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : null;
}

/** A little more than the range on both sides, never empty. */
export function widened([low, high], log, by) {
  if (log) {
    const factor = high > low ? (high / low) ** by : 2;
    return [low / factor, high * factor];
  }
  const more = high > low ? (high - low) * by : Math.abs(high) / 2 || 1;
  return [low - more, high + more];
}
