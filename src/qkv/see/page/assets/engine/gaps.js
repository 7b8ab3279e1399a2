// Where a word is missing in a text, however that is typed: the same as src/qkv/text/gaps.py.

import { escaped } from "./patterns.js";

const GAPS = /\[MASK\]|\[mask\]|(?<![\p{L}\p{N}_])_+(?![\p{L}\p{N}_])|(?<= )\?(?![ \t\r\n]*$)/gu;

/**
 * The gaps of a text: "[MASK]", "[mask]", "_" or more of them that touch no letter or digit, "?" behind a blank and
 * before more of the text.
 * @param {string} text
 * @returns {{start: number, end: number}[]}  each is text.slice(start, end)
 */
export function gapsOf(text) {
  const found = /** @type {Iterable<RegExpExecArray>} */ (text.matchAll(GAPS));
  return Array.from(found, ({ 0: gap, index }) => ({ start: index, end: index + gap.length }));
}

/**
 * A text whose gaps are written as the mask token, and the way back: from a place in it, and whether that is the end
 * of a part (1) or its start (0), to the place in the text as it was given.
 * @param {string} text
 * @param {string | null} mask  null leaves the text as it is
 * @returns {{text: string, given: (place: number, side: 0 | 1) => number}}
 */
export function masked(text, mask) {
  if (mask === null) return { text, given: (place) => place };
  /** @type {{start: number, end: number, at: number}[]} */
  const gaps = []; // each with its place in the text that is written
  let shift = 0;
  const written = text.replace(new RegExp(`${escaped(mask)}|${GAPS.source}`, "gu"), (gap, start) => {
    gaps.push({ start, end: start + gap.length, at: start + shift });
    shift += mask.length - gap.length;
    return mask;
  });
  return {
    text: written,
    given: (place, side) => {
      const gap = gaps[gaps.findLastIndex(({ at }) => at <= place - side)];
      const beyond = gap && place - gap.at - mask.length;
      return !gap ? place : beyond >= 0 ? gap.end + beyond : side ? gap.end : gap.start;
    },
  };
}
