// The list of the reader's changes; the reader can undo each change. Below the list are controls for the whole model:
// which tokens each token sees, and the temperature of attention.

import { choice } from "../base/controls.js";
import { el, fill } from "../base/elements.js";
import { count, number } from "../base/format.js";
import { plainName } from "../base/tokens.js";
import { range } from "../base/arrays.js";
import { editsOf } from "../engine/edits.js";
import { offerOf } from "./sentence.js";
import { changeWords, heatWords, nameIn, spelled, usualScale } from "./words.js";
import "./changes.css";

/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../store/store.js").Store} Store */

const WINDOWS = [1, 2, 4, 8];

/** @param {Ui} ui @param {Store} store @returns {Part} */
export function changesPart(ui, store) {
  const list = el("ul", { class: "changed", "aria-label": "what you changed" });
  const masks = maskMenu(ui, store);
  const heat = temperature(ui, store);
  masks.node.classList.add("masks");
  const controls = el("div", { class: "bar" }, masks.node, heat.node);
  const why = el("p", { class: "why" });
  const node = el("div", { "data-part": "changes" }, el("div", { class: "row" }, list, why), controls);

  /** @param {Told} now */
  function update(now) {
    const { state, run } = now;
    controls.hidden = !(state.inside || state.only) || !run;
    const all = run ? inWords(now) : [];
    list.hidden = !all.length;
    /** @param {Edit[]} gone */
    const back = (gone) => () => {
      const away = new Set(gone);
      store.set({ edits: store.state.edits.filter((edit) => !away.has(edit)) });
    };
    fill(list,
      all.map(({ said, gone }) => el("li", {}, el("button", { type: "button", onclick: back(gone) }, said, el("span", { class: "cross", "aria-label": "remove" }, "×")))),
      all.length > 1 ? el("li", {}, el("button", { type: "button", class: "all", onclick: () => store.set({ edits: [] }) }, "Clear all")) : null);
    const offer = run && offerOf(store.data, now);
    fill(why, offer?.on && state.edits.length === (offer.tokens.length || 1) ? offer.why : all.length || !run ? null : "No changes yet. Your changes appear here; click one to undo it.");
    if (!run) return;
    masks.update(/** @type {Now} */ (now));
    heat.update(/** @type {Now} */ (now));
  }
  return { node, update };
}

/**
 * Describes the edits. All edits of one word form one item. Pairs that were hidden one after the other also form one item.
 * @param {Now} now
 * @returns {{said: any[], gone: Edit[]}[]}
 */
export function inWords({ state, run, original, words, model }) {
  const { edits } = state;
  /** @type {{key: string, gone: Edit[], say: (gone: Edit[]) => any}[]} */
  const groups = [];
  /** @param {string} key @param {Edit} edit @param {(gone: Edit[]) => any} say */
  const put = (key, edit, say) => {
    const known = groups.find((one) => one.key === key);
    if (known) known.gone.push(edit);
    else groups.push({ key, gone: [edit], say });
  };
  /** @param {number} token */
  const named = (token) => ({ word: nameIn({ ...run, words }, token) });
  /** @type {(edit: Edit) => string} */
  const head = ({ layer, head: h }) => (layer === undefined ? "everywhere" : h === undefined ? `in layer ${layer}` : `in head ${layer}.${h}`);
  const windowed = windowOf(edits, original.tokens.length);
  for (const edit of edits) {
    const { op, token, query, layer, value } = /** @type {Required<Edit>} */ (edit);
    if (op === "hide") put(`hide ${words.find(([first, last]) => first <= token && token < last)?.[0] ?? token}`, edit, () => [named(token), " hidden"]);
    else if (op === "swap") put(`swap ${token}`, edit, () => [{ word: nameIn(original, token) }, " → ", { word: plainName(edit.with) }]);
    else if (op === "ablate") put(`ablate ${head(edit)}`, edit, () => [edit.head === undefined ? `layer ${layer}: all heads removed` : `head ${layer}.${edit.head} removed`]);
    else if (op === "causal") put("causal", edit, () => ["later words are hidden"]);
    else if (op === "scale") put("scale", edit, () => [heatWords(model, value)]);
    else if (op === "row") put(`row ${query} ${head(edit)}`, edit, () => ["weights of ", named(query), ` set ${head(edit)}`]);
    else if (op !== "mask") put(JSON.stringify(edit), edit, () => changeWords(edit, { state, model }, named));
    else if (windowed && layer === undefined) put("window", edit, () => [`sees ${windowed} to each side`]);
    else put(`mask ${head(edit)}`, edit, (gone) => [`${count(gone.length)} ${gone.length > 1 ? "pairs" : "pair"} hidden ${head(edit)}`]);
  }
  return groups.map(({ gone, say }) => ({ said: spelled(say(gone)), gone }));
}

