// What the models wrote while they were trained, shaded by surprise.

import { SHADES, shadeColor } from "../look/colors.js";
import { printable } from "../shared/printable.js";
import { element } from "../shared/elements.js";
import { runClass, swatch } from "./data.js";
import { whole } from "./numbers.js";
import { nearest } from "./smooth.js";

const MOST_BITS = 8;

/** Shade of a surprise, 0 to 16; the root, so that differences among likely characters show too. */
function shadeOf(tenths) {
  return tenths === 255 ? 0 : Math.round(SHADES * Math.sqrt(Math.min(tenths / 10 / MOST_BITS, 1)));
}

/** A text shaded by its bits. Neighbors with the same shade become one element. */
export function shadedText({ text, bits }) {
  const characters = Array.from(text);
  const spans = [];
  for (let start = 0, end = 0; start < characters.length; start = end) {
    const shade = shadeOf(bits[start]);
    for (end = start + 1; end < characters.length && shadeOf(bits[end]) === shade; ) end++;
    const span = element("span", { textContent: printable(characters.slice(start, end).join("")) });
    span.style.backgroundColor = shadeColor(shade);
    spans.push(span);
  }
  return spans;
}

/** A box for a text, with a label for those who cannot see where it stands. */
export function textBox(label, ...spans) {
  const box = element("div", { className: "sample", dir: "auto", tabIndex: 0 }, ...spans);
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", label);
  return box;
}

export class Samples {
  constructor(runs) {
    this.runs = runs;
    this.slider = document.getElementById("sample-slider");
    this.label = document.getElementById("sample-step");
    this.box = document.getElementById("samples");
    const steps = runs.flatMap(({ samples }) => samples.map(({ step }) => step));
    this.steps = [...new Set(steps)].sort((a, b) => a - b);
    document.getElementById("sample-bar").hidden = !this.steps.length;
    this.slider.max = Math.max(this.steps.length - 1, 0);
    this.slider.value = this.slider.max;
    this.slider.addEventListener("input", () => this.show(this.hidden));
  }

  /** The samples of all runs except those with the hidden numbers. */
  show(hidden) {
    this.hidden = hidden;
    if (!this.steps.length) {
      this.box.replaceChildren(element("p", { className: "quiet", textContent: "These runs kept no samples." }));
      return;
    }
    const step = this.steps[Number(this.slider.value)];
    this.label.textContent = `update ${whole(step)}`;
    this.slider.setAttribute("aria-valuetext", this.label.textContent);
    const visible = this.runs.filter(({ number }) => !this.hidden.has(number));
    const [shown, without] = [true, false].map((has) => visible.filter(({ samples }) => samples.length > 0 === has));
    document.getElementById("no-samples").textContent = without.length
      ? `Without samples: ${without.map(({ name }) => name).join(", ")}.`
      : "";
    this.box.replaceChildren(...shown.map((run) => this.card(run, step)));
  }

  /** The sample of a run that is nearest to the step. */
  card(run, step) {
    const steps = run.samples.map((sample) => sample.step);
    const sample = run.samples[nearest(steps, step)];
    const left = sample.left_out ? `, ${whole(sample.left_out)} more characters left out` : "";
    const title = element("h3", {}, swatch(run), ` ${run.name} `, element("span", { className: "quiet", textContent: `update ${whole(sample.step)}${left}` }));
    const text = textBox(`Sample of ${run.name}, update ${whole(sample.step)}`, ...shadedText(sample));
    return element("article", { className: runClass(run) }, title, text);
  }
}
