// Long work in slices, between which the page stays responsive.

const SLICE_MS = 8;
const waiting = [];
const channel = new MessageChannel();
channel.port1.onmessage = () => waiting.shift()();

export class Slices {
  constructor() {
    this.begin();
  }

  begin() {
    this.end = performance.now() + SLICE_MS;
  }

  /** Whether it is time for `await next()`, which lets the browser do what waits. */
  get over() {
    return performance.now() > this.end;
  }

  async next() {
    await new Promise((resolve) => {
      waiting.push(resolve);
      channel.port2.postMessage(null);
    });
    this.begin();
  }
}
