// What a model said of each character of a text, as a page of charlm look has it.

/** How many of the likeliest are kept. */
export const LIKELIEST = 5;

/** The `count` likeliest ids, the likeliest first; of equal ones the first comes first. */
export function likeliestIds(shares, count) {
  const ids = [];
  shares.forEach((share, id) => {
    if (ids.length === count && share <= shares[ids[count - 1]]) return;
    let index = ids.length;
    while (index > 0 && share > shares[ids[index - 1]]) index--;
    ids.splice(index, 0, id);
    if (ids.length > count) ids.pop();
  });
  return ids;
}

export class Reading {
  /** size: of the vocabulary. The arrays grow with the text. */
  constructor(size) {
    this.likeliest = Math.min(LIKELIEST, size);
    this.reserve(1024);
  }

  reserve(capacity) {
    const likeliest = capacity * this.likeliest;
    const arrays = {
      bits: new Float32Array(capacity).fill(NaN),
      entropy: new Float32Array(capacity),
      ids: new Uint32Array(capacity),
      rank: new Uint32Array(capacity),
      top: new Uint32Array(likeliest),
      p: new Uint16Array(likeliest),
    };
    for (const [name, values] of Object.entries(arrays)) {
      if (this[name]) values.set(this[name]);
      this[name] = values;
    }
  }

  /** The shares of all ids at a place of the text, and the id that stands there. */
  note(index, shares, id) {
    if (index >= this.bits.length) this.reserve(2 * index);
    let rank = 1;
    let entropy = 0;
    shares.forEach((share, other) => {
      if (share > shares[id] || (share === shares[id] && other < id)) rank++;
      if (share > 0) entropy -= share * Math.log2(share);
    });
    this.bits[index] = -Math.log2(shares[id]);
    this.entropy[index] = entropy;
    this.ids[index] = id;
    this.rank[index] = rank;
    likeliestIds(shares, this.likeliest).forEach((other, turn) => {
      this.top[index * this.likeliest + turn] = other;
      this.p[index * this.likeliest + turn] = Math.round(65535 * shares[other]);
    });
  }
}
