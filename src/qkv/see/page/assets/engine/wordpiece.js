// WordPiece: cuts a word into subwords of the vocabulary, always the longest that fits.

/** @typedef {import("./spans.js").Piece} Piece */
/** @typedef {[id: number, first: number, last: number]} TokenSpan  a token, and its first and last position in the word */
/** @typedef {(word: Piece) => TokenSpan[]} Model */

/**
 * "playing" -> "play", "##ing". A word that cannot be cut into subwords, or that is too long, is one unknown token.
 * @param {any} rules
 * @returns {Model}
 */
export function wordpieceOf({ vocab, unk_token: unknown, continuing_subword_prefix: prefix, max_input_chars_per_word: longest }) {
  /** @type {Map<string, number>} */
  const ids = new Map(Object.entries(vocab));
  return ({ text }) => {
    /** @type {TokenSpan[]} */
    const none = [[vocab[unknown], 0, text.length]];
    if (Array.from(text).length > longest) return none;
    /** @type {TokenSpan[]} */
    const tokens = [];
    for (let first = 0, last = 0; first < text.length; first = last) {
      const start = first ? prefix : "";
      for (last = text.length; last > first && !ids.has(start + text.slice(first, last)); ) last -= 1;
      if (last === first) return none;
      tokens.push([/** @type {number} */ (ids.get(start + text.slice(first, last))), first, last]);
    }
    return tokens;
  };
}
