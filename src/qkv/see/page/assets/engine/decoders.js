// The decoders of a `tokenizer.json`: each kind of decoder joins tokens into a text in its own way.

import { BYTE_OF } from "../base/tokens.js";
import { patternOf } from "./patterns.js";

/** @typedef {(tokens: string[]) => string[]} Decoder */

const [ENCODER, LOOSE] = [new TextEncoder(), new TextDecoder("utf-8", { ignoreBOM: true })];
const STRICT = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });
const CLEAN = [" .", " ?", " !", " ,", " ' ", " n't", " 'm", " do not", " 's", " 've", " 're"];

/** @type {Record<string, (rules: any) => Decoder>} */
const KINDS = {
  Sequence: ({ decoders }) => {
    /** @type {Decoder[]} */
    const steps = decoders.map(decoderOf);
    return (tokens) => steps.reduce((last, step) => step(last), tokens);
  },
  ByteLevel: () => (tokens) => [LOOSE.decode(Uint8Array.from(tokens.flatMap(bytesOf)))],
  WordPiece: ({ prefix, cleanup }) => (tokens) =>
    tokens.map((token, i) => {
      const put = !i ? token : token.startsWith(prefix) ? token.slice(prefix.length) : ` ${token}`;
      return cleanup ? CLEAN.reduce(cleaned, put) : put;
    }),
  Metaspace: ({ replacement, prepend_scheme: scheme = "always" }) => (tokens) =>
    tokens.map((token, i) => token.replaceAll(replacement, i || scheme === "never" ? " " : "")),
  BPEDecoder: ({ suffix }) => (tokens) =>
    tokens.map((token, i) => token.replaceAll(suffix, i + 1 < tokens.length ? " " : "")),
  Replace: ({ pattern, content }) => {
    const wanted = patternOf(pattern);
    return (tokens) => tokens.map((token) => token.replace(wanted, () => content));
  },
  ByteFallback: () => (tokens) => {
    /** @type {string[]} */
    const decoded = [];
    /** @type {number[]} */
    let bytes = [];
    for (const token of [...tokens, ""]) {
      const code = /^<0x([\da-fA-F]{2})>$/.exec(token);
      if (code) bytes.push(parseInt(code[1], 16));
      else {
        if (bytes.length) decoded.push(...whole(bytes));
        bytes = [];
        decoded.push(token);
      }
    }
    return decoded.slice(0, -1);
  },
  Fuse: () => (tokens) => [tokens.join("")],
  Strip: ({ content, start, stop }) => (tokens) =>
    tokens.map((token) => {
      const marks = Array.from(token);
      let [first, last] = [0, marks.length];
      while (first < start && marks[first] === content) first += 1;
      while (marks.length - last < stop && last > first && marks[last - 1] === content) last -= 1;
      return marks.slice(first, last).join("");
    }),
};

/**
 * Returns the function that joins tokens as the decoder of a `tokenizer.json` says.
 * @param {any} rules  null if the file has no decoder
 * @returns {Decoder}
 */
export function decoderOf(rules) {
  return rules ? KINDS[rules.type](rules) : (tokens) => [tokens.join(" ")];
}

/**
 * The bytes of a token.
 * @param {string} token
 */
function bytesOf(token) {
  const bytes = Array.from(token, (mark) => BYTE_OF.get(mark));
  return bytes.includes(undefined) ? Array.from(ENCODER.encode(token)) : /** @type {number[]} */ (bytes);
}

/**
 * The text that bytes encode in UTF-8; if the bytes are not valid UTF-8, a replacement character for each byte.
 * @param {number[]} bytes
 */
function whole(bytes) {
  try {
    return [STRICT.decode(Uint8Array.from(bytes))];
  } catch {
    return bytes.map(() => "\ufffd");
  }
}

/**
 * Removes the blanks around `sign`, one of the strings in `CLEAN`, everywhere in a text: " ." becomes ".". The
 * exception is " do not", which becomes " don't".
 * @param {string} text
 * @param {string} sign
 */
function cleaned(text, sign) {
  return text.replaceAll(sign, sign === " do not" ? " don't" : sign.trim());
}
