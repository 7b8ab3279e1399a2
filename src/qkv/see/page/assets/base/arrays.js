// Functions that read packed numbers and objects.

/**
 * Reads numbers from base64 in the payload: whole numbers of `packed.bits` bits, or float32.
 * @param {{b64: string, bits?: number}} packed
 */
export function unpack(packed) {
  const text = atob(packed.b64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  if (packed.bits === 8) return bytes;
  return new ({ 16: Uint16Array, 32: Uint32Array }[/** @type {16 | 32} */ (packed.bits)] || Float32Array)(bytes.buffer);
}

/**
 * Whole numbers from `first` to `last`, without `last`.
 * @param {number} first
 * @param {number} last
 */
export function range(first, last) {
  return Array.from({ length: last - first }, (_, by) => first + by);
}

/** @param {any} from @param {string[]} names */
export function pick(from, names) {
  return Object.fromEntries(names.filter((name) => from?.[name] !== undefined).map((name) => [name, from[name]]));
}
