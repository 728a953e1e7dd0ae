// Writes samples, as charlm sample does: the same seed gives the same text.

import { shadeOf, signedShade } from "../shared/colors.js";
import { bitsAt } from "../shared/prediction.js";
import { RECORD_END } from "../shared/printable.js";
import { choose, probabilities } from "./choose.js";
import { Context, idsBefore } from "./context.js";
import { Uniform } from "./random.js";
import { Reading } from "./reading.js";
import { Slices } from "./slices.js";

const SHORTEST_REST_MS = 4;

export class Writer {
  constructor({ model, vocabulary }) {
    Object.assign(this, { model, vocabulary });
    this.context = new Context(model);
    this.pace = Infinity; // ids per second at most; may change at any time
    this.colorBy = "surprise"; // or a unit, as a page of charlm look has it, or null
    this.clear();
  }

  clear() {
    this.stop();
    this.coloring = null; // the latest call of recolor()
    this.characters = []; // of each id that is shown
    this.values = []; // the activations of the unit that colors them
    this.peak = 1; // the largest absolute one
    this.read = []; // [id, the index of its character or −1] for every id that was read
    this.share = 0; // of the prompt that was read
    this.begun = null; // when the first id was drawn, in milliseconds
    this.count = 0; // ids written, with the ends of records
    this.dueMs = 0; // when the next id may be written at this pace
    this.reading = new Reading(this.model.size); // what it said of the characters that it wrote
  }

  /** Ends what is being read or written. */
  stop() {
    this.context.stop();
    this.turn = (this.turn ?? 0) + 1;
  }

  /**
   * Writes one sample for each seed, a line each if the model is one of lines; to the end unless `stop` is called.
   * settings: prompt, seeds, length, stop and choice; onProgress() after every slice.
   */
  async write(settings, onProgress) {
    const { vocabulary, turn } = this;
    const { ids, hidden } = idsBefore(vocabulary, settings.prompt);
    const start = await this.context.read(ids, (index) => {
      this.share = index / ids.length;
      onProgress();
    });
    if (start === null) return;
    this.begun = performance.now();
    for (const [number, seed] of settings.seeds.entries()) {
      if (turn !== this.turn) return;
      if (number > 0 && this.read.at(-1)[0] !== vocabulary.begins) this.characters.push("\n"); // the last was cut off
      const decoder = vocabulary.decoder(this.characters);
      ids.forEach((id, index) => this.add(id, index < hidden ? null : decoder));
      await this.sample(start, seed, settings, turn, onProgress);
    }
  }

  /** An id that was read, and is shown if it is given a decoder; returns the index of its character. */
  add(id, decoder) {
    const index = decoder ? this.characters.length : -1;
    this.read.push([id, index]);
    decoder?.push(id);
    return index;
  }

  async sample(start, seed, { length, stop, choice }, turn, onProgress) {
    const { model, vocabulary } = this;
    const state = model.copy(start.state);
    const uniform = new Uniform(seed);
    const decoder = vocabulary.decoder(this.characters);
    const slices = new Slices();
    const tail = [];
    let { logits } = start;
    for (let written = 0; written < length; written++) {
      const id = choose(vocabulary.drawable(logits), choice, uniform.next());
      const index = this.add(id, decoder);
      this.reading.note(index, probabilities(logits), id);
      logits = model.read(state, id);
      this.note(index, state);
      this.count++;
      if (id === vocabulary.begins) {
        if (this.characters[index] !== "\n") this.characters[index] = RECORD_END; // whatever separates records
        break;
      }
      tail.push(id);
      if (tail.length > stop.length) tail.shift();
      if (stop.length && tail.length === stop.length && tail.every((last, place) => last === stop[place])) break;
      const waitMs = this.waitMs();
      if (waitMs > SHORTEST_REST_MS || slices.over) {
        logits = logits.slice(); // others may use the model now
        onProgress();
        await slices.next(waitMs > SHORTEST_REST_MS ? waitMs : 0);
        if (turn !== this.turn) break;
      }
    }
    if (turn === this.turn) decoder.end();
  }

  /** How long the next id must wait; time that was lost is not made up for. */
  waitMs() {
    const now = performance.now();
    this.dueMs = Math.max(this.dueMs, now - 1000 / this.pace) + 1000 / this.pace;
    return this.dueMs - now;
  }

  /** Note the activation of the unit that colors the text. */
  note(index, state) {
    if (!this.colorBy?.state) return;
    const { layer, state: name, unit } = this.colorBy;
    this.values[index] = this.model.shown(state, layer - 1)[name][unit];
    this.peak = Math.max(this.peak, Math.abs(this.values[index]));
  }

  /** The shade of a character. */
  shade(index) {
    if (this.colorBy === "surprise") return shadeOf(bitsAt(this.reading, index));
    return this.colorBy ? signedShade((this.values[index] ?? 0) / this.peak) : 0;
  }

  /** Computes the activations of what is written so far; those of what comes from now on are noted already. */
  async recolor() {
    const coloring = (this.coloring = Symbol("coloring"));
    const state = this.model.start();
    const slices = new Slices();
    this.values = [];
    for (const [id, index] of this.colorBy?.state ? [...this.read] : []) {
      this.model.read(state, id);
      if (index >= 0) this.note(index, state);
      if (slices.over) await slices.next();
      if (coloring !== this.coloring) return;
    }
  }
}
