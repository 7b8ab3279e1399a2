// From a text to the tokens that a BERT reads: the normalizer, the cut into words, WordPiece, the special
// tokens around them. The rules are those of the model's tokenizer.json, which the page holds as it stands.
// What is a mark or punctuation is asked of the browser's Unicode. The tokenizers library has the tables of
// Unicode 8, so that a word in a script that is newer than 2015 may be cut otherwise, unknown as it is.

import { gapsOf } from "./gaps.js";

/**
 * A character as the model reads it, and the part of the text that it stands for: `text.slice(start, end)`.
 * @typedef {{mark: string, start: number, end: number}} Mark
 * @typedef {{id: number, token: string, start: number, end: number, special: boolean}} Token
 * @typedef {{normalizer: Record<string, any>, words: Map<string, number>, ids: Map<string, number>, names: string[],
 *            apart: RegExp | null, mask: string | null, unknown: string, prefix: string, longest: number,
 *            before: Token[], after: Token[]}} Tokenizer
 * `words` is what pieces are looked up in; `ids` has the special tokens too, and `names` is the way back.
 */

const CONTROL = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\ufffd]/u; // nothing to read in them; half a character is one too
const KEPT = "\t\n\r"; // control characters that are blanks
const BLANK = /\p{White_Space}/u;
const ACCENT = /\p{Mn}/u; // a mark that stands over or under the letter before it
const PUNCTUATION = /[\p{P}$+<=>^\x60|~]/u; // and the signs of ASCII, which Unicode calls symbols
const CHINESE = [0x3400, 0x4dbf, 0x4e00, 0x9fff, 0xf900, 0xfaff, 0x20000, 0x2a6df, 0x2a700, 0x2b81f, 0x2b920, 0x2ceaf, 0x2f800, 0x2fa1f];

/**
 * A tokenizer.json, ready to be used.
 * @param {any} file
 * @returns {Tokenizer}
 */
