// Colors: orange for surprise; blue to orange where values have a sign. Both are told apart by the color-blind.

import { printable, RECORD_END } from "./printable.js";
import { element } from "./elements.js";

const ORANGE = "230,120,0";
const BLUE = "30,110,210";
const SHADES = 16;
const MOST_BITS = 8; // from which on the color is full where a text does not set the scale

/**
 * How the surprises of a text are shaded, from their bits; NaN is left out. Nearly all of a text in English is below
 * 8 bits, half of it below 2; a script with thousands of characters has more. shade(bits) is 0 to 16: 16 from `most`
 * on, and a little less than half of it at the median. surprising: the bits of what stands out.
 */
export function surpriseScale(all) {
  const bits = Float64Array.from(all.filter((value) => !Number.isNaN(value))).sort();
  const quantile = (share) => bits[Math.floor(share * (bits.length - 1))] ?? 0;
  const most = Math.max(1, Math.ceil(quantile(0.98)));
  // At least the root, so that differences among likely characters show too.
  const power = Math.min(4, Math.max(0.5, Math.log(0.45) / Math.log(Math.min(quantile(0.5) / most, 0.99))));
  return { most, surprising: Math.max(4, quantile(0.8)), shade: (value) => shadeOf(value, most, power) };
}

/** The shade of a surprise, 0 to 16. */
export function shadeOf(bits, most = MOST_BITS, power = 0.5) {
  return Number.isNaN(bits) ? 0 : Math.round(SHADES * Math.min(bits / most, 1) ** power);
}

/** Shade of a value from −1 to 1: −16 to 16. */
export function signedShade(value) {
  return Math.round(SHADES * Math.max(-1, Math.min(1, value)));
}

/** The color of a shade; "" for none. */
export function shadeColor(shade) {
  return shade === 0 ? "" : `rgba(${shade > 0 ? ORANGE : BLUE},${(0.72 * Math.abs(shade)) / SHADES})`;
}

/** Fills a legend: a gradient between two words. */
export function fillLegend(box, [from, to], signed) {
  const shades = signed ? [-SHADES, 0, SHADES] : [0, SHADES];
  const gradient = element("span", { className: "gradient" });
  gradient.style.backgroundImage = `linear-gradient(to right, ${shades.map((shade) => shadeColor(shade) || "transparent").join(", ")})`;
  box.replaceChildren(from, gradient, to);
}

/** A text of which each character has shade(index) and marks(index), classes: neighbors that look alike are one element. */
export function shadedText(characters, shade, marks = () => "") {
  const spans = [];
  const isLike = (index, other) => shade(index) === shade(other) && marks(index) === marks(other);
  for (let start = 0, end = 0; start < characters.length; start = end) {
    for (end = start + 1; end < characters.length && isLike(start, end); ) end++;
    const text = characters.slice(start, end).join("").replaceAll(RECORD_END, `${RECORD_END}\n`);
    const span = element("span", { textContent: printable(text), className: marks(start) });
    span.style.backgroundColor = shadeColor(shade(start));
    spans.push(span);
  }
  return spans;
}
