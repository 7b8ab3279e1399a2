// The parameters of a model, which engine.py has written into a page, and the design that describes their use.

import { HALVES } from "./blocks.js";
import { PLAIN } from "./layers.js";
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
 * @typedef {{name: string, sizes: Sizes, design: Design, parameters: Record<string, any>, tokenizer: Tokenizer,
 *            ops: import("./layers.js").Operations}} Model  each parameter is a Float32Array, or a matrix in blocks
 * @typedef {{b64: string, scale?: string}} Packed  a parameter; see `unpacked`
 */

/**
 * Unpacks a model that engine.py has written into a page. `ops` computes the model's results. A parameter in
 * bytes of its own has been read (see incoming.js).
 * @param {{name: string, sizes: Sizes, design: Design, parameters: Record<string, Packed | import("./blocks.js").Weight>, tokenizer: any}} written
 * @returns {Model}
 */
export function readModel({ name, sizes, design, parameters, tokenizer }, ops = PLAIN) {
  /** @type {Record<string, any>} */
  const read = {};
  for (const [part, one] of Object.entries(parameters)) read[part] = "b64" in one ? unpacked(one) : one;
  return { name, sizes, design, parameters: read, ops, tokenizer: { ...readTokenizer(tokenizer), mask: sizes.mask ?? null } };
}

/**
 * Unpacks base64 of little-endian float16. If `scale` is given, the
 * base64 holds rows of int8 instead, and each row is multiplied by its own float16 scale.
 * @param {Packed} packed
 * @returns {Float32Array}
 */
function unpacked({ b64, scale }) {
  const text = atob(b64);
  const scales = scale && unpacked({ b64: scale });
  const numbers = new Float32Array(text.length / (scales ? 1 : 2));
  for (let i = 0; i < numbers.length; i++)
    numbers[i] = scales
      ? ((text.charCodeAt(i) << 24) >> 24) * scales[Math.floor((i * scales.length) / numbers.length)]
      : HALVES[text.charCodeAt(2 * i) | (text.charCodeAt(2 * i + 1) << 8)];
  return numbers;
}
