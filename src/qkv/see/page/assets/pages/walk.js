// The walk shows one head step by step, with the numbers of each step. For any number, the page
// can show the sum that gives this number. The top of page/payload.py describes the payload; parts/sums.js computes the sums.

import { el, fill } from "../base/elements.js";
import { mounter } from "../base/mount.js";
import { unpack } from "../base/arrays.js";
import { stepsView } from "../parts/steps.js";
import { numbersOf } from "../parts/sums.js";

/** @typedef {import("../parts/block.js").Flow} Flow */
/** @typedef {import("../parts/sums.js").Numbers} Numbers */
/** @typedef {{b64: string | null, shape: number[], rows: "rows" | "key_rows" | number[] | null, columns: number[] | null}} Packed */

export const start = mounter((box, payload, ui) => {
  const view = stepsView(ui, { stretch: payload.stretch });
  fill(
    box,
    el("h2", { class: "title" }, payload.title),
    el("p", { class: "sentence" }, payload.walk.which),
    view.node,
    payload.walk.reasons.map((/** @type {string} */ line) => el("p", { class: "note" }, line)),
  );
  view.set(walkFlow(payload.walk));
});

/**
 * Reads a walk from a payload; its numbers are unpacked when they are needed.
 * @param {any} walk  WALK of page/payload.py
 * @returns {Flow}
 */
function walkFlow(walk) {
  /** @type {Map<string, Numbers>} */
  const opened = new Map();
  /** @param {Packed} packed */
  const open = ({ b64, shape, rows, columns }) => {
    const held = typeof rows === "string" ? walk[rows] : rows;
    return numbersOf(b64 === null ? null : unpack({ b64 }), shape, { rows: held, columns });
  };
  /** @param {string} name */
  const array = (name) => {
    if (!opened.has(name)) opened.set(name, open(walk.arrays[name]));
    return opened.get(name);
  };
  const steps = walk.steps.map((/** @type {any} */ step) => ({ ...step, lengths: step.lengths && unpack(step.lengths) }));
  return { ...walk, steps, array };
}
