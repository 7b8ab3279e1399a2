// Computes the visible rows and columns of a head, and the numbers in them. This file serves all pages and all sources of
// numbers. It also draws the small picture of a head.

import { raster } from "../base/colours.js";
import { word } from "../base/elements.js";
import { count, inBoth, named, number, percent } from "../base/format.js";
import { pick } from "../base/arrays.js";
import { hiddenBy, scaleOf } from "../engine/edits.js";
import { SIGHT } from "../store/state.js";

/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../engine/recorded.js").Source} Source */
/** @typedef {import("../store/state.js").PlayState} PlayState */
/** @typedef {import("../store/state.js").Sight} Sight */
/** @typedef {import("../base/mount.js").Ui} Ui */

/**
 * @typedef {{first: number, last: number, name: string}} Span  the tokens of a row or a column, from `first` to
 *     `last` - 1
 * @typedef {{values: Map<number, number>, gone: number, rest: number}} Row  `values`: the shown values, keyed by column; `gone`: the weight
 * on keys that the reader has excluded; `rest`: the weight on keys that are missing from the page's data
 * @typedef {{l: number, h: number}} HeadIndex  indices of a layer and a head in the page
 * @typedef {PlayState & HeadIndex} At  what the page shows, and the head
 * @typedef {ReturnType<typeof sight>} Seen
 * @typedef {ReturnType<typeof arrange>} Head  the visible part of a head
 * @typedef {{rows: Span[], columns: Span[], made: (l: number, h: number) => Pick<Row, "values">[]}} Drawable
 * @typedef {{title: string, fields: string[][]}} Told  the description of a cell: a title, then names with values
 */

// ---- one head of one text

/**
 * The visible part of a text. The state says whether subwords are merged into words, whether special tokens are shown,
 * and whether the numbers are weights or contributions.
 * Shown weights are not normalised again: `gone` is the weight on keys that the reader has excluded.
 * @param {Source} source
 * @param {Sight} state
 */
function sight(source, state) {
  const { text, keys, keySpecial, keyWords } = source;
  const { part } = state;
  /** @type {(names: string[], words: [number, number, string][] | null, special: number[], wanted: string) => Span[]} */
  const spans = (names, words, special, wanted) =>
    (state.merge && words ? words : names.map(/** @returns {[number, number, string]} */ (name, i) => [i, i + 1, name]))
      .filter(
        ([first]) =>
          !(state.skip && special[first]) && (part === "all" || first < /** @type {number} */ (text.split) === (wanted === "A")),
      )
      .map(([first, last, name]) => ({ first, last, name }));
  const rows = spans(text.tokens, text.words, text.special, part[0]);
  const columns = spans(keys, keyWords, keySpecial, part[1]);
  /** @param {Span[]} parts @param {number} length */
  const inverse = (parts, length) => {
    const at = new Int32Array(length).fill(-1);
    parts.forEach(({ first, last }, k) => at.fill(k, first, last));
    return at;
  };
  const [rowAt, columnAt] = [inverse(rows, text.length), inverse(columns, text.key_length)];
  const long = state.mode === "length";
  const live = Boolean(source.changed); // live weights are written in per cent, and recorded weights as in the terminal
  /**
   * All rows of a head.
   * @param {number} l
   * @param {number} h
   * @returns {Row[]}
   */
  function made(l, h) {
    const norms = long ? keys.map((_, j) => source.norm(l, h, j)) : null;
    return rows.map(({ first, last }) => {
      const values = new Map();
      let [gone, held] = [0, 0];
      for (let i = first; i < last; i++) {
        source.row(l, h, i, (j, weight) => {
          const value = (weight * (norms ? /** @type {number} */ (norms[j]) : 1)) / (last - first);
          held += weight / (last - first);
          if (columnAt[j] < 0) gone += value;
          else values.set(columnAt[j], (values.get(columnAt[j]) || 0) + value);
        });
      }
      return { values, gone, rest: text.summary && !norms ? Math.max(0, 1 - held) : 0 };
    });
  }
  /** @type {number | null} */
  let highest = null;
  return {
    source,
    rows,
    columns,
    live,
    say: /** @type {(x: number) => string} */ (live && !long ? percent : (x) => number(x)),
    /** @param {number} i */
    rowAt: (i) => rowAt[i],
    away: columnAt.includes(-1),
    made,
    /** The largest value of all heads. */
    highest() {
      if (highest === null)
        for (let k = 0; k < text.layers.length * text.heads; k++)
          highest = Math.max(highest ?? 0, largest(made(Math.floor(k / text.heads), k % text.heads)));
      return highest;
    },
  };
}

