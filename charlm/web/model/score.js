// The tab that scores a text: every character shaded by its bits.

import { surpriseScale } from "../shared/colors.js";
import { byId } from "../shared/elements.js";
import { whole } from "../shared/numbers.js";
import { bitsAt, Pane } from "../shared/prediction.js";
import { PART } from "../shared/printable.js";
import { probabilities } from "./choose.js";
import { blame, composing, tellUnknown } from "./fields.js";
import { Reading } from "./reading.js";
import { Slices } from "./slices.js";

export class ScoreTab {
  constructor({ data, model, vocabulary, symbols }) {
    Object.assign(this, { data, model, vocabulary });
    this.turn = 0;
    this.pane = new Pane({ symbol: data.symbol, symbols }, "The scored text", "Its guesses; orange: what stands there.");
    byId("scored").append(this.pane.box, this.pane.card);
    byId("pasted").value = data.example;
    byId("pasted").addEventListener("input", () => this.clear());
    byId("score").addEventListener("click", () => this.score());
    byId("pasted").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !composing(event)) this.score();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !composing(event) && byId("score-result").hidden) this.clear();
    });
  }

  /** The tab is opened: its example is scored. */
  open() {
    if (!this.turn && this.data.example) this.score();
  }

  /** Ends what is being scored, and takes away what is of another text. */
  clear() {
    this.turn++;
    byId("score-fault").replaceChildren();
    byId("score-status").textContent = "";
    byId("score-result").hidden = true;
    this.pane.close();
  }

  /** Scores the text of the field. */
  async score() {
    this.clear();
    const { turn, vocabulary, model } = this;
    const [fault, field] = [byId("score-fault"), byId("pasted")];
    const text = vocabulary.begins === null ? field.value : vocabulary.wholeRecords(field.value);
    const { ids: typed, unknown } = vocabulary.encode(text);
    if (unknown.length) return tellUnknown(fault, field, vocabulary, unknown, () => this.score());
    const { given, ids } = this.toRead(typed);
    if (ids.length + given.length < 2) {
      fault.textContent = `Text: found ${ids.length} ${this.data.symbol}${ids.length === 1 ? "" : "s"}; allowed: 2 or more`;
      return blame(field);
    }
    const reading = new Reading(model.size);
    const characters = [];
    const decoder = vocabulary.decoder(characters);
    const state = model.start();
    const slices = new Slices();
    let logits = null;
    let isBegun = false; // the first character is given, with all its bytes
    for (const id of given) logits = model.read(state, id);
    for (const [index, id] of ids.entries()) {
      isBegun ||= logits && vocabulary.beginsCharacter(id);
      if (isBegun) reading.note(index, probabilities(logits), id);
      decoder.push(id);
      logits = model.read(state, id);
      if (slices.over) {
        byId("score-status").textContent = `${whole(index)} of ${whole(ids.length)} ${this.data.symbol}s`;
        logits = logits.slice(); // others may use the model now
        await slices.next();
        if (turn !== this.turn) return;
      }
    }
    decoder.end();
    if (!isBegun) {
      fault.textContent = "Text: found 1 character; allowed: 2 or more";
      return blame(field);
    }
    this.show(reading, characters);
  }

  /** What is read of a text's ids. A model of records is given a line end first, and scores the one after each line. */
  toRead(ids) {
    const { begins } = this.vocabulary;
    if (begins === null) return { given: [], ids };
    return { given: [begins], ids: ids.at(-1) === begins ? ids : [...ids, begins] };
  }

  show(reading, characters) {
    const bits = characters.map((_, index) => bitsAt(reading, index));
    const total = bits.filter((each) => !Number.isNaN(each)).reduce((sum, each) => sum + each, 0);
    const count = characters.filter((each, index) => each !== PART && !Number.isNaN(bits[index])).length;
    const mean = `${(total / count).toFixed(3)} bits per character`;
    byId("score-status").textContent = `${mean} · ${whole(count)} characters scored · ${whole(total)} bits in all`;
    byId("spoken").textContent = byId("score-status").textContent;
    byId("score-result").hidden = false;
    const scale = surpriseScale(bits);
    this.pane.data.reading = reading;
    const { view } = this.pane;
    view.shade = (index) => scale.shade(bits[index]);
    view.isSurprise = (index) => bits[index] >= scale.surprising;
    view.show(characters);
    view.select(bits.findIndex((each) => !Number.isNaN(each)));
    if (this.pane.isInTheWay) this.pane.close();
  }
}
