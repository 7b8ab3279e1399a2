// Converts a text to the tokens that a model reads, and back. The rules are in the model's tokenizer.json, which the
// page contains unchanged: added tokens are cut out; the rest is normalized, cut into words and then into tokens;
// special tokens are added at both ends. page/engine.py says which parts of such a file a page supports.

import { MASKS } from "../base/format.js";
import { bpeOf } from "./bpe.js";
import { decoderOf } from "./decoders.js";
import { masked } from "./gaps.js";
import { normalizerOf } from "./normalizers.js";
import { escaped } from "./patterns.js";
import { pretokenizerOf } from "./pretokenizers.js";
import { matchesOf, partOf, pieceOf } from "./spans.js";
import { wordpieceOf } from "./wordpiece.js";

/** @typedef {import("./decoders.js").Decoder} Decoder */
/** @typedef {import("./normalizers.js").Normalizer} Normalizer */
/** @typedef {import("./pretokenizers.js").Cutter} Cutter */
/** @typedef {import("./spans.js").Piece} Piece */
/** @typedef {import("./wordpiece.js").TokenSpan} TokenSpan */
/** @typedef {import("./wordpiece.js").Model} Model */

/**
 * @typedef {{id: number, token: string, start: number, end: number, special: boolean}} Token
 * @typedef {{content: string, id: number, special: boolean, lstrip: boolean, rstrip: boolean, single_word: boolean,
 *            normalized: boolean}} Added
 * @typedef {(piece: Piece) => {piece: Piece, id?: number}[]} Finder  cuts a text at added tokens; only the parts that
 *     are added tokens have an `id`
 * @typedef {{before: Token[], after: Token[], trims: {first: boolean}[]}} Frame
 * @typedef {{ids: Map<string, number>, names: string[], mask: string | null, before: Token[], after: Token[],
 *            trims: {first: boolean}[], raw: Finder, read: Finder, normalize: Normalizer, cut: Cutter, model: Model,
 *            join: Decoder, special: Set<number>}} Tokenizer
 * `ids` maps tokens, including added tokens, to ids; `names` maps ids to tokens. `raw` finds added tokens in the given
 * text, and `read` finds them in the normalized text. If `trims` is not empty, blanks at the ends of a token do not
 * belong to its character span (`start` to `end`). `first`: whether the tokenizer adds a blank before the first word.
 */

const MODELS = /** @type {Record<string, (rules: any) => Model>} */ ({ BPE: bpeOf, WordPiece: wordpieceOf });
const LETTER = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]/u;
const BLANK = /[Ġ\p{White_Space}]/u;

/**
 * Makes a tokenizer from a tokenizer.json.
 * @param {any} file
 * @returns {Tokenizer}
 */
export function readTokenizer(file) {
  /** @type {Map<string, number>} */
  const ids = new Map(Object.entries(file.model.vocab));
  /** @type {Added[]} */
  const added = file.added_tokens;
  for (const { content, id } of added) ids.set(content, id);
  /** @type {string[]} */
  const names = [];
  for (const [name, id] of ids) names[id] = name;
  const normalize = normalizerOf(file.normalizer);
  /** @type {(token: Added) => string} */
  const spelled = ({ content, normalized }) => (normalized ? normalize(pieceOf(content)).text : content);
  for (const token of added) names[token.id] = spelled(token); // added tokens have the same names as in the tokenizers library
  const frame = frameOf(file.post_processor);
  const around = [...frame.before, ...frame.after].map(({ id }) => id);
  const unknown = file.model.unk_token;
  return {
    ids,
    names,
    mask: MASKS.find((token) => ids.has(token)) ?? null,
    ...frame,
    raw: finderOf(added.filter((token) => !token.normalized), spelled),
    read: finderOf(added.filter((token) => token.normalized), spelled),
    normalize,
    cut: pretokenizerOf(file.pre_tokenizer),
    model: MODELS[file.model.type](file.model),
    join: decoderOf(file.decoder),
    special: new Set(added.filter((one) => one.special && (one.content !== unknown || around.includes(one.id))).map(({ id }) => id)),
  };
}

/**
 * The tokens that a post-processor adds around a text, and whether it excludes blanks from the positions of tokens.
 * @param {any} rules  null if the file has no post-processor
 * @returns {Frame}
 */
function frameOf(rules) {
  /** @type {(token: string, id: number) => Token} */
  const put = (token, id) => ({ id, token, start: 0, end: 0, special: true });
  /** @type {(pair: [string, number]) => Token[]} */
  const one = ([token, id]) => [put(token, id)];
  const trims = rules?.trim_offsets ? [{ first: rules.add_prefix_space }] : [];
  /** @type {Record<string, () => Frame>} */
  const kinds = {
    ByteLevel: () => ({ before: [], after: [], trims }),
    BertProcessing: () => ({ before: one(rules.cls), after: one(rules.sep), trims }),
    RobertaProcessing: () => ({ before: one(rules.cls), after: one(rules.sep), trims }),
    TemplateProcessing: () => {
      const middle = rules.single.findIndex((/** @type {any} */ part) => part.Sequence);
      /** @type {(parts: any[]) => Token[]} */
      const all = (parts) => parts.flatMap(({ SpecialToken: { id } }) => {
        const { ids, tokens } = rules.special_tokens[id];
        return tokens.map((/** @type {string} */ token, /** @type {number} */ i) => put(token, ids[i]));
      });
      return { before: all(rules.single.slice(0, middle)), after: all(rules.single.slice(middle + 1)), trims };
    },
    Sequence: () => {
      /** @type {Frame[]} */
      const frames = rules.processors.map(frameOf);
      return {
        before: frames.map(({ before }) => before).reverse().flat(),
        after: frames.flatMap(({ after }) => after),
        trims: frames.flatMap((frame) => frame.trims),
      };
    },
  };
  return rules ? kinds[rules.type]() : { before: [], after: [], trims };
}

