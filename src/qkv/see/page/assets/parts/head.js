// One head: its weights as lines and as a heat map with the same tokens. Around the heat map are the keys K (above),
// the queries Q (left) and the values V (right). The reader can paint the mask (paint_bar.js) and set a row of weights
// (weight_handles.js). For a recorded text, only the weights are shown, and a click keeps a row in view.

import { canvas2d, css, shade } from "../base/colours.js";
import { foldedTable } from "../base/controls.js";
import { el, fill } from "../base/elements.js";
import { heatmap } from "../base/heatmap.js";
import { fixed, percent, visible } from "../base/format.js";
import { inTurn } from "../base/turns.js";
import { measured, rolesIn, usually } from "../store/roles.js";
import { SIGHT } from "../store/state.js";
import { heldWith, lines, LISTED, ROW, rowsInView } from "./lines.js";
import { isRemoved } from "./map.js";
import { arrange, cellNumbers, differenceFrom, endOfScale, seenIn, withDifference, wordsOfRows } from "./sight.js";
import "./head.css";

/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Store} Store */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("./sight.js").At} At */
/** @typedef {import("./sight.js").Head} Head */
/** @typedef {import("./sight.js").Span} Span */

/**
 * @typedef {{at: (t: number, c: number) => number, high: number}} Vectors
 *     `at(t, c)`: the number at index c of token t's vector; `high`: the largest number
 * @typedef {{d: number, q: Vectors, k: Vectors, v: Vectors, z: Vectors}} HeadVectors  `d`: the size of a vector
 * @typedef {{run: Run, head: Head, far: Head | null, at: At, high: number, vectors: HeadVectors | null}} Shown  a head
 *     and its view; `far`: the head with which it is compared; `high`: the end of the scale
 * @typedef {{paintBar: typeof import("./paint_bar.js").paintBar, weightHandles: typeof import("./weight_handles.js").weightHandles}} Hands
 * @typedef {ReturnType<typeof headPart>} HeadPart
 */

const STRIP = 64; // the length of a drawn vector, in pixels

/**
 * The queries, keys, values and results of one head; null if the run does not have them.
 * @param {Run} run
 * @param {number} layer
 * @param {number} head
 * @returns {HeadVectors | null}
 */
export function vectorsOf(run, layer, head) {
  const block = run.blocks?.[layer];
  if (!block?.q) return null;
  const [T, heads] = [run.tokens.length, run.pattern[layer].length];
  const d = block.q.length / T / heads;
  /**
   * @param {ArrayLike<number>} array  the vectors of all tokens in all heads
   */
  const of = (array) => {
    const own = array.length / T / d; // the number of heads in `array`: keys and values may have fewer heads than queries
    const h = Math.floor((head * own) / heads);
    /** @param {number} t @param {number} c */
    const at = (t, c) => array[(t * own + h) * d + c];
    let high = 1e-9;
    for (let t = 0; t < T; t++) for (let c = 0; c < d; c++) high = Math.max(high, Math.abs(at(t, c)));
    return { at, high };
  };
  const [q, k] = [block.rot_q ?? block.q, block.rot_k ?? block.k]; // q and k after the model's norms and rotation, if any
  return { d, q: of(q), k: of(k), v: of(block.v), z: of(block.z) };
}

// ---- one head

/**
 * The component for one head of the text. A page can show two elements of this component elsewhere: `title` and `said`.
 * The text of `said` describes the view.
 * @param {Ui} ui
 * @param {Store} store
 * @param {Hands | null} hands  the controls that change the head; null for a recorded text
 */
