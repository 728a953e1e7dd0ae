// The chart above the text: the mean of what the colors show, over the whole text. Drag to select a part.

import { themeColor } from "./colors.js";

export class Strip {
  /** onRange([first, last] | null) when a part is selected; onGo(index) when a index is clicked. */
  constructor(canvas, length, onRange, onGo) {
    Object.assign(this, { canvas, length, onRange, onGo });
    this.value = () => NaN;
    this.range = null;
    this.before = null; // the range before the pointer went down
    this.sight = [0, 0];
    this.start = null;
    canvas.addEventListener("pointerdown", (event) => this.pressed(event));
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerup", (event) => this.released(event));
    canvas.addEventListener("pointercancel", () => this.cancelled()); // a finger that scrolls the page
    canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.measure()).observe(canvas);
  }

  indexAt(event) {
    const { left, width } = this.canvas.getBoundingClientRect();
    return Math.max(0, Math.min(this.length - 1, Math.floor(((event.clientX - left) / width) * this.length)));
  }

  pressed(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.before = this.range;
    this.start = { x: event.clientX, index: this.indexAt(event) };
  }

  moved(event) {
    if (this.start === null || Math.abs(event.clientX - this.start.x) < 4) return;
    const index = this.indexAt(event);
    this.range = [Math.min(index, this.start.index), Math.max(index, this.start.index)];
    this.draw();
  }

  released(event) {
    if (this.start === null) return;
    const dragged = Math.abs(event.clientX - this.start.x) >= 4;
    if (dragged) this.onRange(this.range);
    else this.onGo(this.indexAt(event));
    this.start = null;
  }

  cancelled() {
    this.start = null;
    this.range = this.before;
    this.draw();
  }

  key(event) {
    const step = Math.max(1, Math.round(this.length / 50)) * (event.key === "ArrowLeft" ? -1 : 1);
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    if (event.shiftKey) {
      const [first, last] = this.range ?? [this.sight[0], this.sight[0]];
      this.set([first, Math.max(first, Math.min(this.length - 1, last + step))]);
    } else this.onGo(Math.max(0, Math.min(this.length - 1, this.sight[0] + step)));
    event.preventDefault();
  }

  set(range) {
    this.mark(range);
    this.onRange(range);
  }

  /** Mark a part that was selected elsewhere; null for none. */
  mark(range) {
    this.range = range;
    this.draw();
  }

  measure() {
    // Read once: asking for a style makes the browser lay out whatever has changed.
    this.colors = ["--negative", "--positive", "--faint", "--ink"].map(themeColor);
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(this.canvas.clientWidth * scale));
    this.canvas.height = Math.max(1, Math.round(this.canvas.clientHeight * scale));
    this.show(this.value, this.signed);
  }

  /** Frame the part of the text that is in sight. */
  look(sight) {
    this.sight = sight;
    this.draw();
  }

  /** Draw value(index); signed ones on both sides of a line in the middle, −1 to 1. */
  show(value, signed) {
    this.value = value;
    this.signed = signed;
    const bars = Math.max(1, Math.min(this.length, Math.floor(this.canvas.width / 3)));
    this.means = new Float64Array(bars);
    for (let bar = 0; bar < bars; bar++) {
      const first = Math.floor((bar * this.length) / bars);
      const end = Math.max(first + 1, Math.floor(((bar + 1) * this.length) / bars));
      let sum = 0;
      let count = 0;
      for (let index = first; index < end; index++) {
        const number = value(index);
        if (!Number.isNaN(number)) {
          sum += number;
          count++;
        }
      }
      this.means[bar] = count ? sum / count : 0;
    }
    const highest = this.means.reduce((high, mean) => Math.max(high, Math.abs(mean)), 0);
    this.scale = highest || 1;
    this.draw();
  }

  /** Where the chart is highest, in words. */
  says() {
    const bar = this.means.reduce((best, mean, index) => (Math.abs(mean) > Math.abs(this.means[best]) ? index : best), 0);
    const first = Math.floor((bar * this.length) / this.means.length);
    return `highest near ${first + 1} of ${this.length}: ${this.means[bar].toFixed(2)}`;
  }

  draw() {
    const context = this.canvas.getContext("2d");
    const { width, height } = this.canvas;
    context.clearRect(0, 0, width, height);
    if (!this.means || !this.colors) return;
    const bar = width / this.means.length;
    const middle = this.signed ? height / 2 : height;
    const room = middle - 2;
    const [negative, positive, faint, ink] = this.colors;
    this.means.forEach((mean, index) => {
      const inside = this.within((index + 0.5) / this.means.length);
      context.fillStyle = !inside ? faint : mean < 0 ? negative : positive;
      const length = (Math.abs(mean) / this.scale) * room;
      context.fillRect(index * bar, mean < 0 ? middle : middle - length, Math.max(1, bar - 1), Math.max(1, length));
    });
    context.strokeStyle = ink;
    context.lineWidth = Math.max(1, Math.round((devicePixelRatio || 1) * 1.5));
    const [first, end] = [this.sight[0], this.sight[1] + 1].map((index) => (index / this.length) * width);
    context.strokeRect(first + 1, 1, Math.max(3, end - first - 2), height - 2);
  }

  within(share) {
    const index = share * this.length;
    return !this.range || (index >= this.range[0] && index <= this.range[1] + 1);
  }
}
