// Activation patching: an activation in the reader's sentence is replaced by the activation in another sentence with
// the same number of tokens.

import { choice } from "../base/controls.js";
import { drawn, el, fill } from "../base/elements.js";
import { named } from "../base/format.js";
import { range } from "../base/arrays.js";
import { alongside } from "../store/alongside.js";
import { LONGEST } from "../store/limits.js";
import { reading } from "./reading.js";
import { listOf, spelled } from "./words.js";

/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Store} Store */
/** @typedef {import("../store/alongside.js").Both} Both */
/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("./words.js").Said} Said */

export const ALL = "all"; // the value of the option that stands for all tokens, or for all heads
const OF_HEAD = ["z", "q", "k", "v", "pattern"];
const TAKEN = [
  ["resid_pre", "residual stream before the layer"],
  ["attn_out", "what attention adds"],
  ["mlp_out", "what the MLP adds"],
  ["z", "a head's output"],
  ["q", "a head's queries"],
  ["k", "a head's keys"],
  ["v", "a head's values"],
  ["pattern", "a head's attention pattern"],
].map(([at, name]) => [at, `${name} (${at})`]);

/**
 * The options of a menu of tokens, with an option for all tokens.
 * @param {string[]} tokens
 */
export function tokenOptions(tokens) {
  return [[ALL, "all tokens"], ...tokens.map((token, t) => [t, `${t} ${named(token)}`])];
}

/**
 * A menu whose options may change.
 * @param {Ui} ui
 * @param {string} label
 * @param {(value: any) => void} onchange
 */
export function menu(ui, label, onchange) {
  const { node, put, set } = choice(ui, label, [], "", onchange);
  let known = "";
  return {
    node,
    /** @param {any[][]} options @param {any} value */
    update(options, value) {
      const made = JSON.stringify(options);
      if (made !== known) put(options);
      known = made;
      set(value);
    },
  };
}

/**
 * Returns menu options for the whole numbers from 0 to `size - 1`.
 * @param {number} size
 */
export const numbered = (size) => range(0, size).map((i) => [i, i]);

/**
 * Returns the number of heads of an activation. Keys and values may have fewer heads than queries.
 * @param {string} at
 * @param {any} model
 */
function headsOf(at, { heads, kv_heads }) {
  return ["k", "v"].includes(at) ? kv_heads : heads;
}

/**
 * Returns menu options for the heads of an activation. If several query heads share one key/value head, the menu option
 * for the key/value head also names the query heads.
 * @param {string} at
 * @param {any} model
 */
function headOptions(at, model) {
  const own = headsOf(at, model);
  const each = model.heads / own;
  return [[ALL, "all heads"], ...range(0, own).map((i) => [i, each > 1 ? `${i} (for heads ${i * each} to ${(i + 1) * each - 1})` : i])];
}

