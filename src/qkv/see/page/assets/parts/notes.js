// The notes on the pages of recorded texts.

import { el } from "../base/elements.js";
import { visible } from "../base/format.js";
import { seenIn } from "./sight.js";

/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../engine/recorded.js").Source} Source */

/** @param {any} data */
export function titleNode(data) {
  return el("h2", { class: "title" }, el("bdi", {}, visible(data.title)));
}

export function helpOf() {
  return el("p", { class: "note" }, "Hover over a token, or move with the arrow keys. Click or press Enter to keep a token in view (hold Shift to keep several); press Esc to release them.");
}

/**
 * The reason for showing this head.
 * @param {any} now
 * @param {any} start
 */
export function whyOf({ state, run }, start) {
  const layer = run.source.text.layers[state.layer];
  const was = `layer ${start.layer}, head ${start.head}`;
  if (layer === start.layer && state.head === start.head) return `L${was.slice(1)} is shown because ${start.chosen}.`;
  return `You chose layer ${layer}, head ${state.head}. The page opened on ${was} because ${start.chosen}.`;
}

/**
 * Notes about the visible tokens of these runs, one for each line.
 * @param {any} options
 * @param {Run[]} runs
 */
export function notesOf({ state }, runs) {
  const long = state.mode === "length";
  const texts = runs.map(({ source }) => /** @type {Source} */ (source).text);
  const said = [
    long &&
      "A contribution is the length of the vector that a key sends to a query, |weight × v W_O| (Kobayashi et al. 2020): a large weight on a short vector has little effect.",
    runs.some((run) => seenIn(run, [], state).away) &&
      "Weights are not rescaled: “not shown” is the weight on tokens that are left out.",
    state.merge &&
      texts.some(({ words, key_words: others }) => words || others) &&
      `Merged: the weights on a word's subwords are summed, and the weights from them are averaged${long ? "; a sum of lengths is an upper bound on the length of the vectors' sum" : ""}.`,
    ...texts[0].left_out,
  ];
  return said.filter(Boolean).map((line) => el("p", { class: "note" }, line));
}
