// How a run looks.

import { svg } from "../shared/elements.js";

/** The classes that give a run its color and dashes. */
export const runClass = ({ color, dash }) => `color${color} dash${dash}`;

/** A short line as the run has it on the charts, as thick as that of the split. */
export function swatch(run, split = "valid") {
  const line = svg("line", { x1: 1, x2: 21, y1: 6, y2: 6, class: `swatch ${split} ${runClass(run)}` });
  return svg("svg", { viewBox: "0 0 22 12", width: 22, height: 12, "aria-hidden": "true" }, line);
}
