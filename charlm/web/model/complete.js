// The tab that completes a text while it is typed.

import { byId, element, setText } from "../shared/elements.js";
import { bar } from "../shared/prediction.js";
import { excerpt, printable } from "../shared/printable.js";
import { directionOf } from "../shared/text.js";
import { choose, probabilities } from "./choose.js";
import { Context, idsBefore } from "./context.js";
import { composing, tellUnknown } from "./fields.js";
import { LIKELIEST, likeliestIds } from "./reading.js";

const AHEAD = 48; // characters that are written ahead

export class CompleteTab {
  constructor({ data, model, vocabulary }) {
    Object.assign(this, { data, model, vocabulary });
    this.context = new Context(model);
    this.field = byId("typed");
    this.field.value = data.example;
    this.ahead = ""; // the continuation
    this.likely = []; // texts of the likeliest next characters
    this.field.addEventListener("input", () => this.update());
    this.field.addEventListener("keydown", (event) => this.pressed(event));
    this.field.addEventListener("scroll", () => {
      byId("ghost").scrollTop = this.field.scrollTop;
    });
    document.addEventListener("selectionchange", () => {
      if (document.activeElement === this.field && this.lastText !== this.before()) this.update();
    });
    byId("take").addEventListener("click", () => this.take());
  }

  /** What the model reads before the cursor. */
  before() {
    const text = this.field.value.slice(0, this.field.selectionStart);
    return this.vocabulary.begins === null ? text : this.vocabulary.recordBegun(text);
  }

  async update() {
    const text = this.before();
    this.lastText = text;
    this.show("", []);
    const { ids, unknown } = idsBefore(this.vocabulary, text);
    const fault = byId("complete-fault");
    fault.replaceChildren();
    if (unknown.length) tellUnknown(fault, this.field, this.vocabulary, unknown, () => this.update());
    const reading = await this.context.read(ids, (index) => {
      setText(byId("next"), `reading: ${Math.floor((100 * index) / ids.length)}%`);
    });
    if (reading) this.show(this.continuation(reading), this.nextOnes(reading.logits));
  }

  nextOnes(logits) {
    const shares = probabilities(logits);
    return likeliestIds(shares, LIKELIEST).map((id) => ({
      name: this.vocabulary.name(id),
      text: id === this.vocabulary.begins ? this.vocabulary.separator : this.vocabulary.name(id),
      share: shares[id],
    }));
  }

  /** What the model would write at temperature 0, up to the end of the line. */
  continuation({ state, logits }) {
    const decoder = this.vocabulary.decoder();
    let written = "";
    let next = logits;
    for (let count = 0; count < AHEAD; count++) {
      const id = choose(this.vocabulary.drawable(next), { temperature: 0 }, 0);
      if (id === this.vocabulary.begins) break;
      const added = decoder.push(id);
      written += added;
      if (added === "\n") break;
      next = this.model.read(state, id);
    }
    return written;
  }

  show(ahead, likely) {
    this.ahead = ahead;
    this.likely = likely;
    const { value, selectionStart, selectionEnd } = this.field;
    // The gray text can stand in the field only where nothing else stands.
    const fits = selectionStart === selectionEnd && selectionEnd === value.length;
    const gray = printable(ahead).replace("\n", "⏎");
    const begin = value.lastIndexOf("\n") + 1;
    const [lines, line] = [value.slice(0, begin), value.slice(begin)];
    const [above, last] = byId("ghost").children;
    setText(above, lines);
    // Apart from what is typed, of which it must not move a character: in a bdi element, with the direction of the line.
    last.replaceChildren(line, element("bdi", { className: "ahead", dir: directionOf(line) ?? "auto", textContent: fits ? gray : "" }));
    byId("ghost").scrollTop = this.field.scrollTop;
    byId("beside").textContent = fits ? "" : gray;
    const word = Array.from(this.word());
    byId("take").disabled = !word.length;
    const quoted = element("bdi", { textContent: excerpt(word, 24) });
    const key = element("span", { className: "keys", textContent: "Tab: " });
    byId("take").replaceChildren(key, ...(word.length ? ["“", quoted, "”"] : ["a word"]));
    byId("next").replaceChildren(...likely.map((candidate, index) => this.button(candidate, index)));
  }

  button({ name, text, share }, index) {
    const key = element("kbd", { textContent: `Alt+${index + 1}` });
    const onclick = () => this.insert(text);
    const button = element("button", { type: "button", onclick }, key, ...bar(name, share));
    button.disabled = name.startsWith("byte ");
    return element("li", {}, button);
  }

  /** The next word of the continuation, with the space before it; an ideograph is one. */
  word() {
    return this.ahead.match(/^\s*(\p{Script=Han}|[^\s\p{Script=Han}]+)|^\s+/u)?.[0] ?? "";
  }

  take() {
    if (this.word()) this.insert(this.word());
  }

  insert(text) {
    const { field } = this;
    field.focus();
    // Unlike setRangeText, this can be undone by the person.
    if (!document.execCommand("insertText", false, text)) field.setRangeText(text, field.selectionStart, field.selectionEnd, "end");
    this.update();
  }

  pressed(event) {
    if (composing(event)) return;
    const digit = event.code.match(/^Digit([1-5])$/);
    if (event.key === "Tab" && !event.shiftKey && this.word()) this.take();
    else if (event.key === "Escape") this.show("", this.likely); // so Tab leaves the field
    else if (event.altKey && digit && this.likely[digit[1] - 1]) byId("next").querySelectorAll("button")[digit[1] - 1].click();
    else return;
    event.preventDefault();
  }
}
