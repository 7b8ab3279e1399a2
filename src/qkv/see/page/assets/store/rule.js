// The rule by which a page chooses the head to show first for a text. analysis/selection.py and
// analysis/_interventions.py apply the same rule. For a text with a gap, the rule chooses the head whose removal changes
// the guess most. For other texts, the rule finds each head's strongest link between two content words. Then it
// computes two numbers. For the first number, the rule averages the head's weights over all pairs of words at the same
// distance as the two linked words, and doubles this mean. The second is the head's mean weight on the link's key. The
// rule subtracts the larger of these two numbers from the link's weight, and chooses the head with the largest
// difference.

import { named, percent } from "../base/format.js";
import { guessName, isCut } from "../base/tokens.js";
import { likeliestOf, probabilitiesOf } from "../engine/sampling.js";
import { movedProbability } from "./measures.js";
import { maskOf } from "./positions.js";

/** @typedef {import("../engine/api.js").Run} Run */

// A head stands out in two cases: one of its weights exceeds the usual weight by at least 0.1, or the removal of the head
// moves at least 0.1 of the probability to other words.
const STANDS_OUT = 0.1;
const OF_POSITIONS = 0.4; // a head counts as positional if its mean weight at one distance, or on one key, is at least this
// the rule tries at most `MOST_HEADS` heads, in the last layers, and only if a text has at most `MOST_TOKENS` tokens
const [MOST_HEADS, MOST_TOKENS] = [48, 512];

/**
 * @typedef {{text: string, layer: number, head: number, query: number | null, said: string}} Ruled  the head that
 *     the rule chooses for a text, the query that is shown first, and a sentence about the head
 * @typedef {{first: number, last: number, name: string, special: boolean, isWord: boolean}} WordSpan
 */

/**
 * @param {Api} engine
 * @param {string} text
 * @param {Run} run  of the text, without edits
 * @param {any} model
 * @param {any} data  the payload, with the entries `untrained` and `little`
 * @param {AbortSignal} signal
 * @returns {Promise<Ruled | null>} null if the text has no tokens
 */
export async function headByRule(engine, text, run, model, data, signal) {
  const size = run.tokens.length;
  if (!size) return null;
  const spans = wordSpansOf(run);
  const none = `No head stands out in this sentence${data.untrained ? ", because the model is untrained" : ""}`;
  const gap = model.next || !model.words?.length || size > MOST_TOKENS ? -1 : run.tokens.indexOf(maskOf(model));
  const removed = gap < 0 ? null : await removalAt(engine, text, gap, model, signal);
  if (!removed) return { text, ...linkByRule(run, spans, none, data) };
  return { text, ...removed, query: gap, said: saidOfGap(run, spans, gap, removed, none, data) };
}

// ---- texts with a gap

/**
 * Finds the head whose removal changes the guess at a position most, that is, moves the most probability to other
 * words; null if numbers are not finite.
 * @param {Api} engine
 * @param {string} text
 * @param {number} position
 * @param {any} model
 * @param {AbortSignal} signal
 */
async function removalAt(engine, text, position, model, signal) {
  const layers = Math.max(1, Math.floor(MOST_HEADS / model.heads));
  const enough = new AbortController();
  signal.addEventListener("abort", () => enough.abort(signal.reason), { once: true });
  const run = await engine.run(text, [], { at: [position], signal });
  const before = probabilitiesOf(run.logits);
  const best = likeliestOf(before, 1)[0];
  /** @type {any[]} */
  const effects = [];
  await engine
    .sweep(
      text,
      [],
      (/** @type {any} */ { layer, head, logits }) => {
        const after = probabilitiesOf(logits);
        if (layer >= model.layers - layers) effects.push({ layer, head, moved: movedProbability(before, after), after: after[best] });
        if (effects.length === Math.min(layers, model.layers) * model.heads) enough.abort();
      },
      { at: [position], signal: enough.signal },
    )
    .catch((/** @type {any} */ reason) => {
      if (!enough.signal.aborted || signal.aborted) throw reason;
    });
  effects.sort((one, other) => other.moved - one.moved || one.layer - other.layer || one.head - other.head);
  if (!effects.every(({ moved }) => Number.isFinite(moved))) return null;
  return { ...effects[0], word: guessName(model.words, best), before: before[best] };
}

