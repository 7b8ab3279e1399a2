// The numbers that edits need from other runs: the mean output of heads in the unchanged text, and activations of
// another text.

import { axesOf, indicesOf } from "./edits.js";
import { forward, handedOn } from "./engine.js";
import { shown } from "./checked_edits.js";
import { tokenize } from "./tokenizer.js";

/** @typedef {import("./edits.js").Edit} Edit */
/** @typedef {import("./layers.js").Numbers} Numbers */
/** @typedef {import("./memory.js").Memory} Memory */
/** @typedef {import("./memory.js").Step} Step */
/** @typedef {import("./model.js").Model} Model */

/**
 * Returns the edits. An edit that needs numbers from another run is replaced by a copy, whose property `numbers` holds
 * these numbers. This property is not enumerable, so that `JSON.stringify` skips it. The reason is that `memory`
 * identifies a result by a string, which contains the JSON text of the edits.
 * @param {Model} model
 * @param {Memory} memory
 * @param {number[]} ids  (T)
 * @param {Edit[]} edits
 * @returns {Generator<void, Edit[]>}
 */
export function* withSources(model, memory, ids, edits) {
  const all = [];
  for (const edit of /** @type {Required<Edit>[]} */ (edits)) {
    const mean = edit.op === "ablate" && edit.with === "mean";
    if (!mean && edit.from === undefined) all.push(edit);
    else {
      const steps = yield* forward(model, memory, mean ? ids : sourceOf(model, edit, ids.length), []);
      const value = mean ? meanOf(steps[edit.layer + 1].z, ids.length) : partOf(steps, edit, ids.length, model);
      all.push(Object.defineProperty({ ...edit }, "numbers", { value }));
    }
  }
  return all;
}

/**
 * The mean of z over the tokens: (T, H * d) -> (H * d).
 * @param {Numbers} z
 * @param {number} T
 */
function meanOf(z, T) {
  const mean = new Float64Array(z.length / T);
  z.forEach((value, i) => (mean[i % mean.length] += value / T));
  return mean;
}

/**
 * The token ids of the text from which an edit takes an activation.
 * @param {Model} model
 * @param {Required<Edit>} edit
 * @param {number} T
 */
function sourceOf({ tokenizer, sizes }, { op, from }, T) {
  const { tokens } = tokenize(tokenizer, from, sizes.most ?? Infinity);
  if (tokens.length !== T) throw new RangeError(`run: ${op} has from ${shown(from)} with ${tokens.length} tokens, but the text has ${T}; pass a text of ${T} tokens`);
  return tokens.map(({ id }) => id);
}

/**
 * The part of an activation that an edit uses.
 * @param {Step[]} steps
 * @param {Required<Edit>} edit
 * @param {number} T
 * @param {Model} model
 */
function partOf(steps, edit, T, { sizes }) {
  const { at, layer } = edit;
  const [before, own] = [steps[layer], steps[layer + 1]];
  /** @type {any} */
  const flat = at === "resid_pre" ? handedOn(before) : own[at];
  const numbers = at === "pattern" ? flat.flatMap((/** @type {Numbers} */ head) => [...head]) : flat;
  return indicesOf(edit, axesOf(at, T, sizes)).map((i) => numbers[i]);
}
