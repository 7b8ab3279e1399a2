// The steps of one layer of a run, in the format in which page/payload.py writes a recorded walk. The texts of the
// steps are in steps.json, which Python reads too; this module chooses the rows and fills their placeholders.

import { named } from "../base/format.js";
import { editsOf, hiddenBy, isFor, scaleOf } from "../engine/edits.js";
import { capped } from "../engine/layers.js";
import { isRemoved } from "./map.js";
import { numbersOf } from "./sums.js";
import STEPS from "../../../steps/steps.json";

/** @typedef {import("./block.js").Flow} Flow */
/** @typedef {import("./block.js").FlowStep} FlowStep */
/** @typedef {import("./sums.js").Numbers} Numbers */
/** @typedef {import("../store/state.js").PlayState} PlayState */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../engine/engine.js").Step} Step */
/** @typedef {Record<string, Float32Array>} Known  parameters, by their names */

/**
 * A layer of a run, with the list of its steps, which this module fills.
 * @typedef {object} Layer
 * @property {FlowStep[]} steps
 * @property {ReturnType<typeof flowWriter>["arrays"]} arrays
 * @property {ReturnType<typeof flowWriter>["write"]} write
 * @property {number} T
 * @property {number} D
 * @property {number} [eps]
 * @property {string} read  the name of the attention's input
 * @property {Run} run
 * @property {number} layer
 * @property {number} head
 * @property {Edit[]} edits
 * @property {number} token  the token whose vectors are measured
 * @property {Step} block  what the layer has computed
 * @property {Known | null} known  the parameters; null if the page cannot get them
 */

const FEW_UNITS = 8; // the number of hidden units that the page shows
/** @type {{rows: Record<string, any>, phrases: Record<string, string>}} */
const { rows: ROWS, phrases: PHRASES } = STEPS;
/**
 * The norms of a layer, by the names of their results in a trace.
 * @type {Record<string, string>}
 */
const TRACED = { N: "ln1.normalized", N1: "ln1.normalized", N2: "ln2.normalized", Y: "normalized_resid_post" };

/**
 * Replaces the placeholders of a row, or of a part of a row, by values, as the function `fill` of steps/step.py does.
 * @param {any} text
 * @param {Record<string, any>} values
 * @returns {any}
 */
