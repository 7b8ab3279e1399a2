// The formats of numbers, tokens and texts for readers.

/**
 * A number with this many digits after the point; halves are rounded to the even digit, as in Python.
 * @param {number} x
 * @param {number} digits
 */
export function fixed(x, digits) {
  const size = Math.abs(x);
  const middle = (size * 2 ** (digits + 1)) % 2 === 1; // x is exactly halfway between two results, and toFixed would round up
  const even = (2 * Math.round((size * 10 ** digits) / 2)) / 10 ** digits;
  return `${x < 0 ? "−" : ""}${(middle ? even : size).toFixed(digits)}`;
}

/**
 * A number in a readable format: with fixed digits, or with a power of ten if fixed digits would show only zeros.
 * @param {number | null | undefined} x
 */
export function number(x, digits = 2) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x < 0 ? "−∞" : "∞";
  const size = Math.abs(x);
  const far = size >= 1e6 || (size > 0 && size < 0.5 * 10 ** -digits);
  return far ? x.toExponential(1).replaceAll("-", "−") : fixed(x, digits);
}

/**
 * A probability, an attention weight or another share, in per cent.
 * @param {number} x  from 0 to 1; a difference may be below 0
 */
export function percent(x) {
  const size = 100 * Math.abs(x);
  if (size > 0 && size < 0.1) return "under 0.1%";
  return `${fixed(100 * x, size > 0 && size < 9.95 ? 1 : 0)}%`;
}

/**
 * A weight at the end of a calculation: the exact number, and the number in per cent.
 * @param {number} x
 */
export function inBoth(x) {
  return `${number(x, 5)} = ${percent(x)}`;
}

/**
 * Extends an axis to multiples of a round step, of which it has at most five; as `Lines.axis` in draw/panels.py.
 * @param {number[]} values  the numbers that the axis contains
 */
export function roundEnds(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const unit = 10 ** Math.floor(Math.log10(high - low || Math.abs(high) || 1));
  const steps = [0.1, 0.2, 0.5, 1, 2, 5].map((part) => part * unit);
  const ends = steps.map((one) => [one, Math.floor(low / one + 1e-9), Math.ceil(high / one - 1e-9)]);
  const [step, first, last] = ends.find(([, low_, high_]) => high_ - low_ <= 5) ?? ends[5];
  return { low: first * step, high: last * step };
}

/**
 * A count with a separator between thousands.
 * @param {number} n
 */
export function count(n) {
  return n.toLocaleString("en");
}

export const MASKS = ["[MASK]", "<mask>"]; // the same mask tokens as in text/tokenizer.py
export const GAP = "___"; // the sign of a gap

// A token in a picture or a list: a gap has a sign, and so have blanks at the ends and invisible characters that join no emoji.
/** @param {string} token */
export function visible(token) {
  if (MASKS.includes(token)) return GAP;
  const text = token
    .replace(/^ +| +$/g, (blanks) => "␣".repeat(blanks.length))
    .replaceAll("\n", "⏎")
    .replaceAll("\t", "⇥")
    .replace(/(?!(?<=[\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f])\u200d\p{Extended_Pictographic})[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu, (mark) => `⟨${/** @type {number} */ (mark.codePointAt(0)).toString(16)}⟩`);
  return text || "∅";
}

// A token in a sentence; a gap begins a sentence with the article "The".
/** @param {string} token @param {string} article */
export function named(token, article = "the") {
  return MASKS.includes(token) ? `${article} gap` : visible(token);
}

/**
 * The milliseconds that reading a text takes.
 * @param {string} text
 */
export function readingTime(text) {
  return 300 * text.split(" ").length;
}

/**
 * The direction in which a text is written, from its first letter.
 * @param {string} text
 */
export function directionOf(text) {
  return /^\P{L}*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}]/u.test(text) ? "rtl" : "ltr";
}

/**
 * A text cut to at most n characters.
 * @param {string} text
 * @param {number} n
 */
export function cut(text, n) {
  const marks = Array.from(text);
  return marks.length > n ? `${marks.slice(0, n - 1).join("")}…` : text;
}
