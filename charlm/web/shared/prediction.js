// What a model predicted for one character, and the text and the card in which this is shown.

import { byId, element } from "./elements.js";
import { percent, whole } from "./numbers.js";
import { excerpt, nameOf } from "./printable.js";
import { TextView } from "./text.js";

const BEFORE = 80; // characters before the one that is predicted, of which the last ones are in sight

/** Bits of a character; NaN for one that was given, not predicted. */
export const bitsAt = (reading, index) => reading.bits[index] ?? NaN;

/** The probability of a character. */
const probabilityAt = (reading, index) => 2 ** -bitsAt(reading, index);

const ORDINALS = new Intl.PluralRules("en", { type: "ordinal" });

/** 1 → "1st". */
function ordinal(number) {
  return `${whole(number)}${{ one: "st", two: "nd", few: "rd", other: "th" }[ORDINALS.select(number)]}`;
}

/** What a model says of one character, as a sentence. */
function sentence({ symbol }, reading, index) {
  const bits = bitsAt(reading, index);
  if (Number.isNaN(bits)) return `The model was given this ${symbol}, so it is not predicted.`;
  return (
    `${bits.toFixed(2)} bits (1 bit: a coin toss), probability ${percent(probabilityAt(reading, index))}, ` +
    `its ${ordinal(reading.rank[index])} guess. It expected ${reading.entropy[index].toFixed(2)} bits on average.`
  );
}

/** A bar for a probability, between its name and its number. */
export function bar(name, share) {
  const fill = element("span", { className: "bar-fill" });
  fill.style.width = `${100 * share}%`;
  return [
    element("span", { className: "glyph", textContent: nameOf(name), dir: "auto" }),
    element("span", { className: "bar-room" }, fill),
    element("span", { className: "number", textContent: percent(share) }),
  ];
}

/** The likeliest characters as bars, and the true one below them if it is none of them. */
function bars(reading, symbols, index) {
  const id = reading.ids[index];
  const shares = new Map();
  for (let k = 0; k < reading.likeliest; k++) {
    const entry = index * reading.likeliest + k;
    shares.set(reading.top[entry], reading.p[entry] / 65535);
  }
  shares.set(id, probabilityAt(reading, index)); // a key that is there keeps its place
  const rows = Array.from(shares, ([other, share]) =>
    element("li", { className: other === id ? "true" : "" }, ...bar(symbols[other], share)),
  );
  return element("ol", { className: "bars" }, ...rows);
}

/** A text to read character by character, and the card with the prediction of one, which a page puts where it wants. */
export class Pane {
  /** data: { symbol, reading, symbols }, and as `compare` the same of another model; about: of the card. */
  constructor(data, label, about) {
    this.data = data;
    this.more = () => ""; // of an index: a further line
    this.box = element("div", { tabIndex: 0, role: "application", "aria-label": label });
    this.prediction = element("div", { className: "prediction" });
    const close = { type: "button", className: "close", textContent: "×", "aria-label": "Close the prediction" };
    this.card = element(
      "section",
      { className: "card sheet" },
      element("button", { ...close, onclick: () => this.close() }),
      element("h2", { textContent: "Prediction" }),
      element("p", { className: "quiet", textContent: about }),
      this.prediction,
    );
    this.view = new TextView(this.box, (index) => this.tell(index));
  }

  /** On a narrow screen the card is a sheet, which can be closed. */
  close() {
    document.documentElement.classList.remove("with-sheet");
  }

  /** Whether it covers more than half of the text that is in sight. */
  get isInTheWay() {
    const [text, card] = [this.box, this.card].map((node) => node.getBoundingClientRect());
    const bottom = Math.min(text.bottom, innerHeight);
    return getComputedStyle(this.card).position === "fixed" && bottom - card.top > (bottom - text.top) / 2;
  }

  tell(index) {
    const { data, view: { characters } } = this;
    const character = characters[index];
    const said = ({ reading, symbols }) => [
      Number.isNaN(bitsAt(reading, index)) ? "" : bars(reading, symbols, index),
      element("p", { textContent: sentence(data, reading, index) }),
    ];
    const named = (model) => element("div", {}, element("strong", { textContent: model.name }), ...said(model));
    const before = excerpt(characters.slice(Math.max(0, index - BEFORE), index), BEFORE);
    const mark = element("mark", { textContent: nameOf(character) });
    const more = this.more(index);
    const place = `${data.symbol} ${whole(index + 1)} of ${whole(characters.length)}`;
    this.prediction.replaceChildren(
      element("p", { className: "context", dir: "auto" }, element("span", { textContent: before }), mark),
      data.compare
        ? element("div", { className: "beside" }, named(data), named(data.compare))
        : element("div", { className: "beside" }, ...said(data)),
      ...(more ? [element("p", { textContent: more })] : []),
      element("p", { className: "quiet", textContent: place }),
    );
    document.documentElement.classList.add("with-sheet");
    // Only what the keys move to is spoken: the pointer moves too fast.
    if (document.activeElement !== this.box) return;
    byId("spoken").textContent = `${nameOf(character)}: ${sentence(data, data.reading, index)} ${more}`;
  }
}
