// The game about one word in four sentences, two for each of its senses. After each layer, the page compares the mean
// distance between the word's vectors within a sense with the mean distance between the senses.

import { el, fill, word } from "../base/elements.js";
import { fixed, visible } from "../base/format.js";
import { wordsOf } from "../store/positions.js";

/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("./lab.js").Screen} Screen */

// The word is the last one, so that a decoder reads the other words before it. In the included encoder, it has the same
// position in all four sentences, so its vectors are equal before the first layer.
const SENTENCES = ["He fished from the muddy bank.", "They sat on the river bank.", "She put money in the bank.", "A loan came from the bank."];
const PAIRS = [[[0, 1], [2, 3]], [[0, 2], [0, 3], [1, 2], [1, 3]]]; // of sentences: within a sense, between the senses
const SOON = 300; // the milliseconds from the last key press to the computation

/** @param {LiveStore} store @returns {Screen} */
export function watchScreen(store) {
  let [later, asked] = [0, 0];
  const fields = SENTENCES.map((value, i) => el("input", { type: "text", value, "aria-label": `sense ${"AABB"[i]}, sentence ${1 + (i % 2)}`, spellcheck: "false", autocomplete: "off", oninput: () => [clearTimeout(later), (later = setTimeout(compute, SOON))] }));
  const title = el("h2", { tabindex: -1 });
  const [table, say] = [el("table"), el("div", { class: "say", role: "status" })];
  const node = el("div", { class: "game-on watch", "data-part": "watch" }, title,
    el("div", { class: "fields" }, ["A", "B"].map((sense, i) => el("div", {}, el("b", {}, `Sense ${sense}`), fields.slice(2 * i, 2 * i + 2)))),
    say, table, el("p", { class: "note" }, "Write two sentences for each sense of a word. The distance between its vectors in two sentences is 1 − their cosine; for a word of several tokens, it is computed from the mean of their vectors. The table shows mean distances: over the two pairs within a sense, and over the four pairs between the senses. Before the first layer, the vectors of identical tokens can differ only because of their positions."));

  async function compute() {
    const mine = (asked += 1);
    const engine = /** @type {Api} */ (store.engine);
    const model = await engine.model;
    const texts = fields.map(({ value }) => value.trim() || " ");
    const runs = await Promise.all(texts.map((text) => engine.run(text, [], { at: [] })));
    if (mine !== asked) return;
    const words = runs.map((run, i) => new Map(wordsOf(texts[i], run, model)
      .map(([first, end, name]) => [name.toLowerCase(), [first, end]])));
    const name = sharedBy(words, store.data.little?.words ?? []);
    table.hidden = !name;
    fill(title, "Does ", name ? el("em", {}, visible(name)) : "a word", " change its mind?");
    if (!name) fill(say, "Write four sentences that share a word.");
    else show(name, runs[0].resid.map((_, l) => {
      const vectors = runs.map(({ resid, tokens }, i) => meanOf(resid[l], tokens.length, /** @type {number[]} */ (words[i].get(name))));
      return PAIRS.map((pairs) => pairs.reduce((sum, [a, b]) => sum + Math.max(0, 1 - dot(vectors[a], vectors[b])), 0) / pairs.length);
    }));
  }

  /** @param {string} name @param {number[][]} rows  for each layer, the mean distance within a sense and between the senses */
  function show(name, rows) {
    const most = Math.max(...rows.flat(), 1e-9);
    fill(table, el("tr", {}, ["layer", "within a sense", "between the senses"].map((one) => el("th", { scope: "col" }, one))),
      rows.map((row, l) => el("tr", {}, el("th", { scope: "row" }, l ? `after ${l - 1}` : "before 0"), row.map((x) => el("td", { style: { "--share": x / most } }, fixed(x, 2))))));
    const [inside, between] = rows[rows.length - 1];
    fill(say, "After the last layer, the vectors of ", word(name), ` have a mean distance of ${fixed(inside, 2)} within a sense and ${fixed(between, 2)} between the senses: `, el("b", {}, between > inside ? "they differ more between the senses." : "they do not differ more between the senses."));
  }

  return {
    node,
    async update({ model }) {
      if (!asked && model) await compute();
    },
  };
}

/**
 * The longest word that all texts share; a function word only if they share no other word. If there is none, undefined.
 * @param {Map<string, number[]>[]} words
 * @param {string[]} little  the function words
 */
function sharedBy([names, ...others], little) {
  const shared = [...names.keys()].filter((name) => /[\p{L}\p{N}]/u.test(name) && others.every((one) => one.has(name)));
  return shared.sort((a, b) => Number(little.includes(a)) - Number(little.includes(b)) || b.length - a.length)[0];
}

/**
 * The mean of a word's vectors, scaled to the length 1.
 * @param {Float32Array} resid  the vectors of all tokens
 * @param {number} tokens  their number
 * @param {number[]} span  the word's first token, and the token after its last
 */
function meanOf(resid, tokens, [first, end]) {
  const dim = resid.length / tokens;
  const sum = resid.slice(first * dim, (first + 1) * dim);
  for (let at = (first + 1) * dim; at < end * dim; at += 1) sum[at % dim] += resid[at];
  const long = Math.sqrt(dot(sum, sum)) || 1;
  return sum.map((x) => x / long);
}

/** @param {Float32Array} one @param {Float32Array} other */
function dot(one, other) {
  return one.reduce((sum, x, c) => sum + x * other[c], 0);
}
