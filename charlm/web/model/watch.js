// The unit whose activation colors what is written.

import { byId, element } from "../shared/elements.js";

export class Watch {
  /** onChange() when another unit is chosen. */
  constructor(model, onChange) {
    this.model = model;
    this.onChange = onChange;
    this.series = model.units(model.start()); // [{ layer, name, values }]
    this.select = byId("series");
    this.slider = byId("unit");
    this.select.append(
      element("option", { value: "", textContent: "nothing" }),
      ...this.series.map(({ layer, name }, index) =>
        element("option", { value: index, textContent: `layer ${layer}, ${name}` }),
      ),
    );
    this.select.addEventListener("change", () => this.changed());
    this.slider.addEventListener("input", () => this.changed());
    this.describe();
  }

  /** Whether a unit is watched. */
  get on() {
    return this.chosen !== null;
  }

  /** The activation of the unit in a state of the model; 0 if none is watched. */
  value(state) {
    if (!this.on) return 0;
    const { layer, name, unit } = this.chosen;
    return this.model.shown(state, layer - 1)[name][unit];
  }

  changed() {
    this.describe();
    this.onChange();
  }

  describe() {
    // Kept, because it is read for every character.
    this.chosen = this.select.value === "" ? null : { ...this.series[Number(this.select.value)] };
    this.slider.disabled = !this.on;
    byId("unit-legend").hidden = !this.on;
    if (!this.on) {
      byId("unit-name").textContent = "";
      return;
    }
    const { name, values } = this.chosen;
    this.slider.max = values.length - 1;
    this.chosen.unit = Number(this.slider.value);
    const shown = `${name} ${this.slider.value}`;
    byId("unit-name").textContent = shown;
    this.slider.setAttribute("aria-valuetext", shown);
  }
}
