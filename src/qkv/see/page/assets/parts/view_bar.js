// Controls that choose how a text is shown. They switch between subwords and words, hide special tokens, choose the
// sentence of the queries and the sentence of the keys, switch between weights and contributions, and set the end of the
// colour scale. The state stores the choices; a control appears only if the text needs it. Recorded texts also have menus
// for the text, the layer and the head.

import { choice, STRETCH, toggle } from "../base/controls.js";
import { el } from "../base/elements.js";
import { visible } from "../base/format.js";
import { seenIn } from "./sight.js";
import "./view_bar.css";

/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../store/store.js").Store} Store */
/** @typedef {import("../base/mount.js").Ui} Ui */

const SHOWN = [
  ["weight", "weight"],
  ["length", "contribution |weight × v W_O|"],
];
const SENTENCES = [["all", "all"], ...["AA", "AB", "BA", "BB"].map((part) => [part, part.split("").join(" → ")])];

/**
 * @param {Ui} ui
 * @param {Store} store
 * @returns {Part}
 */
export function viewBarPart(ui, store) {
  /** @type {(name: string) => (value: any) => void} */
  const change = (name) => (value) => store.set({ [name]: value });
  /** @param {string} name @param {string} label @param {any[][]} options */
  const menu = (name, label, options) => choice(ui, label, options, options[0]?.[0], change(name));
  /** @param {string} name @param {string} label */
  const whole = (name, label) => choice(ui, label, [], 0, (value) => store.set({ [name]: Number(value) }));
  /** @param {string} name @param {string} label */
  const check = (name, label) => {
    const { node, input } = toggle(ui, label, false, change(name));
    return { node, set: (/** @type {boolean} */ on) => (input.checked = on) };
  };
  /** @type {any[]} */
  const texts = store.recorded ? store.data.texts : [];
  const [layer, head] = [whole("layer", "Layer"), whole("head", "Head")];
  const controls = {
    text: menu("text", "Attention", texts.map(({ name }) => [name, visible(name)])),
    layer,
    head,
    mode: menu("mode", "Show", SHOWN),
    part: menu("part", "Sentences", SENTENCES),
    skip: check("skip", "leave out special tokens"),
    merge: check("merge", "merge subwords into words"),
    stretch: check("stretch", STRETCH),
  };
  const node = el("div", { class: "bar", role: "group", "aria-label": "what to show", "data-part": "view", hidden: true }, Object.values(controls).map((one) => one.node));
  let menus = "";

  /**
   * The controls that a text needs.
   * @param {any} text
   * @returns {Record<string, any>}
   */
  function useful(text) {
    if (!store.recorded) return { merge: text.words };
    /** @param {(text: any) => any} has */
    const any = (has) => texts.some(has);
    return {
      text: store.data.kind === "show" && texts.length > 1,
      layer: true,
      head: true,
      mode: any(({ norms }) => norms),
      part: any(({ split }) => split),
      skip: any(({ special, key_special: other }) => special.length || other?.length),
      merge: any(({ words, key_words: other }) => words || other),
      stretch: true,
    };
  }

  /** @param {Told} now */
  function update({ state, run }) {
    /** @type {Record<string, any>} */
    const values = state;
    node.hidden = !run || !state.inside;
    if (node.hidden) return;
    const { text } = seenIn(/** @type {Run} */ (run), state.edits).source;
    const made = JSON.stringify([text.layers, text.heads]);
    if (made !== menus) {
      layer.put(Array.from(text.layers, (name, l) => [l, String(name)]));
      head.put(Array.from({ length: text.heads }, (_, h) => [h, String(h)]));
      menus = made;
    }
    const offered = useful(text);
    for (const [name, control] of Object.entries(controls)) {
      control.node.hidden = !offered[name];
      control.set(values[name]);
    }
  }
  return { node, update };
}
