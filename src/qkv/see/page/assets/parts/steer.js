// Patching and steering: an activation from another text, and a vector from the difference of two texts.

import { el, fill } from "../base/elements.js";
import { count, number } from "../base/format.js";
import { LONGEST } from "../store/limits.js";
import { oneAtATime } from "./one_at_a_time.js";
import { ALL, menu, numbered, patchPanel, tokenOptions } from "./patch.js";
import { reading } from "./reading.js";
import { steeringOf } from "./words.js";
import "./steer.css";

/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../engine/api.js").Run} Run */

// Each number in a vector is rounded to DIGITS significant digits. For the slider of the strength, STRONGEST is the
// maximum, STEP is the step, and USUAL is the initial value.
const [DIGITS, STRONGEST, STEP, USUAL] = [4, 10, 0.25, 2];
const LONG = 30_000; // some programs cut off addresses with more characters than this

/** @param {Ui} ui @param {LiveStore} store @returns {Part} */
export function steerPart(ui, store) {
  const panels = [patchPanel(ui, store), steeringPanel(ui, store)];
  /** @type {number | null} */
  let open = null;
  const buttons = panels.map(({ name, node }, i) => {
    node.id = ui.id("panel");
    return el("button", { type: "button", "aria-controls": node.id, onclick: () => unfold(open === i ? null : i) }, name);
  });
  const long = el("p", { class: "note", role: "status" });
  const node = el("div", { class: "steer", "data-part": "steer" }, el("div", { class: "bar" }, buttons), panels.map((panel) => panel.node), long);
  unfold(null);

  /** @param {number | null} i */
  function unfold(i) {
    open = i;
    panels.forEach((panel, k) => (panel.node.hidden = k !== i));
    buttons.forEach((button, k) => button.setAttribute("aria-expanded", String(k === i)));
    if (i === null) return;
    panels[i].draw();
    panels[i].node.querySelector("input").focus();
  }

  /** @param {Told} now */
  function update(now) {
    const { state, run, busy } = now;
    node.hidden = !state.inside || state.only !== null || !run;
    if (!run) return;
    for (const panel of panels) panel.update(/** @type {Now} */ (now));
    if (busy) return;
    const size = state.edits.some(({ at }) => at) ? store.address().length : 0;
    fill(long, size > LONG ? `The address of this page is now ${count(size)} characters long. Browsers can open it, but mail and chat programs may truncate it.` : null);
  }
  return { node, update };
}

/**
 * The mean of the vectors (T, D) over all tokens of a text except special tokens; null if all tokens are special.
 * @param {Run} run
 * @param {number} layer
 */
function meanOf({ resid, tokens, special }, layer) {
  const own = tokens.flatMap((_, t) => (special[t] ? [] : [t]));
  const D = resid[layer].length / tokens.length;
  if (!own.length) return null;
  return Array.from({ length: D }, (_, d) => own.reduce((sum, t) => sum + resid[layer][t * D + d], 0) / own.length);
}

/** @param {ArrayLike<number>} vector */
const lengthOf = (vector) => Math.hypot(...Array.from(vector));

