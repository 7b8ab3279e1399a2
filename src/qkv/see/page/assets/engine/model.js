// The parameters of a model, which engine.py has written into a page, and the design that describes their use.

import { readTokenizer } from "./tokenizer.js";

/** @typedef {import("./tokenizer.js").Tokenizer} Tokenizer */

/**
 * `size` is d, the size of a head's queries and keys. `next` is true if the logits at a position predict the next token.
 * `bert` is true if the layers have the same steps and the same kinds of parameters as BERT's layers. For `scales`, see
 * server.js.
 * @typedef {{layers: number, heads: number, kv_heads: number, size: number, dim: number, vocabulary: number, most: number | null,
 *            next: boolean, eps: number, mask?: string | null, bert?: boolean, scales?: [string, number][]}} Sizes
 * @typedef {{dims: number, interleaved: boolean, scale: number, speeds: number[], longer?: {limit: number, speeds: number[]},
 *            stretched?: {limit: number, factor: number}}} Rotary  see rotate in layers.js
 * @typedef {{causal: boolean, window: [number, number] | null, scale: number, softcap: number | null, rotary: number | null}} Attends
 * the attention of a layer; `rotary` is an index in the design's `rotaries`
 * @typedef {{layers: Attends[], rotaries: Rotary[], activation: string, norms: "after" | "before" | "both" | "behind", parallel: boolean,
 *            rms: boolean, offset: number, embed: {scale: number, first: number, padding: number | null, projects_first: boolean},
 *            head: {activation: string | null, scale: number, softcap: number | null}, ends: number[]}} Design
 *            the options of a family; see engine.py
 * @typedef {{name: string, sizes: Sizes, design: Design, parameters: Record<string, Float32Array>, tokenizer: Tokenizer}} Model
 * @typedef {{b64: string, scale?: string}} Packed  a parameter; see `unpacked`
 */

/**
 * Unpacks a model that engine.py has written into a page.
 * @param {{name: string, sizes: Sizes, design: Design, parameters: Record<string, Packed>, tokenizer: any}} written
 * @returns {Model}
 */
export function readModel({ name, sizes, design, parameters, tokenizer }) {
  const halves = Float32Array.from({ length: 65536 }, (_, bits) => half(bits)); // all numbers of float16
  /** @type {Record<string, Float32Array>} */
  const read = {};
  for (const [part, packed] of Object.entries(parameters)) read[part] = unpacked(packed, halves);
  return { name, sizes, design, parameters: read, tokenizer: { ...readTokenizer(tokenizer), mask: sizes.mask ?? null } };
}

/**
 * Converts the bits of a float16 to a number: one bit for the sign, five for the power of two, ten for the fraction.
 * @param {number} bits
 */
function half(bits) {
  const [sign, power, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, (bits & 1023) / 1024];
  if (power === 31) return fraction ? NaN : sign * Infinity;
  return sign * (power ? (1 + fraction) * 2 ** (power - 15) : fraction * 2 ** -14);
}

/**
 * Unpacks base64 of little-endian float16 with a table of all float16 numbers. If `scale` is given, the
 * base64 holds rows of int8 instead, and each row is multiplied by its own float16 scale.
 * @param {Packed} packed
 * @param {Float32Array} halves
 * @returns {Float32Array}
 */
function unpacked({ b64, scale }, halves) {
  const text = atob(b64);
  const scales = scale && unpacked({ b64: scale }, halves);
  const numbers = new Float32Array(text.length / (scales ? 1 : 2));
  for (let i = 0; i < numbers.length; i++)
    numbers[i] = scales
      ? ((text.charCodeAt(i) << 24) >> 24) * scales[Math.floor((i * scales.length) / numbers.length)]
      : halves[text.charCodeAt(2 * i) | (text.charCodeAt(2 * i + 1) << 8)];
  return numbers;
}
