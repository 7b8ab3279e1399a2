// Positions in a text: the tokens of its words, the text after swaps, and the position of a token in another text.

import { plainName } from "../base/tokens.js";
import { editsOf, OPS } from "../engine/edits.js";
import { stateOf } from "./state.js";

/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("./state.js").PlayState} PlayState */
/** @typedef {import("../engine/api.js").Run} Run */

/**
 * The words of a text as tokens: [first, last + 1, word]. Tokens that the tokenizer added are left out.
 * @param {string} text
 * @param {Run} run  of this text, without edits
 * @param {any} model
 * @returns {[number, number, string][]}
 */
export function wordsOf(text, { tokens, offsets, special }, model) {
  /** @type {[number, number, string][]} */
  const words = [];
  tokens.forEach((token, t) => {
    if (special[t]) return;
    const before = words.at(-1);
    const [from, last] = [offsets[t][0], before && before[1] === t ? offsets[t - 1][1] : -1];
    const blank = before && token !== maskOf(model) && !text.slice(offsets[before[0]][0], last).trim();
    if (before && (from < last || (from === last && (blank || isPiece(token, text, from))))) before[1] = t + 1;
    else words.push([t, t + 1, ""]);
  });
  /** @param {number} first @param {number} last */
  const name = (first, last) => text.slice(offsets[first][0], offsets[last - 1][1]).trim();
  return words.map(([first, last]) => [first, last, tokens[first] === maskOf(model) ? tokens[first] : name(first, last)]);
}

/**
 * Returns the text that the model reads after the edits. Also sets the property `words` of each run to the words of the run's text.
 * @param {string} text
 * @param {Run} original  of this text, without edits
 * @param {Run} run  the run with edits; the original run if there are no edits
 * @param {Edit[]} edits
 * @param {any} model
 */
export function withWords(text, original, run, edits, model) {
  original.words ??= wordsOf(text, original, model);
  const read = withSwaps(text, original, edits);
  if (run !== original) [run.offsets, run.words] = [read.offsets, wordsOf(read.text, { ...run, ...read }, model)];
  return read.text;
}

/** @param {Edit} edit */
export function isSwap({ op }) {
  return op === "swap";
}

/**
 * A text after some words are swapped, and the position of each token in the new text.
 * @param {string} text
 * @param {Run} run  of this text, without edits
 * @param {Edit[]} edits
 * @returns {{text: string, offsets: [number, number][]}}
 */