/**
 * The largest value among the rows of a head.
 * @param {Pick<Row, "values">[]} made
 */
function largest(made) {
  let most = 0;
  for (const { values } of made) for (const value of values.values()) if (value > most) most = value;
  return most;
}

/**
 * One head with the visible part of its text; `seen` is the result of sight().
 * @param {Seen} seen
 * @param {HeadIndex} head
 */
export function arrange(seen, { l, h }) {
  const { source, rows, columns } = seen;
  const { text } = source;
  /** @type {(r: number, c: number, test: Source["hidden"]) => boolean} */
  const everywhere = (r, c, test) => {
    for (let i = rows[r].first; i < rows[r].last; i++)
      for (let j = columns[c].first; j < columns[c].last; j++) if (!test(l, h, i, j)) return false;
    return true;
  };
  const made = seen.made(l, h).map((row) => {
    const known = [...row.values].sort((a, b) => (b[1] || 0) - (a[1] || 0) || a[0] - b[0]);
    return { ...row, known };
  });
  return {
    ...seen,
    where: source.changed ? `head ${text.layers[l]}.${h}` : `layer ${text.layers[l]}, head ${h}`, // the second form is the same as in a terminal
    sparse: Boolean(text.summary),
    /** @param {number} r */
    known: (r) => made[r].known, // [[column, value], ...], largest first
    /** @param {number} r */
    values: (r) => made[r].values,
    /** @param {number} r */
    gone: (r) => made[r].gone,
    /** @param {number} r */
    rest: (r) => made[r].rest, // the weight on keys that a summary of the text leaves out; 0 if the page has all weights
    /**
     * A cell; NaN if masked, undefined if the page does not have it.
     * @param {number} r
     * @param {number} c
     * @returns {number | undefined}
     */
    at(r, c) {
      return this.hidden(r, c) ? NaN : made[r].values.get(c);
    },
    /** @param {number} r @param {number} c */
    hidden: (r, c) => Boolean(text.hidden) && everywhere(r, c, source.hidden),
    /**
     * Whether the reader's changes hide the cell.
     * @param {number} r
     * @param {number} c
     */
    changed: (r, c) => Boolean(text.hidden && source.changed) && everywhere(r, c, /** @type {Source["hidden"]} */ (source.changed)),
  };
}

// ---- a live run, converted to the `Source` format of recorded texts

const IN_SIGHT = new WeakMap(); // maps each run to {source, ways}; `ways` maps each set of options to the visible part

/**
 * Converts a run of the model to a `Source`. For a text in a payload, `reader` makes the `Source`.
 * @param {Run} run
 * @param {Edit[]} edits  the edits of the run
 * @returns {Source}
 */
