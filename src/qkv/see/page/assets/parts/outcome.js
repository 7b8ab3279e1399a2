// The outcome of the reader's changes. The part shows the words that the model predicts at a position, before the
// changes and now, and a sentence about these words. Below, it shows the effect of the changes on a word's vectors and
// on the patterns of heads.

import { el, fill, word } from "../base/elements.js";
import { fixed, percent, roundEnds, visible } from "../base/format.js";
import { guessName, plainName } from "../base/tokens.js";
import { editsOf, OPS } from "../engine/edits.js";
import { likeliestOf, probabilitiesOf } from "../engine/sampling.js";
import { cosineAt, movedShare } from "../store/measures.js";
import { isGap, maskOf } from "../store/positions.js";
import { lineChart } from "./chart.js";
import { numberOf } from "./sight.js";
import { changeWords, heatWords, listOf, nameIn, plainOf, spelled } from "./words.js";
import "./outcome.css";

/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("./words.js").Said} Said */
/** @typedef {import("../store/state.js").PlayState} PlayState */
/** @typedef {Now & {state: PlayState & {position: number}}} Looked  like `Now`, but the state has a position */
/** @typedef {import("../engine/edits.js").ByOp} ByOp */
/** @typedef {import("../store/store.js").Store} Store */
/** @typedef {import("../base/mount.js").Ui} Ui */

const SEEN = 3; // the number of digits of a cosine
const SURE = 0.0995; // a best guess with a lower probability is described as "not sure"
const LONGEST_SAID = 14; // the number of words in the headline
export const [FIRST, ROWS, HEADS_LISTED] = [4, 8, 5]; // how many words are compared, how many words have rows, how many heads are listed

/**
 * @typedef {{id: number, word: string, before: number, after: number, mark: "" | "new" | "lost"}} WordRow
 * @typedef {{rows: WordRow[], moved: number, shows: boolean}} Outcome
 */

// ---- the outcome in numbers

/**
 * The words to show: the likeliest words before the changes, and the likeliest words after them. The words are sorted
 * by their probability after the changes, the largest first.
 * @param {Float64Array} before
 * @param {Float64Array} after
 * @param {string[]} words  the vocabulary
 * @returns {Outcome}
 */
export function outcomeOf(before, after, words) {
  const [first, now] = [likeliestOf(before, FIRST), likeliestOf(after, ROWS)];
  const head = now.slice(0, FIRST);
  const lost = first.filter((id) => !head.includes(id));
  const ids = [...new Set([...head, ...lost, ...now])].slice(0, ROWS);
  ids.sort((one, other) => after[other] - after[one] || one - other);
  /** @type {(id: number) => WordRow["mark"]} */
  const mark = (id) => (lost.includes(id) ? "lost" : head.includes(id) && !first.includes(id) ? "new" : "");
  const rows = ids.map((id) => ({ id, word: guessName(words, id), before: before[id], after: after[id], mark: mark(id) }));
  const moved = after.reduce((most, now, id) => Math.max(most, Math.abs(now - before[id])), 0);
  const shows = moved >= 0.0005 || rows.some((row) => percent(row.before) !== percent(row.after));
  return { rows, moved, shows };
}

/**
 * The likeliest word now, and the likeliest word before the changes.
 * @param {WordRow[]} rows
 */
function bestOf(rows) {
  return [rows[0], rows.reduce((one, other) => (other.before > one.before ? other : one))];
}

/** @param {Now} now */
function outcomeIn({ original, run, model }) {
  return outcomeOf(probabilitiesOf(original.logits), probabilitiesOf(run.logits), model.words);
}

/**
 * The heads whose patterns changed most, the most changed first.
 * @param {Run} original
 * @param {Run} run
 * @returns {{layer: number, head: number, moved: number}[]}
 */