function withSwaps(text, { offsets }, edits) {
  const put = new Map(editsOf(edits, "swap").map(({ token, with: name }) => [token, name]));
  if (!put.size) return { text, offsets };
  let [rewritten, last] = ["", 0];
  /** @type {[number, number][]} */
  const moved = offsets.map(([start, end], t) => {
    if (start === end) return [start, end]; // the tokenizer added this token, so the token has no characters
    const own = text.slice(start, end);
    rewritten += text.slice(last, start);
    last = end;
    const name = put.has(t) ? plainName(put.get(t)).replace(/^##(?=.)/, "") : own.trimStart();
    const begins = put.has(t) && !put.get(t).startsWith("##") && /[\p{L}\p{N}]$/u.test(rewritten) && /^[\p{L}\p{N}]/u.test(name);
    rewritten += own.slice(0, own.length - own.trimStart().length) || (begins ? " " : "");
    const first = rewritten.length;
    rewritten += name;
    return [first, rewritten.length];
  });
  return { text: rewritten + text.slice(last), offsets: moved };
}

/**
 * Whether a token continues the word of the token before it. WordPiece marks such a token with ##. For other
 * tokenizers, a token continues a word if there are letters on both sides of its start, or an emoji of several parts.
 * @param {string} token
 * @param {string} text
 * @param {number} at
 */
function isPiece(token, text, at) {
  const letters = /[\p{Script=Latin}\p{Script=Cyrillic}\p{Script=Greek}\p{M}]/u;
  const [before, next] = [text.slice(0, at).slice(-1), text.slice(at, at + 2)];
  const inEmoji = before === "\u200d" || /^[\u200d\ufe0f\p{Emoji_Modifier}]/u.test(next);
  return token.startsWith("##") || inEmoji || (letters.test(before) && letters.test(next[0] ?? ""));
}

/**
 * Returns a state whose positions fit the tokens of this run. Throws an error if the model lacks the state's head.
 * @param {PlayState} state
 * @param {Run} run  of its text
 * @param {{text: string, run: Run} | null} before  the earlier text, if the positions in the state still refer to it; otherwise null
 * @param {any} model
 */
export function placed(state, run, before, model) {
  const { text, layer, head } = state;
  if (!(layer < model.layers && head < model.heads)) throw new RangeError(`There is no head ${layer}.${head} in this model.`);
  /** @param {number | null} position */
  const own = (position) => (position !== null && position < run.tokens.length ? position : null);
  const at = before ? carried(before, text, run) : own;
  const edits = before ? state.edits.map((edit) => moved(edit, at, before.run.tokens.length === run.tokens.length)) : state.edits;
  const usual = usualPosition(text, run, model);
  const stays = before && state.position === usualPosition(before.text, before.run, model) ? null : at(state.position);
  const position = stays ?? usual;
  return stateOf({ ...state, edits: edits.filter(Boolean), position, query: at(state.query) ?? position });
}

/**
 * The token in a text that stands for a missing word.
 * @param {any} model
 */
export function maskOf(model) {
  return model?.mask ?? "[MASK]";
}

/**
 * Whether the model guesses a missing word: at the position there is a mask token.
 * @param {{run: Run, state: PlayState, model: any}} now
 */
export function isGap({ run, state, model }) {
  return !model.next && run.tokens[state.position ?? -1] === maskOf(model);
}

/**
 * The position of the first mask token or, in a text without a mask token, of the last word with letters or
 * digits; null if there is no such word. For a decoder, the position of the last token.
 * @param {string} text
 * @param {Run} run
 * @param {any} model
 */
export function usualPosition(text, run, model) {
  if (model.next) return run.tokens.length ? run.tokens.length - 1 : null;
  const mask = run.tokens.findIndex((token, t) => token === maskOf(model) && !run.special[t]);
  if (mask >= 0) return mask;
  return wordsOf(text, run, model).findLast(([, , word]) => /[\p{L}\p{N}]/u.test(word))?.[0] ?? null;
}

/**
 * The position of a token in another text with the same beginning or end; null if the other text lacks the token.
 * @param {{text: string, run: Run}} before
 * @param {string} text
 * @param {Run} run
 */
function carried(before, text, run) {
  const old = before.text;
  const least = Math.min(old.length, text.length);
  let [begin, end] = [0, 0];
  while (begin < least && old[begin] === text[begin]) begin += 1;
  while (end < least - begin && old.at(-1 - end) === text.at(-1 - end)) end += 1;
  return (/** @type {number | null} */ position) => {
    if (position === null || !(position in before.run.offsets)) return null;
    const [[first, last], name] = [before.run.offsets[position], before.run.tokens[position]];
    if (before.run.special[position]) return position ? run.tokens.length - 1 : 0;
    const shift = last <= begin ? 0 : first >= old.length - end ? text.length - old.length : null;
    const there = shift === null ? -1 : run.offsets.findIndex(([a, b], t) => a === first + shift && b === last + shift && !run.special[t]);
    return there >= 0 && (run.tokens[there] === name || before.run.tokens.length === run.tokens.length) ? there : null;
  };
}

/**
 * Converts the positions in an edit to positions in another text. Returns null if the other text lacks a token of the edit.
 * @param {any} edit
 * @param {(position: number) => number | null} at
 * @param {boolean} alike  whether both texts have the same number of tokens; if not, an edit with numbers for all
 *     tokens cannot be converted
 */
export function moved(edit, at, alike) {
  const names = ["token", "query", "key"].filter((name) => edit[name] !== undefined);
  const positions = names.map((name) => [name, at(edit[name])]);
  if (positions.some(([, position]) => position === null) || (!alike && OPS[edit.op].whole?.(edit))) return null;
  return { ...edit, ...Object.fromEntries(positions) };
}
