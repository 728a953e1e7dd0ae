// Arrays of a page's JSON, as packed by `page.py`.

const ARRAY_TYPES = {
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
  i1: Int8Array,
  f4: Float32Array,
  f8: Float64Array,
};

/** The bytes of base64. */
export function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
  return bytes;
}

/** A value of JSON with a typed array for each { type, data }: base64 of deflated little-endian values. */
export async function unpacked(value) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return typeof value[0] === "object" ? Promise.all(value.map(unpacked)) : value;
  if (value.type in ARRAY_TYPES) {
    const stream = new Blob([bytesOf(value.data)]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new ARRAY_TYPES[value.type](await new Response(stream).arrayBuffer());
  }
  const entries = Object.entries(value).map(async ([name, each]) => [name, await unpacked(each)]);
  return Object.fromEntries(await Promise.all(entries));
}
