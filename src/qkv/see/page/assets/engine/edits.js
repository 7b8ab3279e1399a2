// The edits that a reader can make to a run of the model. For example, an edit hides a token, replaces the output of a
// head, sets the temperature, sets a row of weights, or replaces a word. An edit is an object {op: ...}.
// record_schema.json describes all edits; checked_edits.js checks them.

/** @typedef {import("./layers.js").Numbers} Numbers */
/** @typedef {import("./model.js").Sizes} Sizes */

/**
 * An edit of a run. sources.js adds `numbers`, which come from another run; a reader never writes `numbers`.
 * @typedef {{op: string, from?: string, numbers?: ArrayLike<number>, token?: number, query?: number, key?: number, layer?: number,
 *            head?: number, weights?: number[], with?: any, at?: string, vector?: number[], value?: any}} Edit
 */

/**
 * The fields of an edit, by its kind.
 * @typedef {{hide: Edit & {token: number}, mask: Edit & {query: number, key: number}, row: Edit & {query: number, weights: number[]},
 *            swap: Edit & {token: number, with: string}, scale: Edit & {value: number}, ablate: Edit & {layer: number},
 *            causal: Edit}} ByOp
 */

/** @type {WeakMap<Edit[], Map<string, Edit[]>>} */
const BY_OP = new WeakMap();

/**
 * The edits of one kind, in order. A list is sorted by kind only once, since it may have thousands of edits.
 * @template {keyof ByOp} Op
 * @param {Edit[]} edits
 * @param {Op} op
 * @returns {ByOp[Op][]}
 */
export function editsOf(edits, op) {
  let known = BY_OP.get(edits);
  if (!known) {
    BY_OP.set(edits, (known = new Map()));
    for (const edit of edits) {
      if (!known.has(edit.op)) known.set(edit.op, []);
      /** @type {Edit[]} */ (known.get(edit.op)).push(edit);
    }
  }
  return /** @type {ByOp[Op][]} */ (known.get(op) ?? []);
}

/**
 * Which part of a layer an edit changes first: the projections, the heads, or the parts after the heads.
 * @param {Edit} edit
 * @returns {"projections" | "heads" | "rest"}
 */
export function stageOf({ op, at }) {
  if (["resid_pre", "q", "k", "v"].includes(/** @type {string} */ (at))) return "projections";
  return op === "ablate" || (at !== undefined && at !== "pattern") ? "rest" : "heads";
}

/**
 * Whether an edit applies to a head. An edit without a head applies to all heads, and an edit without a layer to all layers.
 * @param {Edit} edit
 * @param {number} l
 * @param {number} h
 */
export function isFor(edit, l, h) {
  return (edit.layer ?? l) === l && (edit.head ?? h) === h;
}

/**
 * The edit that sets the row of weights of a query in a head; undefined if there is none.
 * @param {Edit[]} edits
 * @param {number} layer
 * @param {number} head
 * @param {number} query
 */
export function setRow(edits, layer, head, query) {
  return edits.findLast((edit) => edit.op === "row" && edit.layer === layer && edit.head === head && edit.query === query);
}

/**
 * A mask (T - first, T) with a row for each query of a head: 1 if the key is masked, 0 if the query sees the key.
 * @param {Edit[]} edits
 * @param {number} l
 * @param {number} h
 * @param {number} T
 * @param {number} first  the first query whose keys are returned
 * @param {Uint8Array} unseen  the keys that the model masks even without edits
 */
export function hiddenBy(edits, l, h, T, first = 0, unseen = new Uint8Array((T - first) * T)) {
  const hidden = unseen.slice();
  const row = (/** @type {number} */ i) => (i - first) * T;
  for (const { token } of editsOf(edits, "hide")) for (let i = first; i < T; i++) hidden[row(i) + token] = 1;
  if (editsOf(edits, "causal").length) for (let i = first; i < T; i++) hidden.fill(1, row(i) + i + 1, row(i + 1));
  for (const edit of editsOf(edits, "mask")) if (isFor(edit, l, h) && edit.query >= first) hidden[row(edit.query) + edit.key] = 1;
  return hidden;
}

/**
 * The factor by which scores are multiplied. If edits set this factor, the last of these edits counts; otherwise the factor is `usual`.
 * @param {Edit[]} edits
 * @param {number} usual
 */
