// The parts of a transformer's layers: linear layers, norms, activations, rotations, scores, weights. Every array
// is stored flat, in row-major order: row t of an array (T, D) begins at index t * D. All numbers are computed in
// float64, the type of JavaScript's numbers. `PLAIN` lists the operations that take most of the time.

import { numbersOf } from "./blocks.js";

/** @typedef {import("./blocks.js").Weight} Weight */
/** @typedef {import("./model.js").Rotary} Rotary */
/** @typedef {import("./model.js").Sizes} Sizes */
/** @typedef {Float64Array | Float32Array} Numbers */
/** @typedef {{eps: number, rms: boolean, offset: number}} NormOptions  `eps` is added to the variance, `offset` to the weight */
/** @typedef {{scale: number, softcap: number | null}} ScoreOptions */

/**
 * The operations of a forward pass. `Numbers` is the type of their arrays.
 * @typedef {object} Operations
 * @property {{new (size: number): Numbers}} Numbers
 * @property {(x: Numbers, weight: Weight, bias: Float32Array | undefined, I: number) => Numbers} linear
 * @property {(x: Numbers, weight: Float32Array, bias: Float32Array | undefined, options: NormOptions) => Numbers} normalized
 * @property {(x: Numbers, name: string, by?: Numbers) => Numbers} activated
 * @property {(q: Numbers, k: Numbers, sizes: Sizes, options: ScoreOptions, hidden: Uint8Array) => Numbers} scored
 * @property {(scores: Numbers, S: number) => Numbers} softmax
 * @property {(pattern: Numbers, v: Numbers, sizes: Sizes) => Numbers} weigh
 */

/**
 * A linear layer: x (T, I) times weight (O, I) plus bias (O). Each row of the weight produces one column of the result.
 * Two rows of x and four rows of the weight are read together, since reading takes longer than multiplying.
 * @param {Numbers} x
 * @param {Weight} whole  the weight
 * @param {Float32Array | undefined} bias
 * @param {number} I
 */
function linear(x, whole, bias, I) {
  const O = whole.length / I;
  const T = x.length / I;
  const out = new Float64Array(T * O); // (T, I) -> (T, O)
  for (let o = 0; o < O; o += 4) {
    // if O is not a multiple of 4, the last step computes the last row more than once
    const [o1, o2, o3] = [1, 2, 3].map((by) => Math.min(o + by, O - 1));
    const weight = numbersOf(whole, o * I, Math.min(o + 4, O) * I); // four rows
    const [w0, w1, w2, w3] = [o, o1, o2, o3].map((row) => (row - o) * I);
    /** @type {(row: number, a: number, b: number, c: number, d: number) => void} */
    const put = (row, a, b, c, d) => {
      out[row + o] = a;
      out[row + o1] = b;
      out[row + o2] = c;
      out[row + o3] = d;
    };
    for (let t = 0; t < T; t += 2) {
      let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
      if (t === T - 1)
        for (let i = 0; i < I; i++) {
          const a = x[t * I + i];
          a0 += a * weight[w0 + i];
          a1 += a * weight[w1 + i];
          a2 += a * weight[w2 + i];
          a3 += a * weight[w3 + i];
        }
      else
        for (let i = 0; i < I; i++) {
          const a = x[t * I + i];
          const b = x[t * I + I + i];
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
      if (t < T - 1) put((t + 1) * O, b0, b1, b2, b3);
    }
  }
  if (bias) for (let i = 0; i < out.length; i++) out[i] += bias[i % O];
  return out;
}

/**
 * LayerNorm shifts each vector of x (..., D) to mean 0 and scales it to variance 1, then multiplies by weight (D) and
 * adds bias (D). RMSNorm does not subtract the mean: it only scales each vector to a mean square of 1.
 * @param {Numbers} x
 * @param {Float32Array} weight
 * @param {Float32Array | undefined} bias
 * @param {NormOptions} options
 */
function normalized(x, weight, bias, { eps, rms, offset }) {
  const D = weight.length;
  const out = new Float64Array(x.length);
  for (let row = 0; row < x.length; row += D) {
    let [mean, variance] = [0, 0];
    if (!rms) for (let i = 0; i < D; i++) mean += x[row + i] / D;
    for (let i = 0; i < D; i++) variance += (x[row + i] - mean) ** 2 / D;
    const scale = 1 / Math.sqrt(variance + eps);
    for (let i = 0; i < D; i++) out[row + i] = (x[row + i] - mean) * scale * (weight[i] + offset) + (bias ? bias[i] : 0);
  }
  return out;
}

// ---- activations

/**
 * The activation functions, by name.
 * @type {Record<string, (x: number) => number>}
 */
const ACTIVATIONS = {
  gelu: (x) => x * below(x), // `below(x)`: the probability that a standard normal variable is below x
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x))),
  quick_gelu: (x) => x / (1 + Math.exp(-1.702 * x)),
  silu: (x) => x / (1 + Math.exp(-x)),
  relu: (x) => Math.max(x, 0),
  tanh: Math.tanh,
};

const [REACH, FINE] = [6, 256]; // the bell curve from -6 to 6, in steps of 1 / 256
const BELL = Float64Array.from({ length: 2 * REACH * FINE + 1 }, (_, i) => bell(i / FINE - REACH));
const BELOW = new Float64Array(BELL.length); // the area under the bell curve up to each step, by Simpson's rule
for (let i = 1; i < BELOW.length; i++) {
  const middle = bell((i - 0.5) / FINE - REACH);
  BELOW[i] = BELOW[i - 1] + (BELL[i - 1] + 4 * middle + BELL[i]) / (6 * FINE);
}

