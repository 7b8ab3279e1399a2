// Measures of a change: the similarity of vectors, and the share of weights and probabilities that moved.

/**
 * Returns the cosine of two vectors: row `t` of `one` and row `t` of `other`, two arrays (T, D).
 * @param {Float32Array} one
 * @param {Float32Array} other
 * @param {number} t
 * @param {number} T
 */
export function cosineAt(one, other, t, T) {
  const D = one.length / T;
  let [dot, a, b] = [0, 0, 0];
  for (let i = t * D; i < (t + 1) * D; i++) {
    dot += one[i] * other[i];
    a += one[i] ** 2;
    b += other[i] ** 2;
  }
  return dot / Math.sqrt(a * b);
}

/**
 * The share of a head's weight that moved to other keys: for each row, and the mean of all rows.
 * @param {Float32Array} before  (T, T)
 * @param {Float32Array} after
 */
export function movedShare(before, after) {
  let total = 0;
  for (let k = 0; k < before.length; k++) total += Math.max(0, before[k] - after[k]);
  return total / Math.sqrt(before.length);
}

/**
 * Returns the probability that moved to other words: half the sum of the absolute differences between `before` and
 * `after`.
 * @param {Float64Array} before
 * @param {Float64Array} after
 */
export function movedProbability(before, after) {
  let total = 0;
  for (let k = 0; k < before.length; k++) total += Math.abs(before[k] - after[k]);
  return total / 2;
}
