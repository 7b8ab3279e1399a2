// The forward pass of an encoder or a decoder, in order from top to bottom: tokens, vectors, attention, MLP, logits.
// As in Python, a design lists the options of a family of models (model.js). A reader can change a run with edits
// (edits.js). T is the number of tokens, D the size of a vector, H the number of heads, d the size of a head, F the
// hidden size of the MLP, V the size of the vocabulary. `forward` returns steps; each step is an object that holds
// arrays under their names in a trace. The results are equal to the model's own except for rounding. While a text is
// generated (generate.js), only the last L of the T tokens are computed; `first` is the number of earlier tokens.

import { numbersOf } from "./blocks.js";
import { changed, editsOf, hiddenBy, scaleOf, stageOf, without } from "./edits.js";
import { add, capped, rotated } from "./layers.js";

/** @typedef {import("./edits.js").Edit} Edit */
/** @typedef {import("./layers.js").Numbers} Numbers */
/** @typedef {import("./memory.js").Memory} Memory */
/** @typedef {import("./memory.js").Step} Step */
/** @typedef {import("./model.js").Model} Model */

/**
 * Applies a linear layer of the model, given by name.
 * @param {Model} model
 * @param {string} name
 * @param {Numbers} x
 * @param {number} L  rows
 */
function project({ parameters, ops }, name, x, L) {
  return ops.linear(x, parameters[`${name}.weight`], parameters[`${name}.bias`], x.length / L);
}

/**
 * Applies a norm of the model, given by name; if the model has no such norm, returns the vectors unchanged.
 * @param {Model} model
 * @param {string} name
 * @param {Numbers} x
 */
function norm({ parameters, design, sizes, ops }, name, x) {
  const weight = parameters[`${name}.weight`];
  return weight ? ops.normalized(x, weight, parameters[`${name}.bias`], { ...design, eps: sizes.eps }) : x;
}

/**
 * Reads rows of a table (rows, E).
 * @param {Model} model
 * @param {import("./blocks.js").Weight} table
 * @param {number} E
 * @param {number[]} rows  (T)
 */
function looked({ ops }, table, E, rows) {
  const x = new ops.Numbers(rows.length * E); // (T) -> (T, E)
  rows.forEach((row, t) => x.set(numbersOf(table, row * E, (row + 1) * E), t * E));
  return x;
}

/**
 * The input of the first layer. For each token, the input is the sum of up to three vectors: the token's vector, the
 * position's vector, and the vector of the first segment.
 * @param {Model} model
 * @param {number[]} ids  (L)
 * @returns {Step}
 */
export function embed(model, ids, first = 0) {
  const { parameters: p, design: { embed: options }, sizes } = model;
  const E = p["embed.weight"].length / sizes.vocabulary;
  let x = looked(model, p["embed.weight"], E, ids).map((value) => value * options.scale);
  const widened = () => (p["embed_proj.weight"] ? project(model, "embed_proj", x, ids.length) : x); // (L, E) -> (L, D)
  if (options.projects_first) x = widened();
  const wide = x.length / Math.max(1, ids.length);
  if (p["token_type_embed.weight"]) x = add(x, looked(model, p["token_type_embed.weight"], wide, ids.map(() => 0)));
  if (p["pos_embed.weight"]) x = add(x, looked(model, p["pos_embed.weight"], wide, positionsOf(ids, first, options)));
  x = norm(model, "embed_norm", x);
  return { full_embed: options.projects_first ? x : widened() };
}

/**
 * Returns the index of each token's row in the table of position embeddings. RoBERTa counts only tokens that are not
 * padding.
 * @param {number[]} ids
 * @param {number} first
 * @param {{first: number, padding: number | null}} options
 */
function positionsOf(ids, first, { first: row, padding }) {
  let count = first - 1;
  return ids.map((id) => (id === padding ? -1 : (count += 1)) + row);
}

/**
 * The queries, keys and values of layer l, computed from x (L, D), with all heads side by side. If queries and keys
 * are normed or rotated before their product, `rot_q` and `rot_k` are the results.
 * @param {Model} model
 * @param {number} l
 * @param {Numbers} x
 * @param {number} L
 * @param {Edit[]} edits
 * @returns {Step}
 */
