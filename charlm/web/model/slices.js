// Long work in slices, between which the page stays responsive.

const SLICE_MS = 8;
const waiting = [];
const channel = new MessageChannel();
channel.port1.onmessage = () => waiting.shift()();

export class Slices {
  constructor() {
    this.begun = performance.now();
  }

  /** Whether it is time for `await next()`, which lets the browser do what waits. */
  get over() {
    return performance.now() > this.begun + SLICE_MS;
  }

  /** restMs: do nothing for so many milliseconds. */
  async next(restMs = 0) {
    await new Promise((resolve) => {
      if (restMs) return setTimeout(resolve, restMs);
      waiting.push(resolve);
      channel.port2.postMessage(null);
    });
    this.begun = performance.now();
  }
}