// ---- which tokens each token sees

/**
 * All pairs of tokens with a distance of more than `reach`.
 * @param {number} size
 * @param {number} reach
 */
function windowMasks(size, reach) {
  const all = range(0, size);
  return all.flatMap((query) => all.filter((key) => Math.abs(query - key) > reach).map((key) => ({ op: "mask", query, key })));
}

/**
 * The size of the window: each token sees this many tokens to each side. Null if the hidden pairs form no window.
 * @param {Edit[]} edits
 * @param {number} size
 */
function windowOf(edits, size) {
  const pairs = editsOf(edits, "mask").filter(({ layer }) => layer === undefined);
  if (!pairs.length) return null;
  const nearest = pairs.reduce((least, { query, key }) => Math.min(least, Math.abs(query - key)), size);
  const different = new Set(pairs.map(({ query, key }) => query * size + key)).size;
  return nearest > 0 && different === (size - nearest) * (size - nearest + 1) ? nearest - 1 : null; // the number of pairs at this distance
}

/** @param {Ui} ui @param {Store} store */
function maskMenu(ui, store) {
  /** @param {Edit} edit */
  const everywhere = ({ op, layer }) => op === "causal" || (op === "mask" && layer === undefined);
  let size = 0;
  /** @param {number} reach */
  const sees = (reach) => (reach === 1 ? "sees 1 token to each side" : `sees ${reach} tokens to each side`);
  const options = [["none", store.data.next ? "sees all that the model allows" : "sees all"], ["causal", "sees earlier tokens only"], ...WINDOWS.map((reach) => [String(reach), sees(reach)])];
  const menu = choice(ui, "Each token", options, "none", (value) => {
    const others = store.state.edits.filter((edit) => !everywhere(edit));
    const put = value === "none" ? [] : value === "causal" ? [{ op: "causal" }] : windowMasks(size, Number(value));
    store.set({ edits: [...others, ...put] });
  });
  /** @param {Now} now */
  const update = ({ state: { edits }, original }) => {
    size = original.tokens.length;
    const reach = windowOf(edits, size);
    const painted = edits.some(({ op, layer }) => op === "mask" && layer === undefined);
    const value = edits.some(({ op }) => op === "causal") ? "causal" : reach !== null ? String(reach) : painted ? "painted" : "none";
    const known = options.some(([name]) => name === value);
    menu.put(known ? options : [...options, [value, reach === null ? "sees what you left visible" : sees(reach)]]);
    menu.set(value);
  };
  return { node: menu.node, update };
}

// ---- temperature

/**
 * The entropy of a row of weights, in bits.
 * @param {Float32Array} row
 */
function entropyOf(row) {
  let total = 0;
  for (const weight of row) if (weight > 0) total -= weight * Math.log2(weight);
  return total;
}

/** @param {Ui} ui @param {Store} store */
function temperature(ui, store) {
  const id = ui.id("temperature");
  const slider = el("input", { id, type: "range", min: -3, max: 3, step: 0.25 });
  const said = el("output", { for: id });
  let [usual, slid] = [1, -Infinity];
  slider.addEventListener("input", () => {
    const others = store.state.edits.filter(({ op }) => op !== "scale");
    const power = Number(slider.value);
    const edits = power ? [...others, { op: "scale", value: usual / 2 ** power }] : others;
    store.set({ edits }, { undo: performance.now() - slid > 1000 }); // a drag of the slider counts as one change
    slid = performance.now();
  });
  /** @param {Now} now */
  const update = ({ state, run, original, model }) => {
    usual = usualScale(model, state.layer);
    const scale = state.edits.findLast(({ op }) => op === "scale");
    const now = scale ? usual / scale.value : 1;
    slider.value = String(Math.log2(now));
    const [query, T] = [state.query ?? 0, run.tokens.length];
    /** @param {Run} one */
    const rowOf = (one) => one.pattern[state.layer][state.head].subarray(query * T, (query + 1) * T);
    const bits = [original, run].map((one) => number(entropyOf(rowOf(one))));
    fill(said, number(now), T === 0 ? null : el("span", { class: "dim" }, ` the chosen row's entropy: ${bits[0] === bits[1] ? "" : `${bits[0]} → `}${bits[1]} bits`));
  };
  return { node: el("span", { class: "control heat" }, el("label", { for: id }, "Attention temperature"), slider, said), update };
}
