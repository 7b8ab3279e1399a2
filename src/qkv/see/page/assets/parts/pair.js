// The same head in two texts. In each text, one token is chosen, and the page shows the tokens that the chosen token
// attends to. Heat maps show the weights of both texts, and the difference of the weights, on a shared axis of tokens.

import { foldedTable } from "../base/controls.js";
import { el, fill } from "../base/elements.js";
import { heatmap } from "../base/heatmap.js";
import { fixed, inBoth, named, number, percent, visible } from "../base/format.js";
import { alongside } from "../store/alongside.js";
import { SIGHT } from "../store/state.js";
import { heldWith, lines, rowsInView } from "./lines.js";
import { arrange, cellNumbers, endOfScale, numberOf, seenIn, wordsOfRows } from "./sight.js";
import "./pair.css";

/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/alongside.js").Both} Both */
/** @typedef {import("../store/state.js").PlayState} PlayState */
/** @typedef {import("./sight.js").At} At */
/** @typedef {import("./sight.js").Head} Head */
/** @typedef {{positions: Both[], names: string[], at: (k: number, position: number) => number | undefined}} Axis */
/** @typedef {ReturnType<typeof sideOf>} Side */
/** @typedef {{rows: Axis, columns: Axis, names: string[]}} Shown  both axes, and the names of the texts */

const AWAY = "not shown";
const CELLS = 40; // up to this number of columns, the maps have cells; beyond it, the three maps are pictures side by side

/**
 * A shared axis of two texts, with a name for each position: the token if both texts have the same token there, or else
 * "first token / second token".
 * @param {string[]} one
 * @param {string[]} other
 * @returns {Axis}
 */
function axisOf(one, other) {
  const positions = alongside(one, other);
  /** @param {Both} both */
  const nameOf = ([a, b]) => (a === null ? other[/** @type {number} */ (b)] : b === null || one[a] === other[b] ? one[a] : `${visible(one[a])} / ${visible(other[b])}`);
  const inverse = [0, 1].map((k) => new Map(positions.map((both, i) => [both[k], i])));
  return { positions, names: positions.map(nameOf), at: (k, position) => inverse[k].get(position) };
}

// ---- one of the two texts

/**
 * The attention in one text, as a sentence and as lines. `heard()` is called when the rows in view
 * change.
 * @param {Ui} ui
 * @param {{heard: () => void, onpick: (token: number) => void}} options
 */
function sideOf(ui, { heard, onpick }) {
  /** @type {{head: Head, held: number[], cursor: number, at: At, high: number}} */
  const self = { head: /** @type {any} */ (null), held: [], cursor: 0, at: /** @type {any} */ (null), high: 1 }; // `update` sets all fields together
  /** @type {number | null} */
  let hover = null; // the row under the pointer or the focus
  const heading = el("h4", {});
  const sentence = el("p", { class: "sentence" });
  const list = lines(ui, { onhover: preview, onpick: pick, onfree: free });

  const active = () => rowsInView(self.head, self.held, hover, self.cursor);

  /** @param {number | null} r */
  function preview(r, aloud = false) {
    if (r === hover || !(r === null || self.head.rows[r])) return; // the lines may still be those of a longer text
    hover = r;
    if (r !== null && aloud && !self.held.length) self.cursor = self.head.rows[r].first;
    refresh(aloud);
  }

  /** @param {number} r */
  function pick(r, add = false) {
    self.held = heldWith(self.head, self.held, r, add);
    self.cursor = self.head.rows[r].first;
    refresh(true);
    onpick(self.cursor);
  }

  function free() {
    self.held = [];
    refresh(true);
  }

  /**
   * Updates the sentence and the lines, so that they show the rows that are now in view.
   * @param {boolean} aloud
   */
  function refresh(aloud, fresh = false) {
    if (fresh) hover = null;
    const rows = active();
    fill(sentence, wordsOfRows(self.head, rows, self.at));
    list.set({ head: self.head, active: rows, held: self.held.length > 0, high: self.high }, fresh);
    heard();
    if (aloud) ui.say(sentence.textContent);
  }
  const node = el("div", { class: "side" }, heading, sentence, list.node);
  return Object.assign(self, { node, heading, sentence, active, preview, pick, free, reveal: list.reveal, refresh });
}

