// The interface to texts that were run when the page was written. It reads the payload, and computes nothing.

import { unpack } from "../base/arrays.js";

/** @typedef {import("./api.js").Run} Run */
/** @typedef {import("./edits.js").Edit} Edit */

/** @typedef {{b64: string, shape: number[], bits?: number, per?: number}} Packed */

/**
 * A text in the form that the functions below read: TEXT of payload.py, except that `special` has one flag per token
 * instead of the positions of the special tokens.
 * @typedef {object} Text
 * @property {string} name
 * @property {string[]} tokens
 * @property {string[] | null} keys  null: the tokens
 * @property {number[]} special 1 for special tokens, or else 0
 * @property {number[] | null} [key_special]
 * @property {[number, number, string][] | null} words  [first, last + 1, word]; null if no token is a subword
 * @property {[number, number, string][] | null} [key_words]
 * @property {number | null} [split]  the position at which a second sentence begins
 * @property {number[]} layers  their numbers
 * @property {number} heads
 * @property {number} length
 * @property {number} key_length
 * @property {Packed | boolean | null} hidden  for a recorded text: one bit per cell, 1 if it is masked; for a text that
 *     the page runs: whether any cell may be masked
 * @property {(number | null)[]} scale  the factor of the scores of each layer
 * @property {{top_k: number, indices: Packed, weights: Packed, received: Packed} | null} summary  the largest weights
 *     of a long text; null for other texts
 * @property {Packed | null} [norms]
 * @property {Record<string, number[][] | null>} [measures]  keyed by name, then by layer and head
 * @property {string[]} left_out
 */

/**
 * The functions that read the numbers of a text. l and h are indices of the layers and heads in the page; i and j are
 * a query and a key.
 * @typedef {object} Source
 * @property {Text} text
 * @property {string[]} keys
 * @property {number[]} keySpecial
 * @property {[number, number, string][] | null} keyWords
 * @property {(l: number, h: number, i: number, give: (j: number, weight: number) => void) => void} row calls
 * `give(j, weight)` for each weight that the page stores for query i
 * @property {(l: number, h: number, i: number, j: number) => boolean} hidden
 * @property {(l: number, h: number, i: number, j: number) => boolean} [changed]  whether the reader's changes hide the cell
 * @property {(l: number, h: number, j: number) => number | null} norm
 * @property {(l: number, h: number, j: number) => number} received
 * @property {(l: number, h: number, i: number, j: number) => number | null} score  the scaled score; -Infinity if masked, null if unknown
 */

/**
 * Converts a text of the payload to a run. For a long text, the payload contains only the largest weights, and the run
 * has no `pattern`.
 * @param {any} written  TEXT of payload.py
 * @returns {Run}
 */
function recordedRun(written) {
  /** @param {number[]} positions @param {number} count_ */
  const flags = (positions, count_) => positions && positions.reduce((all, i) => all.fill(1, i, i + 1), Array(count_).fill(0));
  const { special, key_special: others } = written;
  const text = { ...written, special: flags(special, written.length), key_special: flags(others, written.key_length) };
  const source = reader(text);
  const { heads, length: L, key_length: S } = text;
  /** @type {Float32Array[][]} */
  let pattern; // computed on the first request
  return {
    tokens: text.tokens,
    special: text.special.map(Boolean),
    source,
    get pattern() {
      if (!text.weights || pattern) return pattern;
      const all = unpack(text.weights);
      /** @param {number} l @param {number} h */
      const one = (l, h) => all.subarray((l * heads + h) * L * S, (l * heads + h + 1) * L * S);
      pattern = text.layers.map((/** @type {any} */ _, /** @type {number} */ l) => Array.from({ length: heads }, (__, h) => one(l, h)));
      return pattern;
    },
    resid: [],
    logits: new Float32Array(),
    ids: [],
    offsets: [],
    cut: false,
    blocks: {},
  };
}

/**
 * Opens the texts of a payload: returns an object that gets each text by its name.
 * @param {any} data  PAYLOAD of payload.py
 */
export function openRecorded(data) {
  /** @type {Run[]} */
  const runs = data.texts.map(recordedRun);
  /** @param {string} what */
  const refuse = (what) => Promise.reject(new Error(`${what} needs a model, but this page has only saved numbers.`));
  return {
    name: data.model,
    where: "recorded",
    runs,
    /** @param {string} text  the name of a text @param {Edit[]} edits */
    run(text, edits = []) {
      const which = data.texts.findIndex((/** @type {any} */ { name }) => name === text);
      return edits.length || which < 0 ? refuse(which < 0 ? "Another text" : "A change") : Promise.resolve(runs[which]);
    },
    sweep: () => refuse("Removing heads"),
  };
}

/**
 * The functions that read a text's packed numbers; l and h are indices of the layers and heads in the page.
 * @param {any} text
 * @returns {Source}
 */
function reader(text) {
  const { heads: H, length: L, key_length: S, summary } = text;
  /** @type {Record<string, any>} */
  const data = {};
  /** @param {string} name @param {any} packed */
  const once = (name, packed) => (data[name] ??= unpack(packed));
  /** @param {string} name @param {number} l @param {number} h @param {number} i @param {number} j */
  const bit = (name, l, h, i, j) => {
    const packed = text[name];
    if (!packed) return false;
    const [layers, heads] = packed.shape; // if an axis has length 1, all layers (or heads) use its only entry
    const index = (((layers > 1 ? l : 0) * heads + (heads > 1 ? h : 0)) * L + i) * S + j;
    return Boolean((once(name, { ...packed, bits: 8 })[index >> 3] >> (7 - (index & 7))) & 1);
  };
  /** @param {string} name @param {any} packed @param {number} l @param {number} h @param {number} j */
  const ofKey = (name, packed, l, h, j) => once(name, packed)[(l * H + h) * S + j];
  return {
    text,
    keys: text.keys || text.tokens,
    keySpecial: text.key_special || text.special,
    keyWords: text.key_words || (text.keys ? null : text.words),
    row(l, h, i, give) {
      const base = (l * H + h) * L + i;
      if (summary) {
        const [positions, weights] = [once("positions", summary.indices), once("top", summary.weights)];
        const none = summary.indices.bits === 32 ? 4294967295 : 65535;
        for (let t = base * summary.top_k; t < (base + 1) * summary.top_k; t++) {
          if (positions[t] !== none && weights[t]) give(positions[t], weights[t] / summary.weights.per);
        }
        return;
      }
      const weights = once("weights", text.weights);
      for (let j = 0; j < S; j++) give(j, weights[base * S + j]);
    },
    hidden: (l, h, i, j) => bit("hidden", l, h, i, j),
    norm: (l, h, j) => ofKey("norms", text.norms, l, h, j),
    received: (l, h, j) => ofKey("received", summary.received, l, h, j),
    score(l, h, i, j) {
      const packed = text.scores;
      const k = packed ? packed.layers.indexOf(text.layers[l]) : -1;
      if (k < 0) return null;
      return once("scores", packed)[((k * H + h) * L + i) * S + j];
    },
  };
}
