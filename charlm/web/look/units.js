// Units: a list to search, a slider, and the curve that the text is colored by.

import { element } from "../shared/elements.js";

/** "h 17, layer 1". */
export function unitName(unit) {
  return `${unit.state} ${unit.unit}, layer ${unit.layer}`;
}

/** "correlation 0.83 with “inside quotes”". */
export function unitSays(unit) {
  return `correlation ${unit.correlation.toFixed(2).replace("-", "−")} with “${unit.feature}”`;
}

export class Units {
  /** onChange() when another unit or gate is chosen. */
  constructor(shown, onChange) {
    this.shown = shown;
    this.onChange = onChange;
    this.chosen = 0;
    this.curve = "";
    this.slider = document.getElementById("unit-slider");
    this.select = document.getElementById("gate");
    this.says = document.getElementById("unit-says");
    this.list = document.getElementById("unit-list");
    this.search = document.getElementById("unit-search");
    this.slider.max = Math.max(0, shown.length - 1);
    this.slider.addEventListener("input", () => this.choose(Number(this.slider.value)));
    this.select.addEventListener("change", () => this.chooseCurve(this.select.value));
    this.search.addEventListener("input", () => this.fillList());
    if (!shown.length) return;
    this.curve = this.unit.state;
    this.fillList();
    this.describe();
  }

  get unit() {
    return this.shown[this.chosen];
  }

  /** The chosen curve: value(index), −1 to 1. */
  value() {
    const { values, scale } = this.unit.curves.find(({ name }) => name === this.curve);
    // Values within ±1, as those of gates and h, are shown as they are; others, as c, relative to the largest.
    const factor = Math.min(scale, 1 / 127);
    return (index) => values[index] * factor;
  }

  /** The activation after the character at a index, in words. */
  tells(index) {
    const { values, scale, gate } = this.unit.curves.find(({ name }) => name === this.curve);
    const value = (values[index] * scale).toFixed(2).replace("-", "−");
    return `${unitName(this.unit)}: ${gate ? "gate" : "state"} ${this.curve} is ${value} after it.`;
  }

  choose(number) {
    this.chosen = number;
    this.curve = this.unit.state;
    this.describe();
    this.fillList();
    this.onChange();
  }

  chooseCurve(name) {
    this.curve = name;
    this.onChange();
  }

  describe() {
    this.slider.value = this.chosen;
    this.slider.setAttribute("aria-valuetext", `${unitName(this.unit)}, ${unitSays(this.unit)}`);
    const option = ({ name, gate }) =>
      element("option", { value: name, textContent: `${gate ? "gate" : "state"} ${name}` });
    this.select.replaceChildren(...this.unit.curves.map(option));
    this.select.value = this.curve;
    this.select.disabled = this.unit.curves.length === 1;
    const like = this.unit.like.map(([other, correlation]) => {
      const text = `${unitName(this.shown[other])} (${correlation.toFixed(2).replace("-", "−")})`;
      return element("button", {
        type: "button",
        className: "link",
        textContent: text,
        onclick: () => this.choose(other),
      });
    });
    const strong = element("strong", { textContent: unitName(this.unit) });
    this.says.replaceChildren(
      strong,
      `: ${unitSays(this.unit)}.`,
      ...(like.length ? [" Units like this one: ", ...spaced(like)] : []),
    );
  }

  fillList() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = this.shown.flatMap((unit, number) => {
      const text = `${unitName(unit)} ${unit.feature}`.toLowerCase();
      if (!words.every((word) => text.includes(word))) return [];
      const button = element(
        "button",
        { type: "button", className: "unit", onclick: () => this.choose(number) },
        element("strong", { textContent: unitName(unit) }),
        element("span", { textContent: unitSays(unit) }),
      );
      button.setAttribute("aria-pressed", String(number === this.chosen));
      return [element("li", {}, button)];
    });
    const nothing = element("li", { className: "quiet", textContent: "No unit or feature has these words." });
    this.list.replaceChildren(...(rows.length ? rows : [nothing]));
  }
}

function spaced(nodes) {
  return nodes.flatMap((node, index) => (index ? [" ", node] : [node]));
}
