// Controls to paint the mask. A stroke on the heat map hides or shows the links that it passes.
// With buttons, the reader selects a single link, and hides or shows this link.

import { choice, toggle } from "../base/controls.js";
import { el, fill, word } from "../base/elements.js";
import { count, named } from "../base/format.js";
import { range } from "../base/arrays.js";
import { isFor, setRow } from "../engine/edits.js";
import { oneAtATime } from "./one_at_a_time.js";

/** @typedef {import("../base/heatmap.js").HeatMap} HeatMap */
/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../store/store.js").Store} Store */
/** @typedef {import("./sight.js").At} At */
/** @typedef {import("./sight.js").Head} Head */
/** @typedef {[number, number]} Pair  a query and a key, or a row and a column */
/** @typedef {"head" | "layer" | "all"} Scope */

const SCOPES = [
  ["head", "in this head"],
  ["layer", "in all heads of this layer"],
  ["all", "in every head"],
];

/**
 * All edits of the kind "mask" that hide a key from a query in a head.
 * @param {Edit[]} edits
 * @param {number} query
 * @param {number} key
 * @param {number} layer
 * @param {number} head
 */
function masksOf(edits, query, key, layer, head) {
  return edits.filter((edit) => edit.op === "mask" && edit.query === query && edit.key === key && isFor(edit, layer, head));
}

/**
 * A mask of one link. The mask applies to one head, to all heads of a layer, or to all heads of the model.
 * @param {Scope} scope
 * @param {number} query
 * @param {number} key
 * @param {number} layer
 * @param {number} head
 * @returns {Edit}
 */
function maskFor(scope, query, key, layer, head) {
  const where = { head: { layer, head }, layer: { layer }, all: {} };
  return { op: "mask", query, key, ...where[scope] };
}

/**
 * All pairs of a token of row `r` and a token of column `c`: [[query, key], ...].
 * @param {Head} head
 * @param {number} r
 * @param {number} c
 * @returns {Pair[]}
 */
function pairsOf(head, r, c) {
  const [from, to] = [head.rows[r], head.columns[c]];
  return range(from.first, from.last).flatMap(/** @returns {Pair[]} */ (query) => range(to.first, to.last).map((key) => [query, key]));
}

/**
 * The cells on the way from one cell to another, including the last.
 * @param {Pair} from
 * @param {Pair} to
 * @returns {Pair[]}
 */
function cellsBetween([i, j], [r, c]) {
  const steps = Math.max(Math.abs(r - i), Math.abs(c - j));
  return range(1, steps + 1).map((k) => [Math.round(i + ((r - i) * k) / steps), Math.round(j + ((c - j) * k) / steps)]);
}

/** @typedef {{base: Edit[], hides: boolean, cells: Map<string, Pair>, last: Pair | null}} Stroke */

/**
 * The controls that paint the mask of one head.
 * @param {Ui} ui
 * @param {Store} store
 * @param {(which: "query" | "key", by: number) => void} step  moves to another query or key
 */
