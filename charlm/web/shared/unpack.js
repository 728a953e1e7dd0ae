// Arrays of a page's JSON, as packed by `page.py`.

const ARRAY_TYPES = {
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
  u8: BigUint64Array,
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

/** The typed array of { type, data }: base64 of deflated little-endian values. */
export async function unpackArray({ type, data }) {
  const stream = new Blob([bytesOf(data)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new ARRAY_TYPES[type](await new Response(stream).arrayBuffer());
}
