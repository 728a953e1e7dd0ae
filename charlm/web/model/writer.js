// Writes samples, as charlm sample does: the same seed gives the same text.

import { bitsAt } from "../look/data.js";
import { choose, probabilities } from "./choose.js";
import { idsBefore } from "./context.js";
import { CopyFinder } from "./copies.js";
import { LIKELIEST } from "./likeliest.js";
import { Uniform } from "./random.js";
import { Reading } from "./reading.js";
import { Slices } from "./slices.js";

const SHORTEST_REST_MS = 4;

export class Writer {
  /** copies: the set of the training text's windows, or null. */
  constructor(model, vocabulary, context, copies, paper, watch) {
    Object.assign(this, { model, vocabulary, context, copies, paper, watch });
    this.pace = Infinity; // ids per second at most; may change at any time
    this.clear();
  }

  clear() {
    this.stop();
    this.coloring = null; // the latest call of recolor()
    this.paper.clear();
    this.log = []; // [id, the index of its entry on the paper or −1] for every id that was read
    this.share = 0; // of the prompt that was read
    this.begun = null; // when the first id was drawn, in milliseconds
    this.count = 0; // ids written
    this.longest = 0; // of the copied stretches
    this.copied = 0; // ids in such stretches
    this.dueMs = 0; // when the next id may be written at this pace
    this.reading = new Reading(Math.min(LIKELIEST, this.model.size)); // what it said of the entries on the paper
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
    const { vocabulary } = this;
    this.clear();
    const turn = this.turn;
    const { ids } = idsBefore(vocabulary, settings.prompt);
    const hidden = ids.length - vocabulary.encode(settings.prompt).ids.length; // a newline, or what is read first
    const start = await this.context.read(ids, (index) => {
      this.share = index / ids.length;
      onProgress();
    });
    if (start === null) return;
    this.begun = performance.now();
    for (const [number, seed] of settings.seeds.entries()) {
      if (turn !== this.turn) return;
      if (number > 0) this.paper.add("\n");
      const decoder = vocabulary.decoder();
      ids.forEach((id, index) => {
        this.log.push([id, index < hidden ? -1 : this.paper.add(decoder.push(id), true)]);
      });
      await this.sample(start, seed, settings, turn, onProgress);
    }
  }

  async sample(start, seed, { length, stop, choice }, turn, onProgress) {
    const { model, vocabulary, paper } = this;
    const state = model.copy(start.state);
    const uniform = new Uniform(seed);
    const decoder = vocabulary.decoder();
    const finder = this.copies && new CopyFinder(this.copies);
    const slices = new Slices();
    const tail = [];
    let { logits } = start;
    let hits = 0;
    for (let written = 0; written < length; written++) {
      const id = choose(logits, choice, uniform.next());
      if (id === vocabulary.begins) break;
      const entry = paper.entries.length;
      this.reading.note(entry, probabilities(logits), id);
      logits = model.read(state, id);
      this.log.push([id, paper.add(decoder.push(id), false, this.watch.value(state, this.bits(entry)))]);
      this.count++;
      if (finder) this.note((hits = finder.push(id) ? hits + 1 : 0));
      tail.push(id);
      if (tail.length > stop.length) tail.shift();
      if (stop.length && tail.length === stop.length && tail.every((last, index) => last === stop[index])) break;
      const waitMs = this.waitMs();
      if (waitMs > SHORTEST_REST_MS || slices.over) {
        logits = logits.slice(); // others may use the model now
        await (waitMs > SHORTEST_REST_MS ? slices.rest(waitMs, onProgress) : slices.next(onProgress));
        if (turn !== this.turn) break;
      }
    }
    const pending = decoder.end();
    if (pending && turn === this.turn) paper.add(pending);
  }

  /** The bits of an entry; 0 if it was not predicted. */
  bits(entry) {
    return bitsAt(this.reading, entry) || 0;
  }

  /** How long the next id must wait; time that was lost is not made up for. */
  waitMs() {
    const now = performance.now();
    this.dueMs = Math.max(this.dueMs, now - 1000 / this.pace) + 1000 / this.pace;
    return this.dueMs - now;
  }

  /** After an id: so many windows in a row, the one that ends here included, are in the training text. */
  note(hits) {
    if (!hits) return;
    const { window } = this.copies;
    this.copied += this.paper.markCopied(hits === 1 ? window : 1);
    this.longest = Math.max(this.longest, hits + window - 1);
  }

  /** Colors what is written so far by what is watched now, as what is written from now on is colored already. */
  async recolor() {
    const coloring = (this.coloring = Symbol("coloring"));
    const values = new Float32Array(this.paper.entries.length);
    if (this.watch.surprise) values.forEach((_, entry) => (values[entry] = this.bits(entry)));
    else if (this.watch.on) {
      const state = this.model.start();
      const slices = new Slices();
      for (const [id, index] of [...this.log]) {
        this.model.read(state, id);
        if (index >= 0) values[index] = this.watch.value(state);
        if (slices.over) await slices.next();
        if (coloring !== this.coloring) return;
      }
    }
    this.paper.recolor(values);
  }
}
