// The choice of the next token from logits (V), by the same rules as src/qkv/models/tasks/_sampling.py.

/**
 * The options of the choice. With `temperature` 0 the likeliest token is taken; otherwise logits are divided by the
 * temperature, and one of the `top_k` largest is drawn. `begun` holds the ids of the new tokens that already follow the
 * text; the next tokens are chosen after these tokens.
 * @typedef {{max: number, temperature: number, top_k: number | null, seed: number, begun: number[]}} Choice
 */

const LIKELIEST = 8; // the number of likely tokens that are reported with each new token

/**
 * Chooses one token: its id, its probability without temperature, and the likeliest tokens at this position.
 * @param {import("./layers.js").Numbers} logits
 * @param {Choice} choice
 * @param {() => number} draw
 */
export function chosenFrom(logits, { temperature, top_k }, draw) {
  const probabilities = probabilitiesOf(logits);
  if (!Number.isFinite(probabilities[0])) throw new RangeError("generate: the model's logits are not finite; check the edits");
  const id = temperature ? drawn(logits, temperature, top_k, draw()) : likeliestOf(probabilities, 1)[0];
  const likeliest = likeliestOf(probabilities, LIKELIEST).map((one) => /** @type {[number, number]} */ ([one, probabilities[one]]));
  return { id, probability: probabilities[id], likeliest };
}

/**
 * Probabilities: the softmax of logits over a temperature, in float64.
 * @param {import("./layers.js").Numbers} logits  (V)
 */
export function probabilitiesOf(logits, temperature = 1) {
  const out = new Float64Array(logits);
  let [highest, total] = [-Infinity, 0];
  for (const logit of out) highest = Math.max(highest, logit);
  for (let id = 0; id < out.length; id++) total += out[id] = Math.exp((out[id] - highest) / temperature);
  for (let id = 0; id < out.length; id++) out[id] /= total;
  return out;
}

/**
 * The ids of the largest probabilities, largest first; among equal probabilities, the lower id comes first.
 * @param {Float64Array} probabilities
 * @param {number} count
 */
export function likeliestOf(probabilities, count) {
  /** @type {number[]} */
  const ids = [];
  for (let id = 0; id < probabilities.length; id++) {
    if (ids.length === count && probabilities[id] <= probabilities[ids[count - 1]]) continue;
    let position = ids.length;
    while (position && probabilities[ids[position - 1]] < probabilities[id]) position -= 1;
    ids.splice(position, 0, id);
    if (ids.length > count) ids.pop();
  }
  return ids;
}

/**
 * Draws a token from the `top_k` largest logits; logits that are equal to the smallest of these are included.
 * @param {import("./layers.js").Numbers} logits
 * @param {number} temperature
 * @param {number | null} top_k
 * @param {number} at  a random number from 0 to 1
 */
function drawn(logits, temperature, top_k, at) {
  const least = top_k === null || top_k >= logits.length ? -Infinity : logits.toSorted().at(-top_k);
  const shares = probabilitiesOf(logits.map((logit) => (logit >= /** @type {number} */ (least) ? logit : -Infinity)), temperature);
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
