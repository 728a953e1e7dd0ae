// The next id from logits, as charlm sample chooses it (`choose` in charlm/native/generate.h).

/** Probabilities of logits, in double precision. */
export function probabilities(logits) {
  const most = logits.reduce((one, other) => Math.max(one, other), -Infinity);
  const shares = Float64Array.from(logits, (logit) => Math.exp(logit - most));
  const sum = shares.reduce((one, other) => one + other, 0);
  return shares.map((share) => share / sum);
}

function likeliest(logits) {
  let found = 0;
  for (let id = 1; id < logits.length; id++) if (logits[id] > logits[found]) found = id;
  return found;
}

/** The first place from which on `isAfter` holds in a sorted list; its length if there is none. */
function firstPlace(values, isAfter) {
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
 * Ids from the likeliest on; of equal ones the first comes first. A number is sorted for each id, which the browser does
 * several times as fast as with a comparison: 32 bits that fall as the logit rises, then 21 bits of the id.
 */
function byLikelihood(logits) {
  const bits = new Uint32Array(logits.map((logit) => logit + 0).buffer); // + 0: there is no −0
  const keys = new Float64Array(logits.length);
  for (let id = 0; id < keys.length; id++) {
    const falling = bits[id] >>> 31 ? bits[id] : ~bits[id] & 0x7fffffff;
    keys[id] = (falling >>> 0) * IDS + id;
  }
  keys.sort();
  const ids = new Int32Array(keys.length);
  for (let place = 0; place < ids.length; place++) ids[place] = keys[place] & (IDS - 1);
  return ids;
}

/**
 * An id, drawn by inverting the cumulative probabilities in order of probability. draw: uniform in [0, 1). The limits
 * are those of charlm sample: temperature 0 takes the likeliest, topK 0 and minP 0 and topP 1 keep all.
 */
export function choose(logits, { temperature = 1, topK = 0, topP = 1, minP = 0 }, draw) {
  if (temperature === 0) return likeliest(logits);
  let order = byLikelihood(logits);
  if (topK > 0) order = order.subarray(0, topK);
  const cumulated = new Float64Array(order.length);
  let sum = 0;
  let likely = 0; // ids that min-p keeps
  for (let place = 0; place < order.length; place++) {
    const ratio = Math.exp((logits[order[place]] - logits[order[0]]) / temperature);
    cumulated[place] = sum += ratio;
    if (ratio >= minP) likely++;
  }
  for (let place = 0; place < cumulated.length; place++) cumulated[place] /= sum;
  // The ids that top-p and min-p keep come first, so scaling the draw by their total probability draws among them.
  const most = Math.max(likely - 1, 0);
  const last = Math.min(firstPlace(cumulated, (share) => share >= topP), most);
  const drawn = draw * cumulated[last];
  return order[Math.min(firstPlace(cumulated, (share) => share > drawn), last)];
}
