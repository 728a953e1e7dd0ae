// Text ↔ ids, in the order in which the model reads them.

const utf8 = (bytes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));

export class Vocabulary {
  /** data: level, characters, direction, begins and firstRead; see packed_model. */
  constructor(data) {
    this.level = data.level; // "char" or "byte"
    this.backward = data.direction === "backward";
    this.begins = data.begins; // the id before which the state is zeroed: it begins every line; null: there are no lines
    this.firstRead = data.firstRead; // what is read where there is no prompt
    this.characters = Array.from(data.characters);
    this.ids = new Map(this.characters.map((character, id) => [character, id]));
  }

  /** The ids of a text in the order of reading, without characters that the model does not know; these are listed. */
  encode(text) {
    let [ids, unknown] = [[], []];
    if (this.level === "byte") ids = Array.from(new TextEncoder().encode(text));
    else {
      const characters = Array.from(text);
      unknown = [...new Set(characters.filter((character) => !this.ids.has(character)))].sort();
      ids = characters.filter((character) => this.ids.has(character)).map((character) => this.ids.get(character));
    }
    return { ids: this.backward ? ids.reverse() : ids, unknown };
  }

  /** How to show one id; a byte that is no character by its value. */
  name(id) {
    if (this.level === "char") return this.characters[id];
    return id < 128 ? String.fromCharCode(id) : `byte ${id.toString(16).toUpperCase()}`;
  }

  /**
   * push(id) gives the text that an id adds, end() what was held back: bytes of an incomplete character. A model that
   * reads backward adds it before the text.
   */
  decoder() {
    if (this.level === "char") return { push: (id) => this.characters[id], end: () => "" };
    if (this.backward) return backwardDecoder();
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return {
      push: (id) => decoder.decode(Uint8Array.of(id), { stream: true }),
      end: () => decoder.decode(),
    };
  }
}

/** Of bytes from the last to the first: a character is complete with any byte that is not a continuation (10xxxxxx). */
function backwardDecoder() {
  let pending = [];
  function end() {
    const text = utf8(pending);
    pending = [];
    return text;
  }
  return {
    push(id) {
      pending.unshift(id);
      return id >> 6 === 2 ? "" : end();
    },
    end,
  };
}
