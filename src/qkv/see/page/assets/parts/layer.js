// The data flow of the chosen layer of a run, and a table of the steps that compute one row of a head's weights.

import { el, fill, word } from "../base/elements.js";
import { fixed, number } from "../base/format.js";
import { inTurn } from "../base/turns.js";
import { editsOf, hiddenBy, scaleOf, setRow } from "../engine/edits.js";
import { capped } from "../engine/layers.js";
import { streamOf } from "./block.js";
import { flowOf, lengthAt, parametersOf } from "./flow.js";
import { vectorsOf } from "./head.js";
import { stepsView } from "./steps.js";
import "./layer.css";

/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../store/store.js").Store} Store */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("./block.js").Flow} Flow */
/** @typedef {import("./flow.js").Known} Known */
/** @typedef {import("./head.js").HeadVectors} HeadVectors */

/**
 * The part with the data flow of the chosen layer, and the table of the chosen row's steps.
 * @param {Ui} ui
 * @param {Store} store
 * @returns {Part}
 */
export function layerPart(ui, store) {
  const title = el("h3", {});
  /** @param {number} by */
  const go = (by) => () => store.set({ layer: Math.max(0, Math.min(now.run.pattern.length - 1, now.state.layer + by)) });
  const [down, up] = /** @type {[string, string, number][]} */ ([["‹", "the layer before", -1], ["›", "the next layer", 1]]).map(([sign, name, by]) =>
    el("button", { type: "button", "aria-label": name, onclick: go(by) }, sign));
  const view = stepsView(ui, { onpick: (step, row) => step.side === "queries" && store.set({ query: row }) });
  const table = rowTable();
  const node = el("div", { class: "steps", "data-part": "steps" }, el("div", { class: "bar" }, title, down, up), view.node, table.node);
  /** @type {Map<string, Known | null>} */
  const known = new Map(); // the parameters by layer (for the first layer also by text), or null while they are loading
  const turn = inTurn();
  let first = true;
  /** @type {Now} */
  let now; // set after a run; until then the part is hidden

  /**
   * The parameters of the layer; null if the page cannot get them, undefined while they are loading.
   * @param {Run} run
   * @param {number} layer
   */
  function parametersFor(run, layer) {
    const key = layer ? String(layer) : JSON.stringify(run.ids);
    if (!store.engine.parameters || !now.model.bert) return null;
    if (known.has(key)) return known.get(key) ?? undefined;
    if (known.size > run.pattern.length) known.clear();
    known.set(key, null);
    store.engine.parameters(...parametersOf(run, layer)).then((parameters) => {
      known.set(key, parameters);
      if (now) update(now);
    }, reportError);
    return undefined;
  }

  /** @param {Told} next */
  function update(next) {
    now = /** @type {Now} */ (next);
    const { state, run, original, model } = now;
    node.hidden = !run?.blocks?.[state.layer]?.q;
    if (node.hidden || !state.inside || !run.tokens.length) return turn([]);
    const parameters = parametersFor(run, state.layer);
    const alone = state.only?.includes("block") && !state.only.includes("steps"); // only the residual stream is shown
    /** @type {Flow} */
    let flow;
    const make = () => {
      flow = /** @type {Flow} */ (flowOf(run, state, model, /** @type {Known | null} */ (parameters)));
      if (alone) flow = streamOf(flow);
    };
    const draw = () => {
      fill(title, `Layer ${state.layer}${alone ? ", part by part" : ` as data flows through it, and head ${state.layer}.${state.head}`}`);
      down.disabled = !state.layer;
      up.disabled = state.layer === run.pattern.length - 1;
      const opens = first ? { name: alone ? flow.steps.findLast(({ op }) => op.kind === "sum")?.name : "scores" } : {};
      first = false;
      return view.set(flow, { was: run === original ? null : addedIn(original, state.layer, flow.start[0]), ...opens });
    };
    const shows = parameters === undefined ? [] : [make, draw]; // while the parameters are loading, the last picture stays
    return turn([() => table.set(/** @type {Now} */ (next)), ...shows]);
  }
  return { node, update };
}

/**
 * The lengths of the vectors that the parts of a layer add at a token; null if the run does not have them.
 * @param {Run} run
 * @param {number} layer
 * @param {number} token
 */
function addedIn(run, layer, token) {
  const { attn_out: out, mlp_out: mlp } = run.blocks[layer];
  const wide = run.resid[0].length / run.tokens.length;
  return out && mlp ? { out: lengthAt(out, token, wide), mlp: lengthAt(mlp, token, wide) } : null;
}

/** A table of the steps that compute the weights of the chosen query: score, scale, mask, softmax for each key. */
function rowTable() {
  const [summary, lead] = [el("summary", {}), el("p", { class: "note" })];
  const box = el("div", { class: "scroll table", tabindex: 0, role: "group", "aria-label": "steps" });
  const node = el("details", { class: "as-table row-table" }, summary, lead, box);

  /** @param {Now} now */
  function set({ state, run }) {
    const vectors = /** @type {HeadVectors} */ (vectorsOf(run, state.layer, state.head));
    const [query, T] = [Math.min(state.query ?? state.position ?? 0, run.tokens.length - 1), run.tokens.length];
    const { layer, head, edits } = state;
    const usual = 1 / Math.sqrt(vectors.d);
    const { scale = scaleOf(edits, usual), softcap = null } = run.blocks[layer];
    const hidden = hiddenBy(edits, layer, head, T);
    const overridden = Boolean(setRow(edits, layer, head, query));
    const weights = run.pattern[layer][head].subarray(query * T, (query + 1) * T);
    fill(summary, "From ", word(run.tokens[query]), ` to its weights in head ${layer}.${head}, as a table`);
    fill(lead, overridden ? "You set the weights of this row; the softmax of the scores is not used." : "Each key's score says how well the key fits the query. Softmax turns the scores of visible keys into weights, which sum to 1.");
    const rows = Array.from({ length: T }, (_, key) => {
      let score = 0;
      for (let c = 0; c < vectors.d; c++) score += vectors.q.at(query, c) * vectors.k.at(key, c);
      const mine = hidden[query * T + key];
      const away = mine || run.blocks[layer].attn_scores?.[head]?.[query * T + key] === -Infinity;
      const scaled = capped(score * scale, softcap);
      return el("tr", {}, el("th", { scope: "row" }, word(run.tokens[key])), el("td", {}, number(score)), el("td", {}, number(scaled)),
        el("td", { class: mine ? "changed" : "" }, away ? "hidden" : "open"), el("td", { class: overridden ? "changed" : "" }, fixed(weights[key], 3)),
        el("td", { class: "meter" }, el("span", { style: { width: `${100 * Math.min(1, weights[key])}%` } })));
    });
    const same = Math.abs(scale / usual - 1) < 1e-9;
    const by = `${same ? `÷ √${vectors.d}` : `× ${number(scale, 3)}`}${softcap ? ", capped" : ""}`;
    const heads = ["key", "raw score", by, "mask", overridden ? "yours" : "softmax"].map((text, i) => el("th", { scope: "col", class: i === 2 && editsOf(edits, "scale").length ? "changed" : "" }, text));
    fill(box, el("table", {}, el("caption", { class: "sr" }, summary.textContent), el("thead", {}, el("tr", {}, heads, el("td", {}))), el("tbody", {}, rows)));
  }
  return { node, set };
}
