// A second sentence beside the reader's first sentence. Changes that fit the second sentence also apply to the model's
// run on that sentence. The part shows the same head in both sentences on a shared axis, the similarity of a word in
// both, the heads that differ most, and the model's guesses in both.

import { el, fill, word } from "../base/elements.js";
import { probabilitiesOf } from "../engine/sampling.js";
import { cosineAt } from "../store/measures.js";
import { partnerOf } from "../store/second.js";
import { LONGEST } from "../store/limits.js";
import { alikeChart, barLegend, headList, HEADS_LISTED, outcomeOf, wordTable } from "./outcome.js";
import { pairPart } from "./pair.js";
import { unreadOf } from "./sentence.js";
import { numberOf } from "./sight.js";
import "./second.css";

/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../store/store.js").Store} Store */
/** @typedef {import("../store/second.js").Second} Second */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {Now & {second: Second}} Two  the data if there is a second text */

const FEWEST = 0.005; // heads whose rows of weights differ by less than this number are not listed

// ---- the part

/** @param {Ui} ui @param {Store} store @returns {Part} */
export function secondPart(ui, store) {
  const id = ui.id("second");
  const field = el("textarea", { id, class: "text", rows: 1, spellcheck: "false", autocomplete: "off", maxlength: LONGEST });
  const begin = el("button", { type: "button", onclick: () => store.set({ second: last.sentence }) }, "Start from mine");
  const away = el("button", { type: "button", class: "in-whole", onclick: () => store.set({ second: null }) }, "Remove it");
  const [fit, unread] = [el("p", { class: "note" }), el("div", { class: "unread" })];
  const pair = pairPart(ui, { onpick: picked });
  const [alike, words] = [el("div", {}), el("div", {})];
  const more = el("div", { class: "outcome second-more" }, alike, words);
  const node = el("div", { class: "second", "data-part": "second" },
    el("h3", {}, el("label", { for: id }, "A second sentence to compare")), el("div", { class: "write" }, field, begin, away), unread, fit, pair.node, more);
  /** @type {[number, number | null, number | null, string, (() => void) | null]} */
  let [typed, own, chosen, drawn, chart] = [-Infinity, null, null, "", null]; // own: the chosen token of the second text, if any
  /** @type {Told} */
  let last; // the last data that the part received

  for (const part of [fit, pair.node, more]) part.hidden = true; // the part is hidden until there is a second text
  field.addEventListener("input", () => {
    store.set({ second: field.value.toWellFormed() || null }, { undo: performance.now() - typed > 1000 });
    typed = performance.now();
  });
  field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && event.preventDefault());
  ui.redraw(() => chart?.());

  /**
   * Chooses a token of one text; the token of the other text stays the same.
   * @param {number} which
   * @param {number} token
   */
  function picked(which, token) {
    own = pair.sides[1].cursor;
    chosen = which ? store.state.query : token;
    store.set({ query: chosen });
    if (which) update(last); // the token of the first text has not changed
  }

  /** @param {Told} now */
  function update(now) {
    const { state, run, second } = now;
    const opened = last?.run && !last.second && second;
    last = now;
    if (field.value !== (store.state.second ?? "")) [field.value, typed] = [store.state.second ?? "", -Infinity];
    begin.hidden = store.state.second !== null;
    away.hidden = !begin.hidden;
    fit.hidden = !second || !state.edits.length;
    fill(unread, second ? unreadOf(second.text, second.run, now.model) : null);
    pair.node.hidden = more.hidden = !second;
    if (!second || !(state.inside || state.only)) {
      drawn = "";
      return;
    }
    if (opened) field.focus();
    if (state.query !== chosen) own = null;
    chosen = state.query;
    const made = JSON.stringify([numberOf(run), numberOf(second.run), state.layer, state.head, state.query, state.merge, own]);
    if (made === drawn) return;
    drawn = made;
    const lost = state.edits.length - second.edits.length;
    const some = state.edits.length > 1 ? `${lost} of your ${state.edits.length} changes` : "Your change";
    fill(fit, !lost ? "Your changes apply to both sentences."
      : `${some} ${lost > 1 ? "do not fit the second sentence and apply" : "does not fit the second sentence and applies"} only to the first.`);
    const other = Math.min(own ?? partnerOf(second.axis, state.query) ?? second.position ?? 0, second.run.tokens.length - 1);
    pair.set({
      state,
      runs: [run, second.run],
      edits: [state.edits, second.edits],
      names: ["the first", "the second"],
      titles: ["In the first", "In the second"],
      cursors: [state.query ?? 0, other],
    });
    chart = drawAlike(/** @type {Two} */ (now), alike, other, store);
    fill(words, wordsOfBoth(/** @type {Two} */ (now)));
  }
  return { node, update };
}