function changedHeads(original, run) {
  const all = run.pattern.flatMap((heads, layer) =>
    heads.map((after, head) => ({ layer, head, moved: movedShare(original.pattern[layer][head], after) })),
  );
  const some = all.filter(({ moved }) => moved >= 0.5 * 10 ** -SEEN);
  return some.sort((one, other) => other.moved - one.moved || one.layer - other.layer).slice(0, HEADS_LISTED);
}

// ---- the outcome in words

/**
 * A sentence about the model's guess at the position, and about the effect of the changes.
 * @param {Looked} now
 * @returns {Said[]}
 */
export function claimOf(now) {
  if (!now.run.logits.length) return wordlessHeadline(now);
  const { rows, moved, shows } = outcomeIn(now);
  const [best, was] = bestOf(rows);
  const [sure, probability] = [best.after >= SURE, percent(best.after)];
  if (!now.state.edits.length)
    return [sure ? "Best guess" : "Not sure", ...whereOf(now), `: ${sure ? "" : "the best guess is "}`, { word: best.word }, `, ${probability}.`];
  const before = percent(was.before);
  if (!moved) return inShort(now, (cause) => [...cause, " every probability stays the same"]);
  if (!shows) return inShort(now, (cause) => [...cause, " no probability moves by as much as 0.1%"]);
  const says = best === was
    ? [" it still says ", { word: best.word }, probability === before ? ` (${probability})` : ` (${probability}, ${before} before)`]
    : [" it says ", { word: best.word }, ` (${probability}) instead of `, { word: was.word }, ` (${before})`];
  return inShort(now, (cause) => (sure ? [...cause, ...says] : ["not sure ", ...cause, ":", ...says]));
}

/**
 * A sentence about the effect of the changes; if there is room, the sentence also describes the changes.
 * @param {Looked} now
 * @param {(cause: Said[]) => Said[]} told
 * @returns {Said[]}
 */
function inShort(now, told) {
  const [own, short] = [causeOf(now), [now.state.edits.length > 1 ? "with these changes" : "with this change"]];
  const ways = [[...told(own), ...whereOf(now)], [...told(short), ...whereOf(now)], told(short)];
  /** @param {Said[]} parts */
  const fits = (parts) => plainOf(parts).split(" ").length <= LONGEST_SAID;
  return sentenceOf([...(ways.find(fits) ?? ways[2]), "."]);
}

/**
 * The sentence for a model without logits. It compares the word's vector after the last layer with the same vector before the changes.
 * @param {Looked} now
 */
function wordlessHeadline(now) {
  const [{ position, edits }, there] = [now.state, { word: nameAt(now, now.state.position) }];
  if (!edits.length) return ["This model does not guess words: change something to see how far ", there, " moves."];
  const alike = cosineAt(now.run.resid.at(-1), now.original.resid.at(-1), position, now.run.tokens.length);
  return inShort(now, (cause) => [...cause, " the last vector's cosine with the original is ", fixed(alike, SEEN)]);
}

/**
 * The words that name the position of the guess; empty if the guess is at the only gap of the text.
 * @param {Looked} now
 * @returns {Said[]}
 */
function whereOf(now) {
  const there = { word: nameAt(now, now.state.position) };
  if (now.model.next) return [" after ", there];
  if (!isGap(now)) return [" at ", there];
  const all = now.run.tokens.flatMap((token, position) => (token === maskOf(now.model) ? [position] : []));
  return all.length > 1 ? [` at gap ${all.indexOf(now.state.position) + 1}`] : [];
}

/**
 * Describes the reader's changes in words that can begin a sentence, such as "without oak".
 * @param {Looked} now
 * @returns {Said[]}
 */
export function causeOf(now) {
  const clauses = clausesOf(now);
  if (clauses.length > 2) return ["with these changes"];
  return clauses.flatMap(([cause], i) => (i ? [" and ", ...cause] : cause));
}

/**
 * A headline about the effect of the changes on the guess; it begins with an order to the reader, such as "Hide oak".
 * @param {Looked} now
 * @returns {Said[]}
 */