function sourceOf(run, edits) {
  if (run.source) return run.source;
  const { tokens, special, pattern, blocks, causal } = run;
  const words = spansOf(run);
  const [T, heads] = [tokens.length, pattern[0]?.length ?? 0];
  const masks = new Map(); // maps each head to its mask
  /** @param {number} l @param {number} h */
  const maskOf = (l, h) => {
    const key = l * heads + h;
    if (!masks.has(key)) masks.set(key, hiddenBy(edits, l, h, T));
    return masks.get(key);
  };
  /** @type {Source["score"]} */
  const score = (l, h, i, j) => blocks?.[l]?.attn_scores?.[h]?.[i * T + j] ?? null;
  // if the reader sets a row of weights, a masked key may have a weight; such a key counts as visible
  /** @type {Source["hidden"]} */
  const changed = (l, h, i, j) => !pattern[l][h][i * T + j] && Boolean(maskOf(l, h)[i * T + j]);
  /** @param {number} i @param {number} j */
  const ahead = (i, j) => (causal && j > i ? -Infinity : 0);
  /** @type {Source["hidden"]} */
  const own = (l, h, i, j) => !pattern[l][h][i * T + j] && (score(l, h, i, j) ?? ahead(i, j)) === -Infinity; // the model's own mask
  const flags = special.map(Number);
  return {
    text: {
      tokens,
      keys: null,
      special: flags,
      words,
      name: "",
      layers: pattern.map((_, l) => l),
      heads,
      length: T,
      key_length: T,
      hidden: causal || edits.some(({ op }) => ["hide", "mask", "causal"].includes(op)),
      scale: pattern.map((_, l) => scaleIn(blocks?.[l], edits, T, heads)),
      summary: null,
      left_out: [],
    },
    keys: tokens,
    keySpecial: flags,
    keyWords: words,
    row(l, h, i, give) {
      const weights = pattern[l][h];
      for (let j = 0; j < T; j++) give(j, weights[i * T + j]);
    },
    hidden: (l, h, i, j) => changed(l, h, i, j) || own(l, h, i, j),
    changed,
    norm: () => null,
    received: (l, h, j) => tokens.reduce((total, _, i) => total + pattern[l][h][i * T + j], 0),
    score,
  };
}

/**
 * The factor by which a layer multiplies q · k to get the scores; null if the factor is unknown, or if a softcap also changes the scores.
 * @param {any} block
 * @param {Edit[]} edits
 * @param {number} T
 * @param {number} heads
 */
function scaleIn(block, edits, T, heads) {
  if (!block?.q || block.softcap) return null;
  return block.scale ?? scaleOf(edits, 1 / Math.sqrt(block.q.length / T / heads));
}

/**
 * Divides all tokens of a run into words, and returns [first, last + 1, name] for each word. The result is null if every word of the run
 * is a single token.
 * @param {Run} run
 * @returns {[number, number, string][] | null}
 */
function spansOf({ tokens, words = [] }) {
  if (words.every(([first, last]) => last - first === 1)) return null;
  const many = new Map(words.filter(([first, last]) => last - first > 1).map((span) => [span[0], span]));
  /** @type {[number, number, string][]} */
  const parts = [];
  for (let t = 0; t < tokens.length; t = parts.at(-1)[1]) parts.push(many.get(t) ?? [t, t + 1, tokens[t]]);
  return parts;
}

/**
 * The visible part of a run. The result stays in memory as long as the run does.
 * @param {Run} run
 * @param {Edit[]} edits  the edits of the run
 * @param {Partial<Sight>} state  the state of the page; only the fields of SIGHT matter
 * @returns {Seen}
 */
export function seenIn(run, edits, state = SIGHT) {
  if (!IN_SIGHT.has(run)) IN_SIGHT.set(run, { source: sourceOf(run, edits), ways: new Map() });
  const { source, ways } = IN_SIGHT.get(run);
  const asked = /** @type {Sight} */ (pick({ ...SIGHT, ...state }, Object.keys(SIGHT)));
  const way = JSON.stringify(asked);
  if (!ways.has(way)) ways.set(way, sight(source, asked));
  return ways.get(way);
}

/**
 * The upper end of the scale of a head. If the scale is stretched, it ends at the head's own largest number. Otherwise, a scale of lengths
 * ends at the largest length of all heads, and a scale of weights ends at 1.
 * @param {Seen} seen  the visible part of the text
 * @param {Pick<PlayState, "stretch" | "mode" | "layer" | "head">} state  the state of the page
 */
