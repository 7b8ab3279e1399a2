// The run of a second text, which the page shows beside the reader's first text.

import { alongside } from "./alongside.js";
import { isSwap, moved, usualPosition, wordsOf } from "./positions.js";

/** @typedef {import("./alongside.js").Both} Both */
/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("./state.js").PlayState} PlayState */
/** @typedef {import("../engine/api.js").Run} Run */

/**
 * The data about the second text; `axis` aligns its tokens with the tokens of the first text.
 * @typedef {object} Second
 * @property {string} text
 * @property {Run} run  the run of the second text, with the edits that fit this text
 * @property {Edit[]} edits
 * @property {number | null} position  the position of its chosen word
 * @property {Both[]} axis
 */

/**
 * The run of the second text of a state; null if the state has no second text.
 * @param {Api} engine
 * @param {PlayState} state  the positions in the state belong to the text of the run `first`
 * @param {Run} first  the run of its first text, without edits
 * @param {any} model
 * @param {AbortSignal} signal
 * @returns {Promise<Second | null>}
 */
export async function secondOf(engine, state, first, model, signal) {
  const { second: text, layer } = state;
  if (text === null) return null;
  const plain = await engine.run(text, [], { at: [], signal });
  signal.throwIfAborted();
  const axis = alongside(first.tokens, plain.tokens);
  /** @param {number} token */
  const same = (token) => (first.tokens[token] === plain.tokens[partnerOf(axis, token) ?? -1] ? partnerOf(axis, token) : null);
  const alike = axis.every(([one, other]) => one === other);
  const edits = state.edits.map((edit) => (isSwap(edit) ? null : moved(edit, same, alike))).filter(Boolean);
  const [usual, own] = [usualPosition(text, plain, model), usualPosition(state.text, first, model)];
  const position = state.position === own ? usual : partnerOf(axis, state.position) ?? usual;
  const run = await engine.run(text, edits, { at: position === null ? [] : [position], layers: [layer], signal });
  run.words = wordsOf(text, plain, model);
  return { text, run, edits, position, axis };
}

/**
 * The position in the second text that matches a token of the first text; null if no position matches.
 * @param {Both[]} axis
 * @param {number | null} token
 */
export function partnerOf(axis, token) {
  return token === null ? null : (axis.find(([one]) => one === token)?.[1] ?? null);
}
