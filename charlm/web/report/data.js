// The runs of the page, with their packed arrays unpacked, and how they look.

import { svg } from "../shared/elements.js";
import { unpackArray } from "../shared/unpack.js";

/** Packed arrays by name, unpacked. */
export async function unpackedAll(named) {
  const entries = Object.entries(named).map(async ([name, packed]) => [name, await unpackArray(packed)]);
  return Object.fromEntries(await Promise.all(entries));
}

async function unpackedCurves({ rows, at, ...curves }) {
  if (!rows) return { rows };
  const values = Object.entries(curves).map(async ([name, packed]) => [name, await unpackedAll(packed)]);
  return { rows, at: await unpackedAll(at), ...Object.fromEntries(await Promise.all(values)) };
}

/** A text with the bits of its characters; NaN for what is unknown. */
export async function unpackedText(text) {
  const bits = Array.from(await unpackArray(text.bits), (tenths) => (tenths === 255 ? NaN : tenths / 10));
  return { ...text, characters: Array.from(text.text), bits };
}

/** A run, ready to use; `number` is its index among the runs. */
export async function unpackedRun(run, number) {
  const [train, valid] = await Promise.all([run.curves.train, run.curves.valid].map(unpackedCurves));
  return { ...run, number, curves: { train, valid }, samples: await Promise.all(run.samples.map(unpackedText)) };
}

/** The classes that give a run its color and dashes. */
export const runClass = ({ number }) => `color${number % 8} dash${Math.floor(number / 8) % 4}`;

/** A short line as the run has it on the charts. */
export function swatch(run) {
  const line = svg("line", { x1: 1, x2: 21, y1: 6, y2: 6, class: `swatch ${runClass(run)}` });
  return svg("svg", { viewBox: "0 0 22 12", width: 22, height: 12, "aria-hidden": "true" }, line);
}
