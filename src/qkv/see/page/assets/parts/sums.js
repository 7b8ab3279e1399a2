// Writes out how a number is computed, for any arrays whose operations are known. steps/step.py describes `op`, and
// writes the same texts in Python.

import { number } from "../base/format.js";

const TERMS = 6; // a long sum is written with this many terms

/**
 * An array, by row and column; if it is too large for the page, only its shape is known.
 * @typedef {object} Numbers
 * @property {number[]} shape
 * @property {(i: number, j: number) => number} [get]  the number in row i and column j; a vector has the same numbers
 *     in every row
 * @property {(i: number) => Float64Array} [row]
 * @property {(j: number) => Float64Array} [column]
 */

/** @typedef {Required<Numbers>} Held  an array whose numbers are in the page */

/**
 * Makes `Numbers` from a flat array, row by row.
 * @param {ArrayLike<number> | null} data  null if the page does not contain the numbers
 * @param {number[]} shape  one or two sizes
 * @param {{rows?: number[] | null, columns?: number[] | null}} held  the indices, in the whole array, of the rows and columns that the page
 *     contains
 * @returns {Numbers}
 */
export function numbersOf(data, shape, { rows = null, columns = null } = {}) {
  if (data === null) return { shape };
  const wide = shape.at(-1);
  /** @param {number[] | null} held */
  const numbered = (held) => held && new Map(held.map((i, index) => [i, index]));
  const [along, across] = [numbered(rows), numbered(columns)];
  /** @param {number} i */
  const down = (i) => /** @type {number} */ (along ? along.get(i) : i) * wide;
  /** @param {number} j */
  const spot = (j) => /** @type {number} */ (across ? across.get(j) : j);
  return {
    shape,
    get: (i, j) => data[(shape.length === 1 ? 0 : down(i)) + spot(j)],
    row: (i) => Float64Array.from({ length: wide }, (_, j) => data[down(i) + j]),
    column: (j) => Float64Array.from({ length: shape[0] }, (_, i) => data[i * wide + spot(j)]),
  };
}

/**
 * A sum of products. `left`, `right`: the factors that the page contains; `indices`: their indices in the sum; `written`: the products that
 * are written out, in this order; `count`: the number of all products; `whole`: the value of the sum.
 * @typedef {{left: number[], right: number[], indices: number[], written: number[], count: number, bias: number, whole: number}} Sum
 */

/**
 * A number in the format of sums.
 * @param {number} x
 */
export function inSum(x) {
  return number(x, 3);
}

/** @param {{reduce: (add: (sum: number, x: number) => number, first: number) => number}} row */
export function total(row) {
  return row.reduce((sum, x) => sum + x, 0);
}

/**
 * The largest number of a row, and the exponentials that softmax sums: `exp(number - largest)` for each number.
 * @param {Float64Array} row
 * @returns {[number, Float64Array]}
 */
export function powers(row) {
  const top = row.reduce((most, x) => Math.max(most, x), -Infinity);
  return [top, row.map((x) => (x === -Infinity ? 0 : Math.exp(x - top)))];
}

/**
 * The sum of the products of two rows of numbers; of a long sum, only the largest products are written out.
 * @param {ArrayLike<number>} left
 * @param {ArrayLike<number>} right
 * @param {number} bias
 * @returns {Sum}
 */
export function sumOf(left, right, bias = 0) {
  const [own, other] = [Array.from(left), Array.from(right)];
  const indices = own.map((_, k) => k);
  /** @param {number} k */
  const size = (k) => Math.abs(own[k] * other[k]);
  const largest = [...indices].sort((a, b) => size(b) - size(a) || a - b).slice(0, TERMS);
  const written = own.length <= TERMS + 1 ? indices : largest;
  return { left: own, right: other, indices, written, count: own.length, bias, whole: bias + total(own.map((x, k) => x * other[k])) };
}

/**
 * The terms of a sum as texts. Each product is paired with its index in `left` and `right`. The other terms (the rest and
 * the bias) are paired with null.
 * @param {Sum} sum
 * @param {boolean} biased
 * @returns {[string, number | null][]}
 */
export function termsOf({ left, right, written, count: all, bias, whole }, biased) {
  /** @type {[string, number | null][]} */
  const terms = written.map((k) => [`${inSum(left[k])}×${inSum(right[k])}`, k]);
  const rest = whole - bias - total(written.map((k) => left[k] * right[k]));
  if (written.length < all) terms.push([`… (${all - written.length} more: ${inSum(rest)})`, null]);
  if (biased) terms.push([`bias ${inSum(bias)}`, null]);
  return terms;
}

/**
 * Functions that explain the numbers of arrays.
 * @param {(name: string) => Held} array  by its name
 */
