// What a reader may change in a run of the model: which tokens see which, what heads bring, the temperature,
// a row of weights, a word. Edits are objects {op: ...} as schema.json describes them; records.js checks them.

/** @typedef {import("./parameters.js").Sizes} Sizes */

/**
 * `found`, numbers of another run, is not written by anybody: see sources.js.
 * @typedef {{op: string, from?: string, found?: ArrayLike<number>, token?: number, query?: number, key?: number, layer?: number,
 *            head?: number, weights?: number[], with?: any, at?: string, vector?: number[], value?: any}} Edit
 */

/**
 * What an edit has, by its kind.
 * @typedef {{hide: Edit & {token: number}, mask: Edit & {query: number, key: number}, row: Edit & {query: number, weights: number[]},
 *            swap: Edit & {token: number, with: string}, scale: Edit & {value: number}, ablate: Edit & {layer: number},
 *            causal: Edit}} ByOp
 */

/** @type {WeakMap<Edit[], Map<string, Edit[]>>} */
const BY_OP = new WeakMap();

/**
 * The edits of one kind, in their order; sorted once for each list, which may have thousands.
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
 * Which part of a layer an edit changes first: its projections, its heads, or what follows them.
 * @param {Edit} edit
 * @returns {"projections" | "heads" | "rest"}
 */
export function stageOf({ op, at }) {
  if (["resid_pre", "q", "k", "v"].includes(/** @type {string} */ (at))) return "projections";
  return op === "ablate" || (at !== undefined && at !== "pattern") ? "rest" : "heads";
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
 * Which keys a head does not see, (T - first, T), query by query: 1 where any edit hides the key.
 * @param {Edit[]} edits
 * @param {number} l
 * @param {number} h
 * @param {number} T
 * @param {number} first  the first query that is asked for
 * @param {Uint8Array} unseen  what is hidden anyhow
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
 * What scores are multiplied by: the last that was asked for.
 * @param {Edit[]} edits
 * @param {number} usual
 */
export function scaleOf(edits, usual) {
  return editsOf(edits, "scale").at(-1)?.value ?? usual;
}

/** @typedef {"head" | "token" | ""} Axis */

/**
 * The axes of an activation in a flat array, the last side by side, by name and length.
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
 * Which numbers of a flat array an edit is of: those of its head and its token, or of all.
 * @param {{head?: number, token?: number}} edit
 * @param {[Axis, number][]} axes
 */
export function indicesOf(edit, axes) {
  let found = [0];
  for (const [name, size] of axes) {
    const chosen = name && edit[name] !== undefined ? [/** @type {number} */ (edit[name])] : Array.from({ length: size }, (_, i) => i);
    found = found.flatMap((i) => chosen.map((j) => i * size + j));
  }
  return found;
}

/**
 * What an edit puts in the place of numbers of an activation: by op, from the edit and what they were.
 * @type {Record<string, (edit: Required<Edit>, part: number[]) => ArrayLike<number>>}
 */
const CHANGES = {
  row: ({ weights }) => weights,
  set: ({ value }) => value.flat(Infinity),
  patch: ({ found }) => found,
  add: ({ vector }, part) => part.map((number, i) => number + vector[i % vector.length]),
};

/**
 * Where an edit changes an activation. A row is of the pattern.
 * @param {Edit} edit
 */
function placeOf({ op, at, head, token, query }) {
  return op === "row" ? { at: "pattern", head, token: query } : { at, head, token };
}

/**
 * An activation of a layer, flat, with what its edits put in its place.
 * @param {Edit[]} edits  of this layer
 * @param {string} at
 * @param {Float64Array} x
 * @param {number} T
 * @param {Sizes} sizes
 */
export function changed(edits, at, x, T, sizes) {
  for (const edit of edits.filter((one) => placeOf(one).at === at)) {
    const indices = indicesOf(placeOf(edit), axesOf(at, T, sizes));
    const values = CHANGES[edit.op](/** @type {Required<Edit>} */ (edit), indices.map((i) => x[i]));
    x = x.slice();
    indices.forEach((i, n) => (x[i] = values[n]));
  }
  return x;
}

/**
 * What all heads of a layer bring together, z (T, H * d), with 0 from those that are ablated, or what an edit says.
 * @param {Edit[]} ablations
 * @param {Float64Array} z
 * @param {Sizes} sizes
 */
export function without(ablations, z, { heads: H, size: d }) {
  const kept = z.slice();
  for (const { head, with: given = "zero", found } of ablations)
    for (let h = head ?? 0; h <= (head ?? H - 1); h++) {
      const output = given === "mean" ? Array.prototype.slice.call(found, h * d, (h + 1) * d) : given === "zero" ? new Float64Array(d) : given;
      for (let first = h * d; first < z.length; first += H * d) kept.set(output, first);
    }
  return kept;
}
