// The tab that writes.

import { bitsAt, Pane } from "../look/prediction.js";
import { unitName, unitSays } from "../look/units.js";
import { fillLegend } from "../shared/colors.js";
import { byId, element } from "../shared/elements.js";
import { whole } from "../shared/numbers.js";
import { PART } from "../shared/printable.js";
import { blame, composing, FieldError, listed, numberIn, seedIn, tellUnknown } from "./fields.js";
import { Writer } from "./writer.js";

const SEEDS = 2 ** 32;
const FRAME_MS = 30; // between two pictures of the text

export class WriteTab {
  constructor({ data, model, vocabulary, copies, symbols }) {
    Object.assign(this, { data, vocabulary, copies });
    this.lines = vocabulary.begins !== null;
    this.writer = new Writer({ model, vocabulary, copies });
    const about = "What it expected, before temperature and limits; orange: what it wrote.";
    this.pane = new Pane({ symbol: data.symbol, symbols }, "What the model writes", about);
    this.view = this.pane.view;
    this.view.shade = (index) => this.writer.shade(index);
    this.view.marks = (index) => this.marks(index);
    this.pane.box.id = "paper";
    byId("written").append(this.pane.box, this.pane.printed, this.pane.card);
    this.followTemperature();
    this.followPace();
    this.followColor();
    byId("count-field").hidden = !this.lines;
    byId("stop-field").hidden = this.lines;
    byId("write").addEventListener("click", () => this.write());
    byId("stop").addEventListener("click", () => this.writer.stop());
    byId("copy").addEventListener("click", () => this.copy());
    byId("seed").addEventListener("input", () => {
      byId("new-seed").checked = false;
    });
    byId("write-panel").addEventListener("keydown", (event) => {
      if (composing(event)) return;
      const inField = event.target instanceof HTMLInputElement;
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey || inField)) this.write();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !composing(event) && !byId("write-panel").hidden) this.writer.stop();
    });
  }

  /** The classes of a character: copied from the training text, or given as the prompt. */
  marks(index) {
    const { isCopied, reading, characters } = this.writer;
    if (isCopied[index]) return "copied";
    return Number.isNaN(bitsAt(reading, index)) && characters[index] !== "\n" ? "given" : "";
  }

  /** The slider and the number are one setting; the number may be higher. */
  followTemperature() {
    const [slider, number] = [byId("wildness"), byId("temperature")];
    slider.addEventListener("input", () => (number.value = slider.value));
    number.addEventListener("input", () => (slider.value = number.value));
  }

  followPace() {
    const select = byId("pace");
    for (const option of select.options) option.textContent = option.textContent.replace("characters", `${this.data.symbol}s`);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) select.value = "Infinity";
    const follow = () => (this.writer.pace = Number(select.value));
    select.addEventListener("change", follow);
    follow();
  }

  /** The colors: surprise, nothing, or a unit that goes with a feature of the text. */
  followColor() {
    const [select, { units }] = [byId("color"), this.data];
    const named = units.map((unit, number) => [String(number), `${unitName(unit)}: ${unit.feature}`]);
    const options = [["surprise", "surprise"], ["", "nothing"], ...named];
    select.append(...options.map(([value, textContent]) => element("option", { value, textContent })));
    const follow = async () => {
      const unit = units[select.value];
      this.writer.colorBy = unit ?? (select.value || null);
      byId("unit-name").textContent = unit ? unitSays(unit) : "";
      byId("color-legend").hidden = !select.value;
      fillLegend(byId("color-legend"), unit ? ["negative", "positive"] : ["expected", "surprising"], Boolean(unit));
      await this.writer.recolor();
      this.view.redraw();
    };
    select.addEventListener("change", follow);
    follow();
  }

  /** What the fields ask for; FieldError if they ask for something that is not allowed. */
  settings() {
    const prompt = byId("prompt").value;
    if (this.lines && prompt.includes("\n")) {
      throw new FieldError("Prompt: found a line end; allowed: a part of one line", "prompt");
    }
    const stop = this.vocabulary.encode(byId("stop-text").value);
    if (stop.unknown.length) {
      throw new FieldError(`Stop text: found ${listed(stop.unknown)}, which the model never writes`, "stop-text");
    }
    const seed = seedIn("seed");
    const count = this.lines ? numberIn("count") : 1;
    return {
      prompt,
      seeds: Array.from({ length: count }, (_, number) => seed + BigInt(number)),
      length: numberIn("length"),
      stop: this.lines ? [] : stop.ids,
      choice: { temperature: numberIn("temperature"), topK: numberIn("top-k"), topP: numberIn("top-p") },
    };
  }

  /** Writes what the fields ask for; with `seed` by this seed. */
  async write(seed = null) {
    const fault = byId("write-fault");
    fault.replaceChildren();
    if (seed !== null || byId("new-seed").checked) byId("seed").value = seed ?? Math.floor(Math.random() * SEEDS);
    const { unknown } = this.vocabulary.encode(byId("prompt").value);
    if (unknown.length) return tellUnknown(fault, byId("prompt"), this.vocabulary, unknown, () => this.write());
    try {
      await this.run(this.settings());
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      fault.textContent = error.message;
      blame(error.field);
    }
  }

  async run(settings) {
    const { writer, pane } = this;
    const total = settings.seeds.length * settings.length;
    let shownMs = 0;
    writer.clear();
    const { turn } = writer;
    pane.close();
    Object.assign(pane.data, { characters: writer.characters, reading: writer.reading });
    pane.prediction.textContent = `Point at a ${this.data.symbol} that it wrote, or tap it.`;
    this.view.show(writer.characters);
    this.setRunning(true);
    await writer.write(settings, () => {
      if (performance.now() < shownMs + FRAME_MS) return;
      this.draw(total);
      shownMs = performance.now();
    });
    if (turn < writer.turn - 1 || pane.data.reading !== writer.reading) return; // another run has begun
    this.setRunning(false);
    this.draw(total);
    byId("spoken").textContent = byId("write-status").textContent;
    if (writer.colorBy?.state) this.view.redraw(); // by the largest value, which may have come last
  }

  /** Brings what is shown up to date. The beginning stays in sight, unless somebody has scrolled to the end. */
  draw(total) {
    const { box } = this.pane;
    const isFollowed = box.scrollTop > 1 && box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    this.view.changed(this.writer.changed);
    this.writer.changed = this.writer.characters.length;
    if (isFollowed) box.scrollTop = box.scrollHeight;
    byId("write-status").textContent = this.status(total);
  }

  status(total) {
    const { count, copied, longest, begun, share } = this.writer;
    if (begun === null) return `reading the prompt: ${Math.floor(100 * share)} %`;
    const elapsedMs = performance.now() - begun;
    const { symbol } = this.data;
    const phrases = [this.lines ? `${whole(count)} ${symbol}s` : `${whole(count)} of ${whole(total)} ${symbol}s`];
    if (count && elapsedMs > 50) phrases.push(`${whole((1000 * count) / elapsedMs)} ${symbol}s/s`);
    if (this.copies && count) {
      const percents = `${((100 * copied) / count).toFixed(1)} % copied, at most ${longest} ${symbol}s in a row`;
      phrases.push(copied ? percents : "nothing copied");
    }
    return phrases.join(" · ");
  }

  async copy() {
    await navigator.clipboard.writeText(this.writer.characters.join("").replaceAll(PART, ""));
    byId("spoken").textContent = "copied";
  }

  setRunning(isRunning) {
    if (!isRunning && document.activeElement === byId("stop")) byId("write").focus(); // what is disabled loses the focus
    byId("stop").disabled = !isRunning;
    this.pane.box.setAttribute("aria-busy", String(isRunning));
  }
}
