// A text in rows of equal height, of which only those in sight are in the document.

import { shadeColor, shadedText } from "../shared/colors.js";
import { element } from "../shared/elements.js";
import { PART, SIGNS } from "../shared/printable.js";

const MARGIN = 25; // rows drawn above and below those in sight
const NEAR = 22; // rows between the sight and the end of what is drawn before more are drawn, a few at a time

const WIDE =
  /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const LOOK_BACK = 1000; // characters before a row in which the letter is looked for that tells its direction

/** "rtl" or "ltr", by the first letter; undefined if there is none. */
export function directionOf(text) {
  const letter = text.match(/\p{L}/u)?.[0];
  return letter && (RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr");
}

/** Adds the starts of the rows behind the last one, wrapped at `columns`, after a space in a row's second half. */
function wrapRows(starts, characters, columns) {
  let filled = 0;
  let space = -1;
  for (let index = starts.at(-1); index < characters.length; index++) {
    const character = characters[index];
    filled += character === "\t" ? 4 : WIDE.test(character) ? 2 : 1;
    if (filled > columns && index > starts.at(-1)) {
      const first = starts.at(-1);
      const next = space + 1 - first > columns / 2 ? space + 1 : index;
      starts.push(next);
      filled = index - next + 1;
    }
    if (character === " ") space = index;
    if (character === "\n" && index + 1 < characters.length) {
      starts.push(index + 1);
      filled = 0;
    }
  }
}

export class TextView {
  /** onSelect(index) of what is pointed at; onScroll([first, last]) with what is in sight. */
  constructor(box, printed, onSelect, onScroll = () => {}) {
    Object.assign(this, { box, printed, onSelect, onScroll });
    this.characters = [];
    this.shade = () => 0;
    this.marks = () => ""; // of an index: more classes
    this.isSurprise = () => false; // where the keys n and p jump to
    this.selected = -1;
    this.pinned = false; // by a click
    this.framed = null; // first and last of the stretch that a card has led to
    this.starts = [0];
    this.drawn = new Map(); // row → element
    this.window = [0, 0]; // first row drawn, and the one after the last
    this.rows = element("div", { className: "rows shaded" });
    this.spacer = element("div", { className: "spacer" }, this.rows);
    box.append(this.spacer);
    box.addEventListener("scroll", () => requestAnimationFrame(() => this.render()));
    box.addEventListener("pointerover", (event) => this.pointed(event, false));
    box.addEventListener("click", (event) => this.pointed(event, true));
    box.addEventListener("keydown", (event) => this.pressed(event));
    box.addEventListener("copy", (event) => this.copy(event));
    new ResizeObserver(() => this.layout()).observe(box);
    addEventListener("beforeprint", () => {
      if (box.clientWidth) printed.replaceChildren(...shadedText(this.characters, (index) => this.shade(index)));
    });
    addEventListener("afterprint", () => printed.replaceChildren());
    addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.release();
    });
  }

  /** Shows another text. */
  show(characters) {
    this.characters = characters;
    this.selected = -1;
    this.columns = 0;
    this.box.scrollTop = 0;
    this.release();
    this.layout();
  }

  release() {
    this.pinned = false;
    this.frame(null);
  }

  layout() {
    if (!this.box.clientWidth) return; // hidden, as in print
    const probe = element("span", { className: "row", textContent: "0".repeat(100) });
    probe.style.display = "inline-block";
    this.rows.append(probe);
    const { width, height } = probe.getBoundingClientRect();
    probe.remove();
    this.height = Math.round(height) || 26;
    const columns = Math.max(20, Math.floor((this.box.clientWidth - 32) / (width / 100)));
    if (columns !== this.columns) {
      this.columns = columns;
      this.changed(0);
    } else this.redraw();
  }

  /** The text is another, or longer, from an index on. */
  changed(from) {
    if (!this.columns) return;
    const row = this.rowOf(from);
    this.starts.length = row + 1;
    wrapRows(this.starts, this.characters, this.columns);
    this.spacer.style.height = `${this.starts.length * this.height}px`;
    this.redraw(row);
  }

  /** Draws the rows again, from one on. */
  redraw(from = 0) {
    for (const [number, row] of this.drawn) {
      if (number < from) continue;
      row.remove();
      this.drawn.delete(number);
    }
    this.render(true);
  }

  /** The row of a character. */
  rowOf(index) {
    let low = 0;
    let high = this.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= index) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  endOf(row) {
    return this.starts[row + 1] ?? this.characters.length;
  }

  /** First and last character in sight; with `height`, those in rows that are whole within that many pixels. */
  sight(height = null) {
    const { scrollTop, clientHeight } = this.box;
    const first = Math.floor(scrollTop / this.height);
    const end = height === null ? Math.ceil((scrollTop + clientHeight) / this.height) : Math.floor((scrollTop + height) / this.height);
    return [this.starts[Math.min(first, this.starts.length - 1)], (this.starts[end] ?? this.characters.length) - 1];
  }

  render(again = false) {
    if (!this.columns) return;
    const top = Math.floor(this.box.scrollTop / this.height);
    const count = Math.ceil(this.box.clientHeight / this.height);
    // The rows drawn so far serve until the sight comes close to their end.
    const [begin, end] = this.window;
    if (again || top < begin + NEAR || top + count > end - NEAR) {
      this.draw(Math.max(0, top - MARGIN), Math.min(this.starts.length, top + count + MARGIN));
    }
    this.onScroll(this.sight());
  }

  /** Put rows first to last − 1 into the document; those that are there already are not touched. */
  draw(first, last) {
    for (const [number, row] of this.drawn) {
      if (number >= first && number < last) continue;
      row.remove();
      this.drawn.delete(number);
    }
    let next = this.rows.firstChild;
    for (let number = first; number < last; number++) {
      if (this.drawn.has(number)) next = this.drawn.get(number).nextSibling;
      else {
        const row = element("div", { className: "row", dir: this.directionOf(number) });
        for (let index = this.starts[number]; index < this.endOf(number); index++) row.append(this.cell(index));
        this.drawn.set(number, row);
        this.rows.insertBefore(row, next);
      }
    }
    this.window = [first, last];
    this.rows.style.transform = `translateY(${first * this.height}px)`;
  }

  /** How a row is read: by the first letter of its line, or the last one before such a line. */
  directionOf(row) {
    const before = this.characters.slice(Math.max(0, this.starts[row] - LOOK_BACK), this.starts[row]);
    const first = before.lastIndexOf("\n") + 1;
    const line = [...before.slice(first), ...this.characters.slice(this.starts[row], this.endOf(row))].join("");
    return directionOf(line) ?? directionOf(before.slice(0, first).reverse().join("")) ?? "ltr";
  }

  cell(index) {
    const character = this.characters[index];
    const textContent = SIGNS[character] ?? (/^\p{C}$/u.test(character) ? "�" : character);
    const marks = [this.marks(index), character in SIGNS ? "sign" : "", index === this.selected ? "selected" : ""];
    if (this.isFramed(index)) marks.push("framed");
    const cell = element("span", { textContent, className: marks.filter(Boolean).join(" ") });
    cell.dataset.index = index;
    cell.style.backgroundColor = shadeColor(this.shade(index));
    return cell;
  }

  /** Frame a stretch, null for none, until the next click or key. */
  frame(range) {
    this.framed = range;
    for (const cell of this.rows.querySelectorAll("[data-index]")) {
      cell.classList.toggle("framed", this.isFramed(Number(cell.dataset.index)));
    }
  }

  isFramed(index) {
    return this.framed !== null && index >= this.framed[0] && index <= this.framed[1];
  }

  /** Copies the text itself, without signs and ends of rows. */
  copy(event) {
    const selection = getSelection();
    const cells = [...this.rows.querySelectorAll("[data-index]")].filter((cell) => selection.containsNode(cell, true));
    if (!cells.length) return;
    const { startContainer, startOffset, endContainer, endOffset } = selection.getRangeAt(0);
    if (startOffset === startContainer.length && cells[0].contains(startContainer)) cells.shift();
    if (endOffset === 0 && cells.at(-1)?.contains(endContainer)) cells.pop();
    const text = cells.map(({ dataset }) => this.characters[dataset.index]).join("");
    event.clipboardData.setData("text/plain", text.replaceAll(PART, ""));
    event.preventDefault();
  }

  pointed(event, isClick) {
    const index = Number(event.target.dataset?.index ?? NaN);
    if (Number.isNaN(index) || (this.pinned && !isClick)) return;
    this.pinned = isClick && !(this.pinned && index === this.selected);
    if (isClick) this.frame(null);
    this.select(index);
  }

  /** Mark a character and tell about it. */
  select(index) {
    this.rows.querySelector(".selected")?.classList.remove("selected");
    this.selected = Math.max(0, Math.min(this.characters.length - 1, index));
    this.rows.querySelector(`[data-index="${this.selected}"]`)?.classList.add("selected");
    this.onSelect(this.selected);
  }

  /** Scroll to a character; in the middle, or only if it is out of sight. */
  scrollTo(index, isMiddle = false) {
    const top = this.rowOf(index) * this.height;
    const { scrollTop, clientHeight } = this.box;
    if (isMiddle || top < scrollTop || top + this.height > scrollTop + clientHeight) {
      this.box.scrollTop = top - clientHeight / 3;
    }
    this.render();
  }

  pressed(event) {
    if (!this.characters.length) return;
    const index = Math.max(this.selected, 0);
    const row = this.rowOf(index);
    const page = Math.max(1, Math.floor(this.box.clientHeight / this.height) - 2);
    const inRow = (number) => {
      const target = Math.max(0, Math.min(this.starts.length - 1, number));
      return Math.min(this.starts[target] + index - this.starts[row], this.endOf(target) - 1);
    };
    const right = this.directionOf(row) === "rtl" ? -1 : 1;
    const moves = {
      ArrowLeft: () => index - right,
      ArrowRight: () => index + right,
      ArrowUp: () => inRow(row - 1),
      ArrowDown: () => inRow(row + 1),
      PageUp: () => inRow(row - page),
      PageDown: () => inRow(row + page),
      Home: () => (event.ctrlKey ? 0 : this.starts[row]),
      End: () => (event.ctrlKey ? this.characters.length : this.endOf(row)) - 1,
      n: () => this.nextSurprise(index, 1),
      p: () => this.nextSurprise(index, -1),
    };
    // With Ctrl only Home and End: the browser has its own Ctrl+P.
    const isOther = event.metaKey || event.altKey || (event.ctrlKey && !["Home", "End"].includes(event.key));
    const move = isOther ? undefined : moves[event.key];
    if (!move) return;
    event.preventDefault();
    this.pinned = true;
    this.frame(null);
    this.select(move());
    this.scrollTo(this.selected);
  }

  nextSurprise(index, step) {
    for (let next = index + step; next >= 0 && next < this.characters.length; next += step) {
      if (this.isSurprise(next)) return next;
    }
    return index;
  }
}
