// What else the model could have written at a place of its text.

import { bars, contextLine, sentence } from "../look/details.js";
import { excerpt, nameOf } from "../look/data.js";
import { byId, element } from "../shared/elements.js";

const BEFORE = 24; // entries before the place that are shown

export class Alternatives {
  /** Follows the pointer, taps and arrow keys on the paper. */
  constructor(symbol, vocabulary, writer, paper) {
    Object.assign(this, { symbol, writer, paper });
    this.symbols = Array.from({ length: writer.model.size }, (_, id) => vocabulary.name(id));
    this.box = byId("alternatives");
    this.hint = [...this.box.childNodes];
    this.held = false; // by a click
    const { box } = paper;
    box.addEventListener("pointermove", (event) => this.pointed(event, false));
    box.addEventListener("click", (event) => this.pointed(event, true));
    box.addEventListener("keydown", (event) => this.pressed(event));
    byId("close-guess").addEventListener("click", () => this.release());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.held = false;
    });
  }

  pointed(event, click) {
    if (this.held && !click) return;
    const entry = this.paper.entryAt(event.clientX, event.clientY);
    if (entry < 0) return;
    this.held = click && !(this.held && entry === this.paper.framed);
    this.show(entry);
  }

  pressed(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const { entries, framed } = this.paper;
    if (!step || !entries.length || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const next = framed < 0 ? 0 : framed + step;
    this.held = true;
    byId("spoken").textContent = this.show(Math.max(0, Math.min(entries.length - 1, next)));
  }

  /** Back to the hint. */
  release() {
    this.held = false;
    this.paper.mark(-1);
    this.box.replaceChildren(...this.hint);
    document.body.classList.remove("guess");
  }

  /** Shows the prediction of an entry; returns it in words. */
  show(entry) {
    this.paper.mark(entry);
    const { reading } = this.writer;
    const texts = this.paper.entries.slice(Math.max(0, entry - BEFORE), entry).map(({ text }) => text);
    const around = Array.from(texts.join(""));
    const { text, prompt } = this.paper.entries[entry];
    const predicted = !prompt && entry < reading.bits.length && reading.rank[entry] > 0;
    const words = predicted ? sentence(this, reading, entry) : prompt ? "The prompt: it was given this." : "A new line.";
    this.box.replaceChildren(
      contextLine(excerpt(around, 0, around.length), text || "part of a character"),
      element("p", { textContent: words }),
      ...(predicted ? [bars(reading, this.symbols, entry, text)] : []),
    );
    document.body.classList.add("guess");
    return `${nameOf(text)}: ${words}`;
  }
}
