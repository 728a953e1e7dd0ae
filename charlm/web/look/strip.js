// The chart above the text: the mean of what the colors show, over the whole text. A click leads into the text.

export class Strip {
  /** onGo(index) when a place is clicked. */
  constructor(canvas, length, onGo) {
    Object.assign(this, { canvas, length, sight: [0, 0], value: () => NaN });
    const indexAt = ({ offsetX }) => Math.floor((offsetX / canvas.clientWidth) * length);
    canvas.addEventListener("click", (event) => onGo(Math.max(0, Math.min(length - 1, indexAt(event)))));
    new ResizeObserver(() => this.measure()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.measure());
  }

  measure() {
    // Read once: asking for a style makes the browser lay out whatever has changed.
    const styles = getComputedStyle(document.documentElement);
    this.colors = ["--negative", "--positive", "--ink"].map((name) => styles.getPropertyValue(name).trim());
    this.canvas.width = Math.max(1, Math.round(this.canvas.clientWidth * devicePixelRatio));
    this.canvas.height = Math.max(1, Math.round(this.canvas.clientHeight * devicePixelRatio));
    this.show(this.value, this.isSigned);
  }

  /** Frame the part of the text that is in sight. */
  look(sight) {
    this.sight = sight;
    this.draw();
  }

  /** Draw value(index); signed ones on both sides of a line in the middle. */
  show(value, isSigned) {
    Object.assign(this, { value, isSigned });
    const bars = Math.max(1, Math.min(this.length, Math.floor(this.canvas.width / 3)));
    this.means = Array.from({ length: bars }, (_, bar) => {
      const first = Math.floor((bar * this.length) / bars);
      const end = Math.max(first + 1, Math.floor(((bar + 1) * this.length) / bars));
      let [sum, count] = [0, 0];
      for (let index = first; index < end; index++) {
        const number = value(index);
        if (Number.isNaN(number)) continue;
        sum += number;
        count++;
      }
      return count ? sum / count : 0;
    });
    this.highest = this.means.reduce((high, mean) => Math.max(high, Math.abs(mean)), 0) || 1;
    this.draw();
  }

  draw() {
    if (!this.means || !this.colors) return;
    const context = this.canvas.getContext("2d");
    const { width, height } = this.canvas;
    const [negative, positive, ink] = this.colors;
    const bar = width / this.means.length;
    const middle = this.isSigned ? height / 2 : height;
    context.clearRect(0, 0, width, height);
    this.means.forEach((mean, index) => {
      const length = (Math.abs(mean) / this.highest) * (middle - 2);
      context.fillStyle = mean < 0 ? negative : positive;
      context.fillRect(index * bar, mean < 0 ? middle : middle - length, Math.max(1, bar - 1), Math.max(1, length));
    });
    context.strokeStyle = ink;
    context.lineWidth = Math.max(1, Math.round(devicePixelRatio * 1.5));
    const [first, end] = [this.sight[0], this.sight[1] + 1].map((index) => (index / this.length) * width);
    context.strokeRect(first + 1, 1, Math.max(3, end - first - 2), height - 2);
  }
}