/** @param {Run} run @param {WordSpan[]} spans @param {number} gap @param {any} effect @param {string} none @param {any} data */
function saidOfGap(run, spans, gap, { layer, head, moved, word: first, before, after }, none, data) {
  const [where, by] = [`head ${layer}.${head}`, percent(moved)];
  const most = `${none}: the head whose removal changes the guess most is ${where}; without it, ${by} of the probability goes to other words`;
  if (data.untrained) return `${most}.`;
  if (moved < STANDS_OUT) return `${most}, below the threshold of ${percent(STANDS_OUT)}.`;
  const query = spans.findIndex(({ first: from, last }) => from <= gap && gap < last);
  const at = mergedWeights(run.pattern[layer][head], run.tokens.length, spans);
  let key = 0;
  for (let k = 0; k < spans.length; k++) if (at(query, k) > at(query, key)) key = k;
  const beside = { "-1": ", the word before it", 0: ", itself", 1: ", the word after it" }[key - query] ?? "";
  const relation = usualOf(at, spans, query, key)[0] >= OF_POSITIONS ? beside : "";
  return `Removing ${where} changes the guess most: ${first}, ${percent(before)} → ${percent(after)}. In that head, ${named(spans[query].name)} attends most to ${named(spans[key].name)}${relation}: ${percent(at(query, key))}.`;
}

// ---- texts without a gap

/**
 * The head whose strongest link between two different content words is furthest above the average weights
 * that `usualOf` returns.
 * @param {Run} run
 * @param {WordSpan[]} spans
 * @param {string} none
 * @param {any} options
 */
function linkByRule(run, spans, none, { untrained, little }) {
  const { flags, numbers } = contentOf(spans, little);
  /** @type {any} */
  let best = null;
  run.pattern.forEach((heads, layer) =>
    heads.forEach((pattern, head) => {
      const at = mergedWeights(pattern, run.tokens.length, spans);
      let link = { query: 0, key: 0, weight: 0 };
      for (let q = 0; q < spans.length; q++)
        for (let k = 0; k < spans.length; k++)
          if (flags[q] && flags[k] && numbers[q] !== numbers[k] && at(q, k) > link.weight) link = { query: q, key: k, weight: at(q, k) };
      if (!link.weight) return;
      const [atDistance, onKey] = usualOf(at, spans, link.query, link.key);
      const ofPositions = Math.max(atDistance, onKey) >= OF_POSITIONS;
      const above = ofPositions ? 0 : Math.max(0, link.weight - Math.max(2 * atDistance, onKey));
      const rank = [ofPositions ? 0 : 1, above, link.weight];
      const first = best === null ? 0 : rank.findIndex((x, i) => x !== best.rank[i]);
      if (first >= 0 && (best === null || rank[first] > best.rank[first])) best = { layer, head, ...link, above, rank };
    }),
  );
  if (!best) return { layer: 0, head: 0, query: null, said: `${none}: no content word attends to another.` };
  const { layer, head, query, key, weight, above } = best;
  const [from, to] = [spans[query].name, named(spans[key].name)];
  const link = { layer, head, query: spans[query].first };
  const where = `(head ${layer}.${head})`;
  if (above >= STANDS_OUT && !untrained) return { ...link, said: `${named(from, "The")} attends to ${to}: ${percent(weight)} ${where}.` };
  const below = untrained ? "" : `, less than ${100 * STANDS_OUT} percentage points above the usual weight`;
  return { ...link, said: `${none}: the strongest content link is ${named(from)} → ${to}, ${percent(weight)} ${where}${below}.` };
}

