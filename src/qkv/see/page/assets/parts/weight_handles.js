// A row of weights that the reader can set: each key of the chosen query has a handle at the end of its bar. When one
// weight changes, the others change in proportion, and all later results are computed again.

import { roving } from "../base/controls.js";
import { el, fill } from "../base/elements.js";
import { fixed, named, percent } from "../base/format.js";
import { setRow } from "../engine/edits.js";
import { oneAtATime } from "./one_at_a_time.js";
import { ROW } from "./lines.js";
import "./weight_handles.css";

/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Store} Store */
/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("./lines.js").Key} Key */
/** @typedef {import("./sight.js").At} At */
/** @typedef {import("./sight.js").Head} Head */
/** @typedef {import("./sight.js").HeadIndex} HeadIndex */
/** @typedef {{at: At, query: number, row: number[]}} Draft */
/** @typedef {Key & {c: number, k: number}} Keyed  a key that has a column; `k`: its index in the list */
/** @typedef {{head: Head, at: At, own: number, key: number, high: number, held: boolean}} Chosen  `own`: the query's row; `key`: the key's column */

const FINEST = 0.01; // the smallest step of a weight

/**
 * Returns `edits` with new weights for one query of one head. If `weights` is null, returns `edits` without the weights
 * of this query.
 * @param {Edit[]} edits
 * @param {number} layer
 * @param {number} head
 * @param {number} query
 * @param {number[] | null} weights
 */
function withRow(edits, layer, head, query, weights) {
  const others = edits.filter((edit) => !(edit.op === "row" && edit.layer === layer && edit.head === head && edit.query === query));
  return weights ? [...others, { op: "row", layer, head, query, weights }] : others;
}

/**
 * Sets the weight of one key in a row of weights, and returns the new row. All other keys share the remaining weight, in
 * proportion to their old weights, or in equal parts if their old weights are 0. The sum is 1, to seven digits.
 * @param {ArrayLike<number>} row
 * @param {number} key
 * @param {number} weight  from 0 to 1
 * @param {(key: number) => boolean} open  whether the query sees a key
 */
function rescaled(row, key, weight, open) {
  const all = Array.from(row);
  const rest = all.reduce((sum, one, j) => (j === key ? sum : sum + one), 0);
  const others = all.filter((_, j) => j !== key && open(j)).length;
  if (!rest && !others) return all.map((_, j) => Number(j === key)); // no other key can receive the remaining weight
  const left = 1 - weight;
  /** @param {number} one @param {number} j */
  const share = (one, j) => (rest ? (one / rest) * left : open(j) ? left / others : 0);
  /** @param {number} x */
  const digits = (x) => Number(x.toFixed(7));
  const weights = all.map((one, j) => digits(j === key ? weight : share(one, j)));
  const most = weights.reduce((best, one, j) => (j !== key && (best < 0 || one > weights[best]) ? j : best), -1);
  weights[most] = digits(weights[most] + 1 - weights.reduce((sum, one) => sum + one, 0)); // corrects rounding, so that the sum is 1
  return weights;
}

/**
 * Handles on the bars of a list of keys, and a stepper for one weight.
 * @param {Ui} ui
 * @param {Store} store
 * @param {ReturnType<typeof import("./lines.js").lines>} list
 * @param {{onkey: (c: number) => void, redraw: () => void}} heard
 */
