// What the model predicted for one character.

import { element } from "../shared/elements.js";
import { bitsAt, excerpt, nameOf } from "./data.js";

const ORDINALS = new Intl.PluralRules("en", { type: "ordinal" });

/** A probability. */
export const percent = (share) =>
  share >= 0.1 ? `${(100 * share).toFixed(0)} %` : share >= 0.001 ? `${(100 * share).toFixed(1)} %` : "< 0.1 %";

/** What a model says of one character, as a sentence; for screen readers and below the bars. */
export function sentence(data, reading, index) {
  const bits = bitsAt(reading, index);
  if (Number.isNaN(bits)) return `The model reads this ${data.symbol} first, so it is not predicted.`;
  return (
    `${bits.toFixed(2)} bits (1 bit: a coin toss), probability ${percent(2 ** -bits).replaceAll(" ", "\u00a0")}, its ${ordinal(reading.rank[index])} guess. ` +
    `It expected ${(reading.entropy[index] / 1000).toFixed(2)} bits on average.`
  );
}

/** 1 → "1st". */
function ordinal(number) {
  const ending = { one: "st", two: "nd", few: "rd", other: "th" }[ORDINALS.select(number)];
  return `${number.toLocaleString("en")}${ending}`;
}

/** The likeliest characters as bars, and the true one below them if it is none of them. */
export function bars(reading, symbols, index, character) {
  const rank = reading.rank[index];
  const candidates = [];
  for (let k = 0; k < reading.likeliest; k++) {
    const entry = index * reading.likeliest + k;
    const symbol = symbols[reading.top[entry]];
    // A byte of a longer character is no character of the text, so its rank tells.
    const isTrue = symbol === character || (symbol.startsWith("byte ") && rank === k + 1);
    candidates.push({ symbol, share: reading.p[entry] / 65535, isTrue });
  }
  if (rank > reading.likeliest) candidates.push({ symbol: character, share: 2 ** -bitsAt(reading, index), isTrue: true });
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

/** A character after the text before it. */
export function contextLine(text, character) {
  return element("p", { className: "context", dir: "auto" }, text, element("mark", { textContent: nameOf(character) }));
}

/** Fill `box` with the prediction of the character at `index`; `more`: a further line. */
export function showPrediction(box, data, index, more = "") {
  const character = data.characters[index];
  const first = Math.max(0, index - 24);
  const before = excerpt(data.characters, first, index - first);
  const said = ({ reading, symbols }) => [
    Number.isNaN(bitsAt(reading, index)) ? "" : bars(reading, symbols, index, character),
    element("p", { textContent: sentence(data, reading, index) }),
  ];
  const named = (model) => element("div", {}, element("h3", { textContent: model.name }), ...said(model));
  const children = [
    contextLine(before, character),
    data.compare
      ? element("div", { className: "beside two" }, named(data), named(data.compare))
      : element("div", { className: "beside" }, ...said(data)),
  ];
  if (more) children.push(element("p", { textContent: more }));
  const place = `${data.symbol} ${(index + 1).toLocaleString("en")} of ${data.characters.length.toLocaleString("en")}`;
  children.push(element("p", { className: "quiet", textContent: place }));
  box.replaceChildren(...children);
}
