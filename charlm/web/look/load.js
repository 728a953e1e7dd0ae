// The JSON of the page, with its packed arrays unpacked.

import { unpackArray } from "../shared/unpack.js";

async function unpackedReading(reading) {
  const names = ["bits", "entropy", "rank", "top", "p"];
  const arrays = await Promise.all(names.map((name) => unpackArray(reading[name])));
  return { likeliest: reading.likeliest, ...Object.fromEntries(names.map((name, index) => [name, arrays[index]])) };
}

async function unpackedUnit(unit) {
  const curves = await Promise.all(unit.curves.map(async (curve) => ({ ...curve, values: await unpackArray(curve) })));
  return { ...unit, curves };
}

/** All data, ready to use. `characters` has one string per position. */
export async function loadData() {
  const data = JSON.parse(document.getElementById("data").textContent);
  data.characters = Array.from(data.text);
  data.reading = await unpackedReading(data.reading);
  data.units = await Promise.all(data.units.map(unpackedUnit));
  if (data.compare) data.compare.reading = await unpackedReading(data.compare.reading);
  return data;
}