/**
 * A function that finds added tokens; if several begin at one position, it takes the longest.
 * @param {Added[]} added
 * @param {(token: Added) => string} spelled
 * @returns {Finder}
 */
function finderOf(added, spelled) {
  const known = new Map(added.map((token) => [spelled(token), token]));
  known.delete("");
  if (!known.size) return (piece) => [{ piece }];
  const pattern = new RegExp([...known.keys()].sort((a, b) => b.length - a.length).map(escaped).join("|"), "gu");
  return (piece) => {
    const { text } = piece;
    const parts = [];
    let last = 0;
    for (const { 0: content, index } of matchesOf(text, pattern)) {
      const { id, lstrip, rstrip, single_word: alone } = /** @type {Added} */ (known.get(content));
      const stop = index + content.length;
      const [before, behind] = [text.slice(Math.max(index - 2, 0), index), text.slice(stop, stop + 2)].map((near) => Array.from(near));
      if (alone && [...before.slice(-1), ...behind.slice(0, 1)].some((mark) => LETTER.test(mark))) continue;
      const start = lstrip ? last + text.slice(last, index).replace(/\p{White_Space}+$/u, "").length : index;
      const end = rstrip ? stop + text.slice(stop).search(/\P{White_Space}|$/u) : stop;
      if (start > last) parts.push({ piece: partOf(piece, last, start) });
      parts.push({ piece: partOf(piece, start, end), id });
      last = end;
    }
    if (last < text.length) parts.push({ piece: partOf(piece, last, text.length) });
    return parts;
  };
}

/**
 * The first tokens of a text; `most` is their maximum number. Surplus tokens are dropped, but the special tokens at the end are kept.
 * @param {Tokenizer} tokenizer
 * @param {string} text
 * @param {number} most
 * @returns {{tokens: Token[], cut: boolean}}
 */
export function tokenize(tokenizer, text, most) {
  const { before, after } = tokenizer;
  const free = most - before.length - after.length;
  const own = [];
  for (const token of tokensOf(tokenizer, text)) {
    own.push(token);
    if (own.length > free) break; // all later tokens would be dropped
  }
  return { tokens: [...before, ...own.slice(0, free), ...after], cut: own.length > free };
}

/**
 * The tokens of a text in order, without special tokens around it; gaps are mask tokens, like in text/gaps.py.
 * @param {Tokenizer} tokenizer
 * @param {string} text
 * @returns {Generator<Token>}
 */
export function* tokensOf({ mask, names, trims, raw, read, normalize, cut, model }, text) {
  const { text: written, toOriginal } = masked(text.toWellFormed(), mask);
  let first = true;
  for (const { piece, id, word } of words()) {
    /** @type {TokenSpan[]} */
    const tokens = id === undefined ? model(word) : [[id, 0, piece.text.length]];
    for (const [own, begin, end] of tokens) {
      const token = id === undefined ? names[own] : piece.text;
      let span = { start: word.from[begin], end: word.to[end - 1] };
      for (const trim of trims) span = trimmed(written, token, span, trim.first && (first || span.start === 0));
      yield { id: own, token, start: toOriginal(span.start, 0), end: toOriginal(span.end, 1), special: false };
      first = false;
    }
  }

  /** The words and the added tokens, in order. */
  function* words() {
    for (const part of raw(pieceOf(written)))
      for (const { piece, id } of part.id === undefined ? read(normalize(part.piece)) : [part])
        for (const word of id === undefined ? cut(piece) : [piece]) yield { piece, id, word };
  }
}

/**
 * The start and the end of a token in the text, without the blanks at the token's ends. A blank that the tokenizer
 * added is not in the text.
 * @param {string} text
 * @param {string} token
 * @param {{start: number, end: number}} span
 * @param {boolean} first  whether the tokenizer may have added one blank at the beginning
 */
function trimmed(text, token, { start, end }, first) {
  const marks = Array.from(token);
  const [fore, aft] = [marks, [...marks].reverse()].map((all) => {
    const count = all.findIndex((mark) => !BLANK.test(mark));
    return count < 0 ? all.length : count;
  });
  const own = Array.from(text.slice(start, end));
  const lead = Math.min(first && fore === 1 ? 0 : fore, own.length);
  const tail = end >= aft ? Math.min(aft, own.length - lead) : 0;
  const [lost, gone] = [own.slice(0, lead), own.slice(own.length - tail)].map((part) => part.join("").length);
  return { start: start + lost, end: end - gone };
}

/**
 * The text of token ids, without special tokens; the same as `decode` of text/tokenizer.py.
 * @param {Tokenizer} tokenizer
 * @param {ArrayLike<number>} ids
 */
export function decode({ names, special, join }, ids) {
  const tokens = Array.from(ids).filter((id) => !special.has(id)).map((id) => names[id]);
  return join(tokens.filter((name) => name !== undefined)).join("");
}