export function headlineOf(now) {
  if (!now.run.logits.length || !now.state.edits.length) return claimOf(now);
  const clauses = clausesOf(now);
  const order = clauses.length > 2 ? ["make these changes"] : clauses.flatMap(([, own], i) => (i ? [" and ", ...own] : own));
  const { rows, moved, shows } = outcomeIn(now);
  const [best, was] = bestOf(rows);
  /** @type {Said[]} */
  const says = !moved ? ["every probability stays the same"]
    : !shows ? ["no probability moves by as much as 0.1%"]
    : best === was ? ["it still says ", { word: best.word }]
    : [{ word: was.word }, " becomes ", { word: best.word }];
  return sentenceOf([...order, ", and ", ...says, ...(now.model.next ? [] : whereOf(now)), "."]);
}

/**
 * The reader's changes, each in two forms: as a cause ("without oak") and as an order ("hide oak").
 * @param {Looked} now
 * @returns {[Said[], Said[]][]}
 */
function clausesOf(now) {
  /**
   * @template {keyof ByOp} Op
   * @param {Op} op
   */
  const of = (op) => editsOf(now.state.edits, op);
  /** @type {[Said[], Said[]][]} */
  const clauses = [];
  /** @param {Said[]} what  with "with" or "without" before it, a cause @param {string} cause @param {string} order */
  const put = (what, cause, order) => clauses.push([[cause, ...what], [order, ...what]]);
  const hidden = of("hide").map(({ token }) => token);
  if (hidden.length) put(listOf(wordsAt(now, hidden)), "without ", "hide ");
  for (const { layer, head } of of("ablate"))
    put([head === undefined || head === null ? `the heads of layer ${layer}` : `head ${layer}.${head}`], "without ", "turn off ");
  for (const edit of of("swap")) put([{ word: plainName(edit.with) }, " in place of ", { word: nameIn(now.original, edit.token) }], "with ", "put ");
  if (of("causal").length) clauses.push([["with later words hidden"], ["hide all later words"]]);
  if (of("mask").length) clauses.push(linksOf(now, of("mask")));
  if (of("scale").length) put([heatWords(now.model, of("scale").at(-1).value)], "at ", "use ");
  if (of("row").length) clauses.push(rowsOf(of("row")));
  for (const edit of now.state.edits.filter(({ op }) => OPS[op].words)) put(changeWords(edit, now, (token) => ({ word: nameAt(now, token) })), "with ", "take ");
  return clauses;
}

// Describes the hidden links in words.
/** @param {Looked} now @param {ByOp["mask"][]} edits @returns {[Said[], Said[]]} */
function linksOf(now, edits) {
  const [{ query, key, layer, head }] = edits;
  if (edits.length > 1) return [[`with ${edits.length} links hidden`], [`hide ${edits.length} links`]];
  const where = layer === undefined || layer === null ? "" : head === undefined || head === null ? ` in layer ${layer}` : ` in head ${layer}.${head}`;
  const [from, to] = [query, key].map((token) => ({ word: nameAt(now, token) }));
  return [["with ", to, " hidden from ", from, where], ["hide ", to, " from ", from, where]];
}

// Describes in words the rows of weights that the reader set.
/** @param {ByOp["row"][]} edits @returns {[Said[], Said[]]} */
function rowsOf(edits) {
  const [{ layer, head }] = edits;
  if (edits.length > 1) return [[`with ${edits.length} rows of your weights`], [`set ${edits.length} rows of weights`]];
  return [[`with your weights in head ${layer}.${head}`], [`set a row of weights in head ${layer}.${head}`]];
}

/** @param {Looked} now @param {number} token */
const nameAt = ({ run, words }, token) => nameIn({ ...run, words }, token);

/**
 * The words to which these tokens belong, each once. If only some tokens of a word are in `tokens`, the result
 * contains these tokens instead of the word.
 * @param {Looked} now
 * @param {number[]} tokens
 */
