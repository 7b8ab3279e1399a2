// Where a word is missing in a text, however that is typed: the same as src/qkv/text/gaps.py.

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
