// What one layer of a run did to its text, step by step: as page/walk.py writes it of a recorded walk, told here of a run.

import { visible } from "../base/text.js";
import { hiddenBy, isFor, scaleOf } from "../engine/edits.js";
import { isRemoved } from "./map.js";
import { numbersOf } from "./sums.js";

/** @typedef {import("./block.js").Flow} Flow */
/** @typedef {import("./block.js").FlowStep} FlowStep */
/** @typedef {import("../store/state.js").PlayState} PlayState */
/** @typedef {import("../engine/door.js").Run} Run */

const FEW_UNITS = 8; // hidden units that are shown of all
// Where a trace has what is not computed here.
const TRACED = {
  N: (layer) => `N = trace["ln1.hook_normalized", ${layer}][0]`,
  N1: (layer) => `N1 = trace["ln1.hook_normalized", ${layer}][0]`,
  N2: (layer) => `N2 = trace["ln2.hook_normalized", ${layer}][0]`,
  out: (layer) => `out = trace["attn_out", ${layer}][0]`,
  mlp: (layer) => `mlp = trace["mlp_out", ${layer}][0]`,
  Y: (layer) => `Y = trace["normalized_resid_post", ${layer}][0]`,
};

/**
 * A flow that is being written down.
 * @param {string[]} tokens
 * @param {number} token  whose vectors are measured
 * @param {number} layer
 */
function flowWriter(tokens, token, layer) {
  /** @type {FlowStep[]} */
  const steps = [];
  const arrays = new Map();
  const T = tokens.length;
  return {
    steps,
    arrays,
    /**
     * One more step, whose rows are tokens.
     * @param {string} name
     * @param {ArrayLike<number>} data  row by row
     * @param {string} columns  what their number is called; "": they are keys
     * @param {any} about  what else a step has
     */
    write(name, data, columns, about) {
      const wide = data.length / Math.max(1, T);
      arrays.set(name, numbersOf(data, [T, wide]));
      const lengths = columns ? tokens.map((_, t) => (t === token ? lengthAt(data, t, wide) : NaN)) : null;
      const shape = `(T=${T}, ${columns || "T"}=${wide})`;
      const usual = { formula: name, code: TRACED[name]?.(layer) ?? name, note: "", side: "queries", shown: null, weights: false, cell: null };
      steps.push({ ...usual, name, shape, columns: columns ? null : "keys", lengths, ...about });
    },
  };
}

export function lengthAt(data, t, wide) {
  let total_ = 0;
  for (let i = t * wide; i < (t + 1) * wide; i++) total_ += data[i] ** 2;
  return Math.sqrt(total_);
}

/** The columns of one of so many heads, side by side. */
function columnsOfHead(array, T, heads, head) {
  const size = array.length / T / heads;
  const found = new Float32Array(T * size);
  for (let t = 0; t < T; t++) found.set(array.subarray((t * heads + head) * size, (t * heads + head + 1) * size), t * size);
  return found;
}

/** A linear layer's weight, (out, in), as formulas have it, or some of its columns: (in, out). */
function transposed(weight, wide, first = 0, count_ = weight.length / wide) {
  const found = new Float32Array(wide * count_);
  for (let o = 0; o < count_; o++) for (let i = 0; i < wide; i++) found[i * count_ + o] = weight[(first + o) * wide + i];
  return numbersOf(found, [wide, count_]);
}

/**
 * The names of the parameters that a layer's steps are made of, and the rows of tables that its text needs.
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
 * The steps of a layer, those of one of its heads; null where the run has nothing of its inside.
 * @param {Run} run
 * @param {PlayState} state
 * @param {{eps?: number}} model
 * @param {Record<string, Float32Array> | null} known  the parameters, where they can be had
 * @returns {Flow | null}
 */
