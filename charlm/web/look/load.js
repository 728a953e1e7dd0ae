// The JSON of the page, with its packed arrays unpacked.

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, u8: BigUint64Array, i1: Int8Array };

/** The typed array of { type, data }: base64 of deflated little-endian values. */
async function unpacked({ type, data }) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new ARRAYS[type](await new Response(stream).arrayBuffer());
}

async function unpackedReading(reading) {
  const names = ["bits", "entropy", "rank", "top", "p"];
  const arrays = await Promise.all(names.map((name) => unpacked(reading[name])));
  return { kept: reading.kept, ...Object.fromEntries(names.map((name, place) => [name, arrays[place]])) };
}

async function unpackedUnit(unit) {
  const curves = await Promise.all(unit.curves.map(async (curve) => ({ ...curve, values: await unpacked(curve) })));
  return { ...unit, curves };
}

/** All data, ready to use. `characters` has one string per position. */
export async function loadData() {
  const data = JSON.parse(document.getElementById("data").textContent);
  data.characters = Array.from(data.text);
  data.reading = await unpackedReading(data.reading);
  data.units.kept = await Promise.all(data.units.kept.map(unpackedUnit));
  if (data.compare) data.compare.reading = await unpackedReading(data.compare.reading);
  return data;
}
