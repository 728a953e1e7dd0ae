// The random numbers of charlm sample: those of torch.rand in double precision from a generator with this seed, the
// Mersenne Twister MT19937 (Matsumoto & Nishimura 1998, doi:10.1145/272991.272995).

const LENGTH = 624;
const MIDDLE = 397;
const TWIST = 0x9908b0df;
const [UPPER, LOWER] = [0x80000000, 0x7fffffff];

/** Uniform numbers in [0, 1): multiples of 2⁻⁵³. */
export class Uniform {
  /** seed: a whole number; of those beyond 2⁵³, pass a BigInt. */
  constructor(seed) {
    this.words = new Uint32Array(LENGTH);
    this.words[0] = Number(BigInt.asUintN(32, BigInt(seed)));
    for (let index = 1; index < LENGTH; index++) {
      const last = this.words[index - 1];
      this.words[index] = Math.imul(1812433253, last ^ (last >>> 30)) + index;
    }
    this.index = LENGTH;
  }

  next() {
    const high = this.bits32();
    const low = this.bits32();
    return ((high & 0x1fffff) * 2 ** 32 + low) * 2 ** -53;
  }

  bits32() {
    if (this.index === LENGTH) this.twist();
    let y = this.words[this.index++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  twist() {
    const { words } = this;
    for (let index = 0; index < LENGTH; index++) {
      const y = (words[index] & UPPER) | (words[(index + 1) % LENGTH] & LOWER);
      words[index] = words[(index + MIDDLE) % LENGTH] ^ (y >>> 1) ^ (y & 1 ? TWIST : 0);
    }
    this.index = 0;
  }
}
