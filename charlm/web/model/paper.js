// Text as it is written: an entry for each id, a block for each line, of which only the changed ones are drawn again.

import { element } from "../shared/elements.js";
import { printable } from "../shared/printable.js";

const RUN = 256; // entries of an element at most: little is drawn again when the text grows

export class Paper {
  /** color(value, peak) of an entry. */
  constructor(box, color) {
    Object.assign(this, { box, color });
    this.frame = element("div", { id: "frame" });
    this.clear();
  }

  clear() {
    this.entries = []; // { text, prompt, copied, value }
    this.starts = [0]; // the first entry of each line
    this.lines = []; // of each: its element, and the runs in it, which have a first entry and a node
    this.changed = Infinity; // the first entry that is not drawn as it is
    this.peak = 1; // the largest absolute value so far
    this.framed = -1; // the entry that has a frame
    this.frame.hidden = true;
    this.box.replaceChildren(this.frame);
  }

  /** Adds an entry; returns its index. value: what colors it, if anything. */
  add(text, prompt = false, value = 0) {
    const index = this.entries.length;
    const last = this.entries.at(-1);
    if (last?.text.endsWith("\n")) this.starts.push(index);
    this.entries.push({ text, prompt, copied: false, value });
    this.peak = Math.max(this.peak, Math.abs(value));
    this.touch(index);
    return index;
  }

  /** Underlines the last `count` entries; returns how many of them were not underlined yet. */
  markCopied(count) {
    const fresh = this.entries.slice(-count).filter(({ copied }) => !copied);
    for (const entry of fresh) entry.copied = true;
    this.touch(this.entries.length - count);
    return fresh.length;
  }

  touch(index) {
    this.changed = Math.min(this.changed, index);
  }

  /** Brings what is shown up to date. The beginning stays in sight, unless somebody has scrolled to the end. */
  draw() {
    if (this.changed === Infinity) return;
    const { box } = this;
    const below = box.scrollHeight - box.scrollTop - box.clientHeight;
    const following = box.scrollTop > 1 && below < 40;
    let line = this.starts.length - 1;
    while (line > 0 && this.starts[line] > this.changed) line--;
    for (; line < this.starts.length; line++) this.drawLine(line);
    this.changed = Infinity;
    if (following) box.scrollTop = box.scrollHeight;
    this.mark(this.framed);
  }

  /** Draws a line again from the run with the first changed entry on; the last run may grow. */
  drawLine(number) {
    if (!this.lines[number]) {
      this.lines[number] = { line: element("div", { className: "line", dir: "auto" }), runs: [] };
      this.box.append(this.lines[number].line);
    }
    const { line, runs } = this.lines[number];
    let first = this.starts[number];
    while (runs.length) {
      const run = runs.pop();
      run.node.remove();
      first = run.first;
      if (first <= this.changed) break;
    }
    const fresh = document.createDocumentFragment(); // added at once: at every change of a line its direction is found again
    for (const run of this.runsFrom(first, this.starts[number + 1] ?? this.entries.length)) {
      const node = drawnRun(printable(run.texts.join("")), run);
      node.run = run;
      fresh.append(node);
      run.node = node;
      runs.push(run);
    }
    line.append(fresh);
  }

  /** Entries that look the same are one run. */
  runsFrom(first, end) {
    const runs = [];
    for (let index = first; index < end; index++) {
      const { text, prompt, copied, value } = this.entries[index];
      const color = this.color(value, this.peak);
      const look = `${prompt ? "prompt " : ""}${copied ? "copied" : ""}`;
      const run = runs.at(-1);
      if (run && run.look === look && run.color === color && run.texts.length < RUN) run.texts.push(text);
      else runs.push({ first: index, texts: [text], look, color });
    }
    return runs;
  }

  /** Where each entry of a run stands in its text: [{ index, start, end }]. */
  placesIn({ first, texts }) {
    let start = 0;
    return texts.map((text, order) => {
      const end = start + printable(text).length;
      const place = { index: first + order, start, end };
      start = end;
      return place;
    });
  }

  /** The entry at a point of the window; −1 if there is none. */
  entryAt(x, y) {
    const caret = document.caretPositionFromPoint?.(x, y) ?? document.caretRangeFromPoint?.(x, y);
    const node = caret?.offsetNode ?? caret?.startContainer;
    const run = node?.run ?? node?.parentElement?.run;
    if (!run || !this.box.contains(node)) return -1;
    const inside = ({ left, right, top, bottom }) => x >= left && x < right && y >= top && y < bottom;
    const place = this.placesIn(run).find(({ start, end }) => end > start && inside(areaOf(run.node, start, end)));
    return place?.index ?? -1;
  }

  /** Puts a frame around an entry; −1: none. */
  mark(index) {
    this.framed = index;
    const run = index < 0 ? undefined : this.lines.flatMap(({ runs }) => runs).findLast(({ first }) => first <= index);
    const place = run && this.placesIn(run).find((place) => place.index === index);
    const area = place && place.end > place.start && areaOf(run.node, place.start, place.end);
    this.frame.hidden = !area?.width;
    if (this.frame.hidden) return;
    const { left, top } = this.box.getBoundingClientRect();
    const { clientLeft, clientTop, scrollLeft, scrollTop } = this.box;
    this.frame.style.left = `${area.left - left - clientLeft + scrollLeft}px`;
    this.frame.style.top = `${area.top - top - clientTop + scrollTop}px`;
    this.frame.style.width = `${area.width}px`;
    this.frame.style.height = `${area.height}px`;
  }

  /** Other values for the first entries; 0 for none. */
  recolor(values) {
    values.forEach((value, index) => (this.entries[index].value = value));
    this.peak = this.entries.reduce((peak, { value }) => Math.max(peak, Math.abs(value)), 1);
    this.touch(0);
    this.draw();
  }
}

/** The area of a part of a run's text. */
function areaOf(node, start, end) {
  const text = node.firstChild ?? node;
  const range = document.createRange();
  range.setStart(text, start);
  range.setEnd(text, end);
  return range.getBoundingClientRect();
}

function drawnRun(text, { look, color }) {
  if (!look && !color) return document.createTextNode(text);
  const run = element("span", { className: look, textContent: text });
  run.style.backgroundColor = color;
  return run;
}
