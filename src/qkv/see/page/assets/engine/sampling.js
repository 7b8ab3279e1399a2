// The choice of the next token from logits (V), by the same rules as src/qkv/models/tasks/sampling.py.

/**
 * The options of the choice. With `temperature` 0 the likeliest token is taken; otherwise logits are divided by the
 * temperature, and one of the `top_k` largest is drawn. `begun` are new tokens that exist already.
 * @typedef {{max: number, temperature: number, top_k: number | null, seed: number, begun: number[]}} Choice
 */

const LIKELIEST = 8; // the number of likely tokens that are reported with each new token

/**
 * Chooses one token: its id, its probability without temperature, and the likeliest tokens at this position.
 * @param {Float64Array} logits
 * @param {Choice} choice
 * @param {() => number} draw
 */
export function chosenFrom(logits, { temperature, top_k }, draw) {
  const chances = chancesOf(logits);
  if (!Number.isFinite(chances[0])) throw new RangeError("generate: the model's logits are not finite: look at the edits");
  const id = temperature ? drawn(logits, temperature, top_k, draw()) : likeliestOf(chances, 1)[0];
  const likeliest = likeliestOf(chances, LIKELIEST).map((one) => /** @type {[number, number]} */ ([one, chances[one]]));
  return { id, probability: chances[id], likeliest };
}

/**
 * Probabilities: the softmax of logits over a temperature, in float64.
 * @param {Float32Array | Float64Array} logits  (V)
 */
export function chancesOf(logits, temperature = 1) {
  const found = Float64Array.from(logits);
  const highest = found.reduce((one, other) => Math.max(one, other), -Infinity);
  found.forEach((logit, id) => (found[id] = Math.exp((logit - highest) / temperature)));
  const total = found.reduce((sum, one) => sum + one, 0);
  return found.map((one) => one / total);
}

/**
 * The ids of the largest probabilities, largest first; among equal probabilities, the lower id comes first.
 * @param {Float64Array} chances
 * @param {number} count
 */
export function likeliestOf(chances, count) {
  /** @type {number[]} */
  const found = [];
  for (let id = 0; id < chances.length; id++) {
    if (found.length === count && chances[id] <= chances[found[count - 1]]) continue;
    let place = found.length;
    while (place && chances[found[place - 1]] < chances[id]) place -= 1;
    found.splice(place, 0, id);
    if (found.length > count) found.pop();
  }
  return found;
}

/**
 * Draws a token from the `top_k` largest logits, and from logits that are equal to the last of them.
 * @param {Float64Array} logits
 * @param {number} temperature
 * @param {number | null} top_k
 * @param {number} at  a random number from 0 to 1
 */
function drawn(logits, temperature, top_k, at) {
  const least = top_k === null || top_k >= logits.length ? -Infinity : logits.toSorted().at(-top_k);
  const shares = chancesOf(logits.map((logit) => (logit >= /** @type {number} */ (least) ? logit : -Infinity)), temperature);
  let sum = 0;
  for (const [id, share] of shares.entries()) if ((sum += share) > at) return id;
  return shares.findLastIndex((share) => share > 0);
}

/**
 * Random numbers from 0 to 1, which are the same for the same seed: Mulberry32.
 * @param {number} seed
 */
export function randomFrom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
