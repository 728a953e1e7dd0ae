// The tab that writes.

import { byId } from "../shared/elements.js";
import { whole } from "../look/data.js";
import { Alternatives } from "./alternatives.js";
import { Context } from "./context.js";
import { FieldError, composing, listed, numberIn, seedIn, tellUnknown } from "./fields.js";
import { Paper } from "./paper.js";
import { Slices } from "./slices.js";
import { Watch } from "./watch.js";
import { Writer } from "./writer.js";

const SEEDS = 2 ** 32;

export class WriteTab {
  constructor({ data, model, vocabulary, copies }) {
    Object.assign(this, { data, vocabulary, copies });
    this.lines = vocabulary.begins !== null;
    this.running = false;
    this.watch = new Watch(model, data.units, () => this.writer.recolor());
    const paper = new Paper(byId("paper"), (value, peak) => this.watch.color(value, peak));
    this.writer = new Writer(model, vocabulary, new Context(model), copies, paper, this.watch);
    this.paper = paper;
    this.alternatives = new Alternatives(data.symbol, vocabulary, this.writer, paper);
    this.followTemperature();
    this.followPace();
    byId("count-field").hidden = !this.lines;
    byId("stop-field").hidden = this.lines;
    byId("write").addEventListener("click", () => this.write());
    byId("stop").addEventListener("click", () => this.stop());
    byId("seed").addEventListener("input", () => {
      byId("new-seed").checked = false;
    });
    byId("write-panel").addEventListener("keydown", (event) => {
      if (composing(event)) return;
      const inField = event.target instanceof HTMLInputElement;
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey || inField)) this.write();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !composing(event)) this.stop();
    });
  }

  /** The slider and the number are one setting; the number may be higher. */
  followTemperature() {
    const [slider, number] = [byId("wildness"), byId("temperature")];
    slider.addEventListener("input", () => {
      number.value = slider.value;
    });
    number.addEventListener("input", () => {
      slider.value = number.value;
    });
  }

  followPace() {
    const select = byId("pace");
    for (const option of select.options) option.textContent = option.textContent.replace("characters", `${this.data.symbol}s`);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) select.value = "Infinity";
    const follow = () => {
      this.writer.pace = Number(select.value);
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
      choice: {
        temperature: numberIn("temperature"),
        topK: numberIn("top-k"),
        topP: numberIn("top-p"),
      },
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
      error.field.closest("details")?.setAttribute("open", "");
    }
  }

  async run(settings) {
    const total = settings.seeds.length * settings.length;
    const run = (this.latest = Symbol("run"));
    let lastDraw; // when the paper was drawn last, and how much work was done by then
    const show = () => {
      lastDraw = { ms: performance.now(), workedMs: Slices.workedMs };
      this.paper.draw();
      this.tell(total);
    };
    this.setRunning(true);
    this.alternatives.release();
    show();
    await this.writer.write(settings, () => {
      // No more often than the screen, and in a quarter of the time: the browser needs long for a long line.
      const passedMs = performance.now() - lastDraw.ms;
      const isTime = passedMs > 15 && Slices.workedMs - lastDraw.workedMs > 0.75 * passedMs;
      if (isTime && this.latest === run) show();
    });
    if (this.latest !== run) return;
    this.setRunning(false);
    show();
    byId("spoken").textContent = byId("write-status").textContent;
    if (this.watch.on) this.writer.recolor(); // by the largest value, which may have come last
  }

  tell(total) {
    const { count, copied, longest, begun, share } = this.writer;
    if (this.running && begun === null) {
      byId("write-status").textContent = `reading the prompt: ${Math.floor(100 * share)} %`;
      return;
    }
    const elapsedMs = performance.now() - begun;
    const symbol = this.data.symbol;
    const size = this.lines ? `${whole(count)} ${symbol}s` : `${whole(count)} of ${whole(total)} ${symbol}s`;
    const phrases = [size];
    if (count && elapsedMs > 50) phrases.push(`${whole(Math.round((1000 * count) / elapsedMs))} ${symbol}s/s`);
    if (this.copies && count) {
      const share = ((100 * copied) / count).toFixed(1);
      phrases.push(copied ? `${share} % copied, at most ${longest} ${symbol}s in a row` : "nothing copied");
    }
    byId("write-status").textContent = phrases.join(" · ");
  }

  stop() {
    this.writer.stop();
  }

  setRunning(running) {
    this.running = running;
    if (!running && document.activeElement === byId("stop")) byId("write").focus(); // what is disabled loses the focus
    byId("stop").disabled = !running;
    byId("paper").setAttribute("aria-busy", String(running));
  }
}
