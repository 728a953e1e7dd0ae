// What the model has read: after an edit it reads again only what has changed.

import { Slices } from "./slices.js";

const SNAPSHOT_EVERY = 64; // ids between two snapshots

export class Context {
  constructor(model) {
    this.model = model;
    this.turn = 0;
    this.ids = [];
    this.snapshots = [model.start()]; // the states after 0, 64, 128, … ids
    this.state = model.start();
  }

  /**
   * Reads these ids, at least one: { state, logits }, copies; or null if another call or `stop` has come in between.
   * onProgress(index) while it takes long.
   */
  async read(ids, onProgress = () => {}) {
    const turn = ++this.turn;
    let same = 0;
    while (same < this.ids.length && same < ids.length - 1 && this.ids[same] === ids[same]) same++;
    this.back(same);
    const slices = new Slices();
    let logits;
    while (this.ids.length < ids.length) {
      logits = this.add(ids[this.ids.length]);
      if (this.ids.length < ids.length && slices.over) {
        onProgress(this.ids.length);
        await slices.next();
        if (turn !== this.turn) return null;
      }
    }
    return { state: this.model.copy(this.state), logits: logits.slice() };
  }

  /** Ends what is being read. */
  stop() {
    this.turn++;
  }

  /** To the nearest snapshot before a index. */
  back(index) {
    if (index === this.ids.length) return;
    const number = Math.floor(index / SNAPSHOT_EVERY);
    this.snapshots.length = number + 1;
    this.ids.length = number * SNAPSHOT_EVERY;
    this.state = this.model.copy(this.snapshots[number]);
  }

  add(id) {
    const logits = this.model.read(this.state, id);
    this.ids.push(id);
    if (this.ids.length % SNAPSHOT_EVERY === 0) this.snapshots.push(this.model.copy(this.state));
    return logits;
  }
}

/** The ids that are read before a text goes on after `text`, as charlm sample does; how many of them the text does not have, and unknown characters. */
export function idsBefore(vocabulary, text) {
  const { ids, unknown } = vocabulary.encode(text);
  const first = vocabulary.begins ?? (ids.length ? null : vocabulary.firstRead);
  return first === null ? { ids, hidden: 0, unknown } : { ids: [first, ...ids], hidden: 1, unknown };
}
