// Text whose control characters can be seen.

/** For characters that have no glyph; a carriage return stands before the newline in texts from Windows. */
export const SIGNS = { "\n": "⏎", "\t": "⇥   ", "\r": "␍" };

// As in charlm/system/formatting.py.
const CONTROLS = /(?![\t\n])\p{Cc}|\p{Bidi_Control}|[\u2028\u2029]|\p{Surrogate}/gu;

/** The text with control characters, such as those that change its direction, as escapes: \x1b, \u202e; ␍ for \r. */
export function printable(text) {
  return text.replace(CONTROLS, (control) => {
    if (control === "\r") return SIGNS[control];
    const code = control.codePointAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}
