// The normalizers of a tokenizer.json: how each kind changes a text before it is cut into words. Which characters are
// marks depends on the browser's version of Unicode, which may be newer than the version in the tokenizers library.

import { patternOf } from "./patterns.js";
import { behind, changed, madeOf, marksOf, partOf, replaced } from "./spans.js";

/** @typedef {import("./spans.js").Piece} Piece */
/** @typedef {(piece: Piece) => Piece} Normalizer */

const CONTROL = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\ufffd]/u; // unreadable characters, including one half of a surrogate pair
const KEPT = "\t\n\r"; // control characters that count as blanks
const BLANK = /\p{White_Space}/u;
const ACCENT = /\p{Mn}/u; // a mark above or below the letter before it
const CHINESE = /[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{2a6df}\u{2a700}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/u;

/** @type {Record<string, (rules: any) => Normalizer>} */
const KINDS = {
  Sequence: ({ normalizers }) => inTurn(normalizers.map(normalizerOf)),
  BertNormalizer: ({ clean_text: clean, handle_chinese_chars: chinese, strip_accents: strip, lowercase: lower }) =>
    inTurn([clean && cleaned, chinese && apart, (strip ?? lower) && unaccented, lower && lowered].filter(Boolean)),
  NFC: () => composed("NFC", "NFD"),
  NFD: () => composed("NFD", "NFD"),
  NFKC: () => composed("NFKC", "NFKD"),
  NFKD: () => composed("NFKD", "NFKD"),
  Lowercase: () => lowered,
  StripAccents: () => (piece) => changed(piece, (mark) => (/\p{M}/u.test(mark) ? "" : mark)),
  Strip: ({ strip_left: left, strip_right: right }) => (piece) => {
    const [all, kept] = [piece.text, right ? piece.text.replace(/\p{White_Space}+$/u, "") : piece.text];
    const first = left ? all.search(/\P{White_Space}|$/u) : 0;
    return partOf(piece, first, kept.length);
  },
  Replace: ({ pattern, content }) => {
    const wanted = patternOf(pattern);
    return (piece) => replaced(piece, wanted, content);
  },
  Prepend: ({ prepend }) => (piece) => behind(piece, prepend),
};

/**
 * Returns the function that changes texts as the normalizer of a `tokenizer.json` says.
 * @param {any} rules  null if the file has no normalizer
 * @returns {Normalizer}
 */
export function normalizerOf(rules) {
  return rules ? KINDS[rules.type](rules) : (piece) => piece;
}

/**
 * @param {Normalizer[]} steps
 * @returns {Normalizer}
 */
function inTurn(steps) {
  return (piece) => steps.reduce((last, step) => step(last), piece);
}

/** @type {Normalizer} */
const cleaned = (piece) =>
  changed(piece, (mark) => (CONTROL.test(mark) && !KEPT.includes(mark) ? "" : BLANK.test(mark) ? " " : mark));

/** @type {Normalizer} */
const apart = (piece) => changed(piece, (mark) => (CHINESE.test(mark) ? ` ${mark} ` : mark)); // each of these characters is a word

/** @type {Normalizer} */
const unaccented = (piece) => changed(composed("NFD", "NFD")(piece), (mark) => (ACCENT.test(mark) ? "" : mark));

/** @type {Normalizer} */
const lowered = (piece) => changed(piece, (mark) => mark.toLowerCase());

/**
 * Converts a text to a normal form of Unicode. If several old characters are joined, the new character has the position of the first old
 * character. If an old character is split, all new characters have its position.
 * @param {string} form
 * @param {string} parts  the form that decomposes all characters
 * @returns {Normalizer}
 */
function composed(form, parts) {
  return (piece) => {
    const text = piece.text.normalize(form);
    if (text === piece.text) return piece;
    const marks = marksOf(piece);
    // The form `parts` decomposes each character of the old text into one or more code points. For each code point, `firsts` has a stack
    // of flags, one for each occurrence of the code point in the decomposed text. The flag of an occurrence is 1 if a character of the old
    // text begins there, and 0 otherwise. The top of the stack is the flag of the first occurrence of the
    // code point.
    /** @type {Map<string, number[]>} */
    const firsts = new Map();
    for (const [mark] of [...marks].reverse())
      for (const [i, part] of Array.from(mark.normalize(parts)).map((one, i) => /** @type {[number, string]} */ ([i, one])).reverse()) {
        if (!firsts.has(part)) firsts.set(part, []);
        /** @type {number[]} */ (firsts.get(part)).push(i ? 0 : 1);
      }
    let next = 0;
    return madeOf(Array.from(text, (mark) => {
      let count = 0;
      for (const part of mark.normalize(parts)) count += firsts.get(part)?.pop() ?? 0;
      const [, from, to] = marks[count ? next : Math.max(next - 1, 0)];
      next += count;
      return [mark, from, to];
    }), piece.start);
  };
}
