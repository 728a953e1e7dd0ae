// Characters as people can read them.

/** In the text of a model of bytes: a byte of a character whose last byte stands for it. */
export const PART = "\uffff";

/** The end of a record whose separator is longer than a character; RECORD_END of charlm/data/records.py. */
export const RECORD_END = "\x1e";

/** For characters that have no glyph; a carriage return stands before the newline in texts from Windows. */
export const SIGNS = { "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00ad": "-", "\u200c": "¦", "\u200d": "⁀", [PART]: "·", [RECORD_END]: "¶" };

// As in charlm/system/formatting.py.
const CONTROLS = /(?![\t\n])\p{Cc}|\p{Bidi_Control}|[\u2028\u2029\uffff]|\p{Surrogate}/gu;

/** The text with control characters, such as those that change its direction, as escapes: \x1b, \u202e; ␍ for \r. */
export function printable(text) {
  return text.replace(CONTROLS, (control) => {
    if (control in SIGNS) return SIGNS[control];
    const code = control.codePointAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

const NAMES = { "\n": "line end", " ": "space", "\t": "tab", "\r": "carriage return", [PART]: "part of a character", [RECORD_END]: "record end" };

/** U+00E9. */
export const codeOf = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** The name of a character. */
export function nameOf(character) {
  return NAMES[character] ?? (/^[\p{C}\p{Z}\p{M}]$/u.test(character) ? codeOf(character) : character);
}

/** Characters on one line, shortened, without the parts of characters. */
export function excerpt(characters, longest = 60) {
  const whole = characters.filter((character) => character !== PART);
  const shown = printable(whole.slice(0, longest).join("")).replaceAll("\n", "⏎").replaceAll("\t", " ");
  return whole.length > longest ? `${shown}…` : shown;
}
