// What a reader may change in a run of the model: which tokens see which, what heads bring, the temperature,
// a row of weights, a word. The door (door.js) takes edits as objects {op: ...}, their places being tokens'.

/** @typedef {import("./engine.js").Model} Model */
/** @typedef {import("./engine.js").Sizes} Sizes */
/** @typedef {import("./wordpiece.js").Token} Token */
/** @typedef {import("./wordpiece.js").Tokenizer} Tokenizer */

/**
 * @typedef {{op: string, token?: number, query?: number, key?: number, layer?: number, head?: number, value?: number,
 *            weights?: number[], with?: string}} Edit
 */

// What each takes: `!` what it needs, `?` what it may have.
/** @type {Record<string, Record<string, string>>} */
const TAKES = {
  hide: { token: "!" },
  mask: { query: "!", key: "!", layer: "?", head: "?" },
  causal: {},
  ablate: { layer: "!", head: "?" },
  scale: { value: "!" },
  row: { layer: "!", head: "!", query: "!", weights: "!" },
  swap: { token: "!", with: "!" },
};

/**
 * Edits as they were asked for, with nothing else in them; an error says which is wrong and what would be right.
 * @param {any} edits
 * @param {number} T
 * @param {Model} model
 * @returns {Edit[]}
 */
export function checkedEdits(edits, T, { sizes: { layers, heads }, tokenizer: { ids } }) {
  if (!Array.isArray(edits)) throw new TypeError(`run: edits is ${typeof edits}: give a list of objects with "op"`);
  /** @type {(count: number, what: string) => (value: any) => string} */
  const below = (count, what) => (value) => Number.isInteger(value) && value >= 0 && value < count ? "" : `0 to ${count - 1}, ${what}`;
  /** @type {(value: any) => boolean} */
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const token = below(T, "as the text has tokens");
  /** @type {Record<string, (value: any) => string>} */
  const rules = {
    token,
    query: token,
    key: token,
    layer: below(layers, "as the model has layers"),
    head: below(heads, "as a layer has heads"),
    value: (value) => (isNumber(value) ? "" : "a finite number"),
    weights: (value) => (value?.length === T && Array.from(value).every(isNumber) ? "" : `${T} finite numbers, one for each token`),
    with: (value) => (ids.has(value) ? "" : "one entry of the vocabulary"),
  };
  return edits.map((edit, place) => {
    const takes = Object.hasOwn(TAKES, edit?.op ?? "") ? TAKES[edit.op] : null;
    if (!takes) throw new TypeError(`run: edits[${place}] has op ${shown(edit?.op)}: it must be one of ${Object.keys(TAKES).join(", ")}`);
    /** @type {Record<string, any> & Edit} */
    const found = { op: edit.op };
    for (const [name, need] of Object.entries(takes)) {
      const value = edit[name] ?? undefined;
      if (value === undefined && need === "?") continue;
      const right = rules[name](value);
      if (right) throw new RangeError(`run: edits[${place}] (${edit.op}) has ${name} ${shown(value)}: give ${right}`);
      found[name] = name === "weights" ? Array.from(value) : value;
    }
    if (edit.op === "mask" && found.layer === undefined && found.head !== undefined)
      throw new RangeError(`run: edits[${place}] (mask) has head ${found.head} and no layer: give the layer too`);
    return found;
  });
}

/** @param {any} value */
export function shown(value) {
  return (JSON.stringify(value) ?? "undefined").slice(0, 60);
}

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
 * Which tokens the model reads, (T), once words are swapped; and their names.
 * @param {Token[]} tokens
 * @param {Edit[]} edits
 * @param {Tokenizer} tokenizer
 */
export function swapped(tokens, edits, { ids }) {
  const found = tokens.map(({ id, token }) => ({ id, token }));
  for (const edit of editsOf(edits, "swap")) found[edit.token] = { id: ids.get(edit.with), token: edit.with };
  return found;
}

/** @param {Edit} edit */
export function isAblation({ op }) {
  return op === "ablate";
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
 * What all heads of a layer bring together, z (T, H * d), with 0 from those that are ablated.
 * @param {Edit[]} ablations
 * @param {Float64Array} z
 * @param {Sizes} sizes
 */
export function without(ablations, z, { heads: H, dim: D }) {
  const d = D / H;
  const kept = z.slice();
  for (const { head } of ablations)
    for (let row = 0; row < z.length; row += D) kept.fill(0, row + (head ?? 0) * d, row + ((head ?? H - 1) + 1) * d);
  return kept;
}
