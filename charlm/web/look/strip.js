// The strip above the text: the means of what the colors show, over the whole text. A click leads into the text.

import { shadeColor, signedShade } from "../shared/colors.js";
import { element } from "../shared/elements.js";

const MOST = 300; // parts

export class Strip {
  /** onGo(index) when a place is clicked. */
  constructor(box, length, onGo) {
    Object.assign(this, { box, length });
    this.sight = element("div", { className: "sight" });
    box.append(this.sight);
    box.addEventListener("click", ({ clientX }) => {
      const { left, width } = box.getBoundingClientRect();
      onGo(Math.max(0, Math.min(length - 1, Math.floor(((clientX - left) / width) * length))));
    });
  }

  /** Frame what is in sight of a text: its share, by its height. */
  look({ scrollTop, clientHeight, scrollHeight }) {
    this.sight.style.left = `${(100 * scrollTop) / scrollHeight}%`;
    this.sight.style.width = `${(100 * clientHeight) / scrollHeight}%`;
  }

  /** Shades the means of value(index), relative to the largest. */
  show(value) {
    const parts = Math.min(MOST, this.length);
    const means = Array.from({ length: parts }, (_, part) => {
      const [first, end] = [part, part + 1].map((edge) => Math.floor((edge * this.length) / parts));
      const known = Array.from({ length: end - first }, (_, place) => value(first + place)).filter((each) => !Number.isNaN(each));
      return known.reduce((sum, each) => sum + each, 0) / Math.max(1, known.length);
    });
    const most = Math.max(1e-9, ...means.map(Math.abs));
    const stops = means.map((mean, part) => {
      const color = shadeColor(signedShade(mean / most)) || "transparent";
      return `${color} ${(100 * part) / parts}% ${(100 * (part + 1)) / parts}%`;
    });
    this.box.style.backgroundImage = `linear-gradient(to right, ${stops.join(", ")})`;
  }
}
