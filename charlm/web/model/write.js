// The tab that writes.

import { fillLegend } from "../shared/colors.js";
import { byId, element, setText } from "../shared/elements.js";
import { unitName, unitSays, whole } from "../shared/numbers.js";
import { bitsAt, Pane } from "../shared/prediction.js";
import { PART, RECORD_END } from "../shared/printable.js";
import { composing, copied, keepOverReload, listed, tellUnknown } from "./fields.js";
import { Writer } from "./writer.js";

const SEEDS = 2 ** 32;
const FRAME_MS = 30; // between two pictures of the text
const SAID_MS = 4000; // for which it is said that the text was copied

export class WriteTab {
  constructor({ data, model, vocabulary, symbols }) {
    Object.assign(this, { data, vocabulary });
    this.lines = vocabulary.begins !== null;
    this.writer = new Writer({ model, vocabulary });
    const about = "What it expected, before temperature and limits; orange: what it wrote.";
    this.pane = new Pane({ symbol: data.symbol, symbols }, "What the model writes", about);
    this.view = this.pane.view;
    this.view.shade = (index) => this.writer.shade(index);
    this.view.marks = (index) => {
      const { reading, characters } = this.writer;
      return Number.isNaN(bitsAt(reading, index)) && characters[index] !== "\n" ? "given" : "";
    };
    this.pane.box.id = "paper";
    byId("written").append(this.pane.box, this.pane.card);
    this.followTemperature();
    this.followPace();
    this.followColor();
    byId("count-field").hidden = !this.lines;
    if (this.lines && vocabulary.separator !== "\n") byId("count-field").firstChild.data = "Records";
    byId("stop-field").hidden = this.lines;
    byId("stop").addEventListener("click", () => this.writer.stop());
    byId("copy").addEventListener("click", () => this.copy());
    byId("seed").addEventListener("input", () => {
      byId("new-seed").checked = false;
    });
    this.check("prompt", (text) => (this.lines && text.includes(vocabulary.separator) ? "A part of one record, without its end." : ""));
    this.check("stop-text", (text) => {
      const { unknown } = vocabulary.encode(text);
      return unknown.length ? `The model never writes ${listed(unknown)}.` : "";
    });
    const form = byId("settings");
    keepOverReload(form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.write();
    });
    // Before the browser moves to what is wrong and says why.
    form.addEventListener("invalid", ({ target }) => target.closest("details")?.setAttribute("open", ""), true);
    byId("write-panel").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !composing(event)) form.requestSubmit();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !composing(event) && !byId("write-panel").hidden) this.writer.stop();
    });
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

  /** faultOf(text) of a field says what is wrong with it; "" for nothing. */
  check(id, faultOf) {
    byId(id).addEventListener("input", ({ target }) => target.setCustomValidity(faultOf(target.value)));
  }

  /** Writes what the fields ask for; with `seed` by this seed. */
  async write(seed = null) {
    const fault = byId("write-fault");
    fault.replaceChildren();
    if (seed !== null || byId("new-seed").checked) byId("seed").value = seed ?? Math.floor(Math.random() * SEEDS);
    const prompt = byId("prompt").value;
    const { unknown } = this.vocabulary.encode(prompt);
    if (unknown.length) return tellUnknown(fault, byId("prompt"), this.vocabulary, unknown, () => this.write());
    const number = (id) => byId(id).valueAsNumber;
    const first = BigInt(byId("seed").value);
    await this.run({
      prompt,
      seeds: Array.from({ length: this.lines ? number("count") : 1 }, (_, place) => first + BigInt(place)),
      length: number("length"),
      stop: this.lines ? [] : this.vocabulary.encode(byId("stop-text").value).ids,
      choice: { temperature: number("temperature"), topK: number("top-k"), topP: number("top-p") },
    });
  }

  async run(settings) {
    const { writer, pane } = this;
    const total = settings.seeds.length * settings.length;
    let shownMs = 0;
    writer.clear();
    const { characters, reading } = writer;
    pane.close();
    pane.data.reading = reading;
    pane.prediction.textContent = `Point at a ${this.data.symbol} that it wrote, or tap it.`;
    this.view.show(characters);
    this.shown = 0;
    this.setRunning(true);
    await writer.write(settings, () => {
      if (performance.now() < shownMs + FRAME_MS) return;
      this.draw(total);
      shownMs = performance.now();
    });
    if (writer.reading !== reading) return; // another run has begun
    this.setRunning(false);
    this.draw(total);
    byId("spoken").textContent = byId("write-status").textContent;
    if (writer.colorBy?.state) this.view.redraw(); // by the largest value, which may have come last
  }

  /** Brings what is shown up to date. The beginning stays in sight, unless the prompt fills the box or somebody has
   * scrolled to the end. */
  draw(total) {
    const { box } = this.pane;
    const isFollowed = box.scrollTop > 1 && box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    const first = this.shown ? -1 : this.writer.reading.bits.findIndex((bits) => !Number.isNaN(bits));
    this.view.changed(this.shown - 1); // the last one may have been a part of a character
    this.shown = this.writer.characters.length;
    if (isFollowed) box.scrollTop = box.scrollHeight;
    if (first > 0) this.view.scrollTo(first);
    setText(byId("write-status"), this.status(total));
  }

  status(total) {
    const { count, begun, share } = this.writer;
    if (begun === null) return `reading the prompt: ${Math.floor(100 * share)}%`;
    const elapsedMs = performance.now() - begun;
    const { symbol } = this.data;
    const phrases = [`${whole(count)} ${this.lines ? "" : `of ${whole(total)} `}${symbol}s written`];
    if (count && elapsedMs > 50) phrases.push(`${whole((1000 * count) / elapsedMs)} ${symbol}s/s`);
    return phrases.join(" · ");
  }

  async copy() {
    const text = this.writer.characters.join("").replaceAll(PART, "").replaceAll(RECORD_END, this.vocabulary.separator);
    const said = (await copied(text)) ? "Copied" : "This browser does not let a page copy; mark the text and copy it";
    byId("copy-says").textContent = said;
    setTimeout(() => (byId("copy-says").textContent = ""), SAID_MS);
  }

  setRunning(isRunning) {
    if (!isRunning && document.activeElement === byId("stop")) byId("write").focus(); // what is disabled loses the focus
    byId("stop").disabled = !isRunning;
    this.pane.box.setAttribute("aria-busy", String(isRunning));
  }
}