export function endOfScale(seen, { stretch, mode, layer, head }) {
  return (stretch ? largest(seen.made(layer, head)) : mode === "length" ? seen.highest() : 1) || 1;
}

const NUMBERS = new WeakMap(); // maps each run, or its visible part, to a number
let numbered = 0;

/**
 * A number that identifies an object, so that each object is drawn only once.
 * @param {object} one
 */
export function numberOf(one) {
  if (!NUMBERS.has(one)) NUMBERS.set(one, (numbered += 1));
  return NUMBERS.get(one);
}

/**
 * The value in a column; the row must have a value in every column.
 * @param {Map<number, number>} values
 * @param {number} c
 */
const valueIn = (values, c) => /** @type {number} */ (values.get(c));

/**
 * The differences of two runs with the same number of tokens, the first minus the second, for a small picture.
 * @param {Seen} seen
 * @param {Seen} other
 * @returns {Drawable}
 */
export function differenceOf(seen, other) {
  /** @param {number} l @param {number} h */
  const made = (l, h) => {
    const before = other.made(l, h);
    /** @param {Row} row @param {number} r */
    const minus = ({ values }, r) => ({ values: new Map([...values].map(([c, value]) => [c, value - valueIn(before[r].values, c)])) });
    return seen.made(l, h).map(minus);
  };
  return { rows: seen.rows, columns: seen.columns, made };
}

/**
 * The weights of a head minus the weights of the original head; NaN if the key is hidden in both heads.
 * @param {Head} original
 * @param {Head} head
 * @returns {(r: number, c: number) => number}
 */
export function differenceFrom(original, head) {
  return (r, c) => (head.hidden(r, c) && original.hidden(r, c) ? NaN : valueIn(head.values(r), c) - valueIn(original.values(r), c));
}

/**
 * The description of a cell that shows the difference from the original: both weights, and the difference.
 * @param {Told} said
 * @param {Head} head
 * @param {Head | null} original
 * @param {number} r
 * @param {number} c
 * @returns {Told}
 */
export function withDifference(said, head, original, r, c) {
  if (!original) return said;
  const [now, before] = [head, original].map((one) => one.values(r).get(c) ?? 0);
  const by = now - before;
  const [, weight] = said.fields.at(-1);
  const fields = [["weight now", weight], ["in the original", inBoth(before)], ["difference", `${by > 0 ? "+" : ""}${number(by, 5)}`]];
  return { ...said, fields: [...said.fields.slice(0, -1), ...fields] };
}

// ---- a head in words and numbers

/**
 * The position of a token, written as " (3)", if another token has the same name; otherwise an empty text.
 * @param {Span[]} spans
 * @param {number} k
 */
function which(spans, k) {
  return spans.filter(({ name }) => name === spans[k].name).length > 1 ? ` (${spans[k].first})` : "";
}

/**
 * Describes the attention of a query. `where` is the name of the head. If `long` is true, the head's values are lengths of vectors;
 * otherwise they are weights.
 * @param {Head} head
 * @param {number} r
 * @param {string} where
 * @param {boolean} long
 */
function lookWords(head, r, where, long) {
  const { rows, columns, known, gone, source } = head;
  const said = [word(rows[r].name, "The"), which(rows, r)];
  const [c, value] = known(r)[0] || [0, 0];
  if (!(value > 0)) said.push(` attends to none of the tokens shown (${where})`);
  else {
    const itself = !source.text.keys && columns[c].first === rows[r].first;
    said.push(long ? " receives most from " : " attends to ");
    said.push(itself ? "itself" : word(columns[c].name), itself ? "" : which(columns, c));
    said.push(`: ${long ? `a vector of length ${number(value)}` : head.say(value)} (${where})`);
  }
  if (head.away)
    said.push(`; ${!head.live && gone(r) > 0 && gone(r) < 0.005 ? "less than 0.01" : head.say(gone(r))} is on tokens not shown`);
  return [...said, "."];
}

