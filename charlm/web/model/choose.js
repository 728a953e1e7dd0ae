// The next id from logits, as charlm sample chooses it (`choose` in charlm/native/generate.h).

/** Probabilities of logits, in double precision. */
export function probabilities(logits) {
  const largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const shares = Float64Array.from(logits, (logit) => Math.exp(logit - largest));
  const sum = shares.reduce((a, b) => a + b, 0);
  return shares.map((share) => share / sum);
}

function likeliest(logits) {
  let first = 0;
  for (let id = 1; id < logits.length; id++) if (logits[id] > logits[first]) first = id;
  return first;
}

/** The first index from which on `isAfter` holds in a sorted list; its length if there is none. */
function firstIndex(values, isAfter) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isAfter(values[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}

const IDS = 2 ** 21; // more than there are characters

/**
 * These ids from the likeliest on; of equal ones the first comes first. A number is sorted for each id, which the browser
 * does several times as fast as with a comparison: 32 bits that fall as the logit rises, then 21 bits of the id.
 */
function byLikelihood(logits, ids) {
  const chosenLogits = new Float32Array(ids.length);
  for (let index = 0; index < ids.length; index++) chosenLogits[index] = logits[ids[index]] + 0; // + 0: there is no −0
  const bits = new Uint32Array(chosenLogits.buffer);
  const keys = new Float64Array(ids.length);
  for (let index = 0; index < ids.length; index++) {
    const falling = bits[index] >>> 31 ? bits[index] : ~bits[index] & 0x7fffffff;
    keys[index] = (falling >>> 0) * IDS + ids[index];
  }
  keys.sort();
  const ordered = new Int32Array(keys.length);
  for (let index = 0; index < ordered.length; index++) ordered[index] = keys[index] & (IDS - 1);
  return ordered;
}

const ROUNDING = 1e-9; // more than a sum of probabilities errs by

/**
 * The ids on which the choice can depend, not in order: those at least some share as likely as the likeliest. To sort
 * only these is what makes large vocabularies fast. ratios: the share of each id; sum: of all ratios.
 */
function eligible(ratios, sum, { topK, topP }, draw) {
  // A draw without limits depends on ids up to this share of the probability.
  const needed = topP < 1 ? topP : draw;
  for (let lowest = 1 / 4; ; lowest = lowest > 1e-9 ? lowest ** 2 : 0) {
    const ids = [];
    let covered = 0;
    for (let id = 0; id < ratios.length; id++) {
      if (ratios[id] < lowest) continue;
      ids.push(id);
      covered += ratios[id];
    }
    const enough = topK > 0 ? ids.length >= topK : covered > (needed + ROUNDING) * sum;
    if (enough || lowest === 0) return ids;
  }
}

/**
 * An id, drawn by inverting the cumulative probabilities in order of probability. draw: uniform in [0, 1). The limits
 * are those of charlm sample: temperature 0 takes the likeliest, topK 0 and topP 1 keep all.
 */
export function choose(logits, { temperature = 1, topK = 0, topP = 1 }, draw) {
  const first = likeliest(logits);
  if (temperature === 0) return first;
  const ratios = new Float64Array(logits.length);
  let sum = 0;
  for (let id = 0; id < ratios.length; id++) sum += ratios[id] = Math.exp((logits[id] - logits[first]) / temperature);
  let order = byLikelihood(logits, eligible(ratios, sum, { topK, topP }, draw));
  if (topK > 0) order = order.subarray(0, topK);
  const cumulated = new Float64Array(order.length);
  let covered = 0;
  for (let index = 0; index < order.length; index++) {
    cumulated[index] = covered += ratios[order[index]];
  }
  if (topK > 0 || order.length === ratios.length) sum = covered;
  for (let index = 0; index < cumulated.length; index++) cumulated[index] /= sum;
  // The ids that top-p keeps come first, so scaling the draw by their total probability draws among them.
  const last = Math.min(firstIndex(cumulated, (share) => share >= topP), cumulated.length - 1);
  const scaledDraw = topP < 1 ? draw * cumulated[last] : draw;
  return order[Math.min(firstIndex(cumulated, (share) => share > scaledDraw), last)];
}
