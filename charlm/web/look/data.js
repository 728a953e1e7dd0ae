// What the page shows: the JSON of the page, with its packed arrays unpacked.

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

/** Bits of a character; NaN for the first, which has no prediction. */
export function bitsAt(reading, place) {
  const thousandths = reading.bits[place];
  return thousandths === 65535 ? NaN : thousandths / 1000;
}

const NAMES = { "\n": "line end", " ": "space", "\t": "tab", "\r": "carriage return" };

/** A character as people can read it. */
export function nameOf(character) {
  if (character in NAMES) return NAMES[character];
  if (/^[\p{C}\p{Z}\p{M}]$/u.test(character))
    return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  return character;
}

/** A stretch of the text on one line, shortened. */
export function excerpt(characters, start, length, most = 60) {
  const shown = characters
    .slice(start, start + Math.min(length, most))
    .join("")
    .replaceAll("\n", "⏎")
    .replaceAll("\t", " ");
  return length > most ? `${shown}…` : shown;
}

/** An element with properties and children; text is never parsed as markup. */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
