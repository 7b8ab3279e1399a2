// The gaps of a text, in each notation that a reader may type. The rules are the same as in src/qkv/text/gaps.py.

import { GAP } from "../base/format.js";
import { escaped } from "./patterns.js";

const GAPS = /\[MASK\]|\[mask\]|(?<![\p{L}\p{N}_])_+(?![\p{L}\p{N}_])|(?<= )\?(?![ \t\r\n]*$)/gu;

/**
 * Finds the gaps of a text. "[MASK]" and "[mask]" are gaps. Underscores are a gap if no letter or digit is next to
 * them. A "?" is a gap if it follows a space and is not at the end of the text.
 * @param {string} text
 * @returns {{start: number, end: number}[]}  each gap is `text.slice(start, end)`
 */
export function gapsOf(text) {
  const matches = /** @type {Iterable<RegExpExecArray>} */ (text.matchAll(GAPS));
  return Array.from(matches, ({ 0: gap, index }) => ({ start: index, end: index + gap.length }));
}

// A text with the sign of a gap in place of each mask token, unless the model would read it otherwise.
/** @param {string} text @param {any} model */
export function withSigns(text, { mask }) {
  return mask ? text.replace(new RegExp(`(?<![\\p{L}\\p{N}_\\]>])${escaped(mask)}(?![\\p{L}\\p{N}_[<])`, "gu"), GAP) : text;
}

/**
 * Replaces each gap of a text with the mask token. `toOriginal` converts a position in the new text to the position in
 * the original text. For a position inside a mask token, it returns the gap's start (side 0) or end (side 1).
 * @param {string} text
 * @param {string | null} mask  null leaves the text unchanged
 * @returns {{text: string, toOriginal: (position: number, side: 0 | 1) => number}}
 */
export function masked(text, mask) {
  if (mask === null) return { text, toOriginal: (position) => position };
  /** @type {{start: number, end: number, at: number}[]} */
  const gaps = []; // the gaps, each with its position in the new text
  let shift = 0;
  const written = text.replace(new RegExp(`${escaped(mask)}|${GAPS.source}`, "gu"), (gap, start) => {
    gaps.push({ start, end: start + gap.length, at: start + shift });
    shift += mask.length - gap.length;
    return mask;
  });
  return {
    text: written,
    toOriginal: (position, side) => {
      const gap = gaps[gaps.findLastIndex(({ at }) => at <= position - side)];
      const beyond = gap && position - gap.at - mask.length;
      return !gap ? position : beyond >= 0 ? gap.end + beyond : side ? gap.end : gap.start;
    },
  };
}