export function sumsOf(array) {
  /** @param {string} name @param {number} i @param {number} j */
  const value = (name, i, j) => array(name).get(i, j);

  /**
   * For each kind of operation, a function of (op, row, column) that returns the explanation of a number.
   * @type {Record<string, (op: any, i: number, j: number) => string>}
   */
  const ways = {
    given: () => "",
    row: (op, i, j) => `${op.of}[${op.rows[i]}, ${j}]`,
    wave(op, i, j) {
      const [name, even] = [j % 2 ? "cos" : "sin", j - (j % 2)];
      return `${name}(${i} / 10000^(${even}/${op.dim})) = ${name}(${inSum(i / 10000 ** (even / op.dim))})`;
    },
    sum: (op, i, j) => op.terms.map((/** @type {string} */ name) => `${name} ${inSum(value(name, i, j))}`).join(" + "),
    norm(op, i, j) {
      const row = array(op.of).row(i);
      const mean = op.rms ? 0 : total(row) / row.length;
      const size = Math.sqrt(total(row.map((x) => (x - mean) ** 2)) / row.length + op.eps);
      const top = op.rms ? inSum(row[j]) : `(${inSum(row[j])} − ${inSum(mean)})`;
      const scaled = `${top} / ${inSum(size)} × ${inSum(value(op.gain, i, j))}`;
      return op.shift ? `${scaled} + ${inSum(value(op.shift, i, j))}` : scaled;
    },
    product(op, i, j) {
      const sum = products(op, i, j);
      if (!sum) return `${op.left} · ${op.right} (this page does not contain ${op.right}, a matrix of ${array(op.right).shape.join(" × ")})`;
      return termsOf(sum, Boolean(op.bias)).map(([term]) => term).join(" + ");
    },
    rotated(op, i, j) {
      const row = array(op.of).row(i);
      if (j >= op.dims) return `${op.of} ${inSum(row[j])}, not rotated`;
      const half = op.dims / 2;
      const pair = op.interleaved ? Math.floor(j / 2) : j % half;
      const [a, b] = op.interleaved ? [2 * pair, 2 * pair + 1] : [pair, pair + half];
      const angle = inSum(op.positions[i] * op.base ** ((-2 * pair) / op.dims));
      const [cos, sin, sign] = j === a ? ["cos", "sin", "−"] : ["sin", "cos", "+"];
      return `${inSum(row[a])}×${cos}(${angle}) ${sign} ${inSum(row[b])}×${sin}(${angle})`;
    },
    scaled: (op, i, j) => `${inSum(value(op.of, i, j))} ${op.by}`,
    masked: (op, i, j) => (value(op.name, i, j) === -Infinity ? "hidden" : ways.sum({ terms: [op.of, op.added].filter(Boolean) }, i, j)),
    softmax(op, i, j) {
      const row = array(op.of).row(i);
      if (row[j] === -Infinity) return "hidden";
      const [top, raised] = powers(row);
      const whole = inSum(total(raised));
      return `exp(${inSum(row[j])} − ${inSum(top)}) / ${whole} = ${inSum(raised[j])} / ${whole}`;
    },
    activation(op, i, j) {
      const x = value(op.of, i, j);
      return op.sum.replaceAll("*", "×").replaceAll(/-(?=\d)/g, "−").replaceAll("[-x]", inSum(-x)).replaceAll("[x]", inSum(x));
    },
    times: (op, i, j) => `${op.left} ${inSum(value(op.left, i, j))} × ${op.right} ${inSum(value(op.right, i, j))}`,
    capped: (op, i, j) => `${inSum(op.cap)} × tanh(${inSum(value(op.of, i, j))} / ${inSum(op.cap)})`,
    joined: (op, _i, j) => `context of head ${Math.floor(j / op.width)}, column ${j % op.width}`,
  };

  /**
   * The products whose sum is the number; null if the number is not a sum of products, or if the page leaves the
   * products out.
   * @param {any} op
   * @param {number} i
   * @param {number} j
   * @returns {Sum | null}
   */
  function products(op, i, j) {
    if (op.kind !== "product" || !array(op.right).get) return null;
    const bias = op.bias ? value(op.bias, i, j) : 0;
    if (!op.terms) return sumOf(array(op.left).row(i), op.flip ? array(op.right).row(j) : array(op.right).column(j), bias);
    /** @type {number[]} */
    const indices = op.terms;
    const [left, right] = [indices.map((k) => value(op.left, i, k)), indices.map((k) => value(op.right, k, j))];
    const written = left.map((_, k) => k).slice(0, op.count <= TERMS + 1 ? op.count : TERMS);
    return { left, right, indices, written, count: op.count, bias, whole: value(op.name, i, j) };
  }

  /**
   * Writes out how a number is computed; returns an empty text if the number is given, not computed.
   * @param {any} op
   * @param {number} i
   * @param {number} j
   * @returns {string}
   */
  const spell = (op, i, j) => ways[op.kind](op, i, j);

  return { spell, products };
}
