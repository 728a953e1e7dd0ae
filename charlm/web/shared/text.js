// A text in blocks of lines, of which only those near what is in sight have an element for each character.

import { shadeColor, shadedText } from "./colors.js";
import { element } from "./elements.js";
import { RECORD_END, SIGNS } from "./printable.js";

const BLOCK = 500; // characters of a block at least, and up to the end of the line
const LONGEST = 2 * BLOCK; // of a block without a line end
const NEAR = "600px 0px";
const KEPT = /[\n\t\u00ad\u200c\u200d]/; // what has a sign and stands in the document all the same, to be copied
const UNSEEN = /^[\p{C}\p{Zl}\p{Zp}]$/u;

/** What is drawn in place of a character; "" for one that shows itself. */
const standIn = (character) => SIGNS[character] ?? (UNSEEN.test(character) ? "�" : "");

const isLineEnd = (character) => character === "\n" || character === RECORD_END;

/** What stands in the document for a character. */
function inDocument(character) {
  if (character === RECORD_END) return "\n";
  return standIn(character) && !KEPT.test(character) ? "" : character;
}

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const LOOK_BACK = 1000; // characters before one in which the beginning of its line is looked for

/** "rtl" or "ltr", by the first letter; undefined if there is none. */
export function directionOf(text) {
  const letter = text.match(/\p{L}/u)?.[0];
  return letter && (RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr");
}

export class TextView {
  /** onSelect(index) of what is pointed at, or reached by keys. */
  constructor(box, onSelect) {
    Object.assign(this, { box, onSelect });
    this.characters = [];
    this.shade = () => 0; // of an index
    this.marks = () => ""; // of an index: more classes
    this.isSurprise = () => false; // where the keys n and p jump to
    this.selected = -1;
    this.isHeld = false; // by a click
    this.blocks = []; // elements with start, end, and isNear
    this.observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        target.isNear = isIntersecting;
        this.fill(target);
      }
    }, { root: box, rootMargin: NEAR });
    box.classList.add("text", "shaded");
    box.addEventListener("pointerover", (event) => this.pointed(event, false));
    box.addEventListener("click", (event) => this.pointed(event, true));
    box.addEventListener("keydown", (event) => this.pressed(event));
    addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.isHeld = false;
    });
    addEventListener("beforeprint", () => {
      for (const block of this.blocks) {
        const [shade, marks] = [this.shade, this.marks].map((of) => (place) => of(block.start + place));
        block.replaceChildren(...shadedText(this.textOf(block), shade, marks));
      }
    });
    addEventListener("afterprint", () => this.redraw());
  }

  /** Shows another text. */
  show(characters) {
    this.characters = characters;
    this.selected = -1;
    this.isHeld = false;
    this.box.scrollTop = 0;
    this.changed(0);
  }

  textOf({ start, end }) {
    return this.characters.slice(start, end);
  }

  /** The text is another, or longer, from an index on. */
  changed(from) {
    let number = Math.max(0, Math.min(this.blockOf(from), this.blocks.length - 1));
    for (let start = this.blocks[number]?.start ?? 0; start < this.characters.length; number++) {
      const block = this.blocks[number] ?? this.addBlock();
      const end = this.endFrom(start);
      const isSame = block.start === start && end > from;
      Object.assign(block, { start, end });
      block.classList.toggle("part", this.isInLine(start) || this.isInLine(end));
      this.fill(block, isSame ? Math.max(start, from) : start);
      start = end;
    }
    for (const block of this.blocks.splice(number)) {
      this.observer.unobserve(block);
      block.remove();
    }
  }

  /** The end of the block that begins at an index. */
  endFrom(start) {
    const most = Math.min(start + LONGEST, this.characters.length);
    for (let index = start + BLOCK; index < most; index++) {
      if (isLineEnd(this.characters[index])) return index + 1;
    }
    return most;
  }

  /** Whether a line goes on behind an index. */
  isInLine(index) {
    return index > 0 && index < this.characters.length && !isLineEnd(this.characters[index - 1]);
  }

  addBlock() {
    const block = element("div", { className: "block" });
    this.blocks.push(block);
    this.box.append(block);
    this.observer.observe(block);
    return block;
  }

  /** The number of the block of a character. */
  blockOf(index) {
    return this.blocks.findLastIndex(({ start }) => start <= index);
  }

  /** An element for each character if the block is near, those before an index as they are; else its text alone. */
  fill(block, from = block.start) {
    if (!block.isNear) {
      block.textContent = this.textOf(block).map(inDocument).join("");
      return;
    }
    if (!block.firstElementChild || from === block.start) block.replaceChildren();
    while (block.childElementCount > from - block.start) block.lastChild.remove();
    const first = block.start + block.childElementCount;
    block.append(...Array.from({ length: block.end - first }, (_, place) => this.cell(first + place)));
  }

  /** Draws what is near again. */
  redraw() {
    for (const block of this.blocks) this.fill(block);
  }

  cell(index) {
    const character = this.characters[index];
    const sign = standIn(character);
    const className = `${this.marks(index)} ${index === this.selected ? "selected" : ""}`.trim();
    const cell = element("span", { className, textContent: inDocument(character) });
    if (sign) cell.dataset.sign = sign;
    cell.dataset.index = index;
    cell.style.backgroundColor = shadeColor(this.shade(index));
    return cell;
  }

  cellOf = (index) => this.box.querySelector(`[data-index="${index}"]`);

  pointed({ target }, isClick) {
    const index = Number(target.dataset.index ?? NaN);
    if (Number.isNaN(index) || (this.isHeld && !isClick)) return;
    this.isHeld = isClick && !(this.isHeld && index === this.selected);
    this.select(index);
    if (isClick) this.scrollTo(index); // out from under what tells of it
  }

  /** Mark a character and tell about it. */
  select(index) {
    this.cellOf(this.selected)?.classList.remove("selected");
    this.selected = Math.max(0, Math.min(this.characters.length - 1, index));
    this.cellOf(this.selected)?.classList.add("selected");
    this.onSelect(this.selected);
  }

  /** Scroll to a character. */
  scrollTo(index, block = "nearest") {
    const found = this.blocks[this.blockOf(index)];
    found.isNear = true;
    if (!this.cellOf(index)) this.fill(found);
    this.cellOf(index).scrollIntoView({ block });
  }

  pressed(event) {
    const index = Math.max(this.selected, 0);
    const before = this.characters.slice(Math.max(0, index - LOOK_BACK), index + LOOK_BACK);
    const line = before.slice(before.lastIndexOf("\n", Math.min(index, LOOK_BACK) - 1) + 1).join("");
    const right = directionOf(line) === "rtl" ? -1 : 1;
    const moves = {
      ArrowLeft: () => index - right,
      ArrowRight: () => index + right,
      ArrowUp: () => this.beside(index, -1),
      ArrowDown: () => this.beside(index, 1),
      n: () => this.nextSurprise(index, 1),
      p: () => this.nextSurprise(index, -1),
    };
    const ends = { Home: () => 0, End: () => this.characters.length - 1 };
    const isOther = event.metaKey || event.altKey || !this.characters.length;
    const move = isOther ? undefined : (event.ctrlKey ? ends : moves)[event.key]; // the browser has its own Ctrl+P
    if (!move) return;
    event.preventDefault();
    this.isHeld = true;
    const next = Math.max(0, Math.min(this.characters.length - 1, move()));
    this.scrollTo(next);
    this.select(next);
  }

  /** The index above (−1) or below (1) one: in the next row, as far from the edge or at the row's end. */
  beside(index, step) {
    const row = (place) => this.cellOf(place)?.getBoundingClientRect();
    this.scrollTo(index);
    const { left, top } = row(index);
    let next = index;
    while (row(next + step)?.top === top) next += step;
    next += step;
    const nextTop = row(next)?.top;
    const distance = (place) => Math.abs(row(place).left - left);
    while (row(next + step)?.top === nextTop && distance(next + step) <= distance(next)) next += step;
    return next;
  }

  nextSurprise(index, step) {
    for (let next = index + step; next >= 0 && next < this.characters.length; next += step) {
      if (this.isSurprise(next)) return next;
    }
    return index;
  }
}
