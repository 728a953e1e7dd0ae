// Text ↔ ids.

import { PART } from "../shared/printable.js";

export class Vocabulary {
  /** data: level, characters, other, begins, firstRead and substitutes; see packed_model. */
  constructor(data) {
    this.level = data.level; // "char" or "byte"
    this.separator = data.records; // between two records, as it is typed; "": there are no records
    this.begins = data.begins; // the id before which the state is zeroed: it begins every line; null: there are no lines
    this.firstRead = data.firstRead; // what is read where there is no prompt
    this.characters = Array.from(data.characters);
    this.ids = new Map(this.characters.map((character, id) => [character, id]));
    this.other = this.ids.get(data.other); // the id of all characters that have none; undefined: the model does not know them
    this.substitutes = new Map(Object.entries(data.substitutes)); // for characters that the model does not know
  }

  /** The distinct characters of a text that the model does not know, sorted. */
  unknown(text) {
    return this.other === undefined ? this.withoutOwnId(text) : [];
  }

  /** The same, where one character stands for all that the model does not know. */
  withoutOwnId(text) {
    if (this.level === "byte") return [];
    return [...new Set(Array.from(text).filter((character) => !this.ids.has(character)))].sort();
  }

  /** A typed text in characters that the model knows, as far as they mean the same; as in charlm/data/vocabulary.py. */
  familiar(typed) {
    const text = this.begins === null ? typed : this.withEnds(typed);
    if (!this.withoutOwnId(text).length) return text;
    let best = this.canonical(text);
    if (!this.ids.has("\r")) best = best.replaceAll("\r\n", "\n");
    if (this.substitutes.has('"') && this.ids.has("”")) best = best.replace(/(?<=[^ \n\t])"/gu, "”");
    return Array.from(best, (character) => this.substitutes.get(character) ?? character).join("");
  }

  /** The text with letters that the model does not know in a Unicode form that it knows, NFC or NFD, if any. */
  canonical(text) {
    const isKnown = (form) => !this.withoutOwnId(form).length;
    const inKnownForm = (letter) => [letter, letter.normalize("NFC"), letter.normalize("NFD")].find(isKnown) ?? letter;
    return text.replace(/.?[\p{M}\u1160-\u11ff]+|./gsu, inKnownForm);
  }

  /** CR LF as newlines, unless the separator has a CR itself. */
  withNewlines(typed) {
    return this.separator.includes("\r") ? typed : typed.replaceAll("\r\n", "\n");
  }

  /** A typed text with the character that stands for a separator. */
  withEnds(typed) {
    return this.withNewlines(typed).replaceAll(this.separator, this.characterOf(this.begins));
  }

  /** A typed text of records, of which the last one ends with its separator: a part of it counts, as in training. */
  wholeRecords(typed) {
    const text = this.withNewlines(typed);
    const part = this.separatorBegun(text);
    return part ? text.slice(0, -part.length) + this.separator : text;
  }

  /** The record that a typed text ends in, without the part of a separator that only a separator can have. */
  recordBegun(typed) {
    const record = this.withNewlines(typed).split(this.separator).at(-1);
    const part = this.separatorBegun(record);
    return this.unknown(part).length ? record.slice(0, -part.length) : record;
  }

  /** The part of a separator that a text ends with; "" for a whole one or none. */
  separatorBegun(text) {
    if (text.endsWith(this.separator)) return "";
    for (let length = this.separator.length - 1; length > 0; length--) {
      if (text.endsWith(this.separator.slice(0, length))) return this.separator.slice(0, length);
    }
    return "";
  }

  /** The ids of a typed text without characters that the model does not know; these are listed. */
  encode(typed) {
    const text = this.familiar(typed);
    const unknown = this.unknown(text);
    let ids;
    if (this.level === "byte") ids = Array.from(new TextEncoder().encode(text));
    else {
      const characters = Array.from(text);
      ids = characters.map((character) => this.ids.get(character) ?? this.other).filter((id) => id !== undefined);
    }
    return { ids, unknown };
  }

  /** Logits from which the character that stands for others is never drawn. */
  drawable(logits) {
    if (this.other === undefined) return logits;
    return logits.with(this.other, -1e30);
  }

  /** Whether an id is a character, or the first byte of one. */
  beginsCharacter(id) {
    return this.level === "char" || (id & 0xc0) !== 0x80;
  }

  /** The character of an id; of a byte that with this value. */
  characterOf(id) {
    return this.level === "char" ? this.characters[id] : String.fromCharCode(id);
  }

  /** How to show one id; a byte that is no character by its value. */
  name(id) {
    if (this.level === "char") return this.characters[id];
    return id < 128 ? String.fromCharCode(id) : `byte ${id.toString(16).toUpperCase()}`;
  }

  /** Decodes one id after the other: push(id) gives the text that it adds, end() that of an incomplete character.
   *
   * characters: grows by a string for each id; PART stands for a byte of a character that ends later.
   */
  decoder(characters = []) {
    const bytes = new TextDecoder("utf-8", { ignoreBOM: true });
    const complete = (place, text) => (characters[place] = characters[place] === PART ? text : characters[place] + text);
    const decoded = (id) => (this.level === "char" ? this.characters[id] : bytes.decode(Uint8Array.of(id), { stream: true }));
    return {
      push: (id) => {
        const text = decoded(id);
        const added = Array.from(text);
        characters.push(added.pop() ?? PART);
        if (added.length) complete(characters.length - 2, added.join("")); // bytes that are no character
        return text;
      },
      end: () => {
        const text = bytes.decode();
        if (text) complete(characters.length - 1, text);
        return text;
      },
    };
  }
}
