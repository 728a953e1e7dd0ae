// Colors: orange for surprise; blue to orange where values have a sign. Both are told apart by the color-blind.

const ORANGE = "230,120,0";
const BLUE = "30,110,210";
export const SHADES = 16;

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
  return {
    most,
    surprising: Math.max(4, quantile(0.8)),
    shade: (value) => (Number.isNaN(value) ? 0 : Math.round(SHADES * Math.min(value / most, 1) ** power)),
  };
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