export function weightHandles(ui, store, list, { onkey, redraw }) {
  const box = el("div", { class: "weights", role: "group", "aria-label": "the chosen query's weights: the left and right arrows change a weight, up and down move to another key" });
  const input = el("input", { type: "number", min: 0, max: 100, step: 1, onchange: () => typed() });
  /** @param {number} by @param {string} name @param {string} sign */
  const arrow = (by, name, sign) => el("button", { type: "button", "aria-label": name, onclick: () => step(chosen(), by) }, sign);
  const [less, more] = [arrow(-FINEST, "less weight", "−"), arrow(FINEST, "more weight", "+")];
  const back = el("button", { type: "button", class: "give-back", onclick: () => giveBack() }, "Reset this row");
  const controls = el("span", { class: "weight-bar" },
    el("span", { class: "stepper", role: "group", "aria-label": "Weight" }, el("span", { class: "dim" }, "Weight"), less, input, "%", more),
    el("span", { class: "dim" }, "or drag the end of a bar"), back);
  const hand = oneAtATime(store);
  /** @type {Chosen} */
  let told; // undefined before the first update
  /** @type {Run} */
  let run; // the last run; stored by `update`, because the reader may press a keyboard key between `update` and `set`
  let drawn = ""; // the keys with handles
  /** @type {{c: number, position: number, node: HTMLElement, grip: HTMLElement}[]} */
  let sliders = [];
  /** @type {{position: number, row: number[], grab: number, value: number, sent: boolean} | null} */
  let drag = null; // row: the row before the drag; grab: the position at which the handle was grabbed
  /** @type {Draft | null} */
  let draft = null; // the row that is set but not computed yet
  /** @type {{position: number, when: number, row: number[]}} */
  let series = { position: -1, when: -Infinity, row: [] }; // consecutive key presses are one change, which starts from this row
  const move = roving(box, { count: () => sliders.length, onpick: (i) => pick(i), onmove: (i) => pick(i) });
  list.node.append(box);
  box.addEventListener("keydown", pressed, true);
  box.addEventListener("pointerdown", begin);
  box.addEventListener("pointermove", drags);
  for (const name of ["pointerup", "pointercancel"]) box.addEventListener(name, end);

  const queryPosition = () => told.head.rows[told.own].first;
  const chosen = () => told.head.columns[told.key].first;
  /** @param {Head} head */
  const isWhole = ({ rows, columns }) => [...rows, ...columns].every(({ first, last }) => last === first + 1); // subwords are not merged
  /** @param {HeadIndex} at @param {number} query */
  const isDraft = (at, query) => draft && draft.at.l === at.l && draft.at.h === at.h && draft.query === query;
  /** @param {number} position */
  const isOpen = (position) => !told.head.source.hidden(told.at.l, told.at.h, queryPosition(), position);

  /** The current row of weights, for all tokens. */
  function rowNow() {
    const { at } = told;
    const [query, T] = [queryPosition(), run.tokens.length];
    return isDraft(at, query) ? /** @type {Draft} */ (draft).row : Array.from(run.pattern[at.l][at.h].subarray(query * T, (query + 1) * T));
  }

  /** @param {number} position @param {number} weight @param {number[]} row @param {boolean} undo */
  function give(position, weight, row, undo) {
    const { at } = told;
    const query = queryPosition();
    draft = { at, query, row: rescaled(row, position, weight, isOpen) };
    hand.send({ edits: withRow(store.state.edits, at.l, at.h, query, draft.row) }, undo);
    settle();
    redraw();
  }

  /** Drops the draft if it has been computed. */
  function settle() {
    if (hand.idle() && !drag) draft = null;
  }

  /**
   * Sets a weight by a keyboard key or a button; presses in quick succession are one change.
   * @param {number} position
   * @param {number} weight
   */
  function put(position, weight) {
    const [row, now] = [rowNow(), performance.now()];
    const goesOn = series.position === position && now - series.when < 1000;
    series = { position, when: now, row: goesOn ? series.row : row };
    give(position, Math.max(0, Math.min(1, weight)), series.row, !goesOn);
  }

  /**
   * Adds `by` to a weight, and rounds the result to a multiple of `FINEST`.
   * @param {number} position
   * @param {number} by
   */
  function step(position, by) {
    put(position, Math.round((rowNow()[position] + by) / FINEST) * FINEST);
  }

  function typed() {
    const weight = Number(input.value) / 100;
    if (input.value !== "" && Number.isFinite(weight)) put(chosen(), weight);
    else redraw();
  }

  function giveBack() {
    series.when = -Infinity;
    draft = null;
    hand.send({ edits: withRow(store.state.edits, told.at.l, told.at.h, queryPosition(), null) }, true);
  }

  /** @param {number} i */
  function pick(i) {
    onkey(sliders[i].c);
    redraw();
  }

  /** @param {KeyboardEvent} event */
  function pressed(event) {
    const slider = sliders.find(({ node }) => node === event.target);
    if (!slider || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowRight: FINEST, ArrowLeft: -FINEST, PageUp: 10 * FINEST, PageDown: -10 * FINEST }[event.key];
    if (by) step(slider.position, by);
    else if (event.key === "Home" || event.key === "End") put(slider.position, event.key === "End" ? 1 : 0);
    else if (event.key === "Delete" || event.key === "Backspace") giveBack();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {PointerEvent} event */
  function begin(event) {
    const slider = sliders.find(({ grip }) => grip === event.target);
    if (!slider || event.button) return;
    const { left, width } = box.getBoundingClientRect();
    const row = rowNow();
    const { position } = slider;
    drag = { position, row, grab: event.clientX - left - row[position] * width, value: row[position], sent: false };
    box.setPointerCapture(event.pointerId);
    box.classList.add("dragging");
    slider.node.focus();
    pick(sliders.indexOf(slider));
    event.preventDefault();
  }

  /** @param {PointerEvent} event */
  function drags(event) {
    if (!drag) return;
    const { left, width } = box.getBoundingClientRect();
    const at = Math.round((event.clientX - left - drag.grab) / width / FINEST) * FINEST;
    const value = Math.max(0, Math.min(1, at));
    if (Math.abs(value - drag.value) < FINEST / 2) return;
    drag.value = value;
    give(drag.position, value, drag.row, !drag.sent);
    drag.sent = true;
  }

  function end() {
    if (!drag) return;
    drag = null;
    box.classList.remove("dragging");
    settle();
  }

  /**
   * Makes a slider for each listed key, if the key is visible to the query.
   * @param {Keyed[]} keys
   */
  function build(keys) {
    sliders = keys.map(({ c, k, name }, i) => {
      const grip = el("span", { class: "grip" });
      const node = el("div", { class: "weight", role: "slider", "data-i": i, "aria-label": `weight of ${name}`, "aria-valuemin": 0, "aria-valuemax": 1, style: { top: `${k * ROW}px` } }, grip);
      return { c, position: told.head.columns[c].first, node, grip };
    });
    fill(box, sliders.map(({ node }) => node));
    move.at = Math.min(move.at, Math.max(0, sliders.length - 1));
  }

  return {
    controls,
    /**
     * A head as it will be when the draft is computed.
     * @param {Head} head
     * @param {HeadIndex} at
     * @returns {Head}
     */
    over(head, at) {
      const r = draft && isWhole(head) ? head.rows.findIndex(({ first }) => isDraft(at, first)) : -1;
      if (r < 0) return head;
      const values = new Map(head.columns.map(({ first }, c) => [c, /** @type {Draft} */ (draft).row[first]]));
      const known = [...values].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
      return {
        ...head,
        values: (/** @type {number} */ q) => (q === r ? values : head.values(q)),
        known: (/** @type {number} */ q) => (q === r ? known : head.known(q)),
        at: (/** @type {number} */ q, /** @type {number} */ c) => (q === r && !head.hidden(q, c) ? values.get(c) : head.at(q, c)),
      };
    },
    /**
     * `next.held`: whether the visible row belongs to the chosen query.
     * @param {Chosen} next
     * @param {boolean} inside
     */
    set(next, inside) {
      told = next;
      const { head, at, own, key, high, held } = next;
      const can = inside && high === 1 && head.rows.length > 0 && at.mode === "weight" && isWhole(head); // bars go from 0 to 1
      box.hidden = controls.hidden = !can;
      list.node.classList.toggle("by-hand", can && held && Boolean(setRow(store.state.edits, at.l, at.h, queryPosition())));
      if (!can) return;
      box.classList.toggle("away", !held);
      const all = /** @type {Keyed[]} */ (list.listed().map((one, k) => ({ ...one, k })));
      const keys = all.filter(({ c }) => c !== undefined && !head.hidden(own, c));
      const which = JSON.stringify(keys.map(({ c, k, name }) => [c, k, name]));
      if (which !== drawn) build(keys);
      drawn = which;
      const row = rowNow();
      for (const { position, node, grip } of sliders) {
        node.setAttribute("aria-valuenow", row[position].toFixed(3));
        node.setAttribute("aria-valuetext", percent(row[position]));
        grip.style.left = `${100 * Math.min(1, row[position])}%`;
      }
      move.refresh();
      const open = !head.hidden(own, key);
      for (const control of [input, less, more]) control.disabled = !open;
      if (ui.focused() !== input || !draft) input.value = fixed(100 * row[chosen()], 0);
      input.setAttribute("aria-label", `weight of ${named(head.columns[key].name)} for ${named(head.rows[own].name)}`);
      back.hidden = !setRow(store.state.edits, at.l, at.h, queryPosition());
    },
    /** @param {Told} next */
    update(next) {
      hand.update(next);
      settle();
      run = next.run ?? run;
    },
  };
}