/**
 * Two average weights of a head, to compare with the weight from `query` to `key`. The first is the mean over all pairs
 * of words with the same distance and direction as the pair (`query`, `key`); this pair is included. The second is the
 * mean weight on `key` from the other words that may attend to `key`.
 * @param {(query: number, key: number) => number} at
 * @param {WordSpan[]} spans
 * @param {number} query
 * @param {number} key
 */
function usualOf(at, spans, query, key) {
  /** @param {number[]} all */
  const mean = (all) => (all.length ? all.reduce((sum, x) => sum + x, 0) / all.length : 0);
  const positions = spans.map((_, p) => p).filter((p) => spans[p].isWord);
  const along = positions.filter((p) => spans[p + key - query]?.isWord).map((p) => at(p, p + key - query));
  const seenBefore = spans.some((_, p) => p < key && at(p, key));
  const onKey = positions.filter((p) => p !== query && p !== key && (p > key || seenBefore)).map((p) => at(p, key));
  return [mean(along), mean(onKey)];
}

/**
 * The weights of a head (T, T) between words: the weights on the subwords of a word are summed, and the weights from
 * its subwords are averaged.
 * @param {Float32Array} pattern
 * @param {number} size
 * @param {WordSpan[]} spans
 */
function mergedWeights(pattern, size, spans) {
  return (/** @type {number} */ q, /** @type {number} */ k) => {
    let total = 0;
    for (let i = spans[q].first; i < spans[q].last; i++)
      for (let j = spans[k].first; j < spans[k].last; j++) total += pattern[i * size + j];
    return total / (spans[q].last - spans[q].first);
  };
}

// ---- words

/**
 * All tokens of a run as words; special tokens and punctuation marks are separate words.
 * @param {Run} run
 * @returns {WordSpan[]}
 */
function wordSpansOf({ tokens, special, words = [] }) {
  const at = new Map(words.map((one) => [one[0], one]));
  const spans = [];
  for (let t = 0; t < tokens.length; t = spans.at(-1).last) {
    const [, last, whole] = at.get(t) ?? [t, t + 1, ""];
    const name = last - t === 1 ? tokens[t] : isCut(tokens.slice(t, last)) ? whole : tokens.slice(t, last).map(bareName).join("");
    const isMark = /^[\p{P}$+<=>^\x60|~]+$/u.test(bareName(name));
    spans.push({ first: t, last, name, special: special[t], isWord: !special[t] && !isMark });
  }
  return spans;
}

// Returns a token without the marks of a tokenizer, such as "##" and "Ġ".
/** @param {string} token */
function bareName(token) {
  return token.replace(/^##(?=.)/, "").replace(/^[Ġ▁]+(?=.)/, "");
}

/**
 * Returns two lists with an entry for each word. `flags` says whether the word is a content word. `numbers` contains the
 * word in lower case, so that equal words have equal entries. If a text has fewer than two different content words, all
 * words count as content words.
 * @param {WordSpan[]} spans
 * @param {{words: string[], pieces: string[]}} little  function words, and their parts around an apostrophe
 */
function contentOf(spans, little = { words: [], pieces: [] }) {
  const names = spans.map(({ name }) => bareName(name).toLowerCase());
  const [words, pieces] = [new Set([...little.words, "[unk]", "<unk>"]), new Set(little.pieces)];
  /** @param {string} name */
  const apostrophe = (name) => name === "'" || name === "’";
  const small = names.map((name, i) => words.has(name) || (pieces.has(name) && names.slice(Math.max(0, i - 1), i + 2).some(apostrophe)));
  const flags = spans.map(({ isWord }, i) => isWord && !small[i]);
  const many = new Set(names.filter((_, i) => flags[i])).size > 1;
  return { flags: many ? flags : spans.map(({ isWord }) => isWord), numbers: names };
}