/**
 * Describes the first three visible rows, and states how many rows remain.
 * @param {Head} head
 * @param {number[]} rows
 * @param {At} at
 */
export function wordsOfRows(head, rows, at) {
  const { text } = head.source;
  if (!rows.length) return text.length ? "No token is shown." : "There are no tokens.";
  const said = rows.slice(0, 3).map((r, k) => [k ? " " : "", lookWords(head, r, head.where, at.mode === "length")]);
  return [said, rows.length > 3 ? ` And ${rows.length - 3} more.` : ""];
}

/**
 * The description of a cell for a heat map; `state` names the head and the visible part of the text.
 * @param {Head} head
 * @param {At} state
 * @param {number} r
 * @param {number} c
 * @returns {Told}
 */
export function cellNumbers(head, state, r, c) {
  const { source, rows, columns } = head;
  const { text, row, score, norm } = source;
  const long = state.mode === "length";
  /**
   * A weight with as many digits as the page stores; for a long text, the page stores fewer digits.
   * @param {number} x
   */
  const exact = (x) => {
    if (head.live) return inBoth(x);
    if (!text.summary) return number(x, 5);
    const digits = state.merge ? 3 : 4;
    return number(x < 0.5 * 10 ** -digits ? 0 : x, digits);
  };
  const [from, to] = [rows[r], columns[c]];
  const last = long ? "contribution" : "weight";
  if (!to)
    return {
      title: `${named(from.name)} → not shown`,
      fields: [[last, exact(head.gone(r))]],
    };
  const [i, j] = [from.first, to.first];
  const pieces = [from.last - i, to.last - j];
  const fields = [];
  const scaled = score(state.l, state.h, i, j);
  const hidden = head.hidden(r, c) || scaled === -Infinity;
  const value = head.at(r, c);
  if (pieces[0] * pieces[1] > 1)
    fields.push(["pieces", `${pieces.join(" × ")}, keys summed, queries averaged`]);
  else {
    const scale = text.scale[state.l];
    if (scaled !== null)
      fields.push(
        ["raw score", hidden || !scale ? "–" : number(scaled / scale, 3)],
        ["scaled score", number(scaled, 3)],
      );
    if (scaled !== null || text.hidden) fields.push(["mask", hidden ? "hidden" : "open"]);
    if (long)
      row(
        state.l,
        state.h,
        i,
        (key, weight) =>
          key === j &&
          fields.push(
            ["weight", exact(weight)],
            ["length of v W_O", number(norm(state.l, state.h, j), 4)],
          ),
      );
  }
  fields.push([last, hidden ? "0" : value === undefined ? "not among the largest" : exact(value)]);
  if (text.summary) fields.push(["positions", `${count(i)} → ${count(j)}`]);
  return { title: `${named(from.name)} → ${named(to.name)}`, fields };
}

// ---- the small picture of a head

/**
 * The small picture of one head in the map, with at most `pixels` pixels on each side.
 * @param {Ui} ui
 * @param {{seen: Drawable, high: number}} drawn
 * @param {HeadIndex} head
 * @param {number} pixels
 */
export function thumbnail(ui, { seen, high }, { l, h }, pixels) {
  const [down, across] = [seen.rows.length, seen.columns.length];
  const [wide, tall] = [across, down].map((length) => Math.max(1, Math.min(length, pixels)));
  const most = new Float32Array(wide * tall);
  seen.made(l, h).forEach(({ values }, r) => {
    const base = Math.floor((r * tall) / down) * wide;
    for (const [c, value] of values) {
      const k = base + Math.floor((c * wide) / across);
      if (Math.abs(value) > Math.abs(most[k])) most[k] = value;
    }
  });
  return raster(ui, most, wide, tall, (value) => value / high);
}
