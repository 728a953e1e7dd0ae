// Units: a list to search, and the curve that the text is colored by.

import { element } from "../shared/elements.js";

/** "h 17, layer 1". */
export function unitName(unit) {
  return `${unit.state} ${unit.unit}, layer ${unit.layer}`;
}

/** What the choice of a curve is told by: a gate may be named as a state. */
const keyOf = ({ name, gate }) => (gate ? `gate ${name}` : name);

const LEAST_APART = 0.5; // standard deviations; less is no difference worth a number

const rounded = (value) => value.toFixed(2).replace("-", "−");

/** "forget gate f"; "gate f" if its cell does not say what it is. */
function curveName({ name, gate, meaning: [what] }) {
  return `${what ?? (gate ? "gate" : "state")} ${name}`;
}

/** "correlation 0.83 with “inside quotes”". */
export function unitSays(unit) {
  return `correlation ${rounded(unit.correlation)} with “${unit.feature}”`;
}

/** The means of a unit's state in the range and elsewhere, and how many standard deviations they are apart. */
export function difference({ state, curves }, [first, last]) {
  const { values, scale } = curves.find((curve) => keyOf(curve) === state);
  let [inside, sum, squares] = [0, 0, 0];
  values.forEach((value, index) => {
    sum += value;
    squares += value * value;
    if (index >= first && index <= last) inside += value;
  });
  const [count, length] = [last - first + 1, values.length];
  const deviation = Math.sqrt(squares / length - (sum / length) ** 2);
  const [here, elsewhere] = [inside / count, (sum - inside) / Math.max(1, length - count)];
  return { here: here * scale, elsewhere: elsewhere * scale, apart: deviation ? (here - elsewhere) / deviation : 0 };
}

export class Units {
  /** onChange() when another unit or gate is chosen. */
  constructor(shown, onChange) {
    this.shown = shown;
    this.onChange = onChange;
    this.chosen = 0;
    this.curve = "";
    this.differences = null; // of each unit, if a part of the text is selected
    this.select = document.getElementById("gate");
    this.says = document.getElementById("unit-says");
    this.list = document.getElementById("unit-list");
    this.search = document.getElementById("unit-search");
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

  get chosenCurve() {
    return this.unit.curves.find((curve) => keyOf(curve) === this.curve);
  }

  /** The chosen curve: value(index), −1 to 1. */
  value() {
    const { values, scale } = this.chosenCurve;
    // Values within ±1, as those of gates and h, are shown as they are; others, as c, relative to the largest.
    const factor = Math.min(scale, 1 / 127);
    return (index) => values[index] * factor;
  }

  /** What the color of the chosen curve says: as a legend, a sentence and a name of the chart. */
  colored() {
    const { gate, values, scale, meaning } = this.chosenCurve;
    const [, low, high] = meaning;
    const called = `${meaning.length ? "the " : ""}${curveName(this.chosenCurve)}`;
    const says = `${curveName(this.chosenCurve)} of ${unitName(this.unit)} over the text`;
    if (gate && 127 * scale < 1.001 && values.every((value) => value >= 0)) {
      const ends = high ? `at 0 it ${low}, at 1 (orange) it ${high}` : "blank at 0, orange at 1";
      const words = high ? [`0 ${low}`, `1 ${high}`] : ["0", "1"];
      return { signed: false, words, says, color: `The color is ${called} of one unit: ${ends}.` };
    }
    const what = gate ? `${called} of one unit` : "one number of its memory, a unit";
    return { signed: true, words: ["negative", "positive"], says, color: `The color is ${what}: orange above 0, blue below.` };
  }

  /** The activation after the character at a index, in words. */
  tells(index) {
    const { values, scale } = this.chosenCurve;
    return `${unitName(this.unit)}: ${curveName(this.chosenCurve)} is ${rounded(values[index] * scale)} after it.`;
  }

  /** List the units that differ most in a part of the text first; null: in their own order. */
  compare(range) {
    this.differences = range && this.shown.map((unit) => difference(unit, range));
    document.getElementById("units-order").textContent = range ? " that differ most in the selection" : "";
    this.fillList();
    this.list.scrollTop = 0;
  }

  /** What the list says of a unit. */
  listed(number) {
    if (!this.differences) return unitSays(this.shown[number]);
    const { here, elsewhere, apart } = this.differences[number];
    if (Math.abs(apart) < LEAST_APART) return `“${this.shown[number].feature}”; much the same here as elsewhere`;
    const distance = rounded(Math.abs(apart));
    return `“${this.shown[number].feature}”; mean ${rounded(here)} here, ${rounded(elsewhere)} elsewhere: ${distance} standard deviations apart`;
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
    const option = (curve) => {
      const { name, meaning } = curve;
      const depth = name.match(/\d+$/); // of an RHN's g3
      const words = `${name}: ${meaning[0]}${depth ? `, depth ${depth[0]}` : ""}`;
      return element("option", { value: keyOf(curve), textContent: meaning.length ? words : curveName(curve) });
    };
    this.select.replaceChildren(...this.unit.curves.map(option));
    this.select.value = this.curve;
    this.select.parentElement.hidden = this.unit.curves.length === 1; // there is no choice
    const strong = element("strong", { textContent: unitName(this.unit) });
    this.says.replaceChildren(strong, `: ${unitSays(this.unit)}.`);
  }

  fillList() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const order = [...this.shown.keys()];
    if (this.differences) order.sort((a, b) => Math.abs(this.differences[b].apart) - Math.abs(this.differences[a].apart));
    const rows = order.flatMap((number) => {
      const unit = this.shown[number];
      const text = `${unitName(unit)} ${unit.feature}`.toLowerCase();
      if (!words.every((word) => text.includes(word))) return [];
      const button = element(
        "button",
        { type: "button", className: "unit", onclick: () => this.choose(number) },
        element("strong", { textContent: unitName(unit) }),
        element("span", { textContent: this.listed(number) }),
      );
      button.setAttribute("aria-pressed", String(number === this.chosen));
      return [element("li", {}, button)];
    });
    const nothing = element("li", { className: "quiet", textContent: "No unit or feature has these words." });
    this.list.replaceChildren(...(rows.length ? rows : [nothing]));
  }
}
