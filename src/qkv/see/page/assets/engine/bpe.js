// Byte pair encoding. Training makes a list of merges, the earliest first. To encode a word, begin with a list of its
// characters. Each step merges the pair of neighbours that is earliest in the list of merges. The steps end when no pair
// of neighbours is in this list.

/** @typedef {import("./wordpiece.js").Model} Model */
/** @typedef {import("./wordpiece.js").TokenSpan} TokenSpan */

const [PAIR, POSITIONS] = [2 ** 24, 2 ** 32]; // larger than any id; larger than any position in a text
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
  const ranks = new Map(); // maps a pair of ids to the number of its merge
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
    /** @type {TokenSpan[]} */
    const tokens = [];
    let [last, lost] = [0, false];
    for (const mark of text) {
      const [first, id] = [last, ids.get(mark)];
      last += mark.length;
      if (id !== undefined) tokens.push([id, first, last]);
      else if (bytes) for (const byte of ENCODER.encode(mark)) tokens.push([inBytes[byte], first, last]);
      else if (lost && fuse) tokens[tokens.length - 1][2] = last;
      else if (unknown !== null) tokens.push([idOf(unknown), first, last]); // without an unknown token, the character is dropped
      lost = id === undefined;
    }
    return merged(tokens, ranks, made);
  };
}

/**
 * Merges the tokens of a word: the earliest merge first; if a merge fits several pairs, the leftmost pair first.
 * @param {TokenSpan[]} tokens
 * @param {Map<number, number>} ranks
 * @param {number[]} made
 */
function merged(tokens, ranks, made) {
  const count = tokens.length;
  const [before, after] = [Int32Array.from(tokens, (_, i) => i - 1), Int32Array.from(tokens, (_, i) => i + 1)];
  const gone = new Uint8Array(count);
  /** @type {number[]} */
  const queue = []; // the rank and the position of each pair that may be merged
  /** @type {(position: number) => number | undefined} */
  const rankAt = (position) => (after[position] < count ? ranks.get(tokens[position][0] * PAIR + tokens[after[position]][0]) : undefined);
  /** @type {(position: number) => void} */
  const look = (position) => {
    const rank = position < 0 ? undefined : rankAt(position);
    if (rank !== undefined) push(queue, rank * POSITIONS + position);
  };
  for (let position = 0; position < count; position++) look(position);
  while (queue.length) {
    const top = pop(queue);
    const [position, id] = [top % POSITIONS, made[Math.floor(top / POSITIONS)]];
    const rank = gone[position] ? undefined : rankAt(position);
    if (rank === undefined || made[rank] !== id) continue; // an earlier step has merged a token of this pair
    const next = after[position];
    tokens[position] = [id, tokens[position][1], tokens[next][2]];
    gone[next] = 1;
    after[position] = after[next];
    if (after[position] < count) before[after[position]] = position;
    look(before[position]);
    look(position);
  }
  return tokens.filter((_, position) => !gone[position]);
}

/**
 * Puts a number into a heap; the first number of a heap is the smallest.
 * @param {number[]} heap
 * @param {number} value
 */
function push(heap, value) {
  let position = heap.length;
  for (let above = (position - 1) >> 1; position > 0 && heap[above] > value; above = (position - 1) >> 1) {
    heap[position] = heap[above];
    position = above;
  }
  heap[position] = value;
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
  let position = 0;
  for (let below = 1; below < count; below = 2 * position + 1) {
    if (below + 1 < count && heap[below + 1] < heap[below]) below += 1;
    if (heap[below] >= value) break;
    heap[position] = heap[below];
    position = below;
  }
  heap[position] = value;
  return top;
}
