// The forward pass of a BERT and of its head over words, to be read from top to bottom: tokens, vectors,
// attention, MLP, logits. What a reader may change in it is in edits.js, the tokens are made in wordpiece.js.
// An array of several axes is flat, the last axis side by side: row t of an array (T, D) begins at t * D.
// T is how many tokens there are, D the size of a vector, H the heads, d = D / H the size of one, F the hidden
// size of the MLP, V the vocabulary. All is computed in float64, as JavaScript's numbers are: what comes out is
// the model's own, but for the last rounding.

import { changed, editsOf, hiddenBy, scaleOf, stageOf, without } from "./edits.js";
import { readTokenizer } from "./wordpiece.js";

/** @typedef {import("./edits.js").Edit} Edit */
/** @typedef {import("./wordpiece.js").Tokenizer} Tokenizer */

/**
 * @typedef {{layers: number, heads: number, dim: number, vocabulary: number, most: number, eps: number, mask?: string,
 *            scales?: [string, number][]}} Sizes  mask and scales: of a model on a server, see server.js
 * @typedef {{name: string, sizes: Sizes, parameters: Record<string, Float32Array>, tokenizer: Tokenizer}} Model
 * @typedef {{b64: string, scale?: string}} Packed  a parameter, see unpacked
 * @typedef {Record<string, any>} Step  what a part of the model has computed: arrays, by the names of a trace
 */

// ---- the parameters

/**
 * The model that engine.py has written into a page, as numbers to compute with.
 * @param {{name: string, sizes: Sizes, parameters: Record<string, Packed>, tokenizer: any}} written
 * @returns {Model}
 */
export function readModel({ name, sizes, parameters, tokenizer }) {
  const halves = Float32Array.from({ length: 65536 }, (_, bits) => half(bits)); // all that float16 has
  /** @type {Record<string, Float32Array>} */
  const read = {};
  for (const [part, packed] of Object.entries(parameters)) read[part] = unpacked(packed, halves);
  return { name, sizes, parameters: read, tokenizer: readTokenizer(tokenizer) };
}

/**
 * A float16 from its bits: one for the sign, five for the power of two, ten for the fraction.
 * @param {number} bits
 */
function half(bits) {
  const [sign, power, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, (bits & 1023) / 1024];
  if (power === 31) return fraction ? NaN : sign * Infinity;
  return sign * (power ? (1 + fraction) * 2 ** (power - 15) : fraction * 2 ** -14);
}

/**
 * Base64 of float16, the lower byte first, looked up in a table of what its bits mean; or, where there are scales,
 * which are such float16, of rows of int8, each of which is multiplied by its scale.
 * @param {Packed} packed
 * @param {Float32Array} halves
 * @returns {Float32Array}
 */
function unpacked({ b64, scale }, halves) {
  const text = atob(b64);
  const scales = scale && unpacked({ b64: scale }, halves);
  const found = new Float32Array(text.length / (scales ? 1 : 2));
  for (let i = 0; i < found.length; i++)
    found[i] = scales
      ? ((text.charCodeAt(i) << 24) >> 24) * scales[Math.floor((i * scales.length) / found.length)]
      : halves[text.charCodeAt(2 * i) | (text.charCodeAt(2 * i + 1) << 8)];
  return found;
}

// ---- the parts of a layer

/**
 * A linear layer: x (T, I) times weight (O, I), of which each row makes one number of the result, plus bias (O).
 * Two rows of x and four of the weight are read at a time, since reading takes longer than multiplying.
 * @param {Float64Array} x
 * @param {Float32Array} weight
 * @param {Float32Array} bias
 */
