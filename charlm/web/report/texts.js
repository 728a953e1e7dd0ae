// What models read and wrote, shaded by surprise.

import { shadedText, shadeOf } from "../shared/colors.js";
import { byId, element } from "../shared/elements.js";
import { whole } from "../shared/numbers.js";
import { nearest } from "./curve.js";
import { runClass, swatch } from "./data.js";

const UNKNOWN = 255; // bits are in tenths

/** The bits of a character; NaN where they are unknown. */
export const bitsOf = ({ bits }, index) => (bits[index] === UNKNOWN ? NaN : bits[index] / 10);

/** A text of a run below its name and a few words, shaded by shade(index) or by its surprise. */
export function textOf(run, sample, words = "", shade = (index) => shadeOf(bitsOf(sample, index))) {
  const title = element("h3", {}, swatch(run), ` ${run.name} `, element("span", { className: "quiet", textContent: words }));
  const spans = shadedText(Array.from(sample.text), shade);
  return element("article", { className: runClass(run) }, title, element("div", { className: "sample shaded", dir: "auto" }, ...spans));
}

/** The samples of the runs over the training, by a slider. */
export class Samples {
  constructor(runs) {
    this.runs = runs;
    this.slider = byId("sample-slider");
    this.steps = [...new Set(runs.flatMap(({ samples }) => samples.map(({ step }) => step)))].sort((a, b) => a - b);
    byId("sample-bar").hidden = !this.steps.length;
    this.slider.max = Math.max(this.steps.length - 1, 0);
    this.slider.value = this.slider.max;
    this.slider.addEventListener("input", () => this.show(this.shows));
  }

  /** Those of the runs for which shows(run) holds, each the nearest to the step. */
  show(shows) {
    this.shows = shows;
    const step = this.steps[Number(this.slider.value)];
    const at = this.steps.length ? `update ${whole(step)}` : "";
    byId("sample-step").textContent = at;
    this.slider.setAttribute("aria-valuetext", at);
    const visible = this.runs.filter(shows);
    const without = visible.filter(({ samples }) => !samples.length).map(({ name }) => name);
    byId("no-samples").textContent = without.length ? `Without samples: ${without.join(", ")}.` : "";
    const texts = visible.filter(({ samples }) => samples.length).map((run) => {
      const sample = run.samples[nearest(run.samples.map((each) => each.step), step)];
      const left = sample.left_out ? `, ${whole(sample.left_out)} more characters left out` : "";
      return textOf(run, sample, `update ${whole(sample.step)}${left}`);
    });
    byId("samples").replaceChildren(...texts);
  }
}
