// Colors: orange for surprise; blue to orange where values have a sign. Both are told apart by the color-blind.

const ORANGE = "230,120,0";
const BLUE = "30,110,210";
const SHADES = 16;
const MOST_BITS = 8;

/** Shade of a surprise, 0 to 16; the root, so that differences among likely characters show too. */
export function surpriseShade(bits) {
  return Number.isNaN(bits) ? 0 : Math.round(SHADES * Math.sqrt(Math.min(bits / MOST_BITS, 1)));
}

/** Shade of a value from −1 to 1: −16 to 16. */
export function signedShade(value) {
  return Math.round(SHADES * Math.max(-1, Math.min(1, value)));
}

/** The color of a shade; "" for none. */
export function shadeColor(shade) {
  return shade === 0 ? "" : `rgba(${shade > 0 ? ORANGE : BLUE},${(0.72 * Math.abs(shade)) / SHADES})`;
}

/** A legend: a gradient between two words. */
export function legendColors(signed) {
  const shades = signed ? [-SHADES, -SHADES / 2, 0, SHADES / 2, SHADES] : [0, SHADES / 2, SHADES];
  return `linear-gradient(to right, ${shades.map((shade) => shadeColor(shade) || "transparent").join(", ")})`;
}

/** A color of the style sheet's. */
export function themeColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
