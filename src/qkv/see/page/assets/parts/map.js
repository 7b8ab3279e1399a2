// The map of the model: a row for each layer, from the bottom up, and a small picture for each head, with a sign for its
// measured role. A switch below the map removes the chosen head. The pictures show one of three things: the head's pattern, the
// effect of its removal, or the effect of the reader's changes on its pattern. For a recorded text, the map shows
// patterns; if the heads were measured, the reader can sort the heads by a measure.

import { css, shade } from "../base/colours.js";
import { choice, roving, scaleBar } from "../base/controls.js";
import { el, fill } from "../base/elements.js";
import { named, number, percent, visible } from "../base/format.js";
import { guessName } from "../base/tokens.js";
import { inTurn } from "../base/turns.js";
import { editsOf } from "../engine/edits.js";
import { probabilitiesOf } from "../engine/sampling.js";
import { movedProbability, movedShare } from "../store/measures.js";
import { measured, rolesIn, signsOf, usually } from "../store/roles.js";
import { differenceOf, endOfScale, numberOf, seenIn, thumbnail } from "./sight.js";
import "./map.css";

/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Store} Store */
/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../engine/recorded.js").Text} Text */
/** @typedef {import("./sight.js").Seen} Seen */

/**
 * @typedef {[number, number, string]} OrderedHead  the indices of a layer and a head in the page, and the value of
 *     the measure for this head as a text
 * @typedef {{moved: number, word: string, from: number, to: number}} Effect  the effect of removing a head. `moved` is the
 *     probability that moves to other words. `word` is the likeliest word before the removal. `from` is its probability
 *     before the removal, and `to` is its probability after the removal
 * @typedef {{value: number | null, text: string, said: string}} Value  the value of a head in a colouring
 * @typedef {{layer: number, head: number, name: string, called: string, said: string, term: string, figure_: string,
 *            role: HTMLElement, thumb: HTMLElement, figure: HTMLElement, button: HTMLElement, node: HTMLElement}} Cell
 */

export const DENSE = 64; // the cells of a map with more heads are small
const COLOURINGS = [
  ["pattern", "pattern"],
  ["effect", "what removing it changes"],
  ["change", "difference from the original"],
];
/** @type {[string, number, string][]} */
const MEASURES = [
  ["entropy", 1, "entropy, most focused first"],
  ["previous", -1, "weight on the previous token"],
  ["next", -1, "weight on the next token"],
  ["first", -1, "weight on the first token"],
  ["separators", -1, "weight on separators"],
  ["distance", -1, "mean distance, farthest first"],
];

/**
 * Returns the model's heads, ordered by a measure of their weights in a text. Each head is [layer, head, value of the
 * measure]. `wide` is the number of heads in each row of the map. If `order` is not a measure, the last layer comes first.
 * @param {Text} text
 * @param {string} order
 * @returns {{all: OrderedHead[], wide: number}}
 */
function headsInOrder({ layers, heads, measures }, order) {
  const all = layers.flatMap((_, l) => Array.from({ length: heads }, /** @returns {OrderedHead} */ (__, h) => [layers.length - 1 - l, h, ""]));
  const [, sign] = MEASURES.find(([name]) => name === order && measures?.[name]) ?? [];
  if (!sign) return { all, wide: heads };
  /** @param {OrderedHead} ordered */
  const value = ([l, h]) => /** @type {Record<string, number[][]>} */ (measures)[order][l][h];
  /** @param {OrderedHead} head */
  const rank = (head) => value(head) ?? 1e9 * sign; // heads for which the measure has no number come last
  /** @param {number | null} x */
  const short = (x) => number(x !== null && x < 0.005 ? 0 : x); // a number below 0.005 becomes 0, because 4.0e−3 is too wide
  all.sort((a, b) => a[0] - b[0] || a[1] - b[1]).sort((a, b) => sign * (rank(a) - rank(b)));
  return { all: all.map((head) => [head[0], head[1], short(value(head))]), wide: Math.min(heads, 16) };
}

// ---- removing and restoring heads

/** @param {Edit[]} edits @param {number} layer @param {number} head */
export function isRemoved(edits, layer, head) {
  return edits.length > 0 && editsOf(edits, "ablate").some((edit) => edit.layer === layer && (edit.head ?? head) === head);
}

/**
 * Returns edits in which a head is switched on or off.
 * @param {Edit[]} edits
 * @param {number} layer
 * @param {number} head
 * @param {number} heads
 * @param {boolean} on
 * @returns {Edit[]}
 */
function withHead(edits, layer, head, heads, on) {
  if (!on) return [...edits, { op: "ablate", layer, head }];
  const others = Array.from({ length: heads }, (_, h) => ({ op: "ablate", layer, head: h })).filter((edit) => edit.head !== head);
  return edits.flatMap((edit) => {
    if (edit.op !== "ablate" || edit.layer !== layer) return [edit];
    if (edit.head === undefined) return others;
    return edit.head === head ? [] : [edit];
  });
}

