// Findings, alone or in an article: each claim with its picture, before and after the change. The page measures each
// finding again with its model, and says whether the claim holds. A reader can change a finding on the page, or open
// it in the lab.

import { el, fill, word } from "../base/elements.js";
import { fixed } from "../base/format.js";
import { plainTokens } from "../base/tokens.js";
import { range } from "../base/arrays.js";
import { likeliestOf, probabilitiesOf } from "../engine/sampling.js";
import { stateOf } from "../store/state.js";
import { withWords } from "../store/positions.js";
import { inWords } from "../parts/changes.js";
import { isRemoved } from "../parts/map.js";
import { outcomeOf, wordBars } from "../parts/outcome.js";
import { handOver } from "../parts/save.js";
import { hiding } from "../parts/sentence.js";
import { stage } from "../parts/stage.js";
import "./findings.css";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("./lab.js").Screen} Screen */

/** @typedef {[string, number][]} Predictions  words with their probabilities, the most probable first */

/**
 * A finding in the format of its file: see src/qkv/findings/schema.json.
 * @typedef {object} Finding
 * @property {{name: string, sha256: string}} model
 * @property {string} text
 * @property {number} position
 * @property {Edit[]} edits
 * @property {string} claim
 * @property {Predictions} before
 * @property {Predictions} after
 */

// The largest allowed difference of probabilities is TOLERANCE, as in `qkv verify`. If the page computes with rounded
// numbers, the difference may be SHARE of the probability, but at least TOLERANCE and at most ROUNDED. Words whose
// probabilities are nearly equal may then change places, even with words that the finding lacks: the page compares
// MAX_WORDS words.
const [TOLERANCE, ROUNDED, SHARE, MAX_WORDS] = [1e-4, 1e-2, 0.05, 10];
const SHORT = 26; // up to this number of characters, the texts before and after the edits are side by side
const OF_HEADS = ["z", "q", "k", "v", "pattern"];

/**
 * @param {Ui} ui
 * @param {LiveStore} store
 * @returns {Screen}
 */
export function findingsScreen(ui, store) {
  /** @type {{findings: Finding[], parts: (string | number)[]}} */
  const { findings, parts } = store.data;
  const cards = findings.map((finding, k) => cardOf(ui, store, finding, k));
  const node = el("div", { class: "findings", "data-part": "findings" },
    parts.map((part) => (typeof part === "number" ? cards[part].node : el("slot", { name: part }))));
  /** @type {Promise<void> | null} */
  let measured = null;

  async function measureAll() {
    const measurements = [];
    for (const card of cards) {
      measurements.push(await card.measure());
      await pause(); // with a large vocabulary, measuring and drawing take a long time
      card.show();
      await pause();
    }
    globalThis.qkv.findings = measurements;
  }

  /** @param {Told} now */
  async function update(now) {
    if (now.run) await (measured ??= measureAll());
    for (const card of cards) card.show();
  }
  return { node, update };
}

/** Lets the browser draw and react before the next work. */
const pause = () => new Promise((done) => setTimeout(done));

/**
 * One finding.
 * @param {Ui} ui
 * @param {LiveStore} store
 * @param {Finding} finding
 * @param {number} k  the number of the finding on the page
 */