export function projections(model, l, x, L, edits, first = 0) {
  const { parameters, design, sizes } = model;
  const here = `blocks.${l}.attn`;
  const read = design.norms === "after" ? x : norm(model, `blocks.${l}.norm1`, x);
  const [q, k, v] = ["q", "k", "v"].map((name) => changed(edits, name, project(model, `${here}.${name}_proj`, read, L), L, sizes));
  const before = read === x ? {} : { "ln1.normalized": read };
  const { rotary } = design.layers[l];
  if (rotary === null && !parameters[`${here}.q_norm.weight`]) return { ...before, q, k, v }; // (L, D) -> (L, H * d), three times
  const [rot_q, rot_k] = [["q", q], ["k", k]].map(([name, array]) => {
    const ready = norm(model, `${here}.${name}_norm`, /** @type {Numbers} */ (array));
    return rotary === null ? ready : rotated(ready, sizes.size, L, first, design.rotaries[rotary]);
  });
  return { ...before, q, k, v, rot_q, rot_k };
}

/**
 * The keys that each query does not see, (L, T): later keys in a causal model, and keys outside the window.
 * @param {{causal: boolean, window: [number, number] | null}} attends
 * @param {number} first
 * @param {number} T
 */
function unseenBy({ causal, window }, first, T) {
  const out = new Uint8Array((T - first) * T);
  for (let i = first; i < T; i++) {
    const row = (i - first) * T;
    if (causal) out.fill(1, row + i + 1, row + T);
    if (window) {
      out.fill(1, row, row + Math.max(0, i - window[0]));
      out.fill(1, Math.min(row + T, row + i + window[1] + 1), row + T);
    }
  }
  return out;
}

/**
 * The heads of layer l: scores, weights, and the weighted sums of values.
 * @param {Model} model
 * @param {number} l
 * @param {{q: Numbers, k: Numbers, v: Numbers}} read queries (L, H * d), normed and rotated; keys and
 * values (T, heads * d), which may have fewer heads
 * @param {Edit[]} edits  see edits.js
 * @returns {Step}
 */
export function attention({ sizes, design, ops }, l, { q, k, v }, edits, first = 0) {
  const { heads: H, kv_heads: shared, size: d } = sizes;
  const { softcap, scale: usual } = design.layers[l];
  const [L, T] = [q.length / (H * d), k.length / (shared * d)];
  const scale = scaleOf(edits, usual);
  const unseen = unseenBy(design.layers[l], first, T);
  const hidden = new Uint8Array(H * L * T);
  for (let h = 0; h < H; h++) hidden.set(hiddenBy(edits, l, h, T, first, unseen), h * L * T);
  const scores = ops.scored(q, k, sizes, { scale, softcap }, hidden);
  const pattern = changed(edits, "pattern", ops.softmax(scores, T), T, sizes);
  /** @type {(array: Numbers) => Numbers[]} */
  const byHead = (array) => Array.from({ length: H }, (_, h) => array.subarray(h * L * T, (h + 1) * L * T));
  const z = ops.weigh(pattern, v, sizes);
  return { attn_scores: byHead(scores), pattern: byHead(pattern), z, scale, softcap }; // (L, H * d) -> H times (L, T) -> (L, H * d)
}

/**
 * The MLP of layer l on x (L, D): up, the activation, down. In a gated MLP, the activation of `gate` is multiplied by
 * the result of `up`.
 * @param {Model} model
 * @param {number} l
 * @param {Numbers} x
 * @param {number} L
 * @returns {{pre: Numbers, post: Numbers, out: Numbers}}
 */
function mlp(model, l, x, L) {
  const here = `blocks.${l}.mlp`;
  const gated = `${here}.gate_proj.weight` in model.parameters;
  const pre = project(model, `${here}.${gated ? "gate" : "up"}_proj`, x, L); // (L, D) -> (L, F)
  const up = gated ? project(model, `${here}.up_proj`, x, L) : undefined;
  const post = model.ops.activated(pre, model.design.activation, up);
  return { pre, post, out: project(model, `${here}.down_proj`, post, L) }; // (L, F) -> (L, D)
}

/**
 * Computes layer l from its input x (L, D) and from the outputs z (L, H * d) of its heads. The result of each part is
 * added to the part's input.
 * @param {Model} model
 * @param {number} l
 * @param {Numbers} x
 * @param {Step} heads  `z`: the outputs of the heads; `ln1.normalized`: the input of the heads, if a norm computes this
 *     input
 * @param {number} L
 * @param {Edit[]} edits
 * @returns {Step}
 */
