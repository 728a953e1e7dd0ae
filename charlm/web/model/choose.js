// The next id from logits, as charlm sample chooses it (`choose` in charlm/native/generate.h).

/** Probabilities of logits, in double precision. */
export function probabilities(logits) {
  const most = logits.reduce((one, other) => Math.max(one, other), -Infinity);
  const shares = Float64Array.from(logits, (logit) => Math.exp(logit - most));
  const sum = shares.reduce((one, other) => one + other, 0);
  return shares.map((share) => share / sum);
}

function likeliest(logits) {
  let first = 0;
  for (let id = 1; id < logits.length; id++) if (logits[id] > logits[first]) first = id;
  return first;
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
 * These ids from the likeliest on; of equal ones the first comes first. A number is sorted for each id, which the browser
 * does several times as fast as with a comparison: 32 bits that fall as the logit rises, then 21 bits of the id.
 */
function byLikelihood(logits, ids) {
  const wanted = new Float32Array(ids.length);
  for (let place = 0; place < ids.length; place++) wanted[place] = logits[ids[place]] + 0; // + 0: there is no −0
  const bits = new Uint32Array(wanted.buffer);
  const keys = new Float64Array(ids.length);
  for (let place = 0; place < ids.length; place++) {
    const falling = bits[place] >>> 31 ? bits[place] : ~bits[place] & 0x7fffffff;
    keys[place] = (falling >>> 0) * IDS + ids[place];
  }
  keys.sort();
  const ordered = new Int32Array(keys.length);
  for (let place = 0; place < ordered.length; place++) ordered[place] = keys[place] & (IDS - 1);
  return ordered;
}

const ROUNDING = 1e-9; // more than a sum of probabilities errs by

/**
 * The ids on which the choice can depend, not in order: those at least some share as likely as the likeliest. To sort
 * only these is what makes large vocabularies fast. ratios: the share of each id; sum: of all ratios.
 */
function eligible(ratios, sum, { topK, topP, minP }, draw) {
  // A draw without limits depends on ids up to this share of the probability.
  const needed = topP < 1 ? topP : minP === 0 ? draw : 1;
  for (let least = 1 / 4; ; least = least > 1e-9 ? least ** 2 : 0) {
    const ids = [];
    let covered = 0;
    for (let id = 0; id < ratios.length; id++) {
      if (ratios[id] < least) continue;
      ids.push(id);
      covered += ratios[id];
    }
    const enough = topK > 0 ? ids.length >= topK : least <= minP || covered > (needed + ROUNDING) * sum;
    if (enough || least === 0) return ids;
  }
}

/**
 * An id, drawn by inverting the cumulative probabilities in order of probability. draw: uniform in [0, 1). The limits
 * are those of charlm sample: temperature 0 takes the likeliest, topK 0 and minP 0 and topP 1 keep all.
 */
export function choose(logits, { temperature = 1, topK = 0, topP = 1, minP = 0 }, draw) {
  const first = likeliest(logits);
  if (temperature === 0) return first;
  const ratios = new Float64Array(logits.length);
  let sum = 0;
  for (let id = 0; id < ratios.length; id++) sum += ratios[id] = Math.exp((logits[id] - logits[first]) / temperature);
  let order = byLikelihood(logits, eligible(ratios, sum, { topK, topP, minP }, draw));
  if (topK > 0) order = order.subarray(0, topK);
  const cumulated = new Float64Array(order.length);
  let covered = 0;
  let likely = 0; // ids that min-p keeps
  for (let place = 0; place < order.length; place++) {
    const ratio = ratios[order[place]];
    cumulated[place] = covered += ratio;
    if (ratio >= minP) likely++;
  }
  if (topK > 0 || order.length === ratios.length) sum = covered;
  for (let place = 0; place < cumulated.length; place++) cumulated[place] /= sum;
  // The ids that top-p and min-p keep come first, so scaling the draw by their total probability draws among them.
  const most = Math.max(likely - 1, 0);
  const last = Math.min(firstPlace(cumulated, (share) => share >= topP), most);
  const drawn = topP < 1 || minP > 0 ? draw * cumulated[last] : draw;
  return order[Math.min(firstPlace(cumulated, (share) => share > drawn), last)];
}