export function flowOf(run, { layer, head, edits, query, place }, model, known) {
  const block = run.blocks?.[layer];
  if (!block?.q || !run.tokens.length) return null;
  const { tokens } = run;
  const token = Math.min(query ?? place ?? 0, tokens.length - 1);
  const written = flowWriter(tokens, token, layer);
  const sizes = { T: tokens.length, D: run.resid[0].length / tokens.length, eps: model.eps };
  const one = { ...written, ...sizes, read: "X", run, layer, head, edits, token, block, known };
  if (!layer && known) embeddingFlow(one);
  else one.write("X", run.resid[layer], "D", { title: "The input of the layer", code: `X = trace["resid_pre", ${layer}][0]`, op: { kind: "given" }, note: layer ? `what layer ${layer - 1} gave` : "words and places" });
  const told = block.resid_mid && block["ln2.normalized"];
  const first = Boolean(told) && lastOf(block.resid_post) === lastOf(run.resid[layer + 1]); // norms stand before the parts
  if (first) one.read = normFlow(one, "X", "N", block["ln1.normalized"], "", "what the attention reads");
  attentionFlow(one);
  if (first) normedFirst(one);
  else if (block.resid_mid) restFlow(one);
  else one.write("Y", run.resid[layer + 1], "D", { title: "What the layer gives", code: `Y = trace.hidden_states[${layer + 1}][0]`, op: { kind: "given", from: ["X", "joined"] }, note: "what lies between is not told here" });
  const largest = run.pattern[layer][head].subarray(token * one.T, (token + 1) * one.T);
  const key = largest.indexOf(Math.max(...largest));
  const all = { keys: null, rows: null, key_rows: null };
  return { ...all, layer, head, tokens, start: [token, key], steps: one.steps, array: (name) => one.arrays.get(name) };
}

/** From words and places to the input of the first layer. */
function embeddingFlow(one) {
  const { write, run, known, T, D } = one;
  const [E, P, segment] = ["embed", "pos_embed", "token_type_embed"].map((name) => known[`${name}.weight`]);
  one.arrays.set("segment", numbersOf(segment, [D]));
  write("E", E, "D", { title: "Words become vectors: each token's row in the table", formula: "E = table[ids]", code: "E = table[ids]", op: { kind: "row", of: "table", rows: run.ids } });
  write("P", P, "D", { title: "Where each token stands", formula: "P[t] = row t of a learned table", code: "P = position_table[:T]", op: { kind: "row", of: "position_table", rows: run.ids.map((_, t) => t) } });
  const sum = Float32Array.from({ length: T * D }, (_, i) => E[i] + P[i] + segment[i % D]);
  const line = "H = E + P + segment";
  write("H", sum, "D", { title: "Word and position added", formula: line, code: line, op: { kind: "sum", terms: ["E", "P", "segment"] }, note: "segment: one vector, the same for every token of a first text" });
  normFlow(one, "H", "X", run.resid[0], "embed_norm", "");
}

function lastOf(data) {
  return data[data.length - 1];
}

/** A norm of a layer; gives its name. Where the parameters are not known, neither is which norm it is. */
function normFlow(one, of, name, data, part, note) {
  if (!one.known) {
    one.write(name, data, "D", { title: "Each vector normed", op: { kind: "given", from: [of] }, note });
    return name;
  }
  const [gain, shift] = [`gain_${name}`, `shift_${name}`];
  one.arrays.set(gain, numbersOf(one.known[`${part}.weight`], [one.D]));
  one.arrays.set(shift, numbersOf(one.known[`${part}.bias`], [one.D]));
  one.write(name, data, "D", {
    title: "Each vector normed: mean 0, variance 1, then a learned gain and shift",
    formula: `${name} = (${of} - mean) / √(variance + eps) * ${gain} + ${shift}`,
    code: `${name} = (${of} - ${of}.mean(1)[:, None]) / np.sqrt(${of}.var(1)[:, None] + eps)\n${name} = ${name} * ${gain} + ${shift}`,
    op: { kind: "norm", of, gain, shift, eps: one.eps, rms: false },
    note,
  });
  return name;
}

