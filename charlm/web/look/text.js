// The text: rows of equal height, of which only those in sight are in the document.

import { shadeColor } from "./colors.js";
import { element } from "../shared/elements.js";
import { SIGNS } from "../shared/printable.js";

const MARGIN = 25; // rows drawn above and below those in sight
const NEAR = 22; // rows between the sight and the end of what is drawn before more are drawn, a few at a time
const PRINTED_COLUMNS = 100; // as many as fit on paper, whatever the width of the window

const WIDE =
  /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const LOOK_BACK = 1000; // characters before a row in which the letter is looked for that tells its direction

/** "rtl" or "ltr", by the first letter; undefined if there is none. */
export function directionOf(text) {
  const letter = text.match(/\p{L}/u)?.[0];
  return letter && (RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr");
}

/** Starts of the rows of a text wrapped at `columns`, after a space where there is one in the row's second half. */
export function wrapRows(characters, columns) {
  const starts = [0];
  let filled = 0;
  let space = -1;
  for (let index = 0; index < characters.length; index++) {
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
  return starts;
}

export class TextView {
  /**
   * shade(index) → shade; copied: Uint8Array, 1 where underlined; onSelect(index), onScroll([first, last]) with what
   * is in sight, onRange([first, last]) when a part is selected.
   */
  constructor(box, printed, characters, copied, onSelect, onScroll, onRange = () => {}) {
    Object.assign(this, { box, printed, characters, copied, onSelect, onScroll, onRange });
    this.shade = () => 0;
    this.selected = -1;
    this.drawn = new Map(); // row → element
    this.window = [0, 0]; // first row drawn, and the one after the last
    this.range = this.framed = null; // what is selected, and what a card has led to
    this.anchor = null; // where a selection by keys began
    this.underlines = false;
    this.spacer = element("div", { className: "spacer" });
    this.rows = element("div", { className: "rows" });
    this.spacer.append(this.rows);
    box.append(this.spacer);
    box.addEventListener("scroll", () => requestAnimationFrame(() => this.render()));
    box.addEventListener("pointerover", (event) => this.pointed(event, false));
    box.addEventListener("click", (event) => this.pointed(event, true));
    box.addEventListener("keydown", (event) => this.pressed(event));
    new ResizeObserver(() => this.layout()).observe(box);
    document.onselectionchange = () => this.dragged();
    // A page has one such view at a time: the newest takes the place of those before it.
    window.onbeforeprint = () => this.printAll();
    window.onafterprint = () => this.printed.replaceChildren();
    window.onkeydown = (event) => {
      if (event.key === "Escape") this.pinned = false;
    };
    this.pinned = false;
    this.layout();
  }

  layout() {
    if (this.starts && !this.box.clientWidth) return; // hidden, as in print
    const probe = element("span", { className: "row", textContent: "0".repeat(100) });
    probe.style.display = "inline-block";
    this.rows.append(probe);
    const { width, height } = probe.getBoundingClientRect();
    probe.remove();
    const columns = Math.max(20, Math.floor((this.box.clientWidth - 32) / (width / 100)));
    this.height = Math.round(height) || 26;
    if (columns !== this.columns) {
      this.columns = columns;
      this.starts = wrapRows(this.characters, columns);
    }
    this.spacer.style.height = `${this.starts.length * this.height}px`;
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

  /** First and last character in sight; with `height`, those in rows that are whole within that many pixels. */
  sight(height = null) {
    const { scrollTop, clientHeight } = this.box;
    const first = Math.floor(scrollTop / this.height);
    const last = height === null ? Math.ceil((scrollTop + clientHeight) / this.height) : Math.floor((scrollTop + height) / this.height);
    return [this.starts[Math.min(first, this.starts.length - 1)], (this.starts[last] ?? this.characters.length) - 1];
  }

  render(again = false) {
    const top = Math.floor(this.box.scrollTop / this.height);
    const count = Math.ceil(this.box.clientHeight / this.height);
    if (again) {
      this.drawn.clear();
      this.rows.replaceChildren();
    }
    // The rows drawn so far serve until the sight comes close to their end.
    const [begin, end] = this.window;
    if (!this.drawn.size || top < begin + NEAR || top + count > end - NEAR) {
      const first = Math.max(0, top - MARGIN);
      const last = Math.min(this.starts.length, top + count + MARGIN);
      if (again || first !== begin || last !== end || !this.drawn.size) this.draw(first, last);
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
        const row = this.row(this.starts, number);
        this.drawn.set(number, row);
        this.rows.insertBefore(row, next);
      }
    }
    this.window = [first, last];
    this.rows.style.transform = `translateY(${first * this.height}px)`;
  }

  row(starts, number) {
    const end = starts[number + 1] ?? this.characters.length;
    const dir = this.isBackward(starts[number], end) ? "rtl" : "ltr";
    const row = element("div", { className: "row", dir });
    for (let index = starts[number]; index < end; index++) row.append(this.cell(index));
    return row;
  }

  /** Whether a row is read from right to left: by the first letter of its line, or the last one before such a line. */
  isBackward(start, end) {
    const letter = (index) => /\p{L}/u.test(this.characters[index]);
    const earliest = Math.max(0, start - LOOK_BACK);
    let first = start;
    while (first > earliest && this.characters[first - 1] !== "\n") first--;
    let index = first;
    while (index < end && !letter(index)) index++;
    if (index === end) {
      for (index = first - 1; index > earliest && !letter(index); index--);
    }
    return RIGHT_TO_LEFT.test(this.characters[index] ?? "");
  }

  cell(index) {
    const character = this.characters[index];
    const shown = SIGNS[character] ?? (/\p{C}/u.test(character) ? "�" : character);
    const cell = element("span", { textContent: shown });
    cell.dataset.index = index;
    cell.style.backgroundColor = shadeColor(this.shade(index));
    const marks = [];
    if (character in SIGNS) marks.push("sign");
    if (index === this.selected) marks.push("selected");
    if (this.underlines && this.copied[index]) marks.push("copied");
    if (this.isFramed(index)) marks.push("framed");
    if (this.isOutside(index)) marks.push("outside");
    if (marks.length) cell.className = marks.join(" ");
    return cell;
  }

  /** Mark a part, null for none; rows stay as they are, so that what the browser has selected stays selected. */
  mark(range) {
    this.range = range;
    this.toggle("outside", (index) => this.isOutside(index));
  }

  /** Frame a stretch, null for none, until the next click or key. */
  frame(range) {
    this.framed = range;
    this.toggle("framed", (index) => this.isFramed(index));
  }

  toggle(name, test) {
    for (const cell of this.rows.querySelectorAll("[data-index]")) cell.classList.toggle(name, test(Number(cell.dataset.index)));
  }

  isFramed(index) {
    return this.framed !== null && index >= this.framed[0] && index <= this.framed[1];
  }

  isOutside(index) {
    return this.range !== null && (index < this.range[0] || index > this.range[1]);
  }

  /** The browser has selected another part. */
  dragged() {
    const selection = getSelection();
    if (selection.isCollapsed || !this.box.contains(selection.anchorNode)) return;
    const { startContainer, startOffset, endContainer, endOffset } = selection.getRangeAt(0);
    const [from, to] = [startContainer, endContainer].map((node) => node.parentElement?.dataset.index);
    if (from === undefined || to === undefined) return;
    const first = Number(from) + (startOffset === startContainer.length ? 1 : 0);
    const last = Number(to) - (endOffset === 0 ? 1 : 0);
    if (last > first) this.onRange([first, last]);
  }

  pointed(event, click) {
    const index = Number(event.target.dataset?.index ?? NaN);
    if (Number.isNaN(index) || (this.pinned && !click)) return;
    this.pinned = click && !(this.pinned && index === this.selected);
    if (click) this.frame(null);
    this.select(index);
  }

  /** Mark a character and tell about it; `show` scrolls to it. */
  select(index, show = false) {
    this.rows.querySelector(".selected")?.classList.remove("selected");
    this.selected = Math.max(0, Math.min(this.characters.length - 1, index));
    if (show) this.show(this.selected);
    this.rows.querySelector(`[data-index="${this.selected}"]`)?.classList.add("selected");
    this.onSelect(this.selected);
  }

  show(index, middle = false) {
    const top = this.rowOf(index) * this.height;
    const { scrollTop, clientHeight } = this.box;
    if (middle || top < scrollTop || top + this.height > scrollTop + clientHeight) {
      this.box.scrollTop = top - clientHeight / 3;
    }
    this.render();
  }

  pressed(event) {
    const index = Math.max(this.selected, 0);
    const row = this.rowOf(index);
    const column = index - this.starts[row];
    const page = Math.max(1, Math.floor(this.box.clientHeight / this.height) - 2);
    const inRow = (number) => {
      const target = Math.max(0, Math.min(this.starts.length - 1, number));
      return Math.min(this.starts[target] + column, (this.starts[target + 1] ?? this.characters.length) - 1);
    };
    const right = this.isBackward(this.starts[row], this.starts[row + 1] ?? this.characters.length) ? -1 : 1;
    const moves = {
      ArrowLeft: () => index - right,
      ArrowRight: () => index + right,
      ArrowUp: () => inRow(row - 1),
      ArrowDown: () => inRow(row + 1),
      PageUp: () => inRow(row - page),
      PageDown: () => inRow(row + page),
      Home: () => (event.ctrlKey ? 0 : this.starts[row]),
      End: () => (event.ctrlKey ? this.characters.length : (this.starts[row + 1] ?? this.characters.length)) - 1,
      n: () => this.nextSurprise(index, 1),
      p: () => this.nextSurprise(index, -1),
    };
    // With Ctrl only Home and End: the browser has its own Ctrl+P.
    const ignored = event.metaKey || event.altKey || (event.ctrlKey && !["Home", "End"].includes(event.key));
    const move = ignored ? undefined : moves[event.key];
    if (!move) return;
    event.preventDefault();
    this.pinned = true;
    this.frame(null);
    this.anchor = event.shiftKey ? (this.anchor ?? index) : null;
    this.select(move(), true);
    if (this.anchor !== null) this.onRange([this.anchor, this.selected].sort((a, b) => a - b));
  }

  nextSurprise(index, step) {
    for (let next = index + step; next >= 0 && next < this.characters.length; next += step) {
      if (this.isSurprise(next)) return next;
    }
    return index;
  }

  printAll() {
    const starts = wrapRows(this.characters, PRINTED_COLUMNS);
    this.printed.replaceChildren(...starts.map((_, number) => this.row(starts, number)));
  }
}
