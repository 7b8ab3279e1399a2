// Byte pair encoding. A word begins as a list of its characters. Each step merges the pair of neighbours that training
// merged earliest. The steps end when training merged none of the remaining pairs.

/** @typedef {import("./wordpiece.js").Model} Model */
/** @typedef {import("./wordpiece.js").Found} Found */

const [PAIR, PLACE] = [2 ** 24, 2 ** 32]; // larger than any id; larger than any position in a text
const ENCODER = new TextEncoder();

/**
 * @param {any} rules
 * @returns {Model}
 */
export function bpeOf({ vocab, merges, unk_token: unknown, fuse_unk: fuse, byte_fallback: bytes, ignore_merges: whole }) {
  /** @type {Map<string, number>} */
  const ids = new Map(Object.entries(vocab));
  /** @type {(token: string) => number} */
  const idOf = (token) => /** @type {number} */ (ids.get(token));
  /** @type {Map<number, number>} */
  const ranks = new Map(); // from a pair of ids to the number of the merge
  /** @type {number[]} */
  const made = []; // the id that results from each merge
  merges.forEach((/** @type {string | [string, string]} */ pair, /** @type {number} */ rank) => {
    const [one, other] = typeof pair === "string" ? pair.split(" ") : pair;
    ranks.set(idOf(one) * PAIR + idOf(other), rank);
    made[rank] = idOf(one + other);
  });
  const inBytes = Array.from({ length: bytes ? 256 : 0 }, (_, byte) => idOf(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`));
  return ({ text }) => {
    if (whole && ids.has(text)) return [[idOf(text), 0, text.length]];
    /** @type {Found[]} */
    const found = [];
    let [last, lost] = [0, false];
    for (const mark of text) {
      const [first, id] = [last, ids.get(mark)];
      last += mark.length;
      if (id !== undefined) found.push([id, first, last]);
      else if (bytes) for (const byte of ENCODER.encode(mark)) found.push([inBytes[byte], first, last]);
      else if (lost && fuse) found[found.length - 1][2] = last;
      else found.push([idOf(unknown), first, last]);
      lost = id === undefined;
    }
    return merged(found, ranks, made);
  };
}

/**
 * Merges the tokens of a word: the earliest merge first; if a merge fits several pairs, the leftmost pair first.
 * @param {Found[]} tokens
 * @param {Map<number, number>} ranks
 * @param {number[]} made
 */
function merged(tokens, ranks, made) {
  const count = tokens.length;
  const [before, after] = [Int32Array.from(tokens, (_, i) => i - 1), Int32Array.from(tokens, (_, i) => i + 1)];
  const gone = new Uint8Array(count);
  /** @type {number[]} */
  const queue = []; // the rank and the position of each pair that may be merged
  /** @type {(place: number) => number | undefined} */
  const rankAt = (place) => (after[place] < count ? ranks.get(tokens[place][0] * PAIR + tokens[after[place]][0]) : undefined);
  /** @type {(place: number) => void} */
  const look = (place) => {
    const rank = place < 0 ? undefined : rankAt(place);
    if (rank !== undefined) push(queue, rank * PLACE + place);
  };
  for (let place = 0; place < count; place++) look(place);
  while (queue.length) {
    const top = pop(queue);
    const [place, id] = [top % PLACE, made[Math.floor(top / PLACE)]];
    const rank = gone[place] ? undefined : rankAt(place);
    if (rank === undefined || made[rank] !== id) continue; // one token of this pair has been merged since
    const next = after[place];
    tokens[place] = [id, tokens[place][1], tokens[next][2]];
    gone[next] = 1;
    after[place] = after[next];
    if (after[place] < count) before[after[place]] = place;
    look(before[place]);
    look(place);
  }
  return tokens.filter((_, place) => !gone[place]);
}

/**
 * Puts a number into a heap; the first number of a heap is the smallest.
 * @param {number[]} heap
 * @param {number} value
 */
function push(heap, value) {
  let place = heap.length;
  for (let above = (place - 1) >> 1; place > 0 && heap[above] > value; above = (place - 1) >> 1) {
    heap[place] = heap[above];
    place = above;
  }
  heap[place] = value;
}

/**
 * Takes the smallest number out of a heap.
 * @param {number[]} heap
 */
function pop(heap) {
  const top = heap[0];
  const value = /** @type {number} */ (heap.pop());
  const count = heap.length;
  if (!count) return top;
  let place = 0;
  for (let below = 1; below < count; below = 2 * place + 1) {
    if (below + 1 < count && heap[below + 1] < heap[below]) below += 1;
    if (heap[below] >= value) break;
    heap[place] = heap[below];
    place = below;
  }
  heap[place] = value;
  return top;
}