/** From the input to what the heads bring. */
function attentionFlow(one) {
  const { write, run, block, layer, head, edits, token, T } = one;
  const heads = run.pattern[layer].length;
  const d = block.q.length / T / heads;
  const shared = heads / (block.k.length / T / d);
  const titles = { Q: "Queries: what each token asks for", K: "Keys: what each token offers", V: "Values: what each token gives" };
  /** @type {Record<string, any>} */
  const made = {};
  for (const [letter, title] of Object.entries(titles)) {
    const of = letter === "Q" ? head : Math.floor(head / shared);
    made[letter] = columnsOfHead(block[letter.toLowerCase()], T, letter === "Q" ? heads : heads / shared, of);
    projectionFlow(one, letter, title, of, made[letter]);
  }
  const { Q, K, V } = made;
  const scores = Float32Array.from({ length: T * T }, (_, i) => dotOf(Q, Math.floor(i / T), K, i % T, d));
  write("scores", scores, "", { title: "Scores: each query times each key", formula: "scores = Q·Kᵀ", code: "scores = Q @ K.T", op: { kind: "product", left: "Q", right: "K", bias: null, flip: true }, note: "the larger q·k, the better the key fits the query" });
  const usual = 1 / Math.sqrt(d);
  const scale = scaleOf(edits, usual);
  const own = scale !== usual;
  const by = own ? `scores * ${scale}` : `scores / √${d}`;
  write("scaled", scores.map((x) => x * scale), "", { title: own ? "Scaled: by the number that you gave" : "Scaled: without it longer vectors would make softmax sharper", formula: `scaled = ${by}`, code: `scaled = ${own ? by : `scores / np.sqrt(${d})`}`, op: { kind: "scaled", of: "scores", by: by.slice(7) }, changed: own });
  const [yours, seen_] = [hiddenBy(edits, layer, head, T), block.attn_scores?.[head]];
  const hidden = yours.map((away, i) => Number(away || seen_?.[i] === -Infinity));
  const masked = hidden.some(Boolean);
  if (masked) {
    const seen = scores.map((x, i) => (hidden[i] ? -Infinity : x * scale));
    write("masked", seen, "", { title: "Masked: what a token must not see gets -inf", formula: "masked[i, j] = -∞ where hidden", code: "masked = np.where(hidden, -np.inf, scaled)", op: { kind: "masked", name: "masked", of: "scaled", added: null }, note: yours.some(Boolean) ? "you hid something" : "a token sees itself and what comes before it", changed: yours.some(Boolean) });
  }
  const [of, rows] = [masked ? "masked" : "scaled", edits.filter((edit) => edit.op === "row" && isFor(edit, layer, head))];
  const weights = run.pattern[layer][head];
  const given = rows.some((edit) => edit.query === token);
  write("weights", weights, "", {
    title: rows.length ? "Softmax of each row, but for those that you gave" : "Softmax: each row becomes weights that sum to 1",
    formula: `weights[i, j] = exp(${of}[i, j]) / Σₖ exp(${of}[i, k])`,
    code: `weights = np.exp(${of} - ${of}.max(1)[:, None])\nweights = weights / weights.sum(1)[:, None]`,
    op: rows.length ? { kind: "given", from: [of] } : { kind: "softmax", of },
    weights: true, changed: rows.length > 0, note: given ? `you gave the row of ${visible(run.tokens[token])} its weights` : "",
  });
  contextFlow(one, V, V.length / T, heads);
}

/** The product of two rows. */
function dotOf(left, i, right, j, d) {
  let sum = 0;
  for (let c = 0; c < d; c++) sum += left[i * d + c] * right[j * d + c];
  return sum;
}

/** Q, K or V of the head. */
function projectionFlow(one, letter, title, of, data) {
  const { known, layer, D, T } = one;
  const size = data.length / T;
  const part = `${of * size}:${(of + 1) * size}`;
  const about = { title, side: letter === "Q" ? "queries" : "keys", code: `${letter} = trace["${letter.toLowerCase()}", ${layer}][0, :, ${of}]`, op: { kind: "given", from: [one.read] } };
  if (known) {
    const name = `blocks.${layer}.attn.${letter.toLowerCase()}_proj`;
    one.arrays.set(`W_${letter}`, transposed(known[`${name}.weight`], D, of * size, size));
    one.arrays.set(`b_${letter}`, numbersOf(known[`${name}.bias`].subarray(of * size, (of + 1) * size), [size]));
    const formula = `${letter} = X·W_${letter} + b_${letter}`;
    const note = `head ${one.head} owns columns ${of * size} to ${(of + 1) * size - 1} of W_${letter}`;
    Object.assign(about, { formula, code: `${letter} = X @ W_${letter}[:, ${part}] + b_${letter}[${part}]`, op: { kind: "product", left: "X", right: `W_${letter}`, bias: `b_${letter}`, flip: false }, note });
  }
  one.write(letter, data, letter === "V" ? "dv" : "d", about);
}

/** The values that the weights bring together, of this head and of all. */
function contextFlow(one, V, size, heads) {
  const { write, run, block, layer, head, T } = one;
  const weights = run.pattern[layer][head];
  const context = new Float32Array(T * size);
  for (let i = 0; i < T; i++)
    for (let j = 0; j < T; j++)
      for (let c = 0; c < size; c++) context[i * size + c] += weights[i * T + j] * V[j * size + c];
  const title = "Context: the values, mixed by these weights";
  write("context", context, "dv", { title, formula: "context = weights·V", code: "context = weights @ V", op: { kind: "product", left: "weights", right: "V", bias: null, flip: false } });
  const removed = isRemoved(one.edits, layer, head);
  if (removed) {
    const none = { title: "You removed the head: 0 stands in the place of its context", code: "instead = np.zeros_like(context)", op: { kind: "given" }, changed: true };
    write("instead", new Float32Array(T * size), "dv", none);
  }
  const note = `head ${head} has columns ${head * size} to ${(head + 1) * size - 1}`;
  write("joined", block.z, "Hq·dv", { title: "All heads side by side", formula: heads > 1 ? "joined = [head 0 | head 1 | ⋯]" : "joined = head 0", code: "joined = np.concatenate(contexts, axis=1)", op: { kind: "joined", width: size, from: [removed ? "instead" : "context"] }, note });
}