function linear(x, weight, bias) {
  const O = bias.length;
  const I = weight.length / O;
  const T = x.length / I;
  const out = new Float64Array(T * O); // (T, I) -> (T, O)
  for (let o = 0; o < O; o += 4) {
    const [o1, o2, o3] = [1, 2, 3].map((by) => Math.min(o + by, O - 1)); // at the end some are computed again
    const [w0, w1, w2, w3] = [o, o1, o2, o3].map((row) => row * I);
    /** @type {(row: number, a: number, b: number, c: number, d: number) => void} */
    const put = (row, a, b, c, d) => {
      out[row + o] = a + bias[o];
      out[row + o1] = b + bias[o1];
      out[row + o2] = c + bias[o2];
      out[row + o3] = d + bias[o3];
    };
    for (let t = 0; t < T; t += 2) {
      const t1 = Math.min(t + 1, T - 1);
      let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
      for (let i = 0; i < I; i++) {
        const a = x[t * I + i];
        const b = x[t1 * I + i];
        a0 += a * weight[w0 + i];
        a1 += a * weight[w1 + i];
        a2 += a * weight[w2 + i];
        a3 += a * weight[w3 + i];
        b0 += b * weight[w0 + i];
        b1 += b * weight[w1 + i];
        b2 += b * weight[w2 + i];
        b3 += b * weight[w3 + i];
      }
      put(t * O, a0, a1, a2, a3);
      put(t1 * O, b0, b1, b2, b3);
    }
  }
  return out;
}

/**
 * Each vector of x (T, D) shifted to mean 0 and scaled to variance 1, then times weight (D) plus bias (D).
 * @param {Float64Array} x
 * @param {Float32Array} weight
 * @param {Float32Array} bias
 * @param {number} eps  is added to the variance
 */
function layerNorm(x, weight, bias, eps) {
  const D = weight.length;
  const out = new Float64Array(x.length);
  for (let row = 0; row < x.length; row += D) {
    let [mean, variance] = [0, 0];
    for (let i = 0; i < D; i++) mean += x[row + i] / D;
    for (let i = 0; i < D; i++) variance += (x[row + i] - mean) ** 2 / D;
    const scale = 1 / Math.sqrt(variance + eps);
    for (let i = 0; i < D; i++) out[row + i] = (x[row + i] - mean) * scale * weight[i] + bias[i];
  }
  return out;
}

/**
 * GELU: each x times the share of the normal distribution that lies below it.
 * @param {Float64Array} x
 */
function gelu(x) {
  return x.map((value) => value * below(value));
}

const [REACH, FINE] = [6, 256]; // the bell curve from -6 to 6, in steps of 1 / 256
const BELL = Float64Array.from({ length: 2 * REACH * FINE + 1 }, (_, i) => bell(i / FINE - REACH));
const BELOW = new Float64Array(BELL.length); // the area under it up to there, by Simpson's rule
for (let i = 1; i < BELOW.length; i++) {
  const middle = bell((i - 0.5) / FINE - REACH);
  BELOW[i] = BELOW[i - 1] + (BELL[i - 1] + 4 * middle + BELL[i]) / (6 * FINE);
}

/** @param {number} x */
function bell(x) {
  return Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);
}

/**
 * The share of the normal distribution below x: from the table, and on from there by its derivatives.
 * @param {number} x
 */
function below(x) {
  if (!(Math.abs(x) < REACH)) return x < 0 ? 0 : x > 0 ? 1 : NaN;
  const i = Math.round((x + REACH) * FINE);
  const at = i / FINE - REACH;
  const by = x - at;
  return BELOW[i] + BELL[i] * by * (1 - (at * by) / 2 + ((at * at - 1) * by * by) / 6);
}

/**
 * The residual connection: what goes past a part of a layer is added to what comes out of it.
 * @param {Float64Array} past
 * @param {Float64Array} out
 */
function add(past, out) {
  return past.map((value, i) => value + out[i]);
}

// ---- attention

/**
 * The scores of one head, (T, T): how well each query's vector fits each key's; -Infinity where the key is hidden.
 * @param {Float64Array} q  (T, D), as k is
 * @param {Float64Array} k
 * @param {number} first  the head's first column, of d
 * @param {number} d
 * @param {number} D
 * @param {number} scale
 * @param {Uint8Array} hidden  (T, T)
 */
function scoresOf(q, k, first, d, D, scale, hidden) {
  const T = q.length / D;
  const out = new Float64Array(T * T); // (T, d), (T, d) -> (T, T)
  for (let i = 0; i < T; i++)
    for (let j = 0; j < T; j++) {
      let dot = 0;
      for (let c = first; c < first + d; c++) dot += q[i * D + c] * k[j * D + c];
      out[i * T + j] = hidden[i * T + j] ? -Infinity : dot * scale;
    }
  return out;
}

/**
 * Each row of scores (T, T) as weights that sum to 1; a row that sees nothing has weights 0.
 * @param {Float64Array} scores
 * @param {number} T
 */
