// What a model said of each character of a text, as a page of charlm look has it.

import { likeliestIds } from "./likeliest.js";

const UNKNOWN_BITS = 65535;
const MOST_BITS_SHOWN = 65;

export class Reading {
  /** likeliest: how many characters are kept; capacity: of how many characters of text, it grows if there are more. */
  constructor(likeliest, capacity = 1024) {
    this.likeliest = likeliest;
    this.exact = 0; // bits of all characters
    this.reserve(capacity);
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
