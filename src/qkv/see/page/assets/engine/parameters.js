// The numbers of a model as engine.py has written them into a page, and what says how they are used.

import { readTokenizer } from "./tokenizer.js";

/** @typedef {import("./tokenizer.js").Tokenizer} Tokenizer */

/**
 * `size` is d, that of a head's queries and keys; `next`: whether logits are for what follows a place; `bert`: whether its
 * steps are BERT's, with all their parameters; `scales`: see server.js.
 * @typedef {{layers: number, heads: number, kv_heads: number, size: number, dim: number, vocabulary: number, most: number | null,
 *            next: boolean, eps: number, mask?: string | null, bert?: boolean, scales?: [string, number][]}} Sizes
 * @typedef {{dims: number, interleaved: boolean, scale: number, speeds: number[], longer?: {limit: number, speeds: number[]},
 *            stretched?: {limit: number, factor: number}}} Rotary  see rotate in layers.js
 * @typedef {{causal: boolean, window: [number, number] | null, scale: number, softcap: number | null, rotary: number | null}} Attends
 *            how a layer attends; `rotary` counts among those of the design
 * @typedef {{layers: Attends[], rotaries: Rotary[], activation: string, norms: "after" | "before" | "both" | "behind", parallel: boolean,
 *            rms: boolean, offset: number, embed: {scale: number, first: number, padding: number | null, projects_first: boolean},
 *            head: {activation: string | null, scale: number, softcap: number | null}, ends: number[]}} Design
 *            the options of a family; see engine.py
 * @typedef {{name: string, sizes: Sizes, design: Design, parameters: Record<string, Float32Array>, tokenizer: Tokenizer}} Model
 * @typedef {{b64: string, scale?: string}} Packed  a parameter, see unpacked
 */

/**
 * The model that engine.py has written into a page, as numbers to compute with.
 * @param {{name: string, sizes: Sizes, design: Design, parameters: Record<string, Packed>, tokenizer: any}} written
 * @returns {Model}
 */
export function readModel({ name, sizes, design, parameters, tokenizer }) {
  const halves = Float32Array.from({ length: 65536 }, (_, bits) => half(bits)); // all that float16 has
  /** @type {Record<string, Float32Array>} */
  const read = {};
  for (const [part, packed] of Object.entries(parameters)) read[part] = unpacked(packed, halves);
  return { name, sizes, design, parameters: read, tokenizer: { ...readTokenizer(tokenizer), mask: sizes.mask ?? null } };
}

/**
 * A float16 from its bits: one for the sign, five for the power of two, ten for the fraction.
 * @param {number} bits
 */
function half(bits) {
  const [sign, power, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, (bits & 1023) / 1024];
  if (power === 31) return fraction ? NaN : sign * Infinity;
  return sign * (power ? (1 + fraction) * 2 ** (power - 15) : fraction * 2 ** -14);
}

/**
 * Base64 of float16, the lower byte first, looked up in a table of what its bits mean; or, where there are scales,
 * which are such float16, of rows of int8, each of which is multiplied by its scale.
 * @param {Packed} packed
 * @param {Float32Array} halves
 * @returns {Float32Array}
 */
function unpacked({ b64, scale }, halves) {
  const text = atob(b64);
  const scales = scale && unpacked({ b64: scale }, halves);
  const found = new Float32Array(text.length / (scales ? 1 : 2));
  for (let i = 0; i < found.length; i++)
    found[i] = scales
      ? ((text.charCodeAt(i) << 24) >> 24) * scales[Math.floor((i * scales.length) / found.length)]
      : halves[text.charCodeAt(2 * i) | (text.charCodeAt(2 * i + 1) << 8)];
  return found;
}