/** @param {Ui} ui @param {LiveStore} store */
function steeringPanel(ui, store) {
  /** @param {string} label @param {string} more */
  const written = (label, more) => {
    const id = ui.id("steer");
    const input = el("input", { id, type: "text", spellcheck: "false", autocomplete: "off", maxlength: LONGEST, oninput: () => write() });
    input.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter" && !put.disabled) steer(true);
    });
    return { input, node: el("div", { class: "field" }, el("label", { for: id }, label, el("span", { class: "dim" }, more)), input) };
  };
  const [towards, away] = [written("Towards", ""), written("Away from", " (may be empty)")];
  const id = ui.id("strength");
  const slider = el("input", { id, type: "range", min: -STRONGEST, max: STRONGEST, step: STEP, value: USUAL });
  const shown = el("output", { for: id });
  const put = el("button", { type: "button", class: "put", onclick: () => steer(true) }, "Steer");
  const said = el("p", { class: "said", role: "status" });
  const [layer, token] = [
    menu(ui, "Before layer", (value) => choose({ layer: Number(value) })),
    menu(ui, "At", (value) => choose({ token: value === ALL ? ALL : Number(value) })),
  ];
  const node = el("div", { class: "steer-panel" },
    el("p", { class: "note" }, "A steering vector is added to the residual stream before a layer: the mean vector of the first text's tokens minus the mean vector of the second text's tokens, times the strength. Special tokens are left out."),
    el("div", { class: "fields" }, towards.node, away.node),
    el("div", { class: "bar" }, layer.node, token.node,
      el("span", { class: "control strength" }, el("label", { for: id }, "Strength"), slider, shown), put),
    said);
  const hand = oneAtATime(store);
  /** @type {{layer?: number, token?: number | "all"}} */
  let picked = {}; // the fields that the reader has set; the other fields get default values from the page's state
  /** @type {{towards: string, away: string, runs: Run[] | null, error: string}} */
  let texts = { towards: "", away: "", runs: null, error: "" };
  let [slid, known] = [-Infinity, "null"]; // `slid`: when the slider last moved; `known`: the JSON of the steering that the fields show
  /** @type {Now} */
  let told; // undefined before the first update
  const read = reading(store, (runs, error) => {
    texts = { ...texts, runs: error ? null : /** @type {Run[]} */ (runs), error };
    draw();
  });
  slider.addEventListener("input", () => {
    draw();
    if (!steeringOf(store.state)) return;
    steer(performance.now() - slid > 1000); // a drag of the slider counts as one change
    slid = performance.now();
  });

  function write() {
    const [to, from] = [towards, away].map(({ input }) => input.value.toWellFormed());
    texts = { towards: to, away: from, runs: null, error: "" };
    read([to, ...(from ? [from] : [])].filter(() => to));
    draw();
  }

  /** @param {typeof picked} next */
  function choose(next) {
    picked = { ...picked, ...next };
    if (steeringOf(store.state)) steer(true);
    draw();
  }

  /** The activation to which the vector is added. */
  function where() {
    const { state, run } = told;
    const at = picked.token ?? ALL;
    return { layer: picked.layer ?? state.layer, ...(at !== ALL && at < run.tokens.length ? { token: at } : {}) };
  }

  /**
   * The vector, rounded so that it fits into an address; null if the vector does not exist.
   * @returns {number[] | null}
   */
  function vectorOf() {
    const means = texts.runs?.map((run) => meanOf(run, where().layer));
    const [to, from] = means ?? [];
    if (!to || from === null) return null;
    const strength = Number(slider.value);
    return to.map((x, d) => Number((strength * (x - (from?.[d] ?? 0))).toPrecision(DIGITS)));
  }

  /** @param {boolean} undo  true: undo reverts only this change; false: undo also reverts the change before it */
  function steer(undo) {
    const vector = vectorOf();
    if (!vector) return;
    const edit = { op: "add", at: "resid_pre", ...where(), vector };
    const { edits } = store.state;
    const before = steeringOf(store.state);
    const made = { towards: texts.towards, away: texts.away, strength: Number(slider.value) };
    const patch = { edits: before ? edits.map((one) => (one === before ? edit : one)) : [...edits, edit], steer: made };
    hand.send(patch, undo);
  }

  /** Shows the current steering in the fields, after an address was opened or a change was undone. */
  function follow() {
    const { state } = told;
    const now = JSON.stringify(state.steer ?? null);
    const steering = steeringOf(state);
    if (steering) picked = { layer: steering.layer, token: steering.token ?? ALL };
    if (now === known) return;
    known = now;
    if (!state.steer) return;
    slider.value = String(state.steer.strength);
    if (state.steer.towards === texts.towards && state.steer.away === texts.away) return;
    [towards.input.value, away.input.value] = [state.steer.towards, state.steer.away];
    write();
  }

  function draw() {
    const { layer: own, token: position } = where();
    layer.update(numbered(told.model.layers), own);
    token.update(tokenOptions(told.run.tokens), position ?? ALL);
    fill(shown, number(Number(slider.value)));
    const vector = vectorOf();
    put.disabled = !vector;
    fill(said, saidOf(vector, own));
  }

  /**
   * Describes the length of the vector, or the reason why the vector does not exist.
   * @param {number[] | null} vector
   * @param {number} own
   */
  function saidOf(vector, own) {
    if (texts.error) return texts.error;
    if (!texts.towards) return "Write a word or a sentence to steer towards.";
    if (!texts.runs) return "Reading …";
    if (!vector) return "One of the texts contains only special tokens.";
    const { resid, tokens } = told.original;
    const D = vector.length;
    const usual = tokens.reduce((sum, _, t) => sum + lengthOf(resid[own].subarray(t * D, (t + 1) * D)), 0) / tokens.length;
    return `The vector has length ${number(lengthOf(vector))}. The residual stream before this layer has length ${number(usual)}, averaged over your tokens.`;
  }

  return {
    name: "Steer towards a word",
    node,
    /** @param {Now} now */
    update(now) {
      told = now;
      hand.update(now);
      if (hand.idle() && !now.busy) follow();
      if (!node.hidden) draw();
    },
    draw,
  };
}
