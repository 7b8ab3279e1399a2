// Text generation with a decoder, token by token. Each token is chosen from the logits after the previous token. The
// keys and values of earlier tokens are kept (the key/value cache), so that only one row goes through the layers for
// a new token.

import { changed, OPS } from "./edits.js";
import { attention, embed, forward, handedOn, logitsAt, metIn, projections, rest } from "./engine.js";
import { chosenFrom, randomFrom } from "./sampling.js";

/** @typedef {import("./edits.js").Edit} Edit */
/** @typedef {import("./layers.js").Numbers} Numbers */
/** @typedef {import("./memory.js").Memory} Memory */
/** @typedef {import("./model.js").Model} Model */

/** @typedef {import("./sampling.js").Choice} Choice */

/**
 * The results for the last token that was read: the token's vector, and its attention weights (H, T) in each layer.
 * @typedef {{vector: Numbers, looked: Numbers[]}} Read
 *
 * A new token, with its probability without temperature, the likeliest tokens at this position, and the attention weights of the previous
 * token: T weights for each layer and head.
 * @typedef {{id: number, probability: number, likeliest: [number, number][], looked: Float32Array[][]}} Chosen
 */


/** The key/value cache: the tokens that were read, and the keys and values of these tokens in each layer. */
export class Cache {
  constructor() {
    this.key = "";
    /** @type {number[]} */
    this.ids = [];
    /** @type {{k: Numbers, v: Numbers}[]} */
    this.layers = [];
  }

  /**
   * Keeps only the first tokens.
   * @param {number} count
   */
  cut(count) {
    const kept = (/** @type {Numbers} */ array) => array.slice(0, (array.length / this.ids.length) * count);
    this.layers = this.layers.map(({ k, v }) => ({ k: kept(k), v: kept(v) }));
    this.ids = this.ids.slice(0, count);
  }
}

/**
 * Generates new tokens after a prompt. The generator pauses before each layer, and yields each new token.
 * @param {Model} model
 * @param {Memory} memory
 * @param {Cache} cache  tokens from the last call are not read again
 * @param {number[]} ids  the prompt, (T)
 * @param {Edit[]} edits  edits of the prompt; an edit that is not limited to tokens of the prompt applies to new tokens too
 * @param {Choice} choice
 * @returns {Generator<Chosen | void, void>}
 */
export function* generateTokens(model, memory, cache, ids, edits, choice) {
  const { max, seed, begun } = choice;
  const { most } = model.sizes;
  const later = edits.filter(({ op, at, token }) => !OPS[op].prompt && (at === undefined || token === undefined));
  const draw = randomFrom(seed);
  const key = JSON.stringify([ids, edits]);
  let read = cache.key === key && begun.length ? null : yield* prompted(model, memory, cache, ids, edits);
  cache.key = key;
  const all = [...ids, ...begun];
  if (!read) {
    const same = all.findIndex((id, position) => id !== cache.ids[position]);
    cache.cut(Math.max(ids.length, same < 0 ? all.length - 1 : same)); // the last token is read again, because its vector is needed
  }
  for (const id of all.slice(cache.ids.length)) read = yield* next(model, cache, id, later);
  for (let count = begun.length; count < max && !(most && all.length >= most); count++) {
    const { vector, looked } = /** @type {Read} */ (read);
    const one = chosenFrom(logitsAt(model, vector, [0]), choice, draw);
    const { id } = one;
    yield { ...one, looked: headsOf(looked, all.length) };
    all.push(id);
    if (model.design.ends.includes(id)) return;
    if (count + 1 < max) read = yield* next(model, cache, id, later);
  }
}

/**
 * Reads the prompt.
 * @param {Model} model
 * @param {Memory} memory
 * @param {Cache} cache
 * @param {number[]} ids
 * @param {Edit[]} edits
 * @returns {Generator<void, Read>}
 */
function* prompted(model, memory, cache, ids, edits) {
  const T = ids.length;
  const [, ...steps] = yield* forward(model, memory, ids, edits);
  cache.ids = ids.slice();
  cache.layers = steps.map((step) => metIn(/** @type {any} */ (step)));
  const last = handedOn(/** @type {any} */ (steps.at(-1)));
  const looked = steps.map(({ pattern }) => joined(model, pattern.map((/** @type {Numbers} */ one) => one.subarray((T - 1) * T))));
  return { vector: last.slice((T - 1) * model.sizes.dim), looked };
}

/**
 * Reads one more token.
 * @param {Model} model
 * @param {Cache} cache
 * @param {number} id
 * @param {Edit[]} edits
 * @returns {Generator<void, Read>}
 */
function* next(model, cache, id, edits) {
  const first = cache.ids.length;
  let x = embed(model, [id], first).full_embed;
  /** @type {Numbers[]} */
  const looked = [];
  for (let l = 0; l < model.sizes.layers; l++) {
    const own = edits.filter(({ layer }) => layer === undefined || layer === l);
    x = changed(own, "resid_pre", x, 1, model.sizes);
    const step = projections(model, l, x, 1, own, first);
    const { q, k, v } = metIn(/** @type {any} */ (step));
    const { layers } = cache;
    const known = { k: joined(model, [layers[l].k, k]), v: joined(model, [layers[l].v, v]) };
    const heads = attention(model, l, { q, ...known }, own, first);
    layers[l] = known;
    x = handedOn(rest(model, l, x, { ...step, ...heads }, 1, own));
    looked.push(joined(model, heads.pattern));
  }
  cache.ids.push(id);
  yield;
  return { vector: x, looked };
}

/** @param {Model} model @param {Numbers[]} arrays */
function joined({ ops }, arrays) {
  const out = new ops.Numbers(arrays.reduce((total, one) => total + one.length, 0));
  let at = 0;
  for (const one of arrays) {
    out.set(one, at);
    at += one.length;
  }
  return out;
}

/**
 * Splits each layer's attention weights (H * T) into one array (T) for each head.
 * @param {Numbers[]} looked
 * @param {number} T
 */
function headsOf(looked, T) {
  return looked.map((all) => Array.from({ length: all.length / T }, (_, h) => new Float32Array(all.subarray(h * T, (h + 1) * T))));
}
