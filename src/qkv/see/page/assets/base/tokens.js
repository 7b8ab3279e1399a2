// Readable tokens, without the marks that tokenizers add. These functions give the same results as plain_tokens in
// src/qkv/text/tokenized.py.

// characters of scripts without blanks between words
const UNSPACED = /[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Thai}\p{sc=Laoo}\p{sc=Khmr}\p{sc=Mymr}\p{sc=Tibt}]/u;
/** @type {string[]} */
export const BYTES = []; // the character that a byte-level tokenizer writes for each byte; printable characters stand for themselves
for (let byte = 0, next = 256; byte < 256; byte++)
  BYTES[byte] = String.fromCharCode(/[!-~¡-¬®-ÿ]/.test(String.fromCharCode(byte)) ? byte : next++);
/** @type {Map<string, any>} */
export const BYTE_OF = new Map(BYTES.map((mark, byte) => [mark, byte]));

// The text of a byte-level tokenizer's token. Other tokens, and parts of characters, are returned unchanged.
/** @param {string} name */
export function fromBytes(name) {
  return decoded(bytesOf(name, true))?.replaceAll("\n", "⏎") || name;
}

// The bytes that a token stands for; none if it is plain text.
/** @param {string} name @param {boolean} level  of bytes: whether each letter is a byte */
function bytesOf(name, level) {
  const code = /^<0x([89A-F].)>$/.exec(name);
  const bytes = code ? [parseInt(code[1], 16)] : Array.from(level ? name : "", (letter) => BYTE_OF.get(letter));
  return bytes.includes(undefined) ? [] : bytes;
}

// The text of some bytes; null if a character is incomplete.
/** @param {number[]} bytes */
function decoded(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(bytes));
  } catch {
    return null;
  }
}

// Names such as "é 1/2" of the tokens with only some of a character's bytes, by position.
/** @param {string[]} tokens @param {boolean[]} special */
function partsOf(tokens, special) {
  const [names, level] = [new Map(), !tokens.some((token) => token.startsWith("▁"))];
  /** @type {[number, number[]][]} */
  let group = []; // the tokens of an incomplete character, each with its position and its bytes
  tokens.forEach((token, t) => {
    const bytes = special[t] ? [] : bytesOf(token, level);
    group = decoded(bytes) === null ? [...group, [t, bytes]] : [];
    const text = decoded(group.flatMap(([, own]) => own))?.trim();
    if (text) for (const [k, [at]] of group.entries()) names.set(at, `${text} ${k + 1}/${group.length}`);
    if (text) group = [];
  });
  return names;
}

/** @param {string[]} names  of tokens; true if one is named after a part of a character */
export const isCut = (names) => names.some((name) => /^\P{ASCII}+ \d+\/\d+$/u.test(name));

// A vocabulary entry in readable form.
/** @param {string} name */
export function plainName(name) {
  const text = (name.startsWith("▁") ? name : fromBytes(name)).replaceAll("▁", " ");
  return text.replace(/^ +| +$/g, "") || text;
}

// Whether an entry of a vocabulary contains only some of the bytes of a character.
/** @param {string} name @param {string[]} words the vocabulary */
function isPart(name, words) {
  if (!BYTE_LEVEL.has(words)) BYTE_LEVEL.set(words, words.some((one) => one.startsWith("Ġ")));
  return decoded(bytesOf(name, BYTE_LEVEL.get(words))) === null;
}
const BYTE_LEVEL = new WeakMap(); // maps each vocabulary to whether its tokenizer is byte-level
const ENDS = ["<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "<eos>", "</s>"];

// The entry of a vocabulary that a model predicts, in words for readers.
/** @param {string[]} words  the vocabulary @param {number} id */
export function guessName(words, id) {
  const [name, plain] = [words[id], plainName(words[id])];
  if (isPart(name, words)) return "part of a character";
  return ENDS.includes(name) ? "end of text" : /^(⏎+|<0x0A>)$/.test(plain) ? "new line" : plain;
}

// The text that a sequence of vocabulary entries spells.
/** @param {string[]} names */
export function spelledOut(names) {
  const whole = names.join("");
  if (names.some((name) => name.includes("▁"))) return whole.replaceAll("▁", " ");
  const bytes = Array.from(whole, (letter) => BYTE_OF.get(letter));
  if (names.some((name) => /^[ĠĊ]/.test(name)) && !bytes.includes(undefined)) return new TextDecoder().decode(Uint8Array.from(bytes));
  return names.map((name, i) => (name.startsWith("##") ? name.slice(2) : i && /^[\p{L}\p{N}]/u.test(name) ? ` ${name}` : name)).join("");
}

// The tokens of a text in readable form: a subword that continues a word begins with "##".
/** @param {string[]} tokens @param {boolean[]} special */
export function plainTokens(tokens, special) {
  const parts = partsOf(tokens, special);
  if (!tokens.some((token) => /^[Ġ▁Ċ]/.test(token))) return tokens.map((token, t) => parts.get(t) ?? token);
  let before = "";
  return tokens.map((token, t) => {
    if (special[t] || parts.has(t)) {
      before = "";
      return parts.get(t) ?? token;
    }
    const plain = plainName(token);
    const [last, first] = [Array.from(before).at(-1) ?? "", Array.from(plain)[0] ?? ""];
    const joined = !/^[Ġ▁]/.test(token) && /[\p{L}\p{N}]/u.test(last) && /[\p{L}\p{N}]/u.test(first) && !UNSPACED.test(last + first);
    before = plain;
    return joined ? `##${plain}` : plain;
  });
}