/** @param {number} x */
function bell(x) {
  return Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);
}

/**
 * The probability that a standard normal variable is below x, from the nearest entry of the table and a Taylor series.
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
 * Applies an activation to each number of x. In a gated MLP, the result is multiplied by the numbers of `by`.
 * @param {Numbers} x
 * @param {string} name
 * @param {Numbers} [by]
 */
function activated(x, name, by) {
  const out = x.map(ACTIVATIONS[name]);
  return by ? out.map((value, i) => value * by[i]) : out;
}

/**
 * Applies a softcap: small numbers stay nearly the same, and no number is beyond the cap.
 * @param {number} x
 * @param {number | null} cap
 */
export function capped(x, cap) {
  return cap === null ? x : cap * Math.tanh(x / cap);
}

/**
 * A residual connection: adds the input of a part to the part's output.
 * @param {Numbers} past
 * @param {Numbers} out
 */
export function add(past, out) {
  const sum = past.slice();
  for (let i = 0; i < sum.length; i++) sum[i] += out[i];
  return sum;
}

// ---- attention

/**
 * Rotates queries or keys x (L, heads * d), whose first token is at position `first`: each pair of a head's numbers
 * is rotated by the position times the speed of the pair.
 * @param {Numbers} x
 * @param {number} d
 * @param {number} L
 * @param {number} first
 * @param {Rotary} rotary  `longer`: other speeds for texts over a limit; `stretched`: the longer the text, the lower the speeds
 */
export function rotated(x, d, L, first, { dims, interleaved, scale, speeds, longer, stretched }) {
  const out = x.slice();
  const wide = x.length / L;
  const length = first + L;
  const own = longer && length > longer.limit ? longer.speeds : speeds;
  const slower = stretched ? (stretched.factor * Math.max(length, stretched.limit)) / stretched.limit - (stretched.factor - 1) : 1;
  for (let pair = 0; pair < dims / 2; pair++) {
    const speed = own[pair] * slower ** ((-2 * pair) / (dims - 2 || 1));
    const [one, other] = interleaved ? [2 * pair, 2 * pair + 1] : [pair, pair + dims / 2];
    for (let t = 0; t < L; t++) {
      const [cos, sin] = [scale * Math.cos((first + t) * speed), scale * Math.sin((first + t) * speed)];
      for (let row = t * wide; row < (t + 1) * wide; row += d) {
        out[row + one] = x[row + one] * cos - x[row + other] * sin;
        out[row + other] = x[row + other] * cos + x[row + one] * sin;
      }
    }
  }
  return out;
}

/**
 * The scores (H, L, S): how well each query matches each key; -Infinity for hidden keys. Several query heads may share
 * a key head.
 * @param {Numbers} q  (L, H * d)
 * @param {Numbers} k  (S, kv_heads * d)
 * @param {Sizes} sizes
 * @param {ScoreOptions} options
 * @param {Uint8Array} hidden  (H, L, S)
 */
function scored(q, k, { heads: H, kv_heads: shared, size: d }, { scale, softcap }, hidden) {
  const [L, S] = [q.length / (H * d), k.length / (shared * d)];
  const out = new Float64Array(H * L * S).fill(-Infinity); // (L, H * d), (S, kv_heads * d) -> (H, L, S)
  for (let i = 0; i < H * L; i++) {
    const [h, t] = [Math.floor(i / L), i % L];
    const [query, key] = [(t * H + h) * d, Math.floor((h * shared) / H) * d];
    for (let j = 0; j < S; j++) {
      if (hidden[i * S + j]) continue;
      const other = j * shared * d + key;
      let dot = 0;
      for (let c = 0; c < d; c++) dot += q[query + c] * k[other + c];
      out[i * S + j] = capped(dot * scale, softcap);
    }
  }
  return out;
}

/**
 * Softmax: turns each row of scores (..., S) into weights that sum to 1; a row without a visible key has weights of 0.
 * @param {Numbers} scores
 * @param {number} S
 */
function softmax(scores, S) {
  const out = new Float64Array(scores.length);
  for (let row = 0; row < scores.length; row += S) {
    let [largest, total] = [-Infinity, 0];
    for (let j = row; j < row + S; j++) largest = Math.max(largest, scores[j]);
    if (largest === -Infinity) continue;
    for (let j = row; j < row + S; j++) total += out[j] = Math.exp(scores[j] - largest);
    for (let j = row; j < row + S; j++) out[j] /= total;
  }
  return out;
}

/**
 * The outputs z of all heads (L, H * d): for each query, the sum of the values v, weighted by the query's row of the
 * pattern (H, L, S).
 * @param {Numbers} pattern
 * @param {Numbers} v  (S, kv_heads * d)
 * @param {Sizes} sizes
 */
function weigh(pattern, v, { heads: H, kv_heads: shared, size: d }) {
  const S = v.length / (shared * d);
  const L = pattern.length / (H * S);
  const out = new Float64Array(L * H * d); // (H, L, S), (S, kv_heads * d) -> (L, H * d)
  for (let i = 0; i < H * L; i++) {
    const [h, t] = [Math.floor(i / L), i % L];
    const [result, value] = [(t * H + h) * d, Math.floor((h * shared) / H) * d];
    for (let c = 0; c < d; c++) {
      let total = 0;
      for (let j = 0; j < S; j++) total += pattern[i * S + j] * v[j * shared * d + value + c];
      out[result + c] = total;
    }
  }
  return out;
}

/**
 * The operations in float64.
 * @type {Operations}
 */
export const PLAIN = { Numbers: Float64Array, linear, normalized, activated, scored, softmax, weigh };