function softmax(scores, T) {
  const out = new Float64Array(T * T);
  for (let row = 0; row < T * T; row += T) {
    let [largest, total] = [-Infinity, 0];
    for (let j = 0; j < T; j++) largest = Math.max(largest, scores[row + j]);
    if (largest === -Infinity) continue;
    for (let j = 0; j < T; j++) total += Math.exp(scores[row + j] - largest);
    for (let j = 0; j < T; j++) out[row + j] = Math.exp(scores[row + j] - largest) / total;
  }
  return out;
}

/**
 * One head's columns of z (T, D): for each query the values v (T, D), weighted by its row of the pattern (T, T).
 * @param {Float64Array} pattern
 * @param {Float64Array} v
 * @param {number} first  the head's first column, of d
 * @param {number} d
 * @param {number} D
 * @param {Float64Array} z  is written to
 */
function weigh(pattern, v, first, d, D, z) {
  const T = v.length / D;
  for (let i = 0; i < T; i++)
    for (let c = first; c < first + d; c++) {
      let total = 0;
      for (let j = 0; j < T; j++) total += pattern[i * T + j] * v[j * D + c];
      z[i * D + c] = total; // (T, T), (T, d) -> (T, d)
    }
}

// ---- the model

/**
 * A linear layer of the model by its name.
 * @param {Model} model
 * @param {string} name
 * @param {Float64Array} x
 */
function project({ parameters }, name, x) {
  return linear(x, parameters[`${name}.weight`], parameters[`${name}.bias`]);
}

/**
 * A norm of the model by its name.
 * @param {Model} model
 * @param {string} name
 * @param {Float64Array} x
 */
function norm({ parameters, sizes }, name, x) {
  return layerNorm(x, parameters[`${name}.weight`], parameters[`${name}.bias`], sizes.eps);
}

/**
 * The vectors that the first layer reads: those of the tokens, of their places and of the first segment.
 * @param {Model} model
 * @param {number[]} ids  (T)
 * @returns {Step}
 */
function embed(model, ids) {
  const D = model.sizes.dim;
  const [words, places, segment] = ["embed", "pos_embed", "token_type_embed"].map((name) => model.parameters[`${name}.weight`]);
  const x = new Float64Array(ids.length * D); // (T) -> (T, D)
  ids.forEach((id, t) => {
    for (let i = 0; i < D; i++) x[t * D + i] = words[id * D + i] + places[t * D + i] + segment[i];
  });
  return { full_embed: norm(model, "embed_norm", x) };
}

/**
 * The queries, keys and values of layer l, made of x (T, D): all heads side by side.
 * @param {Model} model
 * @param {number} l
 * @param {Float64Array} x
 * @param {Edit[]} edits
 * @returns {Step}
 */
function projections(model, l, x, edits) {
  const T = x.length / model.sizes.dim;
  const [q, k, v] = ["q", "k", "v"].map((name) => changed(edits, name, project(model, `blocks.${l}.attn.${name}_proj`, x), T, model.sizes));
  return { q, k, v }; // (T, D) -> (T, H * d), three times
}

/**
 * The heads of layer l: scores, weights, and the values that these bring together.
 * @param {Model} model
 * @param {number} l
 * @param {Step} qkv
 * @param {Edit[]} edits  see edits.js
 * @returns {Step}
 */
function attention({ sizes }, l, { q, k, v }, edits) {
  const { heads: H, dim: D } = sizes;
  const T = q.length / D;
  const d = D / H;
  const scale = scaleOf(edits, 1 / Math.sqrt(d));
  /** @type {Float64Array[]} */
  const attn_scores = [];
  const weights = new Float64Array(H * T * T);
  const z = new Float64Array(T * D);
  for (let h = 0; h < H; h++) {
    attn_scores[h] = scoresOf(q, k, h * d, d, D, scale, hiddenBy(edits, l, h, T));
    weights.set(softmax(attn_scores[h], T), h * T * T);
  }
  const edited = changed(edits, "pattern", weights, T, sizes);
  const pattern = attn_scores.map((_, h) => edited.subarray(h * T * T, (h + 1) * T * T));
  pattern.forEach((own, h) => weigh(own, v, h * d, d, D, z));
  return { attn_scores, pattern, z }; // (T, H * d) -> H times (T, T) -> (T, H * d)
}

