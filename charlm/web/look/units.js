// Units: a list, and the curve that the text is colored by.

import { byId, element, oneStop } from "../shared/elements.js";
import { rounded, unitName, unitSays } from "../shared/numbers.js";

/** What the choice of a curve is told by: a gate may be named as a state. */
const keyOf = ({ name, gate }) => (gate ? `gate ${name}` : name);

/** "forget gate f"; "gate f" if its cell does not say what it is. */
function curveName({ name, gate, meaning: [what] }) {
  return `${what ?? (gate ? "gate" : "state")} ${name}`;
}

export class Units {
  /** onChange() when another unit or gate is chosen. */
  constructor(units, onChange) {
    Object.assign(this, { onChange, select: byId("gate") });
    this.select.addEventListener("change", () => {
      this.curve = this.unit.curves.find((curve) => keyOf(curve) === this.select.value);
      onChange();
    });
    const items = units.map((unit) => {
      const name = element("strong", { textContent: unitName(unit) });
      const says = element("span", { className: "quiet", textContent: unitSays(unit) });
      const onclick = () => this.choose(unit);
      return element("li", {}, element("button", { type: "button", className: "unit", onclick }, name, says));
    });
    this.units = units;
    this.buttons = items.map((item) => item.firstChild);
    byId("unit-list").replaceChildren(...items);
    if (!units.length) return;
    oneStop(byId("unit-list"));
    this.describe(units[0]);
  }

  choose(unit) {
    this.describe(unit);
    this.onChange();
  }

  describe(unit) {
    this.unit = unit;
    this.curve = unit.curves.find((curve) => keyOf(curve) === unit.state);
    const options = unit.curves.map((curve) => {
      const depth = curve.name.match(/\d+$/); // of an RHN's g3
      const words = `${curve.name}: ${curve.meaning[0]}${depth ? `, depth ${depth[0]}` : ""}`;
      return element("option", { value: keyOf(curve), textContent: curve.meaning.length ? words : curveName(curve) });
    });
    this.select.replaceChildren(...options);
    this.select.value = unit.state;
    this.select.parentElement.hidden = options.length === 1; // there is no choice
    const strong = element("strong", { textContent: unitName(unit) });
    byId("unit-says").replaceChildren(strong, `: ${unitSays(unit)}.`);
    this.units.forEach((each, number) => this.buttons[number].setAttribute("aria-pressed", String(each === unit)));
  }

  /** The chosen curve: value(index), −1 to 1. */
  value() {
    const { values, scale } = this.curve;
    // Values within ±1, as those of gates and h, are shown as they are; others, as c, relative to the largest.
    const factor = Math.min(scale, 1 / 127);
    return (index) => values[index] * factor;
  }

  /** What the color of the chosen curve says: as a legend and a sentence. */
  colored() {
    const { gate, values, scale, meaning } = this.curve;
    const [, low, high] = meaning;
    const called = `${meaning.length ? "the " : ""}${curveName(this.curve)}`;
    if (gate && 127 * scale < 1.001 && values.every((value) => value >= 0)) {
      const ends = high ? `at 0 it ${low}, at 1 (orange) it ${high}` : "blank at 0, orange at 1";
      const words = high ? [`0 ${low}`, `1 ${high}`] : ["0", "1"];
      return { isSigned: false, words, color: `The color is ${called} of one unit: ${ends}.` };
    }
    const what = gate ? `${called} of one unit` : "one number of its memory, a unit";
    return { isSigned: true, words: ["negative", "positive"], color: `The color is ${what}: orange above 0, blue below.` };
  }

  /** The activation after the character at an index, in words. */
  tells(index) {
    const { values, scale } = this.curve;
    return `${unitName(this.unit)}: ${curveName(this.curve)} is ${rounded(values[index] * scale)} after it.`;
  }
}