function cardOf(ui, store, finding, k) {
  const { text, position, claim } = finding;
  const pictures = [stage(ui), stage(ui, ([first, last]) => change(hiding(edits, range(first, last))))];
  const title = el("h2", { id: ui.id("claim"), tabindex: -1 }, claim || `“${text}”`);
  const verdict = el("div", { class: "verdict" }, "Measuring on this page …");
  const list = el("ul", { class: "changed", "aria-label": "edits" });
  const sides = el("div", { class: text.length > SHORT ? "shown" : "shown twice" },
    el("figure", {}, el("figcaption", {}, el("h3", {}, "Before")), pictures[0].node),
    el("figure", {}, el("figcaption", { "data-part": "changes" }, el("h3", {}, "After"), list), pictures[1].node));
  const bars = el("div", { class: "outcome" });
  const back = el("button", { type: "button", hidden: true, onclick: () => change(finding.edits) }, "Back to the finding");
  const lab = el("button", { type: "button", class: "primary", "data-qkv-first": k === 0, onclick: openLab }, "Change it in the lab");
  const save = el("button", { type: "button", onclick: () => handOver(`finding-${k + 1}.json`, new Blob([JSON.stringify(finding)])) }, "Save the finding");
  const note = el("p", { class: "note" }, "Press a word to hide it, or an edit to undo it. ", el("code", {}, "qkv verify"), ` checks the saved finding outside this page: ${finding.model.name}, sha256 ${finding.model.sha256.slice(0, 12)}….`);
  const node = el("section", { class: "finding", "aria-labelledby": title.id }, title, verdict, sides, bars, el("div", { class: "acts" }, lab, back, save), note);
  /** @type {Edit[]} */
  let edits = finding.edits; // the reader's edits
  /** @type {any} */
  let model;
  /** @type {{original: Run, run: Run} | null} */
  let runs = null;
  /** @type {{original: Run, run: Run} | null} */
  let drawn = null; // the runs that the card shows
  let away = false; // whether the reader opened the finding in the lab

  /** @param {Edit[]} some */
  async function runsOf(some) {
    const { engine } = /** @type {{engine: Api}} */ (store);
    model ??= await engine.model;
    /** @param {Edit[]} own */
    const run = (own) => engine.run(text, own, { at: [position], layers: [] });
    const original = await run([]);
    return { original, run: some.length ? await run(some) : original };
  }

  /** Measures the finding, and says whether it holds. */
  async function measure() {
    const none = /** @type {Predictions} */ ([]);
    try {
      runs = await runsOf(edits);
      const marks = await marksBlanks(store.data.side);
      const [before, after] = [runs.original, runs.run].map((run) => predictionsOf(run, position, MAX_WORDS, model, marks));
      const wrong = [...differences("before", finding.before, before, model.exact), ...differences("after", finding.after, after, model.exact)];
      const [own, others] = [before.slice(0, finding.before.length), after.slice(0, finding.after.length)];
      const moved = [...finding.before, ...finding.after].some(([name], k) => name !== [...own, ...others][k]?.[0]);
      judge(!wrong.length, wrong, moved);
      return { claim, holds: !wrong.length, before: own, after: others };
    } catch (/** @type {any} */ reason) {
      judge(false, [`The finding cannot be measured: ${reason.message}`]);
      return { claim, holds: false, before: none, after: none };
    }
  }

  /** @param {boolean} holds @param {any[]} wrong @param {boolean} [moved]  whether words have changed places */
  function judge(holds, wrong, moved) {
    verdict.dataset.holds = String(holds);
    const order = moved ? "only words with nearly equal probabilities have changed places" : "the words keep their order";
    const within = model?.exact ? `to within ${TOLERANCE}` : `to within ${100 * SHARE}% or ${TOLERANCE}, since this page computes with rounded numbers`;
    fill(verdict, el("p", {}, el("b", {}, holds ? "✓ Holds. " : "✗ Does not hold. "),
      holds ? `Measured again on this page: ${order}, and all probabilities agree ${within}.` : "Measured again on this page:"),
    holds ? null : el("ul", {}, wrong.map((line) => el("li", {}, line))));
  }

  /** @param {Edit[]} some */
  async function change(some) {
    edits = some;
    document.documentElement.dataset.qkv = "busy";
    const changedRuns = await runsOf(some);
    if (edits !== some) return;
    runs = changedRuns;
    show();
    ui.say(`${bars.querySelector("tbody th")?.textContent} is the most probable word.`);
    document.documentElement.dataset.qkv = "ready";
  }

  function openLab() {
    away = true;
    const [first] = headsOf(edits, model) ?? [];
    store.set({ text, edits, position, query: position, ...(first && { layer: first[0], head: first[1] }), view: "lab" });
  }

  function show() {
    if (away && node.isConnected) {
      node.scrollIntoView();
      away = false;
    }
    back.hidden = edits === finding.edits;
    if (!runs || drawn === runs) return;
    drawn = runs;
    const { original, run } = runs;
    const sentence = withWords(text, original, run, edits, model);
    const state = Object.freeze({ ...stateOf({ ...store.state, text, edits }), position });
    /** @type {Now} */
    const now = { state, model, run, original, sentence, words: run.words ?? [], second: null, busy: false, error: null, ruled: null };
    const [heads, query] = [headsOf(edits, model), queryOf(edits)];
    const left = heads?.filter(([layer, head]) => !isRemoved(edits, layer, head));
    const plain = stateOf({ ...state, edits: [] });
    pictures[0].update({ ...now, run: original, words: original.words ?? [], sentence: text, state: plain }, false, { heads, query });
    pictures[1].update(now, left?.length === 0, { heads: left, query });
    fill(list, inWords(now).map(({ said, gone }) => {
      const undo = () => change(edits.filter((edit) => !gone.includes(edit)));
      return el("li", {}, el("button", { type: "button", onclick: undo }, said, el("span", { class: "cross", "aria-label": "remove" }, "×")));
    }));
    const [before, after] = [original, run].map(({ logits }) => probabilitiesOf(logits));
    fill(bars, wordBars({ ...now, state }, outcomeOf(before, after, model.words)));
  }
  return { node, measure, show };
}