export function paintBar(ui, store, step) {
  const on = toggle(ui, "paint: drag over cells to hide them", false, () => map.node.classList.toggle("painting", on.input.checked));
  /** @type {Scope} */
  let where = "head";
  const scope = choice(ui, "Hide", SCOPES, where, (value) => (where = value));
  const button = el("button", { type: "button", class: "hide-link", onclick: () => flip(told.own, told.key) });
  const note = el("span", { class: "note", role: "status" });
  /** @param {"query" | "key"} name @param {string} label */
  const stepper = (name, label) => {
    const word_ = el("span", { class: "step-word" });
    /** @param {number} by @param {string} sign */
    const arrow = (by, sign) => el("button", { type: "button", "aria-label": `${by < 0 ? "previous" : "next"} ${name}`, onclick: () => step(name, by) }, sign);
    return { word: word_, node: el("span", { class: "stepper", role: "group", "aria-label": label }, el("span", { class: "dim" }, label), arrow(-1, "‹"), word_, arrow(1, "›")) };
  };
  const [query, key] = [stepper("query", "Query"), stepper("key", "Key")];
  const node = el("div", { class: "bar paint" }, on.node, scope.node, query.node, key.node, button, note);
  const hand = oneAtATime(store);
  /** @type {HeatMap} */
  let map; // undefined before the heat map exists
  /** @type {{head: Head, at: At, own: number, key: number}} */
  let told; // undefined before the first update
  /** @type {Stroke | null} */
  let stroke = null; // base: the edits before the stroke; hides: whether it hides links; cells: maps "row column" to the cell; last: the current cell
  // whether `begin` has handled the last press of the pointer; if so, the click event after this press paints nothing
  let painted = false;

  /**
   * The reason why a link cannot be hidden or shown; "" if it can.
   * @param {number} r
   * @param {number} c
   */
  function refused(r, c) {
    const { head, at, own } = told;
    const pairs = pairsOf(head, r, c);
    const name = `${named(head.rows[r].name)} → ${named(head.columns[c].name)}`;
    const { edits } = store.state;
    if (pairs.some(([i, j]) => masksOf(edits, i, j, at.l, at.h).length)) return "";
    if (head.hidden(r, c)) return `${name} is hidden by ${head.changed(r, c) ? "another change: undo that change" : "the model itself"}.`;
    if (where === "head" && pairs.some(([position]) => setRow(edits, at.l, at.h, position)))
      return `The weights of ${named(head.rows[r].name)} are set by hand here, so masks have no effect: reset these weights first.`;
    return own === null ? "There are no tokens." : "";
  }

  /**
   * Returns edits that hide these links, or show them again.
   * @param {Edit[]} edits
   * @param {Pair[]} cells
   * @param {boolean} hides
   */
  function withLinks(edits, cells, hides) {
    const { head, at } = told;
    const pairs = cells.flatMap(([r, c]) => pairsOf(head, r, c));
    /** @param {Pair} pair */
    const own = ([query, key]) => masksOf(edits, query, key, at.l, at.h);
    const gone = new Set(pairs.flatMap(own));
    if (!hides) return edits.filter((edit) => !gone.has(edit));
    return [...edits, ...pairs.filter((pair) => !own(pair).length).map(([query, key]) => maskFor(where, query, key, at.l, at.h))];
  }

  /** @param {number} r @param {number} c */
  const isMasked = (r, c) =>
    pairsOf(told.head, r, c).every(([query_, key_]) => masksOf(store.state.edits, query_, key_, told.at.l, told.at.h).length);

  /**
   * Hides a link, or shows it again.
   * @param {number} r
   * @param {number} c
   */
  function flip(r, c) {
    const why = refused(r, c);
    fill(note, why);
    if (why) return;
    const hides = !isMasked(r, c);
    ui.say(`${named(told.head.rows[r].name)} → ${named(told.head.columns[c].name)} is ${hides ? "hidden" : "open"}`);
    store.set({ edits: withLinks(store.state.edits, [[r, c]], hides) });
  }

  /**
   * The link under the pointer; null if the pointer is in the additional column (the weight on other keys).
   * @param {PointerEvent} event
   */
  function cellUnder(event) {
    const cell = map.under(event);
    return cell && cell[1] < told.head.columns.length ? cell : null;
  }

  /** @param {any} event */
  function begin(event) {
    painted = false;
    if (!on.input.checked || !told || event.button) return;
    const cell = cellUnder(event);
    if (!cell) return;
    painted = true;
    const why = refused(...cell);
    fill(note, why);
    if (why) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    stroke = { base: store.state.edits, hides: !isMasked(...cell), cells: new Map(), last: null };
    pass(stroke, cell);
  }

  /**
   * Continues the stroke to a cell, over the cells on the way.
   * @param {Stroke} stroke
   * @param {Pair} cell
   */
  function pass(stroke, cell) {
    const first = !stroke.cells.size;
    const fresh = (stroke.last ? cellsBetween(stroke.last, cell) : [cell]).filter((one) => !stroke.cells.has(one.join(" ")) && !refused(...one));
    stroke.last = cell;
    if (!fresh.length) return;
    for (const one of fresh) stroke.cells.set(one.join(" "), one);
    hand.send({ edits: withLinks(stroke.base, [...stroke.cells.values()], stroke.hides) }, first);
    map.draw();
  }

  /** @param {PointerEvent} event */
  function move(event) {
    if (!stroke) return;
    const cell = cellUnder(event);
    if (!cell) stroke.last = null;
    else if (cell.join(" ") !== stroke.last?.join(" ")) pass(stroke, cell);
  }

  function end() {
    if (!stroke) return;
    const [{ size }, { hides }] = [stroke.cells, stroke];
    ui.say(`${count(size)} ${size > 1 ? "links are" : "link is"} ${hides ? "hidden" : "open"}`);
    stroke = null;
  }

  /**
   * Whether the current stroke hides this cell. (The model may not have computed the change yet.)
   * @param {number} r
   * @param {number} c
   */
  const passes = (r, c) => Boolean(stroke?.hides && stroke.cells.has(`${r} ${c}`));

  return {
    node,
    /**
     * Sets the heat map to paint on.
     * @param {HeatMap} own
     */
    over(own) {
      map = own;
      const box = map.node.querySelector(".map");
      box.addEventListener("pointerdown", begin);
      box.addEventListener("pointermove", move);
      for (const name of ["pointerup", "pointercancel"]) box.addEventListener(name, end);
    },
    /**
     * Paints a cell that the reader picks, unless the pointer has already painted it. Returns false if painting is switched off.
     * @param {number} r
     * @param {number} c
     */
    takes(r, c) {
      if (!on.input.checked) return false;
      if (!painted) flip(r, c);
      painted = false;
      return true;
    },
    /** Switches painting off. */
    lift: () => on.input.checked && on.input.click(),
    /** @param {number} r @param {number} c */
    changed: (r, c) => passes(r, c) || told.head.changed(r, c),
    /**
     * A weight as the map draws it: NaN for a cell that the stroke hides.
     * @param {number} r
     * @param {number} c
     */
    weight: (r, c) => (passes(r, c) ? NaN : told.head.at(r, c)),
    /** @param {{head: Head, at: At, own: number, key: number}} next */
    set(next) {
      told = next;
      const { head, own, key: to } = next;
      if (!head.rows.length) return;
      fill(query.word, word(head.rows[own].name));
      fill(key.word, word(head.columns[to].name));
      const masked = isMasked(own, to);
      fill(button, masked ? "Show this link" : "Hide this link");
      button.classList.toggle("changed", masked);
    },
    update: hand.update,
  };
}
