// The score of a query and a key in one head: the products that give the score, and the steps from the score to the
// weight.

import { el, fill, word } from "../base/elements.js";
import { named, number, visible } from "../base/format.js";
import { hiddenBy, scaleOf, setRow } from "../engine/edits.js";
import { productBars, sumBars } from "./bars.js";
import { sumOf } from "./sums.js";
import "./score.css";

/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("./head.js").HeadPart} HeadPart */
/** @typedef {import("./head.js").Shown} Shown */
/** @typedef {import("./head.js").Vectors} Vectors */

/**
 * The part below the heat map of a head, with the score of the cell under the pointer.
 * @param {Ui} ui
 * @param {HeadPart} head
 */
export function scorePart(ui, head) {
  const title = el("h4", {});
  const why = el("p", { class: "note" }, "Each bar is one number of the query times the matching number of the key: up if their signs agree, down if not. The sum of all bars is the score.");
  const line = el("p", { class: "score-line" });
  const bars = sumBars(ui, { onpoint: head.map.mark, after: line });
  const node = el("div", { class: "score" }, title, why, bars.node);

  /**
   * Shows the score of a query and a key, which are given as tokens.
   * @param {Now} now
   * @param {Shown} shown  the head and its vectors
   * @param {number} i
   * @param {number} j
   */
  function set({ run, state }, { at: { l, h }, vectors }, i, j) {
    node.hidden = !vectors;
    if (!vectors || !(i < run.tokens.length && j < run.tokens.length)) return;
    const { edits } = state;
    const { d, q, k } = vectors;
    const [query, key] = [i, j].map((t) => run.tokens[t]);
    /** @param {Vectors} vector @param {number} t */
    const numbers = (vector, t) => Array.from({ length: d }, (_, c) => vector.at(t, c));
    const sum = sumOf(numbers(q, i), numbers(k, j));
    const made = productBars(`score of ${named(query)} and ${named(key)}`, sum, `Q ${visible(query)}`, `K ${visible(key)}`);
    const [own, other] = made.rows;
    bars.set({ ...made, rows: [[own[0], own[1], q.high], [other[0], other[1], k.high]] });
    fill(title, "The score of ", word(query), " and ", word(key));
    fill(line, becomes(sum.whole, run, edits, { l, h, i, j, d }));
  }
  Object.assign(head, { oncell: set, onnumber: bars.point });
  head.body.after(node);
}

/**
 * Describes the steps from a score to a weight: scale, mask, softmax; the reader's changes are orange.
 * @param {number} score
 * @param {Run} run
 * @param {Edit[]} edits
 * @param {{l: number, h: number, i: number, j: number, d: number}} cell
 */
function becomes(score, run, edits, { l, h, i, j, d }) {
  const T = run.tokens.length;
  const usual = 1 / Math.sqrt(d);
  const scale = scaleOf(edits, usual);
  const scaled = score * scale;
  const mine = Boolean(hiddenBy(edits, l, h, T)[i * T + j]);
  const hidden = mine || run.blocks[l].attn_scores?.[h]?.[i * T + j] === -Infinity;
  const overridden = Boolean(setRow(edits, l, h, i));
  /** @param {string} name @param {any} text @param {any} changed */
  const step = (name, text, changed) => [" · ", name, " ", el("b", { class: changed ? "changed" : null }, text)];
  return [
    "score ",
    el("b", {}, number(score, 3)),
    el("span", { class: scale === usual ? null : "changed" }, scale === usual ? ` ÷ √${d}` : ` × ${number(scale, 3)}`),
    " = ",
    el("b", {}, number(scaled, 3)),
    step("mask", hidden ? "hidden" : "open", mine),
    step(overridden ? "your weight" : "softmax: weight", number(run.pattern[l][h][i * T + j], 3), overridden),
  ];
}
