// What colors the text that is written: its surprise, or the activation of a unit.

import { legendColors, shadeColor, signedShade, SHADES } from "../look/colors.js";
import { unitName, unitSays } from "../look/units.js";
import { byId, element } from "../shared/elements.js";

const MOST_BITS = 8; // from which on the color is full

export class Watch {
  /** units: those that go with a feature of the text, as on a page of charlm look; onChange() when another is chosen. */
  constructor(model, units, onChange) {
    this.model = model;
    this.onChange = onChange;
    this.series = model.units(model.start()); // [{ layer, name, values }]
    this.units = units;
    this.select = byId("series");
    this.slider = byId("unit");
    const group = (label, options) => (options.length ? [element("optgroup", { label }, ...options)] : []);
    this.select.append(
      element("option", { value: "surprise", textContent: "surprise" }),
      element("option", { value: "", textContent: "nothing" }),
      ...group("units and what they go with", units.map((unit, index) =>
        element("option", { value: `unit ${index}`, textContent: `${unitName(unit)}: ${unit.feature}` }),
      )),
      ...group("any unit, by number", this.series.map(({ layer, name }, index) =>
        element("option", { value: `series ${index}`, textContent: `layer ${layer}, ${name}` }),
      )),
    );
    this.select.addEventListener("change", () => this.changed());
    this.slider.addEventListener("input", () => this.changed());
    this.describe();
  }

  /** Whether a unit is watched. */
  get on() {
    return this.chosen !== null;
  }

  /** What colors a character: its bits, the activation of the unit in a state of the model, or 0 for no color. */
  value(state, bits) {
    if (this.surprise) return bits;
    if (!this.on) return 0;
    const { layer, name, unit } = this.chosen;
    return this.model.shown(state, layer - 1)[name][unit];
  }

  /** The color of such a value; peak: the largest absolute one. The root, so that differences of a few bits show. */
  color(value, peak) {
    if (!this.surprise) return shadeColor(signedShade(value / peak));
    return shadeColor(Math.round(SHADES * Math.sqrt(Math.min(value / MOST_BITS, 1))));
  }

  changed() {
    this.describe();
    this.onChange();
  }

  describe() {
    const [kind, index] = this.select.value.split(" ");
    this.surprise = kind === "surprise";
    // Kept, because it is read for every character.
    this.chosen = kind === "unit" ? { ...this.units[index], name: this.units[index].state } : null;
    if (kind === "series") {
      this.slider.max = this.series[index].values.length - 1;
      this.chosen = { ...this.series[index], unit: Number(this.slider.value) };
      this.slider.setAttribute("aria-valuetext", `${this.chosen.name} ${this.chosen.unit}`);
    }
    byId("unit-field").hidden = kind !== "series";
    const named = kind === "unit" ? unitSays(this.chosen) : `${this.chosen?.name} ${this.chosen?.unit}`;
    byId("unit-name").textContent = this.on ? named : "";
    const ends = this.surprise ? ["expected", "surprising"] : ["negative", "positive"];
    const gradient = element("span", { className: "gradient" });
    gradient.style.backgroundImage = legendColors(!this.surprise);
    byId("unit-legend").replaceChildren(ends[0], " ", gradient, " ", ends[1]);
    byId("unit-legend").hidden = !this.surprise && !this.on;
  }
}
