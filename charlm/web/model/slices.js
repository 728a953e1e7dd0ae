// Long work in slices, between which the page stays responsive.

const SLICE_MS = 8;
const waiting = [];
const channel = new MessageChannel();
channel.port1.onmessage = () => waiting.shift()();

export class Slices {
  /** Milliseconds of work and rest in all slices so far, without what else the browser did between them. */
  static workedMs = 0;

  constructor() {
    this.begin();
  }

  begin() {
    this.begun = performance.now();
  }

  /** Whether it is time for `await next(between)`, which calls `between` and lets the browser do what waits. */
  get over() {
    return performance.now() > this.begun + SLICE_MS;
  }

  /** Do nothing for so many milliseconds; `between` is called first. */
  async rest(ms, between = () => {}) {
    Slices.workedMs += performance.now() - this.begun + ms;
    between();
    await new Promise((resolve) => setTimeout(resolve, ms));
    this.begin();
  }

  async next(between = () => {}) {
    Slices.workedMs += performance.now() - this.begun;
    between();
    await new Promise((resolve) => {
      waiting.push(resolve);
      channel.port2.postMessage(null);
    });
    this.begin();
  }
}
