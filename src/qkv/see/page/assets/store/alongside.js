// Two texts on a shared axis of tokens: tokens that both texts have in common are at the same position.

/**
 * A position on the shared axis: the position in the first text and the position in the second text; null for a text
 * that has no token there.
 * @typedef {[number | null, number | null]} Both
 */

const MOST_PAIRS = 1_000_000; // for two long texts, only the beginning and the end are aligned

/**
 * Aligns the tokens of two texts by their longest common subsequence. Between two common tokens, each text may have
 * other tokens. If both texts have equally many of these, the tokens share positions; otherwise, the tokens of the
 * first text come before those of the second.
 * @param {string[]} one
 * @param {string[]} other
 * @returns {Both[]}
 */
export function alongside(one, other) {
  const [n, m] = [one.length, other.length];
  let [begin, end] = [0, 0];
  while (begin < Math.min(n, m) && one[begin] === other[begin]) begin += 1;
  while (end < Math.min(n, m) - begin && one[n - 1 - end] === other[m - 1 - end]) end += 1;
  const common = commonPositions(one.slice(begin, n - end), other.slice(begin, m - end)).map(([a, b]) => [a + begin, b + begin]);
  const ends = Array.from({ length: end }, (_, k) => [n - end + k, m - end + k]);
  /** @type {Both[]} */
  const axis = Array.from({ length: begin }, (_, k) => [k, k]);
  let [a, b] = [begin, begin];
  for (const [nextA, nextB] of [...common, ...ends, [n, m]]) {
    if (nextA - a === nextB - b) for (; a < nextA; a++, b++) axis.push([a, b]);
    for (; a < nextA; a++) axis.push([a, null]);
    for (; b < nextB; b++) axis.push([null, b]);
    if (nextA < n) axis.push([a++, b++]);
  }
  return axis;
}

/**
 * The positions of a longest common subsequence. If there are several, the function chooses the subsequence whose
 * tokens have the most similar positions in both texts.
 * @param {string[]} one
 * @param {string[]} other
 */
function commonPositions(one, other) {
  const [n, wide] = [one.length, other.length + 1];
  if (n * wide > MOST_PAIRS) return [];
  const best = new Float64Array((n + 1) * wide); // for (i, j): the best score of a common subsequence of one[i..] and other[j..]
  /** @param {number} i @param {number} j */
  const alike = (i, j) => (one[i] === other[j] ? MOST_PAIRS - Math.abs(i - j) + best[(i + 1) * wide + j + 1] : 0);
  for (let i = n - 1; i >= 0; i--)
    for (let j = wide - 2; j >= 0; j--) best[i * wide + j] = Math.max(alike(i, j), best[(i + 1) * wide + j], best[i * wide + j + 1]);
  const pairs = [];
  for (let [i, j] = [0, 0]; i < n && j < wide - 1; )
    if (one[i] === other[j] && alike(i, j) === best[i * wide + j]) pairs.push([i++, j++]);
    else if (best[(i + 1) * wide + j] >= best[i * wide + j + 1]) i += 1;
    else j += 1;
  return pairs;
}
