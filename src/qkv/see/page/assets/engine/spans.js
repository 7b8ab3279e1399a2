// Texts that are changed by the rules of a tokenizer. Each character of a changed text stores which part of the given
// text it comes from.

/**
 * The character at position i of `text` comes from `original.slice(from[i], to[i])`; in `original`, the piece begins at
 * position `start`.
 * @typedef {{text: string, from: number[], to: number[], start: number}} Piece
 * @typedef {[mark: string, from: number, to: number]} Mark  a character, and the part of the given text from which it
 *     comes
 */

/**
 * A text before any change.
 * @param {string} text
 * @returns {Piece}
 */
export function pieceOf(text) {
  let next = 0;
  return madeOf(Array.from(text, (mark) => [mark, next, (next += mark.length)]), 0);
}

/**
 * The characters of a piece, one by one.
 * @param {Piece} piece
 * @returns {Mark[]}
 */
export function marksOf({ text, from, to }) {
  let next = 0;
  return Array.from(text, (mark) => {
    const position = next;
    next += mark.length;
    return [mark, from[position], to[position]];
  });
}

/**
 * Joins these characters into a piece.
 * @param {Mark[]} marks
 * @param {number} start
 * @returns {Piece}
 */
export function madeOf(marks, start) {
  /** @type {number[]} */
  const from = [];
  /** @type {number[]} */
  const to = [];
  for (const [mark, first, last] of marks)
    for (let unit = 0; unit < mark.length; unit++) {
      from.push(first);
      to.push(last);
    }
  return { text: marks.map(([mark]) => mark).join(""), from, to, start };
}

/**
 * Replaces each character of a piece with other characters. The new characters get the `from` and `to` of the character
 * that they replace.
 * @param {Piece} piece
 * @param {(mark: string) => Iterable<string>} change
 */
export function changed(piece, change) {
  /** @type {(mark: Mark) => Mark[]} */
  const replaced = ([mark, from, to]) => Array.from(change(mark), (one) => [one, from, to]);
  return madeOf(marksOf(piece).flatMap(replaced), piece.start);
}

/**
 * Returns the characters of a piece from index `first` to index `last`, without `last`.
 * @param {Piece} piece
 * @param {number} first
 * @param {number} last
 * @returns {Piece}
 */
export function partOf({ text, from, to, start }, first, last) {
  return { text: text.slice(first, last), from: from.slice(first, last), to: to.slice(first, last), start: from[first] ?? start };
}

/**
 * Adds characters to the beginning of a piece, unless the piece is empty. The new characters get the `from` and `to` of
 * the piece's first character.
 * @param {Piece} piece
 * @param {string} marks
 */
export function behind(piece, marks) {
  const { text, from: [from], to: [to], start } = piece;
  if (!text) return piece;
  const all = marksOf(piece);
  all.unshift([marks, from, to]);
  return madeOf(all, start);
}

/**
 * Replaces the matches of a pattern in a piece with `put`. The inserted text gets the `from` and `to` of the last
 * character of the match.
 * @param {Piece} piece
 * @param {RegExp} pattern
 * @param {string} put
 */
export function replaced(piece, pattern, put) {
  /** @type {Mark[]} */
  const marks = [];
  let last = 0;
  /** @type {(end: number) => void} */
  const keep = (end) => marksOf(partOf(piece, last, end)).forEach((mark) => marks.push(mark));
  for (const { 0: { length }, index } of matchesOf(piece.text, pattern)) {
    keep(index);
    last = index + length;
    if (put) marks.push([put, piece.from[last - 1], piece.to[last - 1]]);
  }
  keep(piece.text.length);
  return madeOf(marks, piece.start);
}

/**
 * The matches of a pattern in a text.
 * @param {string} text
 * @param {RegExp} pattern  with the flag g
 */
export function matchesOf(text, pattern) {
  return /** @type {Iterable<RegExpExecArray & {index: number}>} */ (text.matchAll(pattern));
}
