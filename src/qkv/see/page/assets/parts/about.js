// The data to save from each part of the live page: the numbers as tables, and the text below the picture.

import { el } from "../base/elements.js";
import { visible } from "../base/format.js";
import { hiddenBy } from "../engine/edits.js";
import { withSigns } from "../engine/gaps.js";
import { probabilitiesOf } from "../engine/sampling.js";
import { cosineAt, movedShare } from "../store/measures.js";
import { inWords } from "./changes.js";
import { isRemoved } from "./map.js";
import { matricesIn } from "./save.js";

/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/second.js").Second} Second */
/** @typedef {import("./save.js").Sheet} Sheet */
/** @typedef {import("./save.js").Table} Table */
/** @typedef {import("../store/store.js").Store} Store */

const MOST_ROWS = 500_000; // the largest number of rows of a saved table

/**
 * A table of all links of some heads: the weight, the weight before the reader's changes, and the score if it is
 * known.
 * @param {Now} now
 * @param {[number, number][]} heads
 * @returns {Table}
 */
function linkNumbers({ state, run, original }, heads) {
  const { tokens } = run;
  const T = tokens.length;
  const changed = run !== original;
  const all = Array.from({ length: T * T }, (_, k) => k);
  const rows = heads.flatMap(([layer, head]) => {
    const [scores, hidden] = [run.blocks?.[layer]?.attn_scores?.[head], hiddenBy(state.edits, layer, head, T)];
    const [weights, before] = [run.pattern[layer][head], original.pattern[layer][head]];
    return all.map((k) => {
      const [query, key] = [Math.floor(k / T), k % T];
      const away = Boolean(hidden[k]) || scores?.[k] === -Infinity;
      const link = [layer, head, query, tokens[query], key, tokens[key], scores?.[k], away, weights[k]];
      return changed ? [...link, before[k]] : link;
    });
  });
  return { columns: ["layer", "head", "query_position", "query", "key_position", "key", "score", "hidden", "weight", ...(changed ? ["weight_before"] : [])], rows };
}

/**
 * A table of the probability of every word of the vocabulary, the likeliest word first.
 * @param {Now} now
 * @returns {Table}
 */
function wordNumbers({ run, original, model }) {
  const [before, after] = [original, run].map(({ logits }) => probabilitiesOf(logits));
  const order = Array.from(after, (_, id) => id).sort((one, other) => after[other] - after[one] || one - other);
  const changed = run !== original;
  return {
    columns: ["rank", "id", "word", ...(changed ? ["probability_before"] : []), "probability"],
    rows: order.map((id, rank) => [rank + 1, id, model.words[id], ...(changed ? [before[id]] : []), after[id]]),
  };
}

/**
 * A table of the word's similarity to the original, by layer.
 * @param {Now} now
 * @returns {Table}
 */
function layerNumbers({ state, run, original }) {
  const alike = run.resid.map((one, l) => cosineAt(one, original.resid[l], /** @type {number} */ (state.position), run.tokens.length));
  return { columns: ["behind", "cosine_with_original"], rows: alike.map((value, l) => [l ? `layer ${l - 1}` : "embeddings", value]) };
}

/**
 * A table of heads: the role of each, whether it is removed, how much its weights moved, and the effect of its
 * removal.
 * @param {Now} now
 * @param {any} roles
 * @param {(name: string) => any} effectOf
 * @returns {Table}
 */
function headsNumbers({ state, run, original }, roles, effectOf) {
  const columns = ["layer", "head", "role", "role_measure", "removed", "weight_moved_by_changes", "probability_moved_without_it", "word", "probability_with_it", "probability_without_it"];
  const rows = run.pattern.flatMap((heads, layer) =>
    heads.map((weights, head) => {
      const name = `${layer}.${head}`;
      const [role, measure] = roles[name] ?? [Object.keys(roles).length ? "mixed" : "", null];
      const { moved, word: first, from, to } = effectOf(name) ?? {};
      const far = movedShare(original.pattern[layer][head], weights);
      return [layer, head, role, measure, isRemoved(state.edits, layer, head), far, moved, first, from, to];
    }),
  );
  return { columns, rows };
}

/**
 * The tables to save from each part of the live page.
 * @param {string} name
 * @param {Now} now
 * @param {any} data  the payload
 * @param {any} part
 * @returns {Sheet[]}
 */
function sheetsOf(name, now, data, part) {
  const { state, run } = now;
  const { layer, head } = state;
  const every = run.pattern.flatMap((heads, l) => heads.map((_, h) => /** @type {[number, number]} */ ([l, h])));
  /** @param {any} count */
  const fits = (count) => count * run.tokens.length ** 2 <= MOST_ROWS;
  /** @type {Record<string, (Sheet | false)[]>} */
  const known = {
    head: [fits(1) && ["weights", `head-${layer}.${head}-weights`, () => linkNumbers(now, [[layer, head]])]],
    map: [
      ["heads", "heads", () => headsNumbers(now, data.roles ?? {}, part.effects ?? (() => null))],
      fits(every.length) && ["all weights", "all-weights", () => linkNumbers(now, every)],
    ],
    outcome: state.position === null ? [] : [
      run.logits.length > 0 && ["words", `words-at-${state.position}`, () => wordNumbers(now)],
      state.edits.length > 0 && ["layer by layer", `alike-at-${state.position}`, () => layerNumbers(now)],
    ],
  };
  return name in known ? known[name].flatMap((one) => (one ? [one] : [])) : matricesIn(part.node);
}

/**
 * Returns what the live page saves with a part's picture: a name, the sentence, a caption and the part's numbers.
 * @param {string} name
 * @param {Told} now
 * @param {Store} store
 * @param {any} part
 */
export function aboutPart(name, now, store, part) {
  const { state, model, run, second, sentence } = now;
  if (!run || (name === "second" && !second)) return null;
  const changes = inWords(/** @type {Now} */ (now)).map(({ said }) => el("span", {}, said).textContent.replace(/×$/, ""));
  const texts = name === "second" ? [sentence, /** @type {Second} */ (second).text] : [sentence];
  const caption = [texts.map((text) => `“${visible(withSigns(text, model))}”`).join(" beside "), ...changes, store.engine.name || model.name].join(" · ");
  const called = name === "head" ? `head-${state.layer}.${state.head}` : name;
  return { name: called, text: sentence, caption, numbers: sheetsOf(name, /** @type {Now} */ (now), store.data, part) };
}