/**
 * What layer l does with x (T, D) once its heads have found z (T, H * d). Each part's result is added, then normed.
 * @param {Model} model
 * @param {number} l
 * @param {Float64Array} x
 * @param {Float64Array} found  z, (T, H * d)
 * @param {Edit[]} edits
 * @returns {Step}
 */
function rest(model, l, x, found, edits) {
  const { sizes } = model;
  const T = x.length / sizes.dim;
  const z = changed(edits, "z", without(editsOf(edits, "ablate"), found, sizes), T, sizes);
  const attn_out = changed(edits, "attn_out", project(model, `blocks.${l}.attn.out_proj`, z), T, sizes); // (T, H * d) -> (T, D)
  const resid_mid = add(x, attn_out);
  const normed = norm(model, `blocks.${l}.norm1`, resid_mid);
  const pre = project(model, `blocks.${l}.mlp.up_proj`, normed); // (T, D) -> (T, F)
  const post = gelu(pre);
  const mlp_out = changed(edits, "mlp_out", project(model, `blocks.${l}.mlp.down_proj`, post), T, sizes); // (T, F) -> (T, D)
  const resid_post = changed(edits, "resid_post", add(normed, mlp_out), T, sizes);
  const normalized_resid_post = norm(model, `blocks.${l}.norm2`, resid_post);
  return { z, attn_out, resid_mid, "ln1.normalized": normed, pre, post, mlp_out, resid_post, normalized_resid_post };
}

/**
 * The vectors (T, D) that a step hands to the next: the embeddings, or what a layer gives.
 * @param {Step} step
 */
export function handedOn(step) {
  return step.normalized_resid_post ?? step.full_embed;
}

/**
 * The forward pass: the embeddings, then every layer. It stops before each layer, so that something else can go
 * first. What was computed before is taken from `memory`: a change in layer l leaves all that lies below as it is.
 * @param {Model} model
 * @param {Memory} memory
 * @param {number[]} ids  (T)
 * @param {Edit[]} edits
 * @returns {Generator<void, Step[]>}  the embeddings, and behind them the layers
 */
export function* forward(model, memory, ids, edits) {
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
    const before = changed(first, "resid_pre", handedOn(last), ids.length, model.sizes);
    const qkv = memory.keep(`qkv ${last.key} ${one}`, () => projections(model, l, before, first));
    const heads = memory.keep(`heads ${qkv.key} ${two}`, () => attention(model, l, qkv, middle));
    last = memory.keep(`rest ${heads.key} ${three}`, () => rest(model, l, before, heads.z, behind));
    steps.push({ ...qkv, ...heads, ...last });
  }
  return steps;
}

/**
 * What the head makes of vectors (T, D): how well each word of the vocabulary would fit at these places (n).
 * @param {Model} model
 * @param {Float64Array} x
 * @param {number[]} places
 */
export function logitsAt(model, x, places) {
  const { parameters: p, sizes: { dim: D } } = model;
  const rows = new Float64Array(places.length * D); // (T, D) -> (n, D)
  places.forEach((t, n) => rows.set(x.subarray(t * D, (t + 1) * D), n * D));
  const ready = norm(model, "head.norm", gelu(project(model, "head.dense_proj", rows)));
  return linear(ready, p["head.out_proj.weight"] ?? p["embed.weight"], p["head.out_proj.bias"]); // (n, D) -> (n, V)
}

/** What has been computed, up to so many numbers; what nobody asked for the longest goes first. */
export class Memory {
  constructor(most = 6e6) {
    this.most = most;
    this.size = 0;
    this.count = 0;
    /** @type {Map<string, Step>} */
    this.found = new Map();
  }

  /**
   * What `compute` gives, or gave under this name; with a key, to name by what is computed from it.
   * @param {string} name
   * @param {() => Step} compute
   */
  keep(name, compute) {
    const known = this.found.get(name);
    const value = known ?? { ...compute(), key: (this.count += 1) };
    this.found.delete(name);
    this.found.set(name, value); // the newest is the last
    if (!known) this.size += sizeOf(value);
    for (const [old, one] of this.found) {
      if (this.size <= this.most || one === value) break;
      this.found.delete(old);
      this.size -= sizeOf(one);
    }
    return value;
  }
}

/**
 * How many numbers the arrays of a step have.
 * @param {Step} step
 */
function sizeOf(step) {
  return Object.values(step).flat().reduce((total, one) => total + (one.length ?? 0), 0);
}