export function headPart(ui, store, hands = null) {
  const title = el("h3", {});
  const said = el("p", { class: "head-words" });
  const saidBox = el("div", { class: "head-said" }, said);
  const holds = !hands; // whether a click keeps a row in view; otherwise a click only chooses the query
  const paint = holds ? null : hands.paintBar(ui, store, step);
  const list = lines(ui, { onhover: preview, onpick: choose, onfree: free });
  const map = heatmap(ui, {
    /** @param {number} r @param {number} c */
    describe(r, c) {
      const numbers = cellNumbers(shown.head, shown.at, r, c);
      return shown.far ? withDifference(numbers, shown.head, shown.far, r, c) : numbers;
    },
    changed: paint?.changed,
    onpoint: point,
    onnumber: (/** @type {number | null} */ c) => self.onnumber?.(c),
    onpick: touch,
    onfree: free,
    onlayout: align,
  });
  const values = el("canvas", { "aria-hidden": "true" });
  const result = el("canvas", { "aria-hidden": "true" });
  const operand = el("div", { class: "operand", role: "img" }, el("b", { class: "operand-name" }, "V"), values,
    el("span", { class: "operand-name" }, "weights × V"), result);
  const around = el("p", { class: "note" });
  const why = el("p", { class: "note why" });
  const byRule = el("button", { type: "button", onclick: () => store.byRule?.() }, "Let the rule choose");
  const weights = holds ? null : hands.weightHandles(ui, store, list, { onkey: (c) => (key = c), redraw: () => refresh() });
  const table = foldedTable("The numbers as a table", "table of weights");
  const linesBox = el("div", { class: "lines-box" }, saidBox, el("div", { class: "lines-row" }, list.node, operand));
  const mapBox = el("div", { class: "map-box" }, map.node);
  const body = el("div", { class: "head-body" }, mapBox, linesBox);
  const node = el("div", { class: "one-head", "data-part": "head" }, title, holds ? null : why, body, around, table.node);
  // callbacks: `oncell` gets the tokens of the cell under the pointer; `onnumber` gets the index of a number of Q or K
  const self = {
    node, body, title, said, map, paint: paint?.node,
    oncell: /** @type {((now: Now, shown: Shown, query: number, key: number) => void) | null} */ (null),
    onnumber: /** @type {((c: number | null) => void) | null} */ (null),
    update,
  };
  /** @type {Now} */
  let now; // `now` and the variable below are undefined before the first run
  /** @type {Shown} */
  let shown;
  /** @type {[number | null, number, boolean, string]} */
  let [hover, key, aligned, as] = [null, 0, false, ""];
  let byHand = false; // whether the reader can set weights and paint the mask
  // All three are positions of tokens. `asked` is the query in the page's latest state. `held` lists the queries that stay in view.
  // If `held` is empty, one row is in view: the row under the pointer, or the row that has the focus. If there is no such row,
  // the row of `cursor` is in view.
  /** @type {[number | null, number, number[]]} */
  let [asked, cursor, held] = [null, 0, []];
  /** @type {[number, number] | null} */
  let cell = null; // the cell under the pointer
  const turn = inTurn();
  /** @type {[Record<string, any>, boolean]} */
  let [forMap, anew] = [{}, false]; // options that the map and the lines have not received yet
  paint?.over(map);
  paint?.node.append(/** @type {NonNullable<typeof weights>} */ (weights).controls);
  ui.redraw(() => now && refresh(layout()));

  /** @param {number} token */
  const rowOf = (token) => Math.max(0, shown.head.rowAt(Math.min(token, now.run.tokens.length - 1)));
  /** @param {number} r */
  const tokenOf = (r) => shown.head.rows[r].first;
  const active = () => rowsInView(shown.head, held, hover, Math.min(cursor, now.run.tokens.length - 1));

  /**
   * Handles a chosen row: it becomes the query; with Shift, it is added to the rows in view.
   * @param {number} r
   */
  function choose(r, add = false) {
    const token = tokenOf(r);
    const before = held.length || holds || !add ? held : [cursor];
    hover = null;
    store.set({ query: token });
    [asked, cursor, held] = [now.state.query, token, holds || add ? heldWith(shown.head, before, r, add) : []];
    refresh({}, false, holds);
  }

  function free() {
    [hover, held] = [null, []];
    refresh({}, false, holds);
  }

  /** @param {number | null} r @param {boolean} aloud */
  function preview(r, aloud) {
    if (!shown || hover === r || !(r === null || shown.head.rows[r])) return; // the lines may still be those of a longer text
    hover = r;
    if (holds && aloud && r !== null && !held.length) cursor = tokenOf(r);
    refresh({}, false, holds && aloud);
  }

  /**
   * Handles a cell under the pointer: highlights its row in the heat map and in the lines.
   * @param {number | null} r
   * @param {number} c
   */
  function point(r, c) {
    cell = r === null ? null : [r, c];
    if (hover === r) tellCell();
    else preview(r, false);
    if (r !== null && active()[0] === r) list.reveal(r);
  }

  function tellCell() {
    const [r, c] = cell ?? [active()[0], key];
    self.oncell?.(now, shown, shown.head.rows[r]?.first, shown.head.columns[c]?.first);
  }

  /**
   * Handles a cell that the reader picks with the mouse or the keyboard. If painting is switched on, the link of this cell is hidden or
   * shown again. Otherwise, the query in the row of this cell is chosen.
   * @param {number} r
   * @param {number} c
   * @param {MouseEvent | KeyboardEvent} event
   */
  function touch(r, c, event) {
    key = Math.min(c, shown.head.columns.length - 1);
    if (paint?.takes(r, key)) refresh();
    else choose(r, event.shiftKey);
  }

  /** @param {"query" | "key"} which @param {number} by */
  function step(which, by) {
    const { rows, columns } = shown.head;
    /** @param {Span[]} all @param {number} x */
    const to = (all, x) => Math.max(0, Math.min(all.length - 1, x + by));
    if (which === "query") store.set({ query: tokenOf(to(rows, rowOf(cursor))) });
    else {
      key = to(columns, key);
      refresh();
    }
  }

  /**
   * Places the lines beside the heat map if both fit. Each row of the heat map is then as high as a token of the lines.
   * Returns the heat map's options.
   */
  function layout() {
    const { state } = now;
    const { rows, columns, away } = shown.head;
    const [width, across, gap] = [node.clientWidth, columns.length + (away ? 1 : 0), away ? 8 : 0];
    const around_ = shown.vectors ? STRIP + 8 : 0;
    const widest = Math.min(40, Math.max(14, Math.floor(600 / Math.max(1, rows.length)))); // the same limits as in the heat map
    const cell = Math.min(widest, Math.floor((width - 2 * around_ - gap - 290) / Math.max(1, across)));
    aligned = state.inside && Math.max(rows.length, across) <= LISTED && cell >= 14;
    body.classList.toggle("aligned", aligned);
    body.style.gridTemplateColumns = aligned ? `${around_ + across * cell + gap + 6}px minmax(0, 1fr)` : "";
    mapBox.hidden = !state.inside;
    operand.hidden = !shown.vectors || !state.inside;
    saidBox.style.height = "";
    return { named: !aligned, cell: aligned ? { min: 12, max: cell, height: ROW } : { min: 12, max: 44 } };
  }

  /**
   * Moves the lines down to the rows of the heat map, and stores the positions of the cells for tests.
   * @param {{left: number, top: number, cell: number, tall: number}} shape
   */
  function align({ left, top, cell, tall }) {
    mapBox.dataset.cells = `${left} ${top} ${cell} ${tall}`;
    const header = list.node.querySelector(".from").offsetHeight;
    saidBox.style.height = aligned ? `${Math.max(0, top - header)}px` : "";
  }

  function drawValues() {
    if (operand.hidden) return;
    const { vectors, head } = /** @type {Shown & {vectors: HeadVectors}} */ (shown);
    const positions = list.listed().map(({ c }) => head.columns[/** @type {number} */ (c)]?.first);
    strip(values, positions.length, (k, c) => (positions[k] === undefined ? 0 : vectors.v.at(positions[k], c) / vectors.v.high));
    strip(result, 1, (_, c) => vectors.z.at(tokenOf(active()[0]), c) / vectors.z.high);
    operand.style.setProperty("--header", `${list.node.querySelector(".from").offsetHeight}px`);
    operand.setAttribute("aria-label", `values: ${vectors.d} numbers of each key; below, their weighted sum`);
  }

  /**
   * Draws each vector as a row of colours. Each row is as high as a token of the list beside the rows.
   * @param {HTMLCanvasElement} canvas
   * @param {number} count_
   * @param {(k: number, c: number) => number} value
   */
  function strip(canvas, count_, value) {
    const pen = canvas2d(canvas, STRIP, count_ * ROW);
    const { d } = /** @type {HeadVectors} */ (shown.vectors);
    const wide = STRIP / d;
    for (let k = 0; k < count_; k++)
      for (let c = 0; c < d; c++) {
        pen.fillStyle = css(shade(ui, value(k, c)));
        pen.fillRect(c * wide, k * ROW, Math.ceil(wide), ROW - 1);
      }
  }

  /**
   * Shows the rows in view. `more` has new values for options of the heat map. `fresh` is true if the tokens or the
   * head have changed.
   * @param {Record<string, any>} more
   */
  function refresh(more = {}, fresh = false, aloud = false) {
    const { at, high } = shown;
    const head = weights ? weights.over(shown.head, at) : shown.head;
    const rows = active();
    const own = rows.length ? rowOf(cursor) : 0;
    const best = rows.length ? head.known(rows[0])[0] : null;
    key = Math.max(0, Math.min(key, head.columns.length - 1));
    fill(said, wordsOfRows(head, rows, at));
    if (aloud) ui.say(said.textContent);
    Object.assign(forMap, more);
    anew ||= fresh;
    return turn([
      () => {
        list.set({ head, active: rows, held: holds ? held.length > 0 : hover === null, high }, anew);
        anew = false;
      },
      () => {
        paint?.set({ head, at, own, key });
        weights?.set({ head, at, own, key, high, held: rows.length === 1 && rows[0] === own }, byHand);
      },
      () => {
        const picked = rows.length && !holds ? [own, key] : null;
        map.set({ ...forMap, marked: rows, picked, home: best ? [rows[0], best[0]] : null });
        forMap = {};
      },
      drawValues,
      tellCell,
    ]);
  }

  /** @param {string} name @param {Vectors} vector @param {Span[]} spans */
  function stripOf(name, vector, spans) {
    const value = (/** @type {number} */ k, /** @type {number} */ c) => vector.at(spans[k].first, c);
    return { name, count: /** @type {HeadVectors} */ (shown.vectors).d, value, high: vector.high, size: STRIP };
  }

  /**
   * The title above the head: its layer and number, and its role; for a recorded text, the name of the text.
   * @param {Now} now
   * @param {string} name
   */
  function titleOf(now, name) {
    if (holds) return visible(shown.head.source.text.name || "");
    const { state } = now;
    const role = rolesIn(store.data?.roles ?? {}, now, store.data?.little?.words ?? [])[name];
    const removed = isRemoved(state.edits, state.layer, state.head) ? el("span", { class: "changed" }, " · removed: it adds nothing") : null;
    return [`Head ${name}`, el("span", { class: "dim", title: role ? measured(role) : null }, role ? ` · ${usually(role[0])}` : ""), removed];
  }

  /**
   * Says why the page shows this head; empty if the page has no reason.
   * @param {Now} now
   */
  function whyOf_({ state, ruled }) {
    if (store.picked) return ["You chose this head. ", byRule];
    if (ruled?.layer !== state.layer || ruled.head !== state.head) return [];
    return `${state.edits.length ? "Before your changes: " : ""}${ruled.said}`;
  }

  /** @param {Told} next */
  function update(next) {
    for (const part of [paint, weights]) part?.update(next);
    if (!next.run) return undefined;
    now = next;
    const { state, run, original } = now;
    byHand = state.inside && (state.only !== null || state.tab === "links");
    if (!byHand) paint?.lift();
    const at = { ...SIGHT, ...state, l: state.layer, h: state.head };
    const head = arrange(seenIn(run, state.edits, state), at);
    const { text } = head.source;
    const far = state.colouring === "change" && run !== original ? arrange(seenIn(original, [], state), at) : null;
    const vectors = state.inside && !(state.merge && text.words) ? vectorsOf(run, at.l, at.h) : null;
    const [was, before] = [as, shown];
    as = JSON.stringify([head.rows.map((row) => row.name), head.columns.length, at.l, at.h]);
    shown = { run, head, far, at, high: endOfScale(head, at), vectors };
    hover = cell = null;
    if (state.query !== asked || !holds) cursor = state.query ?? state.position ?? 0;
    if (state.query !== asked || (before?.run !== run && String(before?.run.tokens) !== String(run.tokens))) held = [];
    asked = state.query;
    fill(title, titleOf(now, `${text.layers[at.l]}.${at.h}`));
    title.hidden = holds && !text.name;
    fill(why, whyOf_(now));
    why.hidden = !why.textContent;
    if (was !== as && head.rows.length) key = head.known(rowOf(cursor))[0]?.[0] ?? 0;
    const drawn = refresh({ ...aboutOf(far), ...layout() }, was !== as);
    around.hidden = !vectors;
    if (vectors)
      fill(around, `Each row is a query, each column a key. Q (left of the rows) and K (above the columns) hold ${vectors.d} numbers per token; their dot product is the score. V holds the keys' values, with their weighted sum below. Blue: above 0; red: below 0.`);
    if (paint) paint.node.hidden = !state.inside;
    table.node.hidden = !state.inside || head.sparse;
    if (!table.node.hidden) table.set(() => weightsTold(head));
    return drawn;
  }

  /**
   * The contents of the heat map: the head's weights, or their differences from another head.
   * @param {Head | null} far
   */
  function aboutOf(far) {
    const { head, at, high, vectors } = shown;
    const { name } = head.source.text;
    const kind = at.mode === "length" ? "contribution" : "weight";
    return {
      label: `${kind}s of ${head.where}${name ? `, ${visible(name)}` : ""}`,
      rows: head.rows.map((row) => row.name),
      columns: head.columns.map((column) => column.name),
      value: far ? differenceFrom(far, head) : paint?.weight ?? ((/** @type {number} */ r, /** @type {number} */ c) => head.at(r, c)),
      entries: head.sparse ? head.known : null,
      extra: head.away ? { name: "not shown", value: head.gone } : null,
      low: far ? -1 : 0,
      high: far ? 1 : high,
      say: head.live ? percent : undefined,
      bar: far ? "weight now minus weight in the original" : `${kind}${at.stretch ? ", stretched" : ""}`,
      left: vectors ? stripOf("Q", vectors.q, head.rows) : null,
      top: vectors ? stripOf("K", vectors.k, head.columns) : null,
    };
  }
  return self;
}

/**
 * Returns all weights of a head as a table: a caption, columns and rows.
 * @param {Head} head
 */
function weightsTold(head) {
  /** @param {number} r @param {number} c */
  const cell = (r, c) => {
    const value = /** @type {number} */ (head.at(r, c));
    return [head.hidden(r, c) ? "hidden" : head.live ? percent(value) : fixed(value, 3), head.changed(r, c)];
  };
  return {
    caption: `weights of ${head.where}: queries down, keys across`,
    columns: head.columns.map(({ name }) => visible(name)),
    rows: head.rows.map(({ name }, r) => [visible(name), ...head.columns.map((_, c) => cell(r, c))]),
  };
}