/**
 * Fills `box` with the similarity of the chosen tokens, and with the heads in which they attend to different words.
 * Returns a function that draws the chart of the similarity.
 * @param {Two} now
 * @param {HTMLElement} box
 * @param {number} other
 * @param {Store} store
 */
function drawAlike({ state, run, second }, box, other, store) {
  const own = state.query ?? 0;
  const alike = run.resid.map((one, l) => cosineAt(vectorAt(one, own, run), vectorAt(second.run.resid[l], other, second.run), 0, 1));
  const [a, b] = [run.tokens[own], second.run.tokens[other]];
  const name = a === b ? [word(a), " is in both"] : [word(a), " and ", word(b), " are"];
  const plot = el("div", { class: "outcome-chart" });
  fill(box, el("div", {}, el("h4", {}, "How similar ", name), el("p", { class: "note" },
    "The cosine between the two vectors, after the embeddings and after each layer."), plot),
    el("div", {}, el("h4", {}, "Where they attend to different words"),
      headList(store, apart(run, second, own, other), "The share of the attention weight that goes to different tokens in the second sentence. Bars go from 0% to 100%.",
        "No head differs visibly: in each, less than 0.5% of the weight goes to different tokens.")));
  const paint = () => fill(plot, alikeChart(plot, alike, "cosine of the two vectors"));
  paint();
  return paint;
}

/**
 * @param {Float32Array} resid  (T, D)
 * @param {number} token
 * @param {Run} run
 */
function vectorAt(resid, token, { tokens }) {
  const D = resid.length / tokens.length;
  return resid.subarray(token * D, (token + 1) * D);
}

/**
 * The heads in which two rows of weights differ most, the largest difference first. The first row belongs to the query
 * `own` of the first text, the second row to the query `other` of the second text. Weights at the same position of the
 * shared axis are compared.
 * @param {Run} run
 * @param {Second} second
 * @param {number} own
 * @param {number} other
 */
function apart(run, second, own, other) {
  const [T, S] = [run.tokens.length, second.run.tokens.length];
  /** @type {((weights: Float32Array, position: number | null) => number)[]} */
  const [before, after] = [(one, a) => (a === null ? 0 : one[own * T + a]), (two, b) => (b === null ? 0 : two[other * S + b])];
  /** @param {Float32Array} one @param {Float32Array} two */
  const share = (one, two) => second.axis.reduce((total, [a, b]) => total + Math.max(0, before(one, a) - after(two, b)), 0);
  const far = second.run.pattern;
  const all = run.pattern.flatMap((heads, layer) => heads.map((one, head) => ({ layer, head, moved: share(one, far[layer][head]) })));
  return all.filter(({ moved }) => moved >= FEWEST).sort((x, y) => y.moved - x.moved).slice(0, HEADS_LISTED);
}

/**
 * The model's guesses in both texts; null if the model has no logits, or if one of the texts has no position for a
 * guess.
 * @param {Two} now
 */
function wordsOfBoth({ state, run, second, model }) {
  if (!run.logits.length || !second.run.logits.length || state.position === null || second.position === null) return null;
  const { rows } = outcomeOf(probabilitiesOf(run.logits), probabilitiesOf(second.run.logits), model.words);
  const title = [model.next ? "What follows " : "The model's words for ", word(run.tokens[state.position]), " in the first and ", word(second.run.tokens[second.position]), " in the second"];
  return [el("h4", {}, title), barLegend(["first", "second"]), wordTable(rows.map((row) => ({ ...row, mark: "" })), ["first", "second"])];
}