function wordsAt(now, tokens) {
  const named = [];
  const all = [...new Set(tokens)].sort((one, other) => one - other);
  for (const token of all) {
    const span = (now.words ?? []).find(([first, end]) => first <= token && token < end) ?? [token, token + 1];
    const whole = Array.from({ length: span[1] - span[0] }, (_, i) => span[0] + i).every((piece) => all.includes(piece));
    if (!whole) named.push({ word: now.run.tokens[token] });
    else if (token === span[0]) named.push({ word: nameAt(now, token) });
  }
  return named;
}

/**
 * Makes a sentence from its parts: the first letter becomes a capital letter.
 * @param {Said[]} parts
 */
function sentenceOf(parts) {
  const [first, ...rest] = /** @type {[string, ...Said[]]} */ (parts);
  return [first[0].toUpperCase() + first.slice(1), ...rest];
}

// ---- the part of the page

/**
 * The part with the outcome: `headline` is the sentence, `node` contains everything below it.
 * @param {Ui} ui
 * @param {Store} store
 * @returns {Part}
 */
export function outcomePart(ui, store) {
  const headline = el("p", { class: "outcome-headline" });
  const [bars, more] = [el("div", { class: "outcome-bars" }), el("div", { class: "outcome-more" })];
  const node = el("section", { class: "outcome", "data-part": "outcome", "aria-label": "What follows" }, bars, more);
  /** @type {[string, (() => void) | null, boolean | null]} */
  let [drawn, chart, inside] = ["", null, null]; // drawn: identifies the runs and the position that the page shows

  /** @param {Looked} now */
  function draw(now) {
    const said = claimOf(now);
    fill(headline, spelled(said));
    ui.say(plainOf(said));
    fill(bars, now.run.logits.length ? wordBars(now, outcomeIn(now)) : null);
  }

  /** @param {Told} now */
  function update(now) {
    const { run, original, state, model } = /** @type {Looked} */ (now);
    const known = Boolean(run && original && model && state.position !== null && state.position < run.tokens.length);
    node.setAttribute("aria-busy", String(Boolean(now.busy || !known)));
    headline.toggleAttribute("data-old", !known);
    if (run && state.position === null) {
      headline.removeAttribute("data-old");
      fill(headline, "There is no word yet: write a sentence.");
      for (const part of [bars, more]) fill(part);
      drawn = "";
    }
    if (!known) return;
    const made = JSON.stringify([numberOf(run), numberOf(original), state.position]);
    if (made !== drawn) draw(/** @type {Looked} */ (now));
    if (made !== drawn || inside !== state.inside) {
      more.hidden = !state.inside;
      chart = state.inside ? whatMoved(/** @type {Looked} */ (now), fill(more)) : null;
    }
    [drawn, inside] = [made, state.inside];
    for (const button of more.querySelectorAll("[data-head]"))
      button.setAttribute("aria-pressed", String(button.dataset.head === `${state.layer}.${state.head}`));
  }

  /**
   * Shows the similarity by layer and the heads that changed most; returns the function that draws the chart.
   * @param {Looked} now
   * @param {HTMLElement} box
   */
  function whatMoved(now, box) {
    if (!now.state.edits.length) {
      box.append(el("p", { class: "note" }, "Hide a word or remove a head to see how far the change reaches, layer by layer and head by head."));
      return null;
    }
    const there = word(nameAt(now, now.state.position));
    const T = now.run.tokens.length;
    const alike = now.run.resid.map((one, l) => cosineAt(one, now.original.resid[l], now.state.position, T));
    const plot = el("div", { class: "outcome-chart" });
    box.append(
      el("div", {}, el("h4", {}, "How similar ", there, " is to the original"), el("p", { class: "note" },
        "The cosine between its vectors with and without your changes, after the embeddings and after each layer."), plot),
      el("div", {}, el("h4", {}, "The heads that changed most"), headList(store, changedHeads(now.original, now.run),
        "The share of attention weight that moved, averaged over all rows. Bars go from 0% to 100%.",
        "No head changed visibly: in each, less than 0.1% of the weight moved.")),
    );
    const paint = () => fill(plot, alikeChart(plot, alike));
    paint();
    return paint;
  }

  ui.redraw(() => chart?.());
  return { node, headline, update };
}

