// Text as it is written: an entry for each id, a block for each line, of which only the changed ones are drawn again.

import { shadeColor, signedShade } from "../look/colors.js";
import { element } from "../look/data.js";

export class Paper {
  /** backward: whether the text grows to the left, and new lines come above. */
  constructor(box, backward) {
    this.box = box;
    this.backward = backward;
    this.clear();
  }

  clear() {
    this.entries = []; // { text, prompt, copied, value }
    this.starts = [0]; // the first entry of each line
    this.lines = []; // their elements
    this.changed = Infinity; // the first entry that is not drawn as it is
    this.peak = 1; // the largest absolute value so far
    this.box.replaceChildren();
  }

  /** Adds an entry; returns its place. value: what colors it, if anything. */
  add(text, prompt = false, value = 0) {
    const place = this.entries.length;
    const last = this.entries.at(-1);
    if (this.backward ? text.startsWith("\n") : last?.text.endsWith("\n")) this.starts.push(place);
    this.entries.push({ text, prompt, copied: false, value });
    this.peak = Math.max(this.peak, Math.abs(value));
    this.touch(place);
    return place;
  }

  /** Underlines the last `count` entries. */
  markCopied(count) {
    const first = this.entries.length - count;
    for (let place = first; place < this.entries.length; place++) this.entries[place].copied = true;
    this.touch(first);
  }

  touch(place) {
    this.changed = Math.min(this.changed, place);
  }

  /** Brings what is shown up to date; goes on showing the end if that is in sight. */
  draw() {
    if (this.changed === Infinity) return;
    const { box } = this;
    const following = this.backward ? box.scrollTop < 40 : box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    let line = this.starts.length - 1;
    while (line > 0 && this.starts[line] > this.changed) line--;
    for (; line < this.starts.length; line++) this.drawLine(line);
    this.changed = Infinity;
    if (following) box.scrollTop = this.backward ? 0 : box.scrollHeight;
  }

  drawLine(number) {
    if (!this.lines[number]) {
      this.lines[number] = element("div", { className: "line", dir: "auto" });
      if (this.backward) this.box.prepend(this.lines[number]);
      else this.box.append(this.lines[number]);
    }
    const entries = this.entries.slice(this.starts[number], this.starts[number + 1]);
    if (this.backward) entries.reverse();
    const runs = []; // entries that look the same are one element
    for (const { text, prompt, copied, value } of entries) {
      const color = shadeColor(signedShade(value / this.peak));
      const look = `${prompt ? "prompt " : ""}${copied ? "copied" : ""}`;
      const run = runs.at(-1);
      if (run && run.look === look && run.color === color) run.text += text;
      else runs.push({ text, look, color });
    }
    this.lines[number].replaceChildren(...runs.map(drawnRun));
  }

  /** Another value for every entry; 0 for none. */
  recolor(values) {
    this.peak = values.reduce((most, value) => Math.max(most, Math.abs(value)), 1);
    this.entries.forEach((entry, place) => {
      entry.value = values[place];
    });
    this.touch(0);
    this.draw();
  }
}

function drawnRun({ text, look, color }) {
  if (!look && !color) return text;
  const run = element("span", { className: look, textContent: text });
  run.style.backgroundColor = color;
  return run;
}