/**
 * The heads to which edits apply, as pairs [layer, head]; undefined if no edit applies to heads.
 * @param {Edit[]} edits
 * @param {any} model
 * @returns {[number, number][] | undefined}
 */
function headsOf(edits, { heads: count, kv_heads = count }) {
  /** @type {Map<string, [number, number]>} */
  const heads = new Map();
  for (const { op, at = "", layer, head } of edits) {
    if (layer === undefined || !(op === "ablate" || head !== undefined || OF_HEADS.includes(at))) continue;
    const shared = ["k", "v"].includes(at) ? count / kv_heads : 1; // the number of query heads for each key head
    const [first, last] = head === undefined ? [0, count] : [head * shared, (head + 1) * shared];
    for (const one of range(first, last)) heads.set(`${layer}.${one}`, [layer, one]);
  }
  return heads.size ? [...heads.values()] : undefined;
}

/**
 * The query to which all edits apply; undefined if the edits apply to several queries, or if an edit has no query.
 * @param {Edit[]} edits
 */
function queryOf(edits) {
  const queries = new Set(edits.map(({ op, at, query, token }) => (["mask", "row"].includes(op) ? query : at === "pattern" || at === "z" ? token : undefined)));
  return queries.size === 1 ? [...queries][0] : undefined;
}

// ---- the measurement

/**
 * Whether the tokenizer marks the blank before a word.
 * @param {string | undefined} side
 */
async function marksBlanks(side) {
  const { tokens } = await globalThis.qkv.run("a a", [], { model: side, at: [], layers: [] });
  return tokens.some((token) => /^[Ġ▁Ċ]/.test(token));
}

/**
 * The most probable words at a position, with the same names as in Python.
 * @param {Run} run
 * @param {number} position
 * @param {number} count
 * @param {any} model
 * @param {boolean} marks
 * @returns {Predictions}
 */
function predictionsOf({ tokens, logits }, position, count, model, marks) {
  const probabilities = probabilitiesOf(logits);
  const behind = tokens.slice(0, model.next ? position + 1 : position).slice(-1);
  const front = [...(marks ? ["Ġ"] : []), ...behind];
  /** @param {number} id */
  const name = (id) => plainTokens([...front, model.words[id]], []).at(-1);
  return likeliestOf(probabilities, count).map((id) => [name(id), probabilities[id]]);
}

/**
 * Compares the predictions in a finding with the predictions measured on this page. Returns one line for each difference.
 * @param {string} when
 * @param {Predictions} said
 * @param {Predictions} measured
 * @param {boolean} exact
 */
function differences(when, said, measured, exact) {
  /** @param {[string, number]} prediction */
  const shown = ([name, share]) => [word(name), ` (${fixed(share, 4)})`];
  return said.flatMap((one, k) => {
    const own = measured[k];
    const within = exact ? TOLERANCE : Math.max(TOLERANCE, Math.min(ROUNDED, SHARE * one[1]));
    /** @param {[string, number] | undefined} other */
    const near = (other) => other && Math.abs(other[1] - one[1]) <= within;
    const candidates = exact ? [own] : measured;
    if (near(own) && candidates.some((other) => other?.[0] === one[0] && near(other))) return [];
    return [[`${when}, word ${k + 1}: `, ...shown(one), " in the finding, ", ...(own ? shown(own) : ["nothing"]), " here"]];
  });
}
