// Units: a list to search, a slider, and the curve that the text is colored by.

import { element } from "./data.js";

/** "h 17 of layer 1". */
export function unitName(unit) {
  return `${unit.state} ${unit.unit} of layer ${unit.layer}`;
}

/** "correlation 0.83 with “inside quotes”". */
export function unitSays(unit) {
  return `correlation ${unit.correlation.toFixed(2).replace("-", "−")} with “${unit.feature}”`;
}

export class Units {
  /** onChange() when another unit or gate is chosen. */
  constructor(kept, onChange) {
    this.kept = kept;
    this.onChange = onChange;
    this.chosen = 0;
    this.gate = "";
    this.slider = document.getElementById("unit-slider");
    this.select = document.getElementById("gate");
    this.says = document.getElementById("unit-says");
    this.list = document.getElementById("unit-list");
    this.search = document.getElementById("unit-search");
    this.slider.max = Math.max(0, kept.length - 1);
    this.slider.addEventListener("input", () => this.choose(Number(this.slider.value)));
    this.select.addEventListener("change", () => this.chooseGate(this.select.value));
    this.search.addEventListener("input", () => this.fillList());
    this.fillList();
    this.describe();
  }

  get unit() {
    return this.kept[this.chosen];
  }

  /** The chosen curve: value(place), −1 to 1. */
  value() {
    const { values, scale } = this.gate ? this.unit.gates[this.gate] : this.unit.state_curve;
    const most = Math.max(127 * scale, 1e-9);
    // A gate or h is shown as it is; a state beyond ±1, as c, relative to its largest.
    const factor = most > 1.01 ? 1 / 127 : scale;
    return (place) => values[place] * factor;
  }

  choose(number) {
    this.chosen = number;
    if (!(this.gate in this.unit.gates)) this.gate = "";
    this.describe();
    this.fillList();
    this.onChange();
  }

  chooseGate(gate) {
    this.gate = gate;
    this.onChange();
  }

  describe() {
    if (!this.kept.length) return;
    this.slider.value = this.chosen;
    this.slider.setAttribute("aria-valuetext", `${unitName(this.unit)}, ${unitSays(this.unit)}`);
    const gates = Object.keys(this.unit.gates);
    const option = (value, text) => element("option", { value, textContent: text, selected: value === this.gate });
    this.select.replaceChildren(option("", `the state, ${this.unit.state}`), ...gates.map((gate) => option(gate, `gate ${gate}`)));
    this.select.disabled = gates.length === 0;
    const like = this.unit.like.map(([other, correlation]) => {
      const text = `${unitName(this.kept[other])} (${correlation.toFixed(2).replace("-", "−")})`;
      return element("button", { type: "button", className: "link", textContent: text, onclick: () => this.choose(other) });
    });
    const strong = element("strong", { textContent: unitName(this.unit) });
    this.says.replaceChildren(strong, `: ${unitSays(this.unit)}.`, ...(like.length ? [" Units like this one: ", ...spaced(like)] : []));
  }

  fillList() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = this.kept.flatMap((unit, number) => {
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
    this.list.replaceChildren(...rows);
  }
}

function spaced(nodes) {
  return nodes.flatMap((node, place) => (place ? [" ", node] : [node]));
}
