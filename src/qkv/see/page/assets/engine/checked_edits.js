// Checks edits against a text and against record_schema.json. Python reads the required and optional fields of each edit from
// the same file.

import { BYTES, fromBytes } from "../base/tokens.js";
import { axesOf } from "./edits.js";
import { tokenize } from "./tokenizer.js";
import schema from "../../../../edits/record_schema.json";

/** @typedef {import("./edits.js").Edit} Edit */
/** @typedef {import("./edits.js").ByOp} ByOp */
/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./tokenizer.js").Token} Token */
/** @typedef {import("./tokenizer.js").Tokenizer} Tokenizer */

/** @type {Record<string, any>} */
const DEFINED = schema.$defs;
/** @type {(reference: {$ref: string}) => string} */
const nameOf = ({ $ref }) => $ref.split("/").at(-1);
const SET = [...DEFINED.site.enum, "resid_post"]; // Python also sets other activations
const OPS = schema.items.oneOf.map(nameOf);

/**
 * Checks a list of edits and returns it; an error says which edit is wrong and how to correct it.
 * @param {any} edits
 * @param {number} T
 * @param {Model} model
 * @returns {Edit[]}
 */
export function checkedEdits(edits, T, model) {
  if (!Array.isArray(edits)) throw new TypeError(`run: edits is ${typeof edits}; pass a list of objects with "op"`);
  return edits.map((edit, index) => checked(edit, `run: edits[${index}]`, T, model));
}

/**
 * @param {any} edit
 * @param {string} source  the name of the edit in errors
 * @param {number} T
 * @param {Model} model
 * @returns {Edit}
 */
function checked(edit, source, T, model) {
  if (!OPS.includes(edit?.op)) throw new TypeError(`${source} has op ${shown(edit?.op)}; it must be one of ${OPS.join(", ")}`);
  const where = `${source} (${edit.op})`;
  const { properties, required, dependentRequired = {} } = DEFINED[edit.op];
  const names = Object.keys(properties).filter((name) => name !== "op");
  /** @type {Record<string, any>} */
  const fields = Object.fromEntries(Object.entries(edit).filter(([, value]) => value !== undefined && value !== null));
  const missing = names.find((name) => required.includes(name) && !(name in fields));
  const unknown = Object.keys(fields).find((name) => !(name in properties));
  if (missing || unknown) throw new RangeError(`${where} has ${missing ? `no ${missing}` : shown(unknown)}; ${taken(names, required)}`);
  const right = rulesFor(fields, T, model);
  for (const name of names.filter((one) => one in fields)) {
    const way = right(nameOf(properties[name]), fields[name]);
    if (way) throw new RangeError(`${where} has ${name} ${shown(fields[name])}; pass ${way}`);
    for (const other of dependentRequired[name] ?? [])
      if (!(other in fields)) throw new RangeError(`${where} has ${name} ${shown(fields[name])} but no ${other}; pass the ${other} too`);
  }
  return /** @type {Edit} */ (fields);
}

/**
 * Describes the fields of an edit.
 * @param {string[]} names
 * @param {string[]} required
 */
function taken(names, required) {
  const others = names.filter((name) => !required.includes(name));
  const needed = names.filter((name) => required.includes(name));
  const parts = [needed.length && `needs ${needed.join(", ")}`, others.length && `may have ${others.join(", ")}`].filter(Boolean);
  return `it ${parts.join(" and ") || "has no field except op"}`;
}

/**
 * Whether nested lists have the shape `shape` and contain only finite numbers.
 * @param {any} value
 * @param {number[]} shape
 * @returns {boolean}
 */
function isArray(value, [size, ...rest]) {
  if (size === undefined) return Number.isFinite(value);
  return value?.length === size && Array.from(value).every((one) => isArray(one, rest));
}

/**
 * Returns a function that checks a value. For a correct value, this function returns an empty text; for any other value, it returns a
 * description of the correct values.
 * @param {Record<string, any>} edit
 * @param {number} T
 * @param {Model} model
 * @returns {(kind: string, value: any) => string}
 */
