// What the model predicted for one character.

import { bitsAt, element, excerpt, nameOf } from "./data.js";

/** A probability. */
export const percent = (share) =>
  share >= 0.1 ? `${(100 * share).toFixed(0)} %` : share >= 0.001 ? `${(100 * share).toFixed(1)} %` : "< 0.1 %";

/** What a model says of one character, as a sentence; for screen readers and below the bars. */
export function sentence(data, reading, place) {
  const bits = bitsAt(reading, place);
  if (Number.isNaN(bits)) return `The model reads this ${data.symbol} first, so it is not predicted.`;
  return (
    `${bits.toFixed(2)} bits, probability ${percent(2 ** -bits)}, rank ${reading.rank[place]}; ` +
    `the model expected ${(reading.entropy[place] / 1000).toFixed(2)} bits.`
  );
}

/** The likeliest characters as bars, and the true one below them if it is none of them. */
function bars(reading, symbols, place, character) {
  const rank = reading.rank[place];
  const candidates = [];
  for (let k = 0; k < reading.likeliest; k++) {
    const at = place * reading.likeliest + k;
    const symbol = symbols[reading.top[at]];
    // A byte of a longer character is no character of the text, so its rank tells.
    const isTrue = symbol === character || (symbol.startsWith("byte ") && rank === k + 1);
    candidates.push({ symbol, share: reading.p[at] / 65535, isTrue });
  }
  if (rank > reading.likeliest) candidates.push({ symbol: character, share: 2 ** -bitsAt(reading, place), isTrue: true });
  const rows = candidates.map(({ symbol, share, isTrue }) => {
    const fill = element("span", { className: "bar-fill" });
    fill.style.width = `${100 * share}%`;
    return element(
      "li",
      { className: isTrue ? "true" : "" },
      element("span", { className: "glyph", textContent: nameOf(symbol) }),
      element("span", { className: "bar-room" }, fill),
      element("span", { className: "number", textContent: percent(share) }),
    );
  });
  return element("ol", { className: "bars" }, ...rows);
}

/** Fill `box` with the prediction of the character at `place`; `more`: a further line. */
export function showPrediction(box, data, place, more = "") {
  const character = data.characters[place];
  const first = Math.max(0, place - 24);
  const before = excerpt(data.characters, first, place - first);
  const parts = [
    element("p", { className: "context", dir: "auto" }, before, element("mark", { textContent: nameOf(character) })),
    element("p", {
      className: "quiet",
      textContent: `${data.symbol} ${(place + 1).toLocaleString("en")} of ${data.characters.length.toLocaleString("en")}`,
    }),
  ];
  if (more) parts.push(element("p", { textContent: more }));
  const models = data.compare ? [data, data.compare] : [data];
  for (const model of models) {
    if (data.compare) parts.push(element("h3", { textContent: model.name }));
    parts.push(element("p", { textContent: sentence(data, model.reading, place) }));
    if (!Number.isNaN(bitsAt(model.reading, place))) parts.push(bars(model.reading, model.symbols, place, character));
  }
  box.replaceChildren(...parts);
}
