// A model whose bytes arrive in parts: first its description as JSON, then its parameters in turn. In a page, the bytes
// are deflated and written as characters (`_write_pieces` of page/engine.py).

import { bytesOf, HALVES, KINDS } from "./blocks.js";

/** @typedef {import("./blocks.js").Weight} Weight */

/**
 * Reads the bytes that characters stand for: two bytes for each character. The characters form groups. The first character
 * of a group holds the number of the others, and the mask by which none of them is a character that a page would change.
 * @param {string} text
 */
export function bytesIn(text) {
  const units = new Uint16Array(text.length);
  let count = 0;
  for (let at = 0; at < text.length; ) {
    const head = text.charCodeAt(at);
    const mask = (head & 31) << 11;
    const end = at + 1 + (head >> 5);
    for (at += 1; at < end; at++) units[count++] = text.charCodeAt(at) ^ mask;
  }
  return new Uint8Array(units.buffer, 0, 2 * count);
}

/**
 * Reads the description and the parameters of a model.
 * @param {ReadableStream<Uint8Array>} stream  the bytes
 * @param {number} size  the bytes of the description
 */
export async function readStream(stream, size) {
  const reader = stream.getReader();
  let [chunk, at] = [new Uint8Array(), 0];
  /** @type {(count: number) => Promise<Uint8Array>} */
  async function take(count) {
    const out = new Uint8Array(count);
    for (let filled = 0; filled < count; ) {
      if (at === chunk.length) {
        const { value } = await reader.read().catch(() => ({ value: undefined })); // an error: the deflated bytes end early
        if (!value) throw new Error("qkv: this page's file is incomplete; download it again");
        [chunk, at] = [value, 0];
      }
      const part = chunk.subarray(at, at + count - filled);
      out.set(part, filled);
      filled += part.length;
      at += part.length;
    }
    return out;
  }
  const written = JSON.parse(new TextDecoder().decode(await take(size)));
  for (const [name, { kind, size: count }] of Object.entries(written.parameters))
    written.parameters[name] = weightOf(kind, count, await take(bytesOf(kind, count)));
  return written;
}

/**
 * The weight of `length` numbers. The bytes of blocks arrive in a different order: the first byte of each block, then
 * the second byte of each block, and so on.
 * @param {string} kind
 * @param {number} length
 * @param {Uint8Array} bytes
 * @returns {Weight}
 */
function weightOf(kind, length, bytes) {
  if (kind === "F32") return new Float32Array(bytes.buffer);
  if (kind === "F16") return Float32Array.from(new Uint16Array(bytes.buffer), (bits) => HALVES[bits]);
  const size = KINDS[kind].bytes;
  const blocks = new Uint8Array(bytes.length);
  for (let of = 0, at = 0; of < size; of++) for (let to = of; to < blocks.length; to += size) blocks[to] = bytes[at++];
  return { kind, bytes: blocks, length };
}