function rulesFor(edit, T, { sizes, tokenizer }) {
  const { layers, heads, size, dim } = sizes;
  /** @type {(count: number, what: string) => (value: any) => string} */
  const below = (count, what) => (value) => Number.isInteger(value) && value >= 0 && value < count ? "" : `0 to ${count - 1}, because ${what}`;
  /** @type {(count: number, what: string) => (value: any) => string} */
  const numbers = (count, what) => (value) => isArray(value, [count]) ? "" : `${count} finite numbers, ${what}`;
  const axes = edit.at === undefined ? [] : axesOf(edit.at, T, sizes);
  const own = edit.at === undefined ? heads : axes.find(([name]) => name === "head")?.[1]; // the number of heads to choose from
  /** @type {Record<string, (value: any) => string>} */
  const rules = {
    token: below(T, `the text has ${T} tokens`),
    layer: below(layers, `the model has ${layers} layers`),
    head: (value) => (own ? below(own, `${own === heads ? "a layer" : edit.at} has ${own} heads`)(value) : `no head, because ${edit.at} has no heads`),
    number: (value) => (Number.isFinite(value) ? "" : "a finite number"),
    weights: numbers(T, "one for each token of the text"),
    output: (value) => (value === "zero" || value === "mean" ? "" : numbers(size, 'the size of a head\'s output, or "mean"')(value)),
    array: (value) => {
      const shape = axes.filter(([name]) => !name || edit[name] === undefined).map(([, size]) => size);
      return isArray(value, shape) ? "" : `finite numbers (${shape.join(", ")})`;
    },
    vector: numbers(dim, "the size of a vector"),
    activation: (value) => (SET.includes(value) ? (edit.layer === undefined ? "the layer too" : "") : `one of ${SET.join(", ")}; the page cannot set another activation`),
    entry: (value) => {
      const { length } = entriesOf(value, tokenizer);
      return length > 1 ? `${shown(` ${value}`)}, because the vocabulary has both` : length ? "" : "one entry of the vocabulary";
    },
  };
  return (kind, value) => {
    const { enum: choices, type } = DEFINED[kind];
    if (choices) return choices.includes(value) ? "" : `one of ${choices.join(", ")}`;
    if (kind in rules) return rules[kind](value);
    return typeof value === type ? "" : `a ${type}`;
  };
}

/** @param {any} value */
export function shown(value) {
  return (JSON.stringify(value) ?? "undefined").slice(0, 60);
}

/**
 * The T tokens that the model reads after words are swapped. Each token has its id and its name.
 * @param {Token[]} tokens
 * @param {Edit[]} edits
 * @param {Tokenizer} tokenizer
 */
export function swapped(tokens, edits, tokenizer) {
  const replaced = tokens.map(({ id, token }) => ({ id, token }));
  for (const edit of /** @type {ByOp["swap"][]} */ (edits.filter(({ op }) => op === "swap"))) {
    const [token] = entriesOf(edit.with, tokenizer);
    replaced[edit.token] = { id: /** @type {number} */ (tokenizer.ids.get(token)), token };
  }
  return replaced;
}

/**
 * The tokens of the vocabulary that a word names, as `entries` of text/tokenizer.py: " cat" and "Ġcat" name the token of
 * the word after a space, and "cat" names this token and the token without a space.
 * @param {any} word
 * @param {Tokenizer} tokenizer
 */
function entriesOf(word, tokenizer) {
  if (typeof word !== "string") return [];
  const text = fromBytes(word).replaceAll("▁", " ");
  const blank = tokenize(tokenizer, "a a", Infinity).tokens.map(({ token }) => token[0]).find((mark) => mark === "Ġ" || mark === "▁");
  const spelled = blank === "Ġ" ? Array.from(new TextEncoder().encode(text), (byte) => BYTES[byte]).join("") : text.replaceAll(" ", "▁");
  const names = !blank ? [word, word.trimStart()] : text.startsWith(" ") || !text ? [spelled] : [spelled, blank + spelled];
  const known = names.filter((name) => tokenizer.ids.has(name));
  if (!known.length && tokenizer.ids.has(word)) return [word];
  return blank ? known : known.slice(0, 1);
}