// ---- the effect of removing each head

/**
 * Runs the model without each head, one head after another, and calls `heard` after each run.
 * @param {Store} store
 * @param {() => void} heard
 */
function effects(store, heard) {
  /** @type {[string, Record<string, Effect>, AbortController | null]} */
  let [key, byHead, going] = ["", {}, null];
  const stop = () => {
    going?.abort(new Error("superseded"));
    going = null;
  };
  /** @param {Now} now */
  function want(now) {
    const { state, run, model, busy } = now;
    if (busy) stop();
    if (busy || !run || state.position === null) return;
    const next = JSON.stringify([state.text, state.edits, state.position]);
    if (next === key && (going || Object.keys(byHead).length === model.layers * model.heads)) return;
    stop();
    if (next !== key) byHead = {};
    [key, going] = [next, new AbortController()];
    const mine = going;
    const before = probabilitiesOf(run.logits);
    const best = before.indexOf(before.reduce((most, x) => Math.max(most, x), 0));
    /** @param {{layer: number, head: number, logits: Float32Array}} part */
    const part = ({ layer, head, logits }) => {
      if (mine !== going) return;
      const after = probabilitiesOf(logits);
      byHead[`${layer}.${head}`] = { moved: movedProbability(before, after), word: model.words ? guessName(model.words, best) : "", from: before[best], to: after[best] };
      heard();
    };
    const end = () => {
      if (mine === going) going = null;
      heard();
    };
    /** @type {Api} */ (store.engine).sweep(state.text, state.edits, part, { at: [state.position], signal: mine.signal }).then(end, end);
  }
  return { want, stop, of: (/** @type {string} */ name) => byHead[name], all: () => Object.values(byHead), busy: () => Boolean(going) };
}

// ---- the part

/**
 * The map of the model.
 * @param {Ui} ui
 * @param {Store} store
 */
