// What a model said of each character of a text, as a page of charlm look has it.

import { UNKNOWN_BITS } from "../look/prediction.js";

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

const MOST_BITS_SHOWN = 65;

export class Reading {
  /** size: of the vocabulary. The arrays grow with the text. */
  constructor(size) {
    this.likeliest = Math.min(LIKELIEST, size);
    this.exact = 0; // bits of all characters
    this.reserve(1024);
  }

  reserve(capacity) {
    const sizes = { bits: 1, entropy: 1, rank: 1, top: this.likeliest, p: this.likeliest };
    for (const [name, size] of Object.entries(sizes)) {
      const values = new (name === "rank" || name === "top" ? Uint32Array : Uint16Array)(capacity * size);
      if (name === "bits") values.fill(UNKNOWN_BITS);
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
    const bits = -Math.log2(shares[id]);
    this.bits[index] = Math.round(1000 * Math.min(MOST_BITS_SHOWN, bits));
    this.exact += bits;
    this.entropy[index] = Math.round(1000 * entropy);
    this.rank[index] = rank;
    likeliestIds(shares, this.likeliest).forEach((other, turn) => {
      this.top[index * this.likeliest + turn] = other;
      this.p[index * this.likeliest + turn] = Math.round(65535 * shares[other]);
    });
  }
}
