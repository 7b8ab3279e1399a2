// The measured roles of heads, in words, and whether a role can apply in a sentence. training/pairs.py defines the
// relations of words, and training/roles.py measures the roles.

import { percent } from "../base/format.js";
import { maskOf } from "./positions.js";

/** @typedef {[role: string, value: number]} Role  the name in roles.json, such as "hidden verb to object", and the mean weight */

/** @type {Record<string, string>} */
const ATTENDED = { previous: "word before", next: "word after", same: "same word", first: "start of the text", last: "end of the text", induction: "word after an earlier occurrence of the same word" };
/** @type {Record<string, string>} */
const SIGNS = { previous: "←", next: "→", same: "=", first: "⇤", last: "⇥", induction: "↻" };
/** @type {Record<string, string>} */
const LITTLE = { possessive: "my, his, her", article: "a, an, the", preposition: "in, on, of", auxiliary: "is, has, will" };
const LETTER_OF = new Map(Object.entries({
  h: "his her my your our their its",
  a: "the a an this that these those some",
  p: "of in on at by for with about against between into onto through during before after above below to toward towards from down off over under across along around behind beside near within without upon inside outside",
  s: "i you he she it we they who",
  x: "is are was were be been being has have had do does did will would can could may might must shall should",
}).flatMap(([letter, words]) => words.split(" ").map((word) => /** @type {[string, string]} */ ([word, letter]))));
/**
 * The sentences in which the word Q can have a role. A letter stands for a word: h, a, p, s and x for the words above,
 * f for other function words, w for content words, and a full stop for other tokens. A gap is a w.
 * @type {Record<string, RegExp>}
 */
const SENTENCES = {
  "verb to object": /Q[ah]w{1,3}(?!w)/, "object to verb": /w[ah]w{0,2}Q(?!w)/,
  "preposition to noun": /Q[ah]w{1,3}(?!w)/, "noun to preposition": /p[ah]w{0,2}Q(?!w)/,
  "article to noun": /Qw{2,3}(?!w)/, "noun to article": /[ah]w{1,2}Q(?!w)/,
  "adjective to noun": /[ah]w?Qw(?!w)/, "noun to adjective": /[ah]w{1,2}Q(?!w)/,
  "possessive to noun": /Qw{1,3}(?!w)/, "noun to possessive": /hw{0,2}Q(?!w)/,
  "possessive to subject": /s[^.]*Qw/, "subject to possessive": /Q[^.]*hw/,
  "preposition to subject": /s[^.]*Q/, "subject to preposition": /Q[^.]*p/,
  "preposition to verb": /w[^.]*Q/, "verb to preposition": /Q[^.]*p/,
  "article to auxiliary": /Q[^.]*x/, "auxiliary to article": /[ah][^.]*Q/,
  "auxiliary to verb": /Qx*w/, "verb to auxiliary": /xw?Q/,
};

/**
 * The role of a head in plain words: what the head attends to, on average over many sentences.
 * @param {string} role
 */
export function usually(role) {
  if (ATTENDED[role]) return `usually attends to the ${ATTENDED[role]}`;
  const [from, to] = role.replace("hidden ", "").split(" to ").map((name) => LITTLE[name] ?? `the ${name}`);
  if (role.startsWith("hidden ")) return `a gap in place of ${from} usually attends to ${to}`;
  return `${from} usually attend${from.startsWith("the ") ? "s" : ""} to ${to}`;
}

/**
 * The roles of a model's heads, each with a sign and its number of heads, the most frequent first. A role that is not
 * about a position has a letter.
 * @param {Record<string, Role>} roles
 * @returns {Map<string, {sign: string, count: number}>}
 */
export function signsOf(roles) {
  const names = Object.values(roles).map(([role]) => role);
  const counts = [...new Set(names)].map((role) => ({ role, count: names.filter((one) => one === role).length }));
  counts.sort((one, other) => other.count - one.count);
  const letters = counts.filter(({ role }) => !SIGNS[role]).map(({ role }) => role);
  return new Map(counts.map(({ role, count }) => [role, { sign: SIGNS[role] ?? String.fromCharCode(97 + letters.indexOf(role)), count }]));
}

/** @param {Role} role */
export function measured([role, value]) {
  return `${role}, mean weight ${percent(value)}`;
}

/**
 * The roles that heads can have in this sentence: a head that connects two kinds of words has a role only if the
 * sentence can contain both.
 * @param {Record<string, Role>} roles
 * @param {import("./store.js").Now} now
 * @param {string[]} little  the function words
 */
export function rolesIn(roles, { run, model }, little) {
  const words = run.tokens.map((token, t) => {
    if (token === maskOf(model)) return "w";
    return LETTER_OF.get(token) ?? (little.includes(token) ? "f" : token.startsWith("##") ? "" : run.special[t] || !/[\p{L}\p{N}]/u.test(token) ? "." : "w");
  });
  const gap = run.tokens.indexOf(maskOf(model));
  return Object.fromEntries(Object.entries(roles).filter(([, [role]]) =>
    ATTENDED[role] || words.some((word, t) => word && (!role.startsWith("hidden ") || t === gap) && SENTENCES[role.replace("hidden ", "")].test(`${words.slice(0, t).join("")}Q${words.slice(t + 1).join("")}`))));
}