/** A linear layer of the block. */
function linearFlow(one, of, name, data, columns, [part, letter, wide], about) {
  if (!one.known) return one.write(name, data, columns, { ...about, op: { kind: "given", from: [of] } });
  const weight = one.known[`blocks.${one.layer}.${part}.weight`];
  one.arrays.set(`W_${letter}`, transposed(weight, wide));
  const bias = one.known[`blocks.${one.layer}.${part}.bias`];
  one.arrays.set(`b_${letter}`, numbersOf(bias, [bias.length]));
  const op = { kind: "product", left: of, right: `W_${letter}`, bias: `b_${letter}`, flip: false, ...about.op };
  one.write(name, data, columns, { formula: `${name} = ${of}·W_${letter} + b_${letter}`, code: `${name} = ${of} @ W_${letter} + b_${letter}`, ...about, op });
}

/** What a part of the layer gives added to what came to it. */
function sumFlow(one, first, second, name, data, what, note = "") {
  const line = `${name} = ${first} + ${second}`;
  one.write(name, data, "D", { title: `The residual connection: ${what}`, formula: line, code: line, op: { kind: "sum", terms: [first, second] }, note });
}

/** The output projection, and its result added to the residual stream. */
function addedFlow(one) {
  const { block, T } = one;
  linearFlow(one, "joined", "out", block.attn_out, "D", ["attn.out_proj", "O", block.z.length / T], { title: "The output projection" });
  sumFlow(one, "X", "out", "R", block.resid_mid, "what came in is added", "attention adds to what a token was; it does not take its place");
}

function handedOn({ layer, run }) {
  return layer + 1 === run.pattern.length ? "what the words are guessed from" : `what layer ${layer + 1} reads`;
}

/** From what the heads bring to what the layer gives, where norms stand before the parts. */
function normedFirst(one) {
  const { write, block, run, layer } = one;
  addedFlow(one);
  normFlow(one, "R", "N2", block["ln2.normalized"], "", "what the MLP reads");
  write("mlp", block.mlp_out, "D", { title: "The MLP: each token by itself", op: { kind: "given", from: ["N2"] } });
  sumFlow(one, "R", "mlp", "Y", run.resid[layer + 1], "what stood before the norm is added", handedOn(one));
}

/** The same where norms stand behind them, as BERT has it. */
function restFlow(one) {
  const { write, block, layer, run, known } = one;
  const here = `blocks.${layer}`;
  addedFlow(one);
  normFlow(one, "R", "N1", block["ln1.normalized"], `${here}.norm1`, "what the MLP reads");
  if (known) unitsFlow(one);
  else write("mlp", block.mlp_out, "D", { title: "The MLP: each token by itself", op: { kind: "given", from: ["N1"] } });
  sumFlow(one, "N1", "mlp", "R2", block.resid_post, "what the MLP read is added");
  normFlow(one, "R2", "Y", run.resid[layer + 1], `${here}.norm2`, handedOn(one));
}

/** The MLP by its hidden units, of which those are shown that are largest at the token. */
function unitsFlow(one) {
  const { write, block, T, D, token, run } = one;
  const F = block.post.length / T;
  const size = block.post.subarray(token * F, (token + 1) * F).map(Math.abs);
  const at = Array.from(size.keys()).sort((a, b) => size[b] - size[a]).slice(0, FEW_UNITS);
  const shown = { at, names: at.map(String) };
  const note = `each token goes through the MLP by itself; the ${at.length} of F=${F} that are largest after the activation at ${visible(run.tokens[token])}`;
  linearFlow(one, "N1", "pre", block.pre, "F", ["mlp.up_proj", "up", D], { title: "The MLP, up to F hidden units", shown, note });
  const formula = "post = pre/2 · (1 + erf(pre/√2))";
  write("post", block.post, "F", { title: "The activation, GELU: each number by itself", formula, code: "post = pre * (1 + erf(pre / np.sqrt(2))) / 2", op: { kind: "activation", of: "pre", name: "gelu" }, shown, note });
  linearFlow(one, "post", "mlp", block.mlp_out, "D", ["mlp.down_proj", "down", F], { title: "The MLP, down to D again", op: { terms: at, name: "mlp", count: F } });
}