export function fill(text, values) {
  if (Array.isArray(text)) return text.map((part) => fill(part, values));
  if (text && typeof text === "object") return Object.fromEntries(Object.entries(text).map(([name, part]) => [name, fill(part, values)]));
  if (typeof text !== "string") return text;
  const alone = text.match(/^\{(\w+)\}$/);
  return alone ? values[alone[1]] : text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/**
 * A writer of a flow.
 * @param {string[]} tokens
 * @param {number} token  the token whose vectors are measured
 */
function flowWriter(tokens, token) {
  /** @type {FlowStep[]} */
  const steps = [];
  /** @type {Map<string, Numbers>} */
  const arrays = new Map();
  const T = tokens.length;
  return {
    steps,
    arrays,
    /**
     * Adds a step whose rows are tokens.
     * @param {string} row  of steps.json
     * @param {ArrayLike<number>} data  row by row
     * @param {Record<string, any>} values  the values that replace the row's placeholders
     * @param {any} about  other fields of the step; `from`: the names of the source steps, if the step's numbers are
     *     not computed here
     */
    write(row, data, values = {}, { from = null, ...about } = {}) {
      const { columns, op, ...made } = fill(ROWS[row], values);
      const wide = data.length / Math.max(1, T);
      arrays.set(made.name, numbersOf(data, [T, wide]));
      const lengths = columns ? tokens.map((_, t) => (t === token ? lengthAt(data, t, wide) : NaN)) : null;
      const shape = `(T=${T}, ${columns || "T"}=${wide})`;
      /** @type {Pick<FlowStep, "shown" | "weights" | "cell">} */
      const usual = { shown: null, weights: false, cell: null };
      steps.push({ ...usual, ...made, shape, columns: columns ? null : "keys", lengths, op: from ? { ...op, from } : op, ...about });
    },
  };
}

/**
 * The length (norm) of the vector with index `t`.
 * @param {ArrayLike<number>} data  one vector after another
 * @param {number} t  the index of the vector
 * @param {number} wide  the number of entries in each vector
 */
export function lengthAt(data, t, wide) {
  let total_ = 0;
  for (let i = t * wide; i < (t + 1) * wide; i++) total_ += data[i] ** 2;
  return Math.sqrt(total_);
}

/**
 * The columns of one head.
 * @param {Float32Array} array  of all heads
 * @param {number} T
 * @param {number} heads
 * @param {number} head
 */
function columnsOfHead(array, T, heads, head) {
  const size = array.length / T / heads;
  const columns = new Float32Array(T * size);
  for (let t = 0; t < T; t++) columns.set(array.subarray((t * heads + head) * size, (t * heads + head + 1) * size), t * size);
  return columns;
}

/**
 * Transposes a linear layer's weight (out, in) to (in, out), as in formulas. If `first` and `count_` are given, the
 * result has only these columns.
 * @param {Float32Array} weight
 * @param {number} wide
 */
function transposed(weight, wide, first = 0, count_ = weight.length / wide) {
  const columns = new Float32Array(wide * count_);
  for (let o = 0; o < count_; o++) for (let i = 0; i < wide; i++) columns[i * count_ + o] = weight[(first + o) * wide + i];
  return numbersOf(columns, [wide, count_]);
}

/**
 * The names of the parameters that the steps of a layer show. A table of vectors is listed together with the indices of
 * the rows that the text needs.
 * @param {Run} run
 * @param {number} layer
 * @returns {[string[], Record<string, number[]>]}
 */
export function parametersOf(run, layer) {
  const parts = ["attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj", "norm1", "mlp.up_proj", "mlp.down_proj", "norm2"];
  const names = parts.flatMap((part) => ["weight", "bias"].map((kind) => `blocks.${layer}.${part}.${kind}`));
  if (layer) return [names, {}];
  const rows = { "embed.weight": run.ids, "pos_embed.weight": run.ids.map((_, t) => t), "token_type_embed.weight": [0] };
  return [[...names, ...Object.keys(rows), "embed_norm.weight", "embed_norm.bias"], rows];
}

/**
 * The steps of a layer and of one of its heads; null if the run does not have the layer's results.
 * @param {Run} run
 * @param {PlayState} state
 * @param {{eps?: number}} model
 * @param {Known | null} known  the parameters; null if the page cannot get them
 * @returns {Flow | null}
 */
export function flowOf(run, { layer, head, edits, query, position }, model, known) {
  const block = run.blocks?.[layer];
  if (!block?.q || !run.tokens.length) return null;
  const { tokens } = run;
  const token = Math.min(query ?? position ?? 0, tokens.length - 1);
  const written = flowWriter(tokens, token);
  const sizes = { T: tokens.length, D: run.resid[0].length / tokens.length, eps: model.eps };
  const one = { ...written, ...sizes, read: "X", run, layer, head, edits, token, block, known };
  if (!layer && known) embeddingFlow(one);
  else one.write(layer ? "input" : "first input", run.resid[layer], { layer, before: layer - 1 });
  const whole = Boolean(block.mlp_out && block.resid_post);
  const first = whole && lastOf(block.resid_post) === lastOf(run.resid[layer + 1]); // whether norms come before the attention and the MLP
  if (first && block["ln1.normalized"]) one.read = normFlow(one, "X", "N", block["ln1.normalized"]);
  attentionFlow(one);
  if (first) normedFirst(one);
  else if (block.mlp_out) restFlow(one);
  else one.write("output", run.resid[layer + 1], { name: "Y", source: `trace.hidden_states[${layer + 1}][0]` }, { from: ["X", "joined"] });
  const largest = run.pattern[layer][head].subarray(token * one.T, (token + 1) * one.T);
  const key = largest.indexOf(Math.max(...largest));
  /** @type {Pick<Flow, "keys" | "rows" | "key_rows">} */
  const all = { keys: null, rows: null, key_rows: null };
  const array = (/** @type {string} */ name) => /** @type {Numbers} */ (one.arrays.get(name));
  return { ...all, layer, head, tokens, start: [token, key], steps: one.steps, array };
}

/**
 * Adds the steps from words and positions to the input of the first layer.
 * @param {Layer} one
 */
function embeddingFlow(one) {
  const { write, run, known, T, D } = one;
  const [E, P, segment] = ["embed", "pos_embed", "token_type_embed"].map((name) => /** @type {Known} */ (known)[`${name}.weight`]);
  one.arrays.set("segment", numbersOf(segment, [D]));
  const rows = Array.from(run.ids);
  write("words", E, { rows, ids: rows.slice(0, 12).join(", ") + (rows.length > 12 ? ", …" : ""), table: "" });
  write("positions", P, { rows: rows.map((_, t) => t) });
  const sum = Float32Array.from({ length: T * D }, (_, i) => E[i] + P[i] + segment[i % D]);
  const terms = ["E", "P", "segment"];
  write("embedded", sum, { name: "H", sum: terms.join(" + "), terms, note: PHRASES.segment });
  normFlow(one, "H", "X", run.resid[0], "embed_norm");
}

/** @param {Float32Array} data */
function lastOf(data) {
  return data[data.length - 1];
}

/**
 * Adds a norm of a layer; returns its name. If the page does not have the parameters, the kind of norm is unknown.
 * @param {Layer} one
 * @param {string} of
 * @param {string} name
 * @param {Float32Array} data
 */
function normFlow(one, of, name, data, part = "", note = PHRASES[name] ?? "") {
  if (!one.known) {
    one.write("traced norm", data, { name, key: `"${TRACED[name]}", ${one.layer}`, note }, { from: [of] });
    return name;
  }
  const mark = one.arrays.has("gain") ? `_${name}` : ""; // each norm has its own parameters
  const [gain, shift] = [`gain${mark}`, `shift${mark}`];
  one.arrays.set(gain, numbersOf(one.known[`${part}.weight`], [one.D]));
  one.arrays.set(shift, numbersOf(one.known[`${part}.bias`], [one.D]));
  one.write("norm", data, { of, name, gain, least: `eps${mark}`, eps: one.eps, ...biased(shift), note, side: "queries" });
  return name;
}

/**
 * The values of the placeholders for a bias: the bias's name, and the code that adds the bias.
 * @param {string} bias
 */
function biased(bias) {
  return { bias, plus: ` + ${bias}` };
}

/**
 * Adds the steps from the input to the output of the heads.
 * @param {Layer} one
 */
function attentionFlow(one) {
  const { write, run, block, layer, head, edits, token, T } = one;
  const heads = run.pattern[layer].length;
  const d = block.q.length / T / heads;
  const shared = heads / (block.k.length / T / d);
  /** @type {Record<string, Float32Array>} */
  const made = {};
  for (const letter of ["Q", "K", "V"]) {
    const of = letter === "Q" ? head : Math.floor(head / shared);
    made[letter] = columnsOfHead(block[letter.toLowerCase()], T, letter === "Q" ? heads : heads / shared, of);
    projectionFlow(one, letter, of, letter === "Q" ? 1 : shared, made[letter]);
    const hook = letter.toLowerCase();
    const turned = block[`rot_${hook}`]; // set only if queries and keys are normed or rotated before their product
    if (!turned) continue;
    made[letter] = columnsOfHead(turned, T, turned.length / T / d, of);
    const values = { what: PHRASES[letter], letter, hook, layer, of, side: letter === "Q" ? "queries" : "keys" };
    write("traced rotated", made[letter], values, { from: [letter] });
  }
  const { Q, K, V } = made;
  const [query, key] = ["Q", "K"].map((letter) => (block[`rot_${letter.toLowerCase()}`] ? `${letter}_rotated` : letter));
  const scores = Float32Array.from({ length: T * T }, (_, i) => dotOf(Q, Math.floor(i / T), K, i % T, d));
  write("scores", scores, { query, key });
  const [yours, seen_] = [hiddenBy(edits, layer, head, T), block.attn_scores?.[head]];
  const hidden = yours.map((away, i) => Number(away || seen_?.[i] === -Infinity));
  const masked = hidden.some(Boolean);
  const usual = 1 / Math.sqrt(d);
  const { scale = scaleOf(edits, usual), softcap = null } = block;
  const own = Math.abs(scale / usual - 1) > 1e-9;
  const note = masked ? "" : PHRASES["no mask"];
  write(own ? "scaled by a number" : "scaled", scores.map((x) => x * scale), { d, scale, by: Number(scale.toPrecision(6)), note }, { changed: editsOf(edits, "scale").length > 0 });
  const scaled = scores.map((x) => capped(x * scale, softcap));
  if (softcap) write("scores capped", scaled, { cap: softcap });
  const last = softcap ? "capped" : "scaled";
  if (masked) {
    const changed = yours.some(Boolean);
    const later = hidden.every((away, i) => Boolean(away) === i % T > Math.floor(i / T));
    const why = PHRASES[changed ? "yours" : later ? "is_causal" : "window"];
    /** @type {Record<string, any>} */
    const values = { of: last, added: "", line: last, mask: null, sizes: "T", later: "j > i", why };
    write(later ? "masked later" : "masked", scaled.map((x, i) => (hidden[i] ? -Infinity : x)), values, { changed });
  }
  const [of, rows] = [masked ? "masked" : last, edits.filter((edit) => edit.op === "row" && isFor(edit, layer, head))];
  const weights = run.pattern[layer][head];
  if (rows.length) {
    const overridden = rows.some((edit) => edit.query === token);
    const note = overridden ? fill(PHRASES["given row"], { token: named(run.tokens[token]) }) : "";
    write("weights given", weights, { layer, head, note }, { from: [of], changed: true });
  } else {
    const blind = run.tokens.some((_, i) => hidden.subarray(i * T, (i + 1) * T).every(Boolean));
    write(blind ? "weights of blind rows" : "weights", weights, { of });
  }
  contextFlow(one, V, V.length / T, heads);
}

/**
 * The product of two rows.
 * @param {Float32Array} left
 * @param {number} i
 * @param {Float32Array} right
 * @param {number} j
 * @param {number} d  the length of a row
 */
function dotOf(left, i, right, j, d) {
  let sum = 0;
  for (let c = 0; c < d; c++) sum += left[i * d + c] * right[j * d + c];
  return sum;
}

/**
 * Adds Q, K or V of the head.
 * @param {Layer} one
 * @param {string} letter
 * @param {number} of  the head of the projection: for K and V, a key/value head
 * @param {number} shared  the number of heads that share this projection
 * @param {Float32Array} data
 */
function projectionFlow(one, letter, of, shared, data) {
  const { known, layer, D, T, head } = one;
  const size = data.length / T;
  const [hook, start] = [letter.toLowerCase(), of * size];
  const whose = shared > 1 ? fill(PHRASES["key head"], { of, first: of * shared, last: (of + 1) * shared - 1 }) : "";
  const values = { what: PHRASES[letter], letter, columns: letter === "V" ? "dv" : "d", side: letter === "Q" ? "queries" : "keys" };
  if (!known) return one.write("traced projection", data, { ...values, hook, layer, of, whose }, { from: [one.read] });
  const [weight, bias] = [`W_${letter}`, `b_${letter}`];
  const name = `blocks.${layer}.attn.${hook}_proj`;
  const stop = start + size;
  one.arrays.set(weight, transposed(known[`${name}.weight`], D, start, size));
  one.arrays.set(bias, numbersOf(known[`${name}.bias`].subarray(start, stop), [size]));
  const cut = { start, stop, last: stop - 1, part: ` + ${bias}[${start}:${stop}]` };
  one.write("projection", data, { ...values, ...biased(bias), ...cut, x: one.read, whose: whose ? `${whose},` : fill(PHRASES.head, { head }) });
}

/**
 * Adds two steps: this head's weighted sum of values, and the joined outputs of all heads. If the head is ablated, a
 * third step replaces the weighted sum with zeros.
 * @param {Layer} one
 * @param {Float32Array} V
 * @param {number} size
 * @param {number} heads
 */
function contextFlow(one, V, size, heads) {
  const { write, run, block, layer, head, T } = one;
  const weights = run.pattern[layer][head];
  const context = new Float32Array(T * size);
  for (let i = 0; i < T; i++)
    for (let j = 0; j < T; j++)
      for (let c = 0; c < size; c++) context[i * size + c] += weights[i * T + j] * V[j * size + c];
  write("context", context);
  const removed = isRemoved(one.edits, layer, head);
  if (removed) write("instead", new Float32Array(T * size), { layer, head }, { changed: true });
  const values = { count: heads, width: size, head, start: head * size, last: (head + 1) * size - 1 };
  write("joined", block.z, { ...values, heads: heads > 1 ? "[head 0 | head 1 | ⋯]" : "head 0" }, { from: [removed ? "instead" : "context"] });
}

/**
 * Adds a linear layer of the block; `wide` is the size of its input.
 * @param {Layer} one
 * @param {string} row  of steps.json
 * @param {Float32Array} data
 * @param {string} part
 * @param {number} wide
 */
function linearFlow(one, row, data, part, wide, values = {}, about = {}) {
  const { right } = ROWS[row].op;
  const [weight, bias] = ["weight", "bias"].map((kind) => /** @type {Known} */ (one.known)[`blocks.${one.layer}.${part}.${kind}`]);
  const added = right.replace("W", "b");
  one.arrays.set(right, transposed(weight, wide));
  one.arrays.set(added, numbersOf(bias, [bias.length]));
  one.write(row, data, { ...biased(added), ...values }, about);
}

/**
 * Adds the step of the output projection, and the step that adds the projection's result to the residual stream.
 * @param {Layer} one
 */
function addedFlow(one) {
  const { write, block, layer, T, known } = one;
  if (known) linearFlow(one, "out", block.attn_out, "attn.out_proj", block.z.length / T);
  else write("traced attn_out", block.attn_out, { layer }, { from: ["joined"] });
  if (block.resid_mid) write("attention added", block.resid_mid, { given: "out" });
}

/** @param {Layer} one */
function handedOn({ layer, run }) {
  return layer + 1 === run.pattern.length ? PHRASES.last : fill(PHRASES["handed on"], { next: layer + 1 });
}

/**
 * Adds the steps from the output of the heads to the output of the layer, if norms come before the parts.
 * @param {Layer} one
 */
function normedFirst(one) {
  const { write, block, run, layer } = one;
  addedFlow(one);
  const after = block.resid_mid ? "R" : "X"; // in a parallel block, the MLP reads the attention's input
  const normed = block["ln2.normalized"];
  const read = normed ? normFlow(one, after, "N2", normed) : block.resid_mid ? "R" : one.read;
  write("traced mlp_out", block.mlp_out, { layer }, { from: [read] });
  if (block.resid_mid) write("MLP added", run.resid[layer + 1], { given: "mlp", note: handedOn(one) });
  else write("both added", run.resid[layer + 1], { attended: "out", given: "mlp" });
}

/**
 * Adds the steps from the output of the heads to the output of the layer, if norms come after the parts, as in BERT.
 * @param {Layer} one
 */
function restFlow(one) {
  const { write, block, layer, run, known } = one;
  const here = `blocks.${layer}`;
  addedFlow(one);
  normFlow(one, "R", "N1", block["ln1.normalized"], `${here}.norm1`);
  if (known) unitsFlow(one);
  else write("traced mlp_out", block.mlp_out, { layer }, { from: ["N1"] });
  write("MLP added before the norm", block.resid_post, { read: "N1", given: "mlp" });
  normFlow(one, "R2", "Y", run.resid[layer + 1], `${here}.norm2`, handedOn(one));
}

/**
 * Adds the steps of the MLP; only the hidden units that are largest at the token are shown.
 * @param {Layer} one
 */
function unitsFlow(one) {
  const { write, block, T, D, token, run } = one;
  const F = block.post.length / T;
  const size = block.post.subarray(token * F, (token + 1) * F).map(Math.abs);
  const at = Array.from(size.keys()).sort((a, b) => size[b] - size[a]).slice(0, FEW_UNITS);
  const shown = { at, names: at.map(String) };
  const units = fill(PHRASES.units, { units: at.length, count: F, token: named(run.tokens[token]) });
  linearFlow(one, "up", block.pre, "mlp.up_proj", D, { x: "N1" }, { shown, note: `${ROWS.up.note}; ${units}` });
  write("gelu", block.post, { x: "pre", name: "post", columns: "F", side: "queries" }, { shown });
  linearFlow(one, "down", block.mlp_out, "mlp.down_proj", F, { units: at, count: F });
}
