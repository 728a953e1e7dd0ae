// What modules share: readings, names of characters, elements.

import { printable } from "../shared/printable.js";

/** Bits of a character; NaN for the first, which has no prediction. */
export function bitsAt(reading, index) {
  const thousandths = reading.bits[index];
  return thousandths === 65535 ? NaN : thousandths / 1000;
}

const NAMES = { "\n": "line end", " ": "space", "\t": "tab", "\r": "carriage return" };

/** A character as people can read it. */
export function nameOf(character) {
  if (character in NAMES) return NAMES[character];
  if (/^[\p{C}\p{Z}\p{M}]$/u.test(character))
    return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  return character;
}

/** A stretch of the text on one line, shortened. */
export function excerpt(characters, start, length, longest = 60) {
  const shown = printable(characters.slice(start, start + Math.min(length, longest)).join(""))
    .replaceAll("\n", "⏎")
    .replaceAll("\t", " ");
  return length > longest ? `${shown}…` : shown;
}

/** A whole number with commas. */
export const whole = (number) => number.toLocaleString("en");
