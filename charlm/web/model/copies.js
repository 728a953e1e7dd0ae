// The windows of the training text as a set: does the text copy it? See `copies_of` in charlm/export/html.py.

import { unpackArray } from "../shared/unpack.js";

/** The set of the page's JSON; null if there is none. */
export async function openCopies(data) {
  if (!data) return null;
  const [counts, fingerprints] = await Promise.all([unpackArray(data.counts), unpackArray(data.fingerprints)]);
  return new Copies(data, counts, fingerprints);
}

class Copies {
  constructor(data, counts, fingerprints) {
    this.window = data.window;
    this.bases = data.bases;
    this.fingerprints = fingerprints;
    this.shift = 32 - Math.log2(counts.length);
    this.starts = new Uint32Array(counts.length + 1);
    counts.forEach((count, bucket) => {
      this.starts[bucket + 1] = this.starts[bucket] + count;
    });
  }

  /** Whether a window with these hashes is in the set. */
  has(first, second) {
    const bucket = mixed(first) >>> this.shift;
    const fingerprint = mixed(second) >>> 16;
    for (let index = this.starts[bucket]; index < this.starts[bucket + 1]; index++) {
      if (this.fingerprints[index] === fingerprint) return true;
    }
    return false;
  }
}

/** Follows a text, id by id. */
export class CopyFinder {
  constructor(copies) {
    this.copies = copies;
    this.ids = [];
    this.hashes = [0, 0];
    this.leaving = copies.bases.map((base) => power(base, copies.window));
  }

  /** Reads an id; whether the window that ends with it is in the training text. */
  push(id) {
    const { window, bases } = this.copies;
    const old = this.ids.length >= window ? this.ids[this.ids.length - window] : 0;
    this.ids.push(id);
    for (const turn of [0, 1]) {
      this.hashes[turn] = (Math.imul(this.hashes[turn], bases[turn]) + id - Math.imul(old, this.leaving[turn])) | 0;
    }
    return this.ids.length >= window && this.copies.has(...this.hashes);
  }
}

function power(base, exponent) {
  let result = 1;
  for (let turn = 0; turn < exponent; turn++) result = Math.imul(result, base);
  return result;
}

/** MurmurHash3's finalizer. */
function mixed(hash) {
  let bits = hash;
  bits = Math.imul(bits ^ (bits >>> 16), 0x85ebca6b);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35);
  return (bits ^ (bits >>> 16)) >>> 0;
}
