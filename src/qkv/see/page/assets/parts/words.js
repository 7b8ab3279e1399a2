// Words and phrases that several parts use.

import { word } from "../base/elements.js";
import { cut, named, number } from "../base/format.js";
import { range } from "../base/arrays.js";
import { OPS } from "../engine/edits.js";

/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../store/state.js").PlayState} PlayState */

/**
 * @typedef {string | {word: string}} Said  part of a sentence: a string with the page's own wording, or an object
 *     whose `word` is a word of the text or of the vocabulary
 */

/**
 * Returns the word that contains a token, or the token if no word contains it.
 * @param {Pick<Run, "words" | "tokens">} run
 * @param {number} token
 */
export function nameIn({ words = [], tokens }, token) {
  return words.find(([first, end]) => first <= token && token < end)?.[2] ?? tokens[token];
}

/**
 * "a", "a and b", "a, b and c", "a, b and 3 more".
 * @param {Said[]} words
 * @returns {Said[]}
 */
export function listOf(words) {
  const last = words.length > 4 ? `${words.length - 3} more` : words.at(-1);
  const front = words.length > 4 ? words.slice(0, 3) : words.slice(0, -1);
  const listed = front.flatMap((one, i) => [i ? ", " : "", one]);
  return front.length ? [...listed, " and ", last] : [last];
}

/**
 * Converts a sentence to nodes or to text.
 * @param {Said[]} parts
 */
export function spelled(parts) {
  return parts.map((part) => (typeof part === "string" ? part : word(part.word)));
}

/** @param {Said[]} parts */
export function plainOf(parts) {
  return parts.map((part) => (typeof part === "string" ? part : named(part.word))).join("");
}

/**
 * The factor by which the model multiplies a layer's scores: the factor from the model's settings or, by default, 1/√d,
 * where d is the size of a head.
 * @param {any} model
 * @param {number} layer
 */
export function usualScale(model, layer) {
  return model.scales?.[layer][1] ?? 1 / Math.sqrt(model.dim / model.heads);
}

/**
 * Converts a factor of the attention scores to a temperature of the attention softmax, and returns it in words.
 * (Sampling has a different temperature.) If the usual factors of the layers differ, no single temperature is correct for
 * all layers, so the words name the factor.
 * @param {any} model
 * @param {number} value
 */
export function heatWords(model, value) {
  const [usual, ...others] = range(0, model.layers).map((layer) => usualScale(model, layer));
  return others.some((other) => other !== usual) ? `attention scores times ${number(value)}` : `attention temperature ${number(usual / value)}`;
}

const QUOTED = 40; // a sentence quotes at most this many characters of a text
/** @type {Record<string, (layer: number) => string>} */
const STREAMS = {
  resid_pre: (layer) => `the residual stream before layer ${layer}`,
  resid_post: (layer) => `the residual stream after layer ${layer}`,
  attn_out: (layer) => `what attention adds in layer ${layer}`,
  mlp_out: (layer) => `what the MLP adds in layer ${layer}`,
};
/** @type {Record<string, string>} */
const OF_HEADS = { z: "output", q: "queries", k: "keys", v: "values", pattern: "attention pattern" };

/**
 * The plain name of an activation.
 * @param {Edit} edit  an edit with the field `at`
 * @param {any} model
 */
function activationOf({ at = "", layer = 0, head }, { heads, kv_heads = heads }) {
  if (at in STREAMS) return STREAMS[at](layer);
  if (!(at in OF_HEADS)) return at; // only a server or Python edits these activations
  const kind = ["k", "v"].includes(at) && kv_heads < heads ? "key-value head" : "head";
  return head === undefined ? `the ${OF_HEADS[at]} of all heads of layer ${layer}` : `the ${OF_HEADS[at]} of ${kind} ${layer}.${head}`;
}

/**
 * The edit that `state.steer` describes, if it exists.
 * @param {Pick<PlayState, "edits" | "steer">} state
 */
export function steeringOf({ edits, steer }) {
  return steer ? edits.findLast(({ op, at }) => op === "add" && at === "resid_pre") : undefined;
}

/**
 * Describes an edit by the words in `OPS`: the name of the activation, and its change.
 * @param {Edit} edit
 * @param {{state: Pick<PlayState, "edits" | "steer">, model: any}} now
 * @param {(token: number) => Said} named
 * @returns {Said[]}
 */
export function changeWords(edit, { state, model }, named) {
  const { op, at, token, from } = edit;
  const { words } = OPS[op];
  if (!words) throw new RangeError(`the edit "${op}" has no words`);
  /** @param {string} text */
  const quoted = (text) => ["“", { word: cut(text, QUOTED) }, "”"];
  const what = [at === undefined ? op : activationOf(edit, model), ...(token === undefined ? [] : [" at ", named(token)])];
  const { towards, away, strength } = (edit === steeringOf(state) && state.steer) || {};
  if (towards === undefined) return [...what, ` ${words}`, ...(from === undefined ? [] : [" ", ...quoted(from)])];
  return [...what, " steered ", ...(away ? ["from ", ...quoted(away), " "] : []), "towards ", ...quoted(towards), ` (strength ${number(strength)})`];
}
