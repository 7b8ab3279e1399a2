// The pre-tokenizers of a tokenizer.json: how each kind cuts a text into words, which are then cut into tokens.

import { BYTES } from "../base/tokens.js";
import { patternOf } from "./patterns.js";
import { behind, changed, matchesOf, partOf, replaced } from "./spans.js";

/** @typedef {import("./spans.js").Piece} Piece */
/** @typedef {(piece: Piece) => Piece[]} Cutter */
/** @typedef {[first: number, last: number, matched: boolean]} Span  a part of a text; `matched` is true if the part matches the pattern */

const BLANK = /\p{White_Space}/gu;
const PUNCTUATION = /[\p{P}$+<=>^\x60|~]/gu; // punctuation, and the ASCII signs that Unicode counts as symbols
const DIGIT = /\p{N}/gu;
const GPT2 = patternOf({ Regex: "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" });
const ENCODER = new TextEncoder();

/** @type {Record<string, (rules: any) => Cutter>} */
const KINDS = {
  Sequence: ({ pretokenizers }) => inTurn(pretokenizers.map(pretokenizerOf)),
  BertPreTokenizer: () => inTurn([split(BLANK, "Removed"), split(PUNCTUATION, "Isolated")]),
  WhitespaceSplit: () => split(BLANK, "Removed"),
  Punctuation: ({ behavior }) => split(PUNCTUATION, behavior),
  Digits: ({ individual_digits: each }) => split(DIGIT, each ? "Isolated" : "Contiguous"),
  Split: ({ pattern, behavior, invert }) => split(patternOf(pattern), behavior, invert),
  ByteLevel: ({ add_prefix_space: prefix, use_regex: cut = true }) => {
    const words = cut ? split(GPT2, "Isolated") : (/** @type {Piece} */ piece) => [piece];
    return (piece) => words(prefix && piece.text[0] !== " " ? behind(piece, " ") : piece).map(inBytes);
  },
  Metaspace: ({ replacement, prepend_scheme: scheme = "always", split: cut = true }) => {
    const words = split(patternOf({ String: replacement }), "MergedWithNext");
    return (piece) => {
      const blank = replaced(piece, / /g, replacement);
      const first = scheme === "always" || (scheme === "first" && piece.start === 0);
      const whole = first && !blank.text.startsWith(replacement) ? behind(blank, replacement) : blank;
      return cut ? words(whole) : [whole];
    };
  },
};

/**
 * Returns the function that cuts texts as the pre-tokenizer of a `tokenizer.json` says.
 * @param {any} rules  null if the file has no pre-tokenizer
 * @returns {Cutter}
 */
export function pretokenizerOf(rules) {
  return rules ? KINDS[rules.type](rules) : (piece) => [piece];
}

/**
 * @param {Cutter[]} steps
 * @returns {Cutter}
 */
function inTurn(steps) {
  return (piece) => steps.reduce((pieces, step) => pieces.flatMap(step), [piece]);
}

/** @type {(piece: Piece) => Piece} */
const inBytes = (piece) => changed(piece, (mark) => Array.from(ENCODER.encode(mark), (byte) => BYTES[byte]));

/** @type {Record<string, (spans: Span[]) => Span[]>} */
const BEHAVIORS = {
  Isolated: (spans) => spans,
  Removed: (spans) => spans.filter(([, , matched]) => !matched),
  Contiguous: (spans) => joined(spans, (matched, before) => matched === before),
  MergedWithPrevious: (spans) => joined(spans, (matched, before) => matched && !before),
  MergedWithNext: (spans) => joined(spans.reverse(), (matched, before) => matched && !before).reverse(),
};

/**
 * Cuts a text at the matches of a pattern.
 * @param {RegExp} pattern
 * @param {string} behavior  what happens to a match: it is removed, isolated, or merged with a neighbour
 * @param {boolean} invert  whether the parts between matches count as matches
 * @returns {Cutter}
 */
function split(pattern, behavior, invert = false) {
  return (piece) => {
    /** @type {Span[]} */
    const spans = [];
    const { text } = piece;
    let last = 0;
    for (const { 0: { length }, index } of matchesOf(text, pattern)) {
      if (index > last) spans.push([last, index, invert]);
      last = index + length;
      spans.push([index, last, !invert]);
    }
    if (last < text.length) spans.push([last, text.length, invert]);
    const kept = BEHAVIORS[behavior](spans).filter(([first, end]) => end > first);
    return kept.map(([first, end]) => partOf(piece, first, end));
  };
}

/**
 * Joins neighbouring spans. For each span after the first, calls `joins` with two flags: `matched` of this span, and
 * `matched` of the span before it. If the result is true, the two spans become one.
 * @param {Span[]} spans
 * @param {(matched: boolean, before: boolean) => boolean} joins
 */
function joined(spans, joins) {
  /** @type {Span[]} */
  const all = [];
  let before = false;
  for (const [first, last, matched] of spans) {
    const one = all.at(-1);
    if (all.length && joins(matched, before)) [one[0], one[1]] = [Math.min(one[0], first), Math.max(one[1], last)];
    else all.push([first, last, matched]);
    before = matched;
  }
  return all;
}