export function rest(model, l, x, heads, L, edits) {
  const { sizes, design, parameters } = model;
  const after = design.norms === "after";
  /** @type {(name: string, of: Numbers) => Numbers} */
  const normed = (name, of) => norm(model, `blocks.${l}.${name}`, of);
  /** @type {(at: string, array: Numbers) => Numbers} */
  const own = (at, array) => changed(edits, at, array, L, sizes);
  const z = own("z", without(editsOf(edits, "ablate"), heads.z, sizes));
  const attn_out = own("attn_out", normed("out_norm1", project(model, `blocks.${l}.attn.out_proj`, z, L))); // (L, H * d) -> (L, D)
  const resid_mid = add(x, attn_out);
  const past = after ? normed("norm1", resid_mid) : resid_mid;
  const both = design.parallel && (`blocks.${l}.norm2.weight` in parameters ? normed("norm2", x) : heads["ln1.normalized"] ?? x);
  const read = both || (after ? past : normed("norm2", past));
  const { pre, post, out } = mlp(model, l, read, L);
  const mlp_out = own("mlp_out", normed("out_norm2", out));
  const resid_post = own("resid_post", add(past, mlp_out));
  /** @type {Step} */
  const step = { z, attn_out, pre, post, mlp_out, resid_post };
  if (!design.parallel) step.resid_mid = resid_mid;
  if (after) return { ...step, "ln1.normalized": past, normalized_resid_post: normed("norm2", resid_post) };
  return read === past || read === heads["ln1.normalized"] ? step : { ...step, "ln2.normalized": read };
}

/**
 * The vectors (T, D) that the next step reads: the embeddings, or the output of a layer.
 * @param {Step} step
 */
export function handedOn(step) {
  return step.normalized_resid_post ?? step.resid_post ?? step.full_embed;
}

/**
 * The forward pass: the embeddings, then every layer. The forward pass pauses before each layer, so that the worker can
 * do more urgent work. Results in `memory` are not computed again. A layer has three parts: "qkv", "heads" and "rest".
 * `memory` identifies a part's result by a string, which consists of the part's name, the `key` of the result before it,
 * and the part's edits as JSON text.
 * @param {Model} model
 * @param {Memory} memory
 * @param {number[]} ids  (T)
 * @param {Edit[]} edits
 * @returns {Generator<void, Step[]>}  the embeddings, then the layers
 */
export function* forward(model, memory, ids, edits) {
  const T = ids.length;
  const steps = [memory.keep(`ids ${ids}`, () => embed(model, ids))];
  let last = steps[0];
  for (let l = 0; l < model.sizes.layers; l++) {
    yield;
    const own = edits.filter(({ layer }) => layer === undefined || layer === l);
    /** @type {(stage: string) => [Edit[], string]} */
    const of = (stage) => {
      const some = own.filter((edit) => stageOf(edit) === stage);
      return [some, JSON.stringify(some)];
    };
    const [[first, one], [middle, two], [behind, three]] = ["projections", "heads", "rest"].map(of);
    const before = changed(first, "resid_pre", handedOn(last), T, model.sizes);
    const qkv = memory.keep(`qkv ${last.key} ${one}`, () => projections(model, l, before, T, first));
    const heads = memory.keep(`heads ${qkv.key} ${two}`, () => attention(model, l, metIn(qkv), middle));
    last = memory.keep(`rest ${heads.key} ${three}`, () => rest(model, l, before, { ...qkv, ...heads }, T, behind));
    steps.push({ ...qkv, ...heads, ...last });
  }
  return steps;
}

/**
 * The queries, keys and values of a step, after norms and rotation.
 * @param {Step} step
 */
export function metIn({ q, k, v, rot_q = q, rot_k = k }) {
  return { q: rot_q, k: rot_k, v };
}

/**
 * The logits (n, V) at these positions (n), computed from the vectors (T, D): one score for each word of the
 * vocabulary.
 * @param {Model} model
 * @param {Numbers} x
 * @param {number[]} positions
 */
export function logitsAt(model, x, positions) {
  const { parameters: p, design: { head }, sizes: { dim: D }, ops } = model;
  let rows = new ops.Numbers(positions.length * D); // (T, D) -> (n, D)
  positions.forEach((t, n) => rows.set(x.subarray(t * D, (t + 1) * D), n * D));
  rows = norm(model, "final_norm", rows);
  if (p["final_proj.weight"]) rows = project(model, "final_proj", rows, positions.length); // (n, D) -> (n, E)
  if (p["head.dense_proj.weight"]) rows = project(model, "head.dense_proj", rows, positions.length);
  if (head.activation) rows = ops.activated(rows, head.activation);
  rows = norm(model, "head.norm", rows).map((value) => value * head.scale);
  const out = ops.linear(rows, p["head.out_proj.weight"] ?? p["embed.weight"], p["head.out_proj.bias"], rows.length / positions.length);
  return head.softcap === null ? out : out.map((value) => capped(value, head.softcap)); // (n, D) -> (n, V)
}
