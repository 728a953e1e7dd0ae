// The tab that scores a text: every character shaded by its bits.

import { surpriseScale } from "../look/colors.js";
import { byId, element } from "../shared/elements.js";
import { bitsAt, nameOf, whole } from "../look/data.js";
import { sentence, showPrediction } from "../look/details.js";
import { TextView } from "../look/text.js";
import { probabilities } from "./choose.js";
import { composing, tellUnknown } from "./fields.js";
import { LIKELIEST } from "./likeliest.js";
import { Reading } from "./reading.js";
import { Slices } from "./slices.js";

export class ScoreTab {
  constructor({ data, model, vocabulary }) {
    Object.assign(this, { data, model, vocabulary });
    this.turn = 0;
    this.symbols = Array.from({ length: model.size }, (_, id) => vocabulary.name(id));
    byId("score").addEventListener("click", () => this.score());
    byId("pasted").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !composing(event)) this.score();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !composing(event)) this.stop();
    });
  }

  /** Ends what is being scored. */
  stop() {
    if (!byId("score-result").hidden) return; // nothing is
    this.turn++;
    byId("score-status").textContent = "";
  }

  /** Scores the text of the field. */
  async score() {
    const turn = ++this.turn;
    const fault = byId("score-fault");
    fault.replaceChildren();
    byId("score-status").textContent = "";
    byId("score-result").hidden = true; // that of an earlier text
    const text = byId("pasted").value;
    const { unknown } = this.vocabulary.encode(text);
    if (unknown.length) return tellUnknown(fault, byId("pasted"), this.vocabulary, unknown, () => this.score());
    const read = this.toRead(text);
    const shown = read.filter(({ shown }) => shown);
    if (!read.some(({ shown }, index) => index > 0 && shown)) {
      fault.textContent = `Text: found ${shown.length} ${this.data.symbol}${shown.length === 1 ? "" : "s"}; allowed: 2 or more`;
      return;
    }
    const reading = new Reading(Math.min(LIKELIEST, this.model.size), shown.length);
    const state = this.model.start();
    const slices = new Slices();
    let index = 0;
    let logits = null;
    for (const { id, shown } of read) {
      if (shown) {
        if (logits) reading.note(index, probabilities(logits), id);
        index++;
      }
      logits = this.model.read(state, id);
      if (slices.over) {
        byId("score-status").textContent = `${whole(index)} of ${whole(reading.bits.length)} ${this.data.symbol}s`;
        logits = logits.slice(); // others may use the model now
        await slices.next();
        if (turn !== this.turn) return;
      }
    }
    this.show(reading, shownCharacters(this.vocabulary, shown.map(({ id }) => id)));
  }

  /** What is read, in order: [{ id, shown }]. A model of lines reads a line end first, and scores the one after each line. */
  toRead(text) {
    const { vocabulary } = this;
    const { begins } = vocabulary;
    const { ids } = vocabulary.encode(text);
    if (begins === null) return ids.map((id) => ({ id, shown: true }));
    const lines = ids.at(-1) === begins ? ids : [...ids, begins];
    return [{ id: begins, shown: false }, ...lines.map((id) => ({ id, shown: true }))];
  }

  show(reading, characters) {
    const { symbol } = this.data;
    const data = { characters, symbol, reading, symbols: this.symbols };
    const count = characters.filter((_, index) => !Number.isNaN(bitsAt(reading, index))).length;
    const mean = reading.exact / count;
    byId("score-status").textContent =
      `${mean.toFixed(3)} bits per ${symbol} · perplexity ${(2 ** mean).toFixed(2)} · ` +
      `${whole(count)} ${symbol}s scored · ${whole(Math.round(reading.exact))} bits in all`;
    byId("spoken").textContent = byId("score-status").textContent;
    byId("score-result").hidden = false;
    const box = element("div", { className: "scored", tabIndex: 0 });
    box.setAttribute("role", "application");
    box.setAttribute("aria-label", `The text, ${whole(characters.length)} ${symbol}s; the arrow keys move through it`);
    const printed = element("div", { className: "printed" });
    printed.setAttribute("aria-hidden", "true");
    byId("score-box").replaceChildren(box, printed);
    const text = new TextView(box, printed, characters, new Uint8Array(0), (index) => this.tell(data, box, index), () => {});
    const scale = surpriseScale(characters.map((_, index) => bitsAt(reading, index)));
    text.shade = (index) => scale.shade(bitsAt(reading, index));
    text.isSurprise = (index) => bitsAt(reading, index) >= scale.surprising;
    text.render(true);
    text.select(0);
  }

  tell(data, box, index) {
    showPrediction(byId("prediction"), data, index);
    // Only what the keys move to is spoken: the pointer moves too fast.
    if (document.activeElement === box) {
      byId("spoken").textContent = `${nameOf(data.characters[index])}: ${sentence(data, data.reading, index)}`;
    }
  }
}

/** A string for each id. The last byte of a character shows it, others show a dot. */
function shownCharacters(vocabulary, ids) {
  if (vocabulary.level === "char") return ids.map((id) => vocabulary.name(id));
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(ids));
  const encoder = new TextEncoder();
  return Array.from(text).flatMap((character) => {
    const bytes = encoder.encode(character).length;
    return [...Array(bytes - 1).fill("·"), character];
  });
}