export function readTokenizer(file) {
  /** @type {Map<string, number>} */
  const words = new Map(Object.entries(file.model.vocab));
  const ids = new Map(words);
  /** @type {{content: string, id: number}[]} */
  const added = file.added_tokens;
  for (const { content, id } of added) ids.set(content, id);
  /** @type {string[]} */
  const names = [];
  for (const [name, id] of ids) names[id] = name;
  const whole = added.map(({ content }) => content).sort((a, b) => b.length - a.length); // the longest first
  /** @type {any[]} */
  const around = file.post_processor.single;
  const place = around.findIndex((part) => part.Sequence);
  /** @type {(parts: any[]) => Token[]} */
  const put = (parts) => parts.map(({ SpecialToken: { id: token } }) =>
    ({ id: /** @type {number} */ (ids.get(token)), token, start: 0, end: 0, special: true }));
  return {
    normalizer: file.normalizer,
    words,
    ids,
    names,
    mask: ids.has("[MASK]") ? "[MASK]" : null,
    unknown: file.model.unk_token,
    prefix: file.model.continuing_subword_prefix,
    longest: file.model.max_input_chars_per_word,
    apart: whole.length ? new RegExp(whole.map((name) => name.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&")).join("|"), "g") : null,
    before: put(around.slice(0, place)),
    after: put(around.slice(place + 1)),
  };
}

/**
 * The tokens of a text, at most so many: those that are too many go, the special ones at the end stay.
 * @param {Tokenizer} tokenizer
 * @param {string} text
 * @param {number} most
 * @returns {{tokens: Token[], cut: boolean}}
 */
export function tokenize(tokenizer, text, most) {
  const room = most - tokenizer.before.length - tokenizer.after.length;
  const own = [];
  for (const token of tokensOf(tokenizer, text)) {
    own.push(token);
    if (own.length > room) break; // what follows would be cut
  }
  return { tokens: [...tokenizer.before, ...own.slice(0, room), ...tokenizer.after], cut: own.length > room };
}

/**
 * The tokens of a text in their order: a gap is the mask token; a special one that is spelled out is not looked into.
 * @param {Tokenizer} tokenizer
 * @param {string} text
 * @returns {Generator<Token>}
 */
export function* tokensOf(tokenizer, text) {
  const { mask, apart, ids } = tokenizer;
  const spelled = apart ? Array.from(/** @type {Iterable<RegExpExecArray>} */ (text.matchAll(apart))) : [];
  const named = spelled.map(({ 0: token, index }) => ({ token, start: index, end: index + token.length }));
  const gaps = mask ? gapsOf(text).map((gap) => ({ ...gap, token: mask })) : [];
  let last = 0;
  for (const { token, start, end } of [...gaps, ...named].sort((one, other) => one.start - other.start)) {
    if (start < last) continue; // a mask token that is spelled out is both
    yield* piecesOf(tokenizer, text.slice(last, start), last);
    yield { id: /** @type {number} */ (ids.get(token)), token, start, end, special: false };
    last = end;
  }
  yield* piecesOf(tokenizer, text.slice(last), last);
}

/**
 * Those of a part of the text that begins at `start`.
 * @param {Tokenizer} tokenizer
 * @param {string} text
 * @param {number} start
 * @returns {Generator<Token>}
 */
function* piecesOf(tokenizer, text, start) {
  for (const word of wordsOf(normalized(tokenizer.normalizer, text, start))) yield* pieces(tokenizer, word);
}

/**
 * The characters of a text, one by one, as the model reads them: "Ça " -> "c", "a", " ".
 * @param {Record<string, any>} rules
 * @param {string} text
 * @param {number} start
 * @returns {Generator<Mark>}
 */
export function* normalized(rules, text, start) {
  const { clean_text: clean, handle_chinese_chars: chinese, strip_accents: strip, lowercase: lower } = rules;
  for (const mark of text) {
    const end = start + mark.length;
    let read = mark;
    if (clean && CONTROL.test(mark) && !KEPT.includes(mark)) read = "";
    else if (clean && BLANK.test(mark)) read = " ";
    else if (chinese && isChinese(mark)) read = ` ${mark} `; // each is a word
    if (strip ?? lower) read = Array.from(read.normalize("NFD")).filter((part) => !ACCENT.test(part)).join("");
    for (const part of read) for (const one of lower ? part.toLowerCase() : part) yield { mark: one, start, end };
    start = end;
  }
}

/** @param {string} mark */
function isChinese(mark) {
  const code = /** @type {number} */ (mark.codePointAt(0));
  return CHINESE.some((first, i) => i % 2 === 0 && first <= code && code <= CHINESE[i + 1]);
}

/**
 * Words: what stands between blanks, and each punctuation mark by itself.
 * @param {Iterable<Mark>} marks
 * @returns {Generator<Mark[]>}
 */
export function* wordsOf(marks) {
  let word = [];
  for (const one of marks) {
    const [blank, sign] = [BLANK.test(one.mark), PUNCTUATION.test(one.mark)];
    if ((blank || sign) && word.length) {
      yield word;
      word = [];
    }
    if (sign) yield [one];
    else if (!blank) word.push(one);
  }
  if (word.length) yield word;
}

/**
 * A word as pieces of the vocabulary, the longest that fits each time: "playing" -> "play", "##ing". A word that
 * cannot be made of pieces, and one that is too long, is one unknown token.
 * @param {Tokenizer} tokenizer
 * @param {Mark[]} word
 * @returns {Token[]}
 */
function pieces({ words, unknown, prefix, longest }, word) {
  /** @type {(token: string, first: number, last: number) => Token} */
  const piece = (token, first, last) =>
    ({ id: /** @type {number} */ (words.get(token)), token, start: word[first].start, end: word[last].end, special: false });
  if (word.length > longest) return [piece(unknown, 0, word.length - 1)];
  const found = [];
  for (let first = 0; first < word.length; first = found.at(-1).next) {
    let [next, token] = [word.length, ""];
    for (; next > first; next--) {
      token = (first ? prefix : "") + word.slice(first, next).map((one) => one.mark).join("");
      if (words.has(token)) break;
    }
    if (next === first) return [piece(unknown, 0, word.length - 1)];
    found.push({ next, piece: piece(token, first, next - 1) });
  }
  return found.map((one) => one.piece);
}

/**
 * The text of token ids; to be replaced by that of every kind of tokenizer.
 * @param {Tokenizer} tokenizer
 * @param {number[]} ids
 */
export function decode({ names }, ids) {
  return ids.map((id) => names[id]).join("").replaceAll("Ġ", " ").replaceAll("Ċ", "\n");
}