/** @param {Ui} ui @param {Store} store */
export function patchPanel(ui, store) {
  const id = ui.id("patch");
  const field = el("input", { id, type: "text", spellcheck: "false", autocomplete: "off", maxlength: LONGEST });
  const second = el("button", { type: "button", onclick: () => write(store.state.second ?? "") }, "Use the second sentence");
  const put = el("button", { type: "button", class: "put", onclick: patch }, "Patch");
  const said = el("p", { class: "said", role: "status" });
  const cut = el("div", { class: "scroll cut", tabindex: 0, role: "group", "aria-label": "both sentences, token by token" });
  /** @param {(value: any) => void} chosen */
  const own = (chosen) => (/** @type {any} */ value) => {
    chosen(value);
    draw();
  };
  const [what, layer, head, token] = [
    menu(ui, "Take", own((value) => (at = value))),
    menu(ui, "Layer", own((value) => (picked.layer = Number(value)))),
    menu(ui, "Head", own((value) => (picked.head = value === ALL ? ALL : Number(value)))),
    menu(ui, "At", own((value) => (picked.token = value === ALL ? ALL : Number(value)))),
  ];
  const node = el("div", { class: "steer-panel" },
    el("p", { class: "note" }, "Activation patching: one activation of your sentence is replaced by the corresponding activation of another sentence with the same number of tokens. The result shows what information this activation carries."),
    el("div", { class: "fields" }, el("div", { class: "field" }, el("label", { for: id }, "The other sentence"), field), second),
    said, cut,
    el("div", { class: "bar" }, what.node, layer.node, head.node, token.node, put));
  let at = "resid_pre";
  /** @type {{layer?: number, head?: number | "all", token?: number | "all"}} */
  let picked = {}; // the fields that the reader has set; the other fields get defaults that fit the page's state
  /** @type {{text: string, run: Run | null, error: string}} */
  let other = { text: "", run: null, error: "" };
  /** @type {Now} */
  let told; // undefined before the first update
  const read = reading(store, ([run], error) => {
    other = { ...other, run, error };
    draw();
  });
  field.addEventListener("input", () => take(field.value));
  field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && !put.disabled) patch();
  });

  /** @param {string} text */
  function write(text) {
    field.value = text;
    take(text);
    field.focus();
  }

  /** @param {string} text */
  function take(text) {
    other = { text: text.toWellFormed(), run: null, error: "" };
    read(text ? [other.text] : []);
    draw();
  }

  /** Whether both texts have the same number of tokens. */
  const fits = () => other.run?.tokens.length === told.run.tokens.length;

  /** Returns the edit that the fields of the panel describe. @returns {Edit} */
  function record() {
    const { state, run } = told;
    const here = { op: "patch", at, layer: picked.layer ?? state.layer };
    const heads = headsOf(at, told.model);
    const own = picked.head ?? (heads < told.model.heads ? Math.floor((state.head * heads) / told.model.heads) : state.head);
    const differs = other.run && fits() ? run.tokens.findIndex((one, t) => one !== /** @type {Run} */ (other.run).tokens[t]) : -1;
    const token = picked.token ?? (differs < 0 ? ALL : differs);
    return {
      ...here,
      ...(OF_HEAD.includes(at) && own !== ALL ? { head: Math.min(own, heads - 1) } : {}),
      ...(token !== ALL && token < run.tokens.length ? { token } : {}),
      from: other.text,
    };
  }

  function patch() {
    const edit = record();
    const others = store.state.edits.filter((one) => JSON.stringify(one) !== JSON.stringify(edit));
    store.set({ edits: [...others, edit] });
    ui.say("The activation is patched.");
  }

  function draw() {
    const { run, model, state } = told;
    const edit = record();
    second.hidden = !state.second || state.second === other.text;
    put.disabled = !fits();
    what.update(TAKEN, at);
    layer.update(numbered(model.layers), edit.layer);
    head.node.hidden = !OF_HEAD.includes(at);
    head.update(headOptions(at, model), edit.head ?? ALL);
    token.update(tokenOptions(run.tokens), edit.token ?? ALL);
    fill(said, spelled(saidOf()));
    cut.hidden = !other.run;
    fill(cut, other.run ? sideBySide(run.tokens, other.run.tokens) : null);
  }

  /** Describes whether both sentences have the same number of tokens, and where they differ. @returns {Said[]} */
  function saidOf() {
    const tokens = told.run.tokens;
    if (other.error) return [other.error];
    if (!other.text) return ["Write a sentence that differs from yours in a word or two."];
    if (!other.run) return ["Reading …"];
    const far = other.run.tokens;
    if (!fits()) return [`Your sentence has ${tokens.length} tokens, and the other sentence has ${far.length}: both must have the same number.`];
    const apart = range(0, far.length).filter((t) => tokens[t] !== far[t]);
    if (!apart.length) return [`Both have the same ${far.length} tokens: a patch changes nothing.`];
    return [`Both have ${far.length} tokens. They differ at position `, ...listOf(apart.map((t) => `${t} (${named(tokens[t])} / ${named(far[t])})`)), "."];
  }

  return {
    name: "Patch from another sentence",
    node,
    /** @param {Now} now */
    update(now) {
      told = now;
      if (!node.hidden) draw();
    },
    draw,
  };
}

/**
 * The tokens of two texts, one text above the other, with their differences marked.
 * @param {string[]} own
 * @param {string[]} far
 */
function sideBySide(own, far) {
  const axis = own.length === far.length ? own.map((_, t) => /** @type {Both} */ ([t, t])) : alongside(own, far);
  /** @param {string[]} tokens @param {number | null} t */
  const name = (tokens, t) => (t === null ? "–" : drawn(tokens[t]));
  /** @param {Both} both */
  const kind = ([a, b]) => (a !== null && b !== null && own[a] === far[b] ? "" : "differs");
  return el("table", {},
    el("caption", { class: "sr" }, "both sentences, cut into tokens"),
    el("thead", {}, el("tr", {}, el("th", { scope: "row" }, "position"), axis.map(([a]) => el("td", { class: "dim" }, a === null ? "" : String(a))))),
    el("tbody", {}, [["yours", own, 0], ["the other", far, 1]].map(([label, tokens, side]) =>
      el("tr", {}, el("th", { scope: "row" }, label), axis.map((both) => el("td", { class: kind(both) }, name(/** @type {string[]} */ (tokens), both[/** @type {0 | 1} */ (side)])))))));
}