// ---- both

/**
 * The data of the part, all for the same head. Each list has an entry for the first text, then one for the second.
 * @typedef {object} Paired
 * @property {PlayState} state  the page's state: the layer, the head, the visible part of the texts, and more
 * @property {Run[]} runs
 * @property {Edit[][]} edits  the edits of the runs
 * @property {string[]} names  of the texts
 * @property {string[]} [titles] the titles above the texts; by default the names
 * @property {number[]} cursors  the chosen token of each text
 */

/**
 * The part with two texts side by side; `onpick(which, token)` is called when the reader chooses a token.
 * @param {Ui} ui
 * @param {{onpick?: (which: number, token: number) => void}} options
 */
export function pairPart(ui, { onpick = () => {} } = {}) {
  const sides = [0, 1].map((k) => sideOf(ui, { heard: () => mark(), onpick: (token) => onpick(k, token) }));
  const maps = [0, 1, 2].map((which) =>
    heatmap(ui, {
      describe: (/** @type {number} */ i, /** @type {number} */ j) => numbersOf(which, i, j),
      onpoint: (/** @type {number | null} */ i, /** @type {number | null} */ j = null) => look(which, i, j),
      onpick: (/** @type {number} */ i, /** @type {number} */ _, /** @type {MouseEvent | KeyboardEvent} */ event) =>
        choose(i, event.shiftKey),
      onfree: () => sides.forEach((side) => side.free()),
      cell: { min: 12, max: 26 },
    }),
  );
  const titles = maps.map(() => el("h4", {}));
  const table = foldedTable("The chosen row as a table", "table of both");
  const bothMaps = el("div", { class: "both-maps" }, maps.map((map, k) => el("div", {}, titles[k], map.node)));
  const node = el("div", { class: "both" }, el("div", { class: "both-sides" }, sides.map((side) => side.node)), bothMaps, table.node);
  /** @type {Shown} */
  let now; // undefined before the first update
  let [pointing, quiet] = [false, false]; // quiet: changes are not drawn one by one, but together afterwards
  let shown = ""; // the heads that the heat maps show

  /**
   * Changes the view of both texts, then draws the heat maps once, with the options `next`.
   * @param {() => void} change
   * @param {Record<string, any>[]} next  the options of each map
   */
  function once(change, next = []) {
    quiet = true;
    change();
    quiet = false;
    mark(next);
  }

  /**
   * Points at one cell in all three maps, and at the query of this cell in the lists of both texts.
   * @param {number} which
   * @param {number | null} i
   * @param {number | null} j
   */
  function look(which, i, j) {
    if (pointing || !now) return;
    pointing = true;
    maps.forEach((map, k) => k !== which && map.point(i, j));
    /** @param {Side} side @param {number} k */
    const show = (side, k) => {
      const r = i === null ? null : now.rows.positions[i][k];
      side.preview(r);
      if (r !== null && side.active()[0] === r) side.reveal(r);
    };
    once(() => sides.forEach(show));
    pointing = false;
  }

  /** @param {number} i @param {boolean} add */
  function choose(i, add) {
    sides.forEach((side, k) => now.rows.positions[i][k] !== null && side.pick(/** @type {number} */ (now.rows.positions[i][k]), add));
  }

  /**
   * Outlines the rows in view. In the map of one text, the rows of this text are outlined; in the map of differences,
   * the rows of both texts are outlined.
   * @param {Record<string, any>[]} next
   */
  function mark(next = []) {
    if (quiet || !now) return;
    const rows = sides.map((side, k) => side.active().map((r) => /** @type {number} */ (now.rows.at(k, r))));
    const both = [...new Set(rows.flat())];
    [rows[0], rows[1], both].forEach((marked, k) => maps[k].set({ ...next[k], marked, home: homeOf(k % 2) }));
    table.set(() => pairTold(now, sides, rows));
  }

  /**
   * A weight of one text; null if the text has no such cell.
   * @param {number} k
   * @param {number} i
   * @param {number} j
   * @returns {number | null | undefined}
   */
  function weightAt(k, i, j) {
    const [r, c] = cellAt(k, i, j);
    if (r === null || c === null) return null;
    return c === undefined ? sides[k].head.gone(r) : sides[k].head.at(r, c);
  }

  /**
   * The row and the column of a cell in text `k`; null if text `k` lacks them. A row may end with one
   * more cell, which shows the weight on all keys that the map leaves out. The column of this cell is undefined.
   * @param {number} k
   * @param {number} i
   * @param {number} j
   * @returns {[number | null, number | null | undefined]}
   */
  function cellAt(k, i, j) {
    return [now.rows.positions[i][k], now.columns.positions[j]?.[k]];
  }

  /** @param {number} i @param {number} j */
  function difference(i, j) {
    const [one, other] = [weightAt(0, i, j), weightAt(1, i, j)];
    return one === null || other === null ? null : (other || 0) - (one || 0);
  }

  /** @param {number} which @param {number} i @param {number} j */
  function numbersOf(which, i, j) {
    const here = [0, 1].map((k) => weightAt(k, i, j));
    const title = `${named(now.rows.names[i])} → ${j in now.columns.names ? named(now.columns.names[j]) : AWAY}`;
    if (which < 2 && here[which] === null) return `${title}: not in ${now.names[which]}`;
    if (which < 2) return cellNumbers(sides[which].head, sides[which].at, .../** @type {[number, number]} */ (cellAt(which, i, j)));
    const fields = here.map((x, k) => [now.names[k], x === null ? "not there" : sides[0].head.live ? inBoth(x || 0) : number(x || 0, 5)]);
    return { title, fields: [...fields, ["difference", here.includes(null) ? "–" : number(difference(i, j), 5)]] };
  }

  /**
   * Shows two heads.
   * @param {Paired} next
   */
  function set({ state, runs, edits, names, titles: above = names, cursors }) {
    const at = { ...SIGHT, ...state, l: state.layer, h: state.head };
    const seen = runs.map((run, k) => seenIn(run, edits[k], state));
    const same = JSON.stringify([seen.map(numberOf), at.l, at.h, at.stretch, names]);
    const known = same === shown;
    shown = same;
    const heads = known ? sides.map(({ head }) => head) : seen.map((one) => arrange(one, at));
    const high = Math.max(...heads.map((head) => endOfScale(head, at)));
    const fresh = sides.map(({ head }, k) => JSON.stringify(head?.rows) !== JSON.stringify(heads[k].rows));
    sides.forEach((side, k) => {
      if (fresh[k] || cursors[k] !== side.cursor) side.held = [];
      Object.assign(side, { head: heads[k], at, cursor: cursors[k], high });
      fill(side.heading, visible(above[k]));
    });
    if (!known) {
      const [rows, columns] = /** @type {("rows" | "columns")[]} */ (["rows", "columns"]).map((which) =>
        axisOf(.../** @type {[string[], string[]]} */ (heads.map((head) => head[which].map(({ name }) => name)))));
      now = { rows, columns, names };
      [...above, "The difference"].forEach((title, k) => fill(titles[k], visible(title)));
    }
    once(() => sides.forEach((side, k) => side.refresh(false, fresh[k])), known ? [] : mapsOf(heads, at, high));
  }

  /**
   * The options of the three heat maps. The function also sets the minimum width of a map. If the map has at most
   * CELLS columns, this width depends on the number of columns; otherwise the width is fixed.
   * @param {Head[]} heads
   * @param {At} at
   * @param {number} high
   */
  function mapsOf(heads, at, high) {
    const { rows, columns, names } = now;
    const size = columns.names.length;
    bothMaps.style.setProperty("--least", `${size > CELLS ? 380 : Math.max(300, 120 + 13 * size)}px`);
    const kind = at.mode === "length" ? "contribution" : "weight";
    const away = heads.some((head) => head.away);
    const lacks = [0, 1].map((k) => [...rows.positions, ...columns.positions].some((both) => both[k] === null));
    const say = heads[0].live ? percent : undefined;
    const axes = { say, rows: rows.names, columns: columns.names, high, absent: lacks.some(Boolean) && "a token in only one text" };
    /** @param {(i: number, j: number) => number | null | undefined} value */
    const extra = (value) => (away ? { name: AWAY, value: (/** @type {number} */ i) => value(i, size) } : null);
    const own = [0, 1].map((k) => {
      /** @param {number} i @param {number} j */
      const value = (i, j) => weightAt(k, i, j);
      const entries = heads[k].sparse ? (/** @type {number} */ i) => knownOf(k, i) : null;
      /** @param {number} i @param {number} j */
      const changed = (i, j) => {
        const [r, c] = cellAt(k, i, j);
        return typeof r === "number" && typeof c === "number" && heads[k].changed(r, c);
      };
      return { ...axes, ...(heads[k].live ? { changed } : {}), absent: lacks[k] && `no such token in ${names[k]}`, label: `${kind}s in ${names[k]}`, value, entries, extra: extra(value), bar: `${kind}${at.stretch ? ", stretched" : ""}` };
    });
    const entries = heads.some(({ sparse }) => sparse) ? differencesOf : null;
    const words = [`${kind}s in ${names[1]} minus those in ${names[0]}`, `${names[1]} minus ${names[0]}`];
    return [...own, { ...axes, label: words[0], value: difference, low: -high, entries, extra: extra(difference), bar: words[1] }];
  }

  /**
   * The cell of text k that is described while the pointer is on no cell. This cell has the largest weight of the first
   * row that is in view.
   * @param {number} k
   */
  function homeOf(k) {
    const [row] = sides[k].active();
    const best = row === undefined ? null : sides[k].head.known(row)[0];
    return best ? [now.rows.at(k, row), now.columns.at(k, best[0])] : null;
  }

  /**
   * The weights of a row that the page contains; for a long text, these are only the largest weights.
   * @param {number} k
   * @param {number} i
   * @returns {[number, number][]}  a position on the shared axis, and the weight
   */
  function knownOf(k, i) {
    const r = now.rows.positions[i][k];
    return r === null ? [] : sides[k].head.known(r).map(([c, value]) => [/** @type {number} */ (now.columns.at(k, c)), value]);
  }

  /** @param {number} i */
  function differencesOf(i) {
    const [one, other] = [0, 1].map((k) => new Map(knownOf(k, i)));
    if (now.rows.positions[i].includes(null)) return [];
    const either = [...new Set([...one.keys(), ...other.keys()])].filter((j) => !now.columns.positions[j].includes(null));
    return either.map((j) => [j, (other.get(j) ?? 0) - (one.get(j) ?? 0)]);
  }
  return { node, set, sides };
}

/**
 * The weights of the chosen row in both texts, for a table.
 * @param {Shown} now
 * @param {Side[]} sides
 * @param {number[][]} rows
 */
function pairTold(now, sides, rows) {
  /** @param {number} k */
  const rowOf = (k) => /** @type {number} */ (now.rows.positions[rows[k][0]][k]);
  const values = sides.map((side, k) => (rows[k].length ? side.head.values(rowOf(k)) : new Map()));
  /** @param {Both} both @param {number} j */
  const line = (both, j) => {
    const here = both.map((c, k) => (c === null ? null : (values[k].get(c) ?? 0)));
    const all = [...here, here.includes(null) ? null : here[1] - here[0]];
    return [visible(now.columns.names[j]), ...all.map((x) => (x === null ? "–" : sides[0].head.live ? percent(x) : fixed(x, 3)))];
  };
  const names = rows.map((own) => (own.length ? named(now.rows.names[own[0]]) : "nothing"));
  return {
    caption: `What ${names[0]} attends to in ${now.names[0]}, and ${names[1]} in ${now.names[1]}`,
    columns: [...now.names, "difference"],
    rows: now.columns.positions.map(line),
  };
}
