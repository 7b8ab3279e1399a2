// Bars for the weight that each key of a long text received from all queries. For a long text, the page
// receives only the largest weights.

import { canvas2d } from "../base/colours.js";
import { el, fill, word } from "../base/elements.js";
import { count, number } from "../base/format.js";
import "./received.css";

/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../engine/recorded.js").Source} Source */
/** @typedef {import("../base/mount.js").Ui} Ui */

/**
 * @param {Ui} ui
 * @returns {Part}
 */
export function receivedPart(ui) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const note = el("p", { class: "note" });
  const node = el("section", { class: "panel", "data-part": "received", hidden: true },
    el("h3", {}, "Weight received by each key (height: logarithm of 1 + weight)"), el("div", { class: "strip" }, canvas), note);
  /** @type {[any, number[], number[]]} */
  let [source, values, best] = [null, [], []];
  function draw() {
    const [width, tall] = [canvas.parentElement.clientWidth, 56];
    if (!values.length || !width) return;
    const pen = canvas2d(canvas, width, tall);
    pen.fillStyle = ui.color("--line-0");
    const each = width / values.length;
    /** @param {number} value */
    const share = (value) => Math.log1p(value) / Math.log1p(values[best[0]] || 1);
    values.forEach((value, j) => pen.fillRect(Math.floor(j * each), tall, Math.max(1, each), -tall * share(value)));
  }
  /** @param {number[]} positions */
  const say = (positions) =>
    fill(note, positions.map((j, k) => [k ? ", " : "", word(source.keys[j]), ` (position ${count(j)}) received ${number(values[j])}`]),
      ` of ${count(source.text.length)}.`);
  canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    const j = Math.floor((event.offsetX * values.length) / canvas.clientWidth);
    if (j in values) say([j]);
  });
  canvas.addEventListener("pointerleave", () => say(best));
  ui.redraw(draw);

  /** @param {Told} now */
  function update({ state, run }) {
    node.hidden = !run?.source?.text.summary;
    if (node.hidden) return;
    source = /** @type {Run & {source: Source}} */ (run).source;
    values = Array.from(source.keys, (_, j) => source.received(state.layer, state.head, j));
    best = values.map((_, j) => j).sort((a, b) => values[b] - values[a]).slice(0, 3);
    say(best);
    draw();
  }
  return { node, update };
}