export function mapPart(ui, store) {
  const grid = el("div", { class: "model-map scroll", role: "group", "aria-label": "heads of the model, the last layer first" });
  const key = el("div", { class: "map-key" });
  const measure = el("p", { class: "note" });
  const chosen = el("p", {});
  const power = el("button", { type: "button", class: "power", role: "switch", onclick: () => flip() }, el("span", { class: "power-word" }));
  const legend = el("ul", { class: "role-list", "aria-label": "what heads usually do" });
  const colouring = choice(ui, "Colour", COLOURINGS, "pattern", (value) => store.set({ colouring: value }));
  const order = choice(ui, "Order", [], "position", (value) => {
    sorted = value;
    update(now);
  });
  const live = !store.recorded;
  const heading = el("h3", {});
  const node = el("div", { class: "model", "data-part": "map" },
    el("div", { class: "bar" }, heading, live ? colouring.node : order.node), live ? el("div", { class: "chosen" }, chosen, power) : measure, grid, key, live ? [legend, measure] : null);
  const pictures = inTurn();
  const sweep = live ? effects(store, () => now && show()) : null;
  /** @type {Record<string, [string, number]>} */
  const roles = store.data?.roles ?? {};
  const usual = Object.keys(roles).length ? "mixed" : "not known"; // "mixed": the head was measured and has no role
  const signs = signsOf(roles);
  /** @type {Now} */
  let now; // `now` and the variable below are undefined before the first run
  /** @type {Seen} */
  let seen;
  /** @type {[Cell[], string, string, string]} */
  let [cells, shape, painted, scale] = [[], "", "", ""];
  let [sorted, wide, revealed] = ["position", 1, ""];
  const move = roving(grid, {
    count: () => cells.length,
    columns: () => wide,
    onpick: (i) => store.set({ layer: cells[i].layer, head: cells[i].head }),
  });
  ui.redraw(() => {
    painted = scale = "";
    if (now) show();
  });

  /**
   * Makes a cell for each head of a text. If the reader has chosen a measure, the measure gives the order of the cells.
   * Otherwise, the last layer is on top.
   * @param {Text} text
   */
  function build(text) {
    const inOrder = headsInOrder(text, sorted);
    const placed = !inOrder.all[0][2];
    wide = inOrder.wide;
    grid.style.setProperty("--wide", wide);
    grid.classList.toggle("sorted", !placed);
    grid.classList.toggle("dense", live && inOrder.all.length > DENSE);
    cells = inOrder.all.map(([layer, head, figure], i) => cellOf(text, layer, head, figure, i));
    const nodes = cells.map((cell) => cell.node);
    /** @param {number} l */
    const named = (l) => el("span", { class: "layer-name", "aria-hidden": "true" }, el("span", { class: "layer-word" }, "layer "), String(text.layers[l]));
    fill(grid, placed ? text.layers.map((_, r) => [named(text.layers.length - 1 - r), nodes.slice(r * wide, (r + 1) * wide)]) : nodes);
    fill(heading, live ? "The map of the model" : `All heads: ${text.layers.length} × ${text.heads}`);
    const measured = MEASURES.filter(([name]) => text.measures?.[name]).map(([name, , said]) => [name, said]);
    order.put([["position", "layer, then head"], ...measured]);
    order.set(placed ? "position" : sorted);
    move.at = 0;
    const rest = inOrder.all.length - Object.keys(roles).length;
    /** @param {string} sign @param {string} said @param {number} count */
    const row = (sign, said, count) => el("li", {}, el("b", {}, sign), ` ${said}: ${count} ${count === 1 ? "head" : "heads"}`);
    fill(legend, [...signs].map(([role, { sign, count }]) => row(sign, usually(role), count)), rest ? row("·", usual, rest) : null);
  }

  /** @param {Text} text @param {number} layer @param {number} head @param {string} figure_ @param {number} i @returns {Cell} */
  function cellOf(text, layer, head, figure_, i) {
    const name = `${text.layers[layer]}.${head}`;
    const thumb = el("span", { class: "thumb" });
    const figure = el("b", { class: "figure" }, figure_);
    const role = el("span", {});
    const asked = store.data?.start?.heads?.includes(head);
    const button = el("button", { type: "button", class: `cell-head${asked ? " asked" : ""}`, "data-i": i, "data-head": name },
      thumb, el("span", { class: "cell-words" }, el("span", { class: "cell-name" }, name), role, figure));
    return { layer, head, name, called: live ? `head ${name}` : `layer ${text.layers[layer]}, head ${head}`, said: figure_, term: "", figure_, role, thumb, figure, button, node: el("div", { class: "cell" }, button) };
  }

  /** Scrolls the chosen head into view if the map is a box that scrolls. */
  function reveal() {
    const { layer, head, text } = now.state;
    const key = JSON.stringify([text, layer, head, shape]);
    if (key === revealed || !grid.clientHeight) return;
    revealed = key;
    const own = /** @type {Cell} */ (cells.find((cell) => cell.layer === layer && cell.head === head));
    const { offsetTop, offsetLeft, offsetHeight, offsetWidth } = own.node;
    /** @param {number} at @param {number} size @param {number} from @param {number} extent */
    const near = (at, size, from, extent) => Math.max(at + size - extent, Math.min(at, from));
    grid.scrollTop = near(offsetTop - grid.offsetTop - 4, offsetHeight + 8, grid.scrollTop, grid.clientHeight);
    grid.scrollLeft = near(offsetLeft - grid.offsetLeft - 4, offsetWidth + 8, grid.scrollLeft, grid.clientWidth);
  }

  /** Removes the chosen head, or puts it back. */
  function flip() {
    const { state: { edits, layer, head }, model } = now;
    store.set({ edits: withHead(edits, layer, head, model.heads, isRemoved(edits, layer, head)) });
  }

  /**
   * The value of a head in the current colouring, and its description.
   * @param {Cell} cell
   * @returns {Value}
   */
  function valueOf(cell) {
    const { state, run, original } = now;
    if (!live) return { value: null, text: cell.figure_, said: "" };
    const removed = isRemoved(state.edits, cell.layer, cell.head);
    if (state.colouring === "change") {
      const far = movedShare(original.pattern[cell.layer][cell.head], run.pattern[cell.layer][cell.head]);
      return { value: far, text: percent(far), said: `its weights differ by ${percent(far)}` };
    }
    const effect = state.colouring === "effect" && !removed ? sweep?.of(cell.name) : null;
    if (!effect) return { value: null, text: "", said: "" };
    const { moved, word: first, from, to } = effect;
    return { value: moved, text: percent(moved), said: `removing it moves ${percent(moved)} of the probability; ${visible(first)} ${percent(from)} → ${percent(to)}` };
  }

  /** The description of the current colouring and its unit. */
  function explained() {
    const { state, run } = now;
    const told = state.view === "story"; // the story has no switches, and no region of one head
    const opens = !told && (!state.only || state.only.includes("head")) ? " Choose one to open it." : "";
    if (state.colouring === "pattern")
      return `Each square is a head: rows are queries, columns are keys.${opens}${live && !told ? " The switch removes the chosen head; the sign says what a head usually does." : ""}`;
    if (state.colouring === "change")
      return state.edits.length
        ? "Weights now minus weights before: blue for more, red for less. The number is the share of a row's weight that moved (the sum of its decreases), averaged over all rows."
        : "No changes yet, so nothing differs.";
    if (state.position === null) return "No word is chosen: choose one in the sentence.";
    const done = sweep?.all().length;
    const wait = sweep?.busy() ? ` ${done} of ${now.model.layers * now.model.heads} measured.` : "";
    return `The number is the share of the probability at ${named(run.tokens[state.position])} that would move to other words without this head (total variation distance).${wait}`;
  }

  function show() {
    const { state, model } = now;
    const values = cells.map(valueOf);
    const high = state.colouring === "pattern" ? endOfScale(seen, state) : Math.max(1e-9, ...values.map(({ value }) => value ?? 0));
    const here = rolesIn(roles, now, store.data?.little?.words ?? []);
    cells.forEach((cell, i) => {
      const { said, text } = values[i];
      const role = here[cell.name];
      cell.term = role ? measured(role) : "";
      cell.said = cell.figure_ || (role ? usually(role[0]) : roles[cell.name] || !live ? "" : usual);
      cell.button.title = [`head ${cell.name}`, cell.term || cell.said].filter(Boolean).join(": ");
      cell.role.className = role ? "role" : "role dim";
      fill(cell.role, live ? signs.get(roles[cell.name]?.[0])?.sign ?? "·" : "");
      const removed = isRemoved(state.edits, cell.layer, cell.head);
      const own = state.edits.some((edit) => edit.op !== "ablate" && edit.layer === cell.layer && (edit.head ?? cell.head) === cell.head);
      const now_ = state.layer === cell.layer && state.head === cell.head;
      cell.node.classList.toggle("removed", removed);
      cell.node.classList.toggle("edited", own);
      cell.button.setAttribute("aria-pressed", String(now_));
      cell.button.setAttribute("aria-label", [cell.called, cell.said, said, removed && "removed", own && "changed"].filter(Boolean).join(", "));
      fill(cell.figure, text);
      cell.figure.hidden = !text;
      if (now_ && !grid.contains(ui.focused())) move.at = i;
      if (now_ && live) {
        power.classList.toggle("off", removed);
        power.setAttribute("aria-label", `use head ${cell.name}`);
        power.setAttribute("aria-checked", String(!removed));
        fill(power.firstChild, removed ? "off" : "on");
        const [own_] = roles[cell.name] ?? [];
        const usually_ = cell.term ? `${cell.said} (${cell.term})` : own_ ? `${usually(own_)}, but not in this sentence` : cell.said;
        fill(chosen, el("b", {}, `Head ${cell.name}`), ": ", [usually_, said].filter(Boolean).join("; "), removed ? " (removed)." : ".");
      }
    });
    move.refresh();
    colouring.set(state.colouring);
    fill(measure, explained());
    paint(values, high);
    reveal();
    const names = { pattern: state.mode === "length" ? "contribution" : "weight", effect: "probability that moves", change: "difference of weights" };
    const ends = state.colouring === "change" ? [-1, 1] : [0, high];
    const said = JSON.stringify([ends, state.colouring, model.name]);
    if (said !== scale) fill(key, scaleBar(ui, ends[0], ends[1], names[state.colouring], live ? percent : undefined));
    scale = said;
  }

  /**
   * Draws the small pictures, unless they are already up to date.
   * @param {Value[]} values
   * @param {number} high
   */
  function paint(values, high) {
    const { state, original } = now;
    const size = Math.round((cells[0]?.thumb.clientWidth || 64) * Math.min(2, window.devicePixelRatio || 1));
    const plain = state.colouring === "effect";
    const which = plain ? "effect" : `${state.colouring} ${numberOf(seen)} ${numberOf(original)} ${size} ${high}`;
    if (plain)
      cells.forEach(({ thumb, figure }, i) => {
        const colour = shade(ui, (values[i].value ?? 0) / high);
        fill(thumb);
        thumb.style.background = css(colour);
        thumb.dataset.value = /** @type {string} */ (figure.textContent);
      });
    else if (which !== painted) {
      const from = state.colouring === "change" ? differenceOf(seen, seenIn(original, [], state)) : seen;
      const end = state.colouring === "change" ? 1 : high;
      pictures(
        cells.map(({ thumb, layer, head }) => () => {
          thumb.style.background = "";
          fill(thumb, thumbnail(ui, { seen: from, high: end }, { l: layer, h: head }, size));
        }),
      );
    }
    if (plain && painted !== which) pictures([]);
    painted = which;
  }

  /** @param {Told} next */
  function update(next) {
    if (!next.run) return;
    now = next;
    const { state, run } = now;
    seen = seenIn(run, state.edits, state);
    const { text } = seen.source;
    const made = JSON.stringify([text.name, text.layers, text.heads, sorted]);
    if (made !== shape) {
      build(text);
      shape = made;
      painted = "";
    }
    if (!state.inside || state.colouring !== "effect") sweep?.stop();
    if (!state.inside) return;
    if (state.colouring === "effect") sweep?.want(now);
    show();
  }
  return { node, update, effects: sweep?.of };
}
