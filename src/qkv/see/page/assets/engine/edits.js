// What a reader may change in a run of the model: which tokens see which, what heads bring, the temperature,
// a row of weights, a word. Edits are objects {op: ...} as schema.json describes them; records.js checks them.

/** @typedef {import("./engine.js").Sizes} Sizes */

/**
 * `means`, what "mean" stands for (D), is not written by anybody: see `withMeans` in engine.js.
 * @typedef {{op: string, means?: Float64Array, token?: number, query?: number, key?: number, layer?: number, head?: number, value?: number,
 *            weights?: number[], with?: any, at?: string, vector?: number[]}} Edit
 */

/** @type {WeakMap<Edit[], Map<string, Edit[]>>} */
const BY_OP = new WeakMap();

/**
 * The edits of one kind, in their order; sorted once for each list, which may have thousands.
 * @param {Edit[]} edits
 * @param {string} op
 * @returns {Edit[]}
 */
export function editsOf(edits, op) {
  let known = BY_OP.get(edits);
  if (!known) {
    BY_OP.set(edits, (known = new Map()));
    for (const edit of edits) {
      if (!known.has(edit.op)) known.set(edit.op, []);
      known.get(edit.op).push(edit);
    }
  }
  return known.get(op) ?? [];
}

/**
 * Which part of a layer an edit changes first: its projections, its heads, or what follows them.
 * @param {Edit} edit
 * @returns {"projections" | "heads" | "rest"}
 */
export function stageOf({ op, at }) {
  if (at === "resid_pre") return "projections";
  return op === "ablate" || at !== undefined ? "rest" : "heads";
}

/**
 * Whether an edit holds for a head: it says so, or does not say for which.
 * @param {Edit} edit
 * @param {number} l
 * @param {number} h
 */
export function isFor(edit, l, h) {
  return (edit.layer ?? l) === l && (edit.head ?? h) === h;
}

/**
 * Which keys a head does not see, (T, T), query by query: 1 where any edit hides the key.
 * @param {Edit[]} edits
 * @param {number} l
 * @param {number} h
 * @param {number} T
 */
export function hiddenBy(edits, l, h, T) {
  const hidden = new Uint8Array(T * T);
  for (const { token } of editsOf(edits, "hide")) for (let i = 0; i < T; i++) hidden[i * T + token] = 1;
  if (editsOf(edits, "causal").length) for (let i = 0; i < T; i++) hidden.fill(1, i * T + i + 1, (i + 1) * T);
  for (const edit of editsOf(edits, "mask")) if (isFor(edit, l, h)) hidden[edit.query * T + edit.key] = 1;
  return hidden;
}

/**
 * What scores are multiplied by: the last that was asked for.
 * @param {Edit[]} edits
 * @param {number} usual
 */
export function scaleOf(edits, usual) {
  return editsOf(edits, "scale").at(-1)?.value ?? usual;
}

/**
 * The weights (T, T) of a head, with the rows that somebody has put in the place of the softmax's.
 * @param {Edit[]} edits
 * @param {number} l
 * @param {number} h
 * @param {Float64Array} pattern
 */
export function withRows(edits, l, h, pattern) {
  const T = Math.sqrt(pattern.length);
  for (const edit of editsOf(edits, "row")) if (isFor(edit, l, h)) pattern.set(edit.weights, edit.query * T);
  return pattern;
}

/**
 * What edits put in the place of a number of an activation: by op, from the number and where it stands in a row.
 * @type {Record<string, (number: number, column: number, edit: Edit) => number>}
 */
const CHANGES = { add: (number, column, { vector }) => number + vector[column] };

/**
 * An activation (T, D) of a layer, with what the edits of it put in its place.
 * @param {Edit[]} edits
 * @param {string} at
 * @param {Float64Array} x
 * @param {number} D
 */
export function changed(edits, at, x, D) {
  for (const edit of edits.filter((one) => one.at === at)) {
    x = x.slice();
    const rows = edit.token === undefined ? [0, x.length] : [edit.token * D, (edit.token + 1) * D];
    for (let i = rows[0]; i < rows[1]; i++) x[i] = CHANGES[edit.op](x[i], i % D, edit);
  }
  return x;
}

/**
 * What all heads of a layer bring together, z (T, H * d), with 0 from those that are ablated, or what an edit says.
 * @param {Edit[]} ablations
 * @param {Float64Array} z
 * @param {Sizes} sizes
 */
export function without(ablations, z, { heads: H, dim: D }) {
  const d = D / H;
  const kept = z.slice();
  for (const { head, with: given = "zero", means } of ablations)
    for (let h = head ?? 0; h <= (head ?? H - 1); h++) {
      const output = given === "mean" ? means.slice(h * d, (h + 1) * d) : given === "zero" ? new Float64Array(d) : given;
      for (let first = h * d; first < z.length; first += D) kept.set(output, first);
    }
  return kept;
}
