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

const IDS = 2 ** 21; // more than there are characters

/**
 * The ids from the likeliest on; of equal ones the first comes first. A number is sorted for each id, which the browser
 * does several times as fast as with a comparison: 32 bits that fall as the logit rises, then 21 bits of the id.
 */
function byLikelihood(logits) {
  const bits = new Uint32Array(Float32Array.from(logits, (logit) => logit + 0).buffer); // + 0: there is no −0
  const keys = new Float64Array(logits.length);
  for (let id = 0; id < keys.length; id++) {
    const falling = bits[id] >>> 31 ? bits[id] : ~bits[id] & 0x7fffffff;
    keys[id] = (falling >>> 0) * IDS + id;
  }
  keys.sort();
  return Int32Array.from(keys, (key) => key & (IDS - 1));
}

/**
 * An id, drawn by inverting the cumulative probabilities in order of probability. draw: uniform in [0, 1). The limits
 * are those of charlm sample: temperature 0 takes the likeliest, topK 0 and topP 1 keep all.
 */
export function choose(logits, { temperature = 1, topK = 0, topP = 1 }, draw) {
  const first = likeliest(logits);
  if (temperature === 0) return first;
  const all = byLikelihood(logits);
  const order = topK > 0 ? all.subarray(0, topK) : all;
  const cumulated = new Float64Array(order.length);
  let sum = 0;
  for (let index = 0; index < order.length; index++) {
    sum += Math.exp((logits[order[index]] - logits[first]) / temperature);
    cumulated[index] = sum;
  }
  for (let index = 0; index < cumulated.length; index++) cumulated[index] /= sum;
  // The ids that top-p keeps come first, so scaling the draw by their total probability draws among them.
  const covering = cumulated.findIndex((share) => share >= topP);
  const last = covering < 0 ? order.length - 1 : covering;
  const scaledDraw = topP < 1 ? draw * cumulated[last] : draw;
  const drawn = cumulated.findIndex((share) => share > scaledDraw);
  return order[drawn < 0 ? last : Math.min(drawn, last)];
}