export function scaleOf(edits, usual) {
  return editsOf(edits, "scale").at(-1)?.value ?? usual;
}

/** @typedef {"head" | "token" | ""} Axis */

/**
 * The axes of an activation in a flat array, by name and length; numbers along the last axis are adjacent.
 * @param {string} at
 * @param {number} T
 * @param {{heads: number, kv_heads: number, size: number, dim: number}} sizes
 * @returns {[Axis, number][]}
 */
export function axesOf(at, T, { heads: H, kv_heads, size: d, dim: D }) {
  if (at === "pattern") return [["head", H], ["token", T], ["", T]];
  if (["q", "z"].includes(at)) return [["token", T], ["head", H], ["", d]];
  if (["k", "v"].includes(at)) return [["token", T], ["head", kv_heads], ["", d]];
  return [["token", T], ["", D]];
}

/**
 * The indices of the numbers that an edit changes in a flat array. An edit without a head changes all heads, and an edit without a token
 * changes all tokens.
 * @param {{head?: number, token?: number}} edit
 * @param {[Axis, number][]} axes
 */
export function indicesOf(edit, axes) {
  let indices = [0];
  for (const [name, size] of axes) {
    const chosen = name && edit[name] !== undefined ? [/** @type {number} */ (edit[name])] : Array.from({ length: size }, (_, i) => i);
    indices = indices.flatMap((i) => chosen.map((j) => i * size + j));
  }
  return indices;
}

/**
 * The edits, by op. `change` returns the new numbers of an activation, given the edit and the old numbers. `words` describes the change to a
 * reader. `prompt`: generated tokens are computed without the edit. `whole`: whether the edit has numbers for all tokens.
 * @type {Record<string, {change?: (edit: Required<Edit>, part: number[]) => ArrayLike<number>, words?: string, prompt?: boolean,
 *                        whole?: (edit: Edit) => boolean}>}
 */
export const OPS = {
  hide: {},
  mask: {},
  causal: {},
  ablate: {},
  scale: {},
  swap: { prompt: true },
  row: { change: ({ weights }) => weights, prompt: true, whole: () => true },
  set: { change: ({ value }) => value.flat(Infinity), words: "set to given numbers", prompt: true, whole: ({ token, at }) => token === undefined || at === "pattern" },
  patch: { change: ({ numbers }) => numbers, words: "as in", prompt: true, whole: () => true },
  add: { change: ({ vector }, part) => part.map((number, i) => number + vector[i % vector.length]), words: "plus a vector" },
};

/**
 * The activation that an edit changes; the edit "row" changes the pattern.
 * @param {Edit} edit
 */
function targetOf({ op, at, head, token, query }) {
  return op === "row" ? { at: "pattern", head, token: query } : { at, head, token };
}

/**
 * An activation of a layer as a flat array, after the edits.
 * @param {Edit[]} edits  of this layer
 * @param {string} at
 * @param {Numbers} x
 * @param {number} T
 * @param {Sizes} sizes
 */
export function changed(edits, at, x, T, sizes) {
  for (const edit of edits.filter((one) => targetOf(one).at === at)) {
    const indices = indicesOf(targetOf(edit), axesOf(at, T, sizes));
    const { change } = OPS[edit.op];
    if (!change) throw new RangeError(`run: the edit "${edit.op}" does not change ${at}`);
    const values = change(/** @type {Required<Edit>} */ (edit), indices.map((i) => x[i]));
    x = x.slice();
    indices.forEach((i, n) => (x[i] = values[n]));
  }
  return x;
}

/**
 * The outputs of all heads of a layer, z (T, H * d), after ablations. An ablation replaces a head's output with zeros,
 * a mean, or given numbers.
 * @param {Edit[]} ablations
 * @param {Numbers} z
 * @param {Sizes} sizes
 */
export function without(ablations, z, { heads: H, size: d }) {
  const kept = z.slice();
  for (const { head, with: put = "zero", numbers } of ablations)
    for (let h = head ?? 0; h <= (head ?? H - 1); h++) {
      const output = put === "mean" ? Array.prototype.slice.call(numbers, h * d, (h + 1) * d) : put === "zero" ? new Float64Array(d) : put;
      for (let first = h * d; first < z.length; first += H * d) kept.set(output, first);
    }
  return kept;
}