/**
 * A table of the words that the model predicts at a position; if there are changes, a note below it explains the bars.
 * @param {Looked} now
 * @param {Outcome} outcome
 */
export function wordBars(now, { rows }) {
  const edited = now.state.edits.length > 0;
  const there = word(nameAt(now, now.state.position));
  const title = [now.model.next ? "What follows " : "The model's words for ", there];
  return [
    el("h3", {}, title),
    wordTable(rows, edited ? ["before", "now"] : null),
    edited ? barLegend(["before", "now"], ` · new: among the ${FIRST} likeliest words only now; lost: only before`) : null,
  ];
}

/**
 * The legend of the bars in a table of words.
 * @param {string[]} names
 */
export function barLegend(names, more = "") {
  return el("p", { class: "note outcome-legend" }, names.flatMap((name, i) => [i ? " " : "", el("span", { class: `outcome-bar ${name}` }), name]), more);
}

/**
 * A table of words with bars from 0 to 100%. If `names` is null, each word has one bar, for its probability now;
 * otherwise each word has two bars, with these names.
 * @param {WordRow[]} rows
 * @param {[string, string] | null} names
 */
export function wordTable(rows, names) {
  /** @param {number} x @param {string} kind */
  const bar = (x, kind) => el("span", { class: `outcome-bar ${kind}`, style: { width: `${100 * x}%` } });
  const [first, last] = names ?? ["", "now"];
  const marked = rows.some(({ mark }) => mark) || first === "before";
  return el("table", { class: "outcome-words" },
    el("thead", {}, el("tr", {},
      el("th", { scope: "col" }, "word"),
      el("th", { scope: "col", class: "outcome-scale", "aria-label": "probability, from 0% to 100%" }, [0, 1].map((x) => el("span", {}, percent(x)))),
      names ? el("th", { scope: "col" }, first) : null,
      el("th", { scope: "col" }, names ? last : "probability"),
      marked ? el("th", { scope: "col" }, el("span", { class: "sr" }, "new or lost")) : null)),
    el("tbody", {}, rows.map(({ word: name, before, after, mark }) => el("tr", { "data-mark": mark },
      el("th", { scope: "row" }, el("bdi", {}, visible(name))),
      el("td", { class: "outcome-cell" }, el("div", { "aria-hidden": "true" }, names ? bar(before, first) : null, bar(after, last))),
      names ? el("td", {}, percent(before)) : null,
      el("td", { class: "outcome-now" }, percent(after)),
      marked ? el("td", { class: "outcome-mark" }, mark) : null))));
}

/**
 * A line chart of a word's similarity after each layer.
 * @param {HTMLElement} plot @param {number[]} alike
 */
export function alikeChart(plot, alike, label = "cosine with the original") {
  return lineChart(Math.max(240, plot.clientWidth || 0), alike, { ...roundEnds([...alike, 1]), name: (i) => (i ? `layer ${i - 1}` : "emb."), label });
}

/**
 * A list of heads, the largest difference first; each head is a button that chooses it. `note` explains the bars;
 * `none` is shown for an empty list.
 * @param {Store} store
 * @param {{layer: number, head: number, moved: number}[]} heads
 * @param {string} note
 * @param {string} none
 */
export function headList(store, heads, note, none) {
  if (!heads.length) return el("p", { class: "note" }, none);
  return [
    el("p", { class: "note" }, note),
    el("ol", { class: "outcome-heads" }, heads.map(({ layer, head, moved }) => el("li", {}, el("button",
      { type: "button", "data-head": `${layer}.${head}`, onclick: () => store.set({ layer, head }, { undo: false }) },
      el("span", {}, `Head ${layer}.${head}`),
      el("span", { class: "outcome-track", "aria-hidden": "true" }, el("span", { style: { width: `${Math.min(100, 100 * moved)}%` } })),
      el("span", { class: "outcome-moved" }, percent(moved)))))),
  ];
}
