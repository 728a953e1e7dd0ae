// Text whose control characters can be seen.

// As in charlm/system/formatting.py.
const CONTROLS = /(?![\t\n])\p{Cc}|\p{Bidi_Control}|[\u2028\u2029]|\p{Surrogate}/gu;

/** The text with control characters, such as those that change its direction, as escapes: \x1b, \u202e. */
export function printable(text) {
  return text.replace(CONTROLS, (control) => {
    const code = control.codePointAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}
