// Text ↔ ids.

export class Vocabulary {
  /** data: level, characters, begins and firstRead; see packed_model. */
  constructor(data) {
    this.level = data.level; // "char" or "byte"
    this.begins = data.begins; // the id before which the state is zeroed: it begins every line; null: there are no lines
    this.firstRead = data.firstRead; // what is read where there is no prompt
    this.characters = Array.from(data.characters);
    this.ids = new Map(this.characters.map((character, id) => [character, id]));
  }

  /** The ids of a text without characters that the model does not know; these are listed. */
  encode(text) {
    let [ids, unknown] = [[], []];
    if (this.level === "byte") ids = Array.from(new TextEncoder().encode(text));
    else {
      const characters = Array.from(text);
      unknown = [...new Set(characters.filter((character) => !this.ids.has(character)))].sort();
      ids = characters.filter((character) => this.ids.has(character)).map((character) => this.ids.get(character));
    }
    return { ids, unknown };
  }

  /** How to show one id; a byte that is no character by its value. */
  name(id) {
    if (this.level === "char") return this.characters[id];
    return id < 128 ? String.fromCharCode(id) : `byte ${id.toString(16).toUpperCase()}`;
  }

  /** push(id) gives the text that an id adds, end() what was held back: bytes of an incomplete character. */
  decoder() {
    if (this.level === "char") return { push: (id) => this.characters[id], end: () => "" };
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return {
      push: (id) => decoder.decode(Uint8Array.of(id), { stream: true }),
      end: () => decoder.decode(),
    };
  }
}
