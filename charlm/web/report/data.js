// What the page shows: the JSON of the page, with its packed arrays unpacked.

import { svg } from "../shared/elements.js";
import { unpackArray } from "../shared/unpack.js";

/** Packed arrays by name, unpacked. */
export async function unpackedAll(named) {
  const entries = await Promise.all(Object.entries(named).map(async ([name, packed]) => [name, await unpackArray(packed)]));
  return Object.fromEntries(entries);
}

async function unpackedCurves({ rows, at, ...curves }) {
  if (!rows) return { rows };
  const values = await Promise.all(
    Object.entries(curves).map(async ([name, packed]) => [name, await unpackedAll(packed)]),
  );
  return { rows, at: await unpackedAll(at), ...Object.fromEntries(values) };
}

/** Texts with their bits unpacked. */
export function unpackedTexts(texts) {
  return Promise.all(texts.map(async (text) => ({ ...text, bits: await unpackArray(text.bits) })));
}

async function unpackedRun(run, number) {
  const [train, valid] = await Promise.all([run.curves.train, run.curves.valid].map(unpackedCurves));
  return { ...run, number, curves: { train, valid } };
}

/** All data, ready to use; `number` of a run is its index among the runs. */
export async function loadData() {
  const data = JSON.parse(document.getElementById("data").textContent);
  data.runs = await Promise.all(data.runs.map(unpackedRun));
  return data;
}

/** The classes that give a run its color and dashes. */
export function runClass(run) {
  return `color${run.number % 8} dash${Math.floor(run.number / 8) % 4}`;
}

/** A short line as the run has it on the charts. */
export function swatch(run) {
  const line = svg("line", { x1: 1, x2: 21, y1: 6, y2: 6, class: `swatch ${runClass(run)}` });
  return svg("svg", { viewBox: "0 0 22 12", width: 22, height: 12, "aria-hidden": "true" }, line);
}
