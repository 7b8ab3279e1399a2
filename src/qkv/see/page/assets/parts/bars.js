// The panel for one cell: it shows how a number is computed as a sum of products. Each product is a bar, upwards if it
// is positive and downwards if it is negative, with its two factors above it. The bar under the pointer is named, and
// its two factors are marked everywhere on the page. `Sum` is the result of sums.js.

import { canvas2d, css, hatch, shade } from "../base/colours.js";
import { foldedTable } from "../base/controls.js";
import { el, fill } from "../base/elements.js";
import { cut, named, number, roundEnds } from "../base/format.js";
import { inSum, termsOf, total } from "./sums.js";
import "./bars.css";

/** @typedef {import("./sums.js").Sum} Sum */
/** @typedef {import("../base/mount.js").Ui} Ui */

const BARS = 96; // the height of the chart of bars, in pixels

/**
 * The contents of a chart of bars.
 * @typedef {object} Bars
 * @property {string} label  the name of the sum
 * @property {[string, ArrayLike<number>, number?][]} rows the factors of each bar, as strips above the bars. Each
 * item holds a strip's name, its numbers, and the upper end of its colour scale (by default, the largest number)
 * @property {string} name  of the bars
 * @property {number[]} values  the length of each bar
 * @property {number | null} high  the upper end of the scale; if it is null, the scale ends at the largest number
 * @property {number | null} at  the index of the main bar
 * @property {(k: number) => string} called  names a bar
 * @property {(k: number) => string} tell describes a bar
 * @property {string} all describes all bars
 * @property {[string, number | null][]} spelled  the terms of the sum, as texts, each with the index of its bar; null if the
 * term has no bar
 * @property {number | null} whole  the sum of the bars
 */

/**
 * Converts a sum of products to bars.
 * @param {string} label
 * @param {Sum} sum
 * @param {string} left  the name of the left factor of each product
 * @param {string} right
 * @returns {Bars}
 */
export function productBars(label, sum, left, right) {
  const { indices, count: all, whole } = sum;
  const values = sum.left.map((x, k) => x * sum.right[k]);
  const sides = [1, -1].map((sign) => total(values.filter((x) => x * sign > 0)));
  const few = all > values.length ? `${values.length} of ${all} products` : `${all} products`;
  return {
    label,
    rows: [[left, sum.left], [right, sum.right]],
    name: "products",
    values,
    high: null,
    at: null,
    called: (k) => `number ${indices[k]}`,
    tell: (k) => `number ${indices[k]}: ${inSum(sum.left[k])} × ${inSum(sum.right[k])} = ${inSum(values[k])}`,
    all: `${few}; their sum is ${inSum(sides[0])} above the line and ${inSum(sides[1])} below it`,
    spelled: termsOf(sum, sum.bias !== 0),
    whole,
  };
}

/**
 * Converts a row of scores and their softmax to bars. In `row`, `shares` holds the results of the softmax, `of` is the
 * displayed name of the scores, and `name` is the displayed name of the shares.
 * @param {string} label
 * @param {{scores: ArrayLike<number>, raised: ArrayLike<number>, shares: number[], names: string[], at: number,
 * of: string, name: string}} row
 * @returns {Bars}
 */
export function shareBars(label, { scores, raised, shares, names, at, of, name }) {
  /** @param {number} k */
  const called = (k) => named(names[k]);
  return {
    label,
    rows: [[of, scores], ["exp", raised]],
    name,
    values: shares,
    high: 1,
    at,
    called,
    tell: (k) => (scores[k] === -Infinity ? `${called(k)}: hidden` : `${called(k)}: ${of} ${inSum(scores[k])}, exp ${inSum(raised[k])}, ${name} ${inSum(shares[k])}`),
    all: `exp(number − largest number), and its share of the sum`,
    spelled: [],
    whole: null,
  };
}

/**
 * A chart of bars. The reader, or another part of the page, can point at a bar, by pointer or by arrow keys.
 * @param {Ui} ui
 * @param {{onpoint?: (k: number | null) => void, writes?: boolean, after?: HTMLElement}} options `onpoint`:
 * called with the bar under the pointer; `writes`: whether the sum is written out; `after`: an element after the sum
 */
export function sumBars(ui, { onpoint, writes = true, after } = {}) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const chart = el("div", { class: "sum-chart", role: "slider", tabindex: 0, "aria-valuemin": 1, onkeydown: step }, canvas);
  const said = el("p", { class: "sum-said" });
  const written = el("p", { class: "sum-written" });
  const table = foldedTable("The bars as a table", "table of the bars");
  const node = el("div", { class: "sum" }, chart, said, written, after, table.node);
  /** @type {Bars} */
  let shown; // undefined before the first update
  /** @type {number | null} */
  let pointed = null; // the bar under the pointer
  let layout = { left: 0, wide: 1 };

  /** @param {MouseEvent} event */
  const under = ({ clientX }) => {
    const k = Math.floor((clientX - canvas.getBoundingClientRect().left - layout.left) / layout.wide);
    return k >= 0 && k < shown.values.length ? k : null;
  };
  chart.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => event.pointerType === "touch" || point(under(event)));
  chart.addEventListener("click", (/** @type {MouseEvent} */ event) => point(under(event)));
  chart.addEventListener("pointerleave", () => ui.focused() === chart || point(null));
  chart.addEventListener("blur", () => point(null));
  ui.redraw(draw);

  /** @param {KeyboardEvent} event */
  function step(event) {
    if (event.altKey || event.metaKey || event.ctrlKey) return;
    const last = shown.values.length - 1;
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
    const to = { Home: 0, End: last }[event.key];
    if (event.key === "Escape") point(null);
    else if (to !== undefined) point(to);
    else if (by) point(pointed === null ? longest() : Math.max(0, Math.min(last, pointed + by)));
    else return;
    event.preventDefault();
  }

  /** The first bar that an arrow key selects: the main bar if there is one, otherwise the longest bar. */
  function longest() {
    const { values, at } = shown;
    return at ?? values.reduce((best, x, k) => (Math.abs(x) > Math.abs(values[best]) ? k : best), 0);
  }

  /**
   * Points at a bar, or at no bar.
   * @param {number | null} k
   */
  function point(k) {
    if (k === pointed || !shown || (k !== null && !(k < shown.values.length))) return;
    pointed = k;
    tell();
    draw();
    onpoint?.(k);
  }

  function tell() {
    const { tell: of, all, spelled, values, label } = shown;
    const words = pointed === null ? all : of(pointed);
    fill(said, words);
    chart.setAttribute("aria-label", `${label}, ${values.length} bars; move with the arrow keys`);
    chart.setAttribute("aria-valuemax", String(values.length));
    chart.setAttribute("aria-valuenow", String((pointed ?? longest()) + 1));
    chart.setAttribute("aria-valuetext", words);
    for (const term of written.children)
      term.classList.toggle("on", pointed !== null && /** @type {HTMLElement} */ (term).dataset.bar === String(pointed));
    written.hidden = !writes || !spelled.length;
  }

  function write() {
    const { spelled, whole } = shown;
    /** @param {[string, number | null]} term @param {number} n */
    const term = ([text, k], n) => [
      n ? " + " : "",
      el("span", { "data-bar": k, onpointerenter: k === null ? null : () => point(k), onpointerleave: () => point(null) }, text),
    ];
    fill(written, spelled.map(term), whole === null ? null : ` = ${inSum(whole)}`);
  }

  function draw() {
    const width = node.clientWidth;
    if (!shown || !width) return;
    const { rows, values, at } = shown;
    const size = 0.8 * parseFloat(getComputedStyle(node).fontSize); // the size of the text, which grows with the window
    const over = Math.round(size) + 2; // the height of a strip of numbers above the bars
    const pen = canvas2d(canvas, width, rows.length * over + 6 + BARS);
    const left = Math.min(Math.round(9.7 * size), Math.floor(width * 0.27));
    const wide = Math.min(40, (width - left - 2) / values.length);
    const gap = wide > 4 ? 1 : 0;
    layout = { left, wide };
    [pen.textBaseline, pen.font, pen.fillStyle] = ["middle", `${size}px ${ui.color("--font")}`, ui.color("--ink")];
    const stripes = hatch(ui, pen);
    rows.forEach(([called, numbers, end], line) => {
      const finite = Array.from(numbers).filter(Number.isFinite);
      const most = end ?? (finite.reduce((best, x) => Math.max(best, Math.abs(x)), 0) || 1);
      pen.fillStyle = ui.color("--ink");
      pen.fillText(cut(called, 18), 0, line * over + over / 2, left - 6);
      Array.from(numbers).forEach((x, k) => {
        pen.fillStyle = Number.isFinite(x) ? css(shade(ui, x / most)) : stripes;
        pen.fillRect(left + k * wide, line * over, Math.max(0.5, wide - gap), over - 1);
      });
    });
    drawBars(pen, { left, wide, gap, size, top: rows.length * over + 3 });
    const mark = pointed ?? at;
    if (mark === null) return;
    [pen.lineWidth, pen.strokeStyle] = [2, ui.color("--ink")];
    const outline = Math.max(wide, 5);
    pen.strokeRect(left + (mark + 0.5) * wide - outline / 2 - 1, 1, outline + 1, rows.length * over + 4 + BARS);
  }

  /** @param {CanvasRenderingContext2D} pen @param {{left: number, wide: number, gap: number, size: number, top: number}} layout */
  function drawBars(pen, { left, wide, gap, size, top }) {
    const { values, name } = shown;
    const ends = values.filter(Number.isFinite);
    const { low, high } = roundEnds([0, ...(shown.high ? [shown.high] : ends)]);
    const scale = BARS / (high - low || 1);
    const zero = top + high * scale;
    chart.dataset.bars = [left, wide, zero, scale].join(" ");
    values.forEach((x, k) => {
      pen.fillStyle = css(shade(ui, x < 0 ? -0.7 : 0.7));
      pen.fillRect(left + k * wide, Math.min(zero, zero - x * scale), Math.max(0.5, wide - gap), Math.abs(x) * scale);
    });
    pen.fillStyle = ui.color("--dim");
    pen.fillRect(left, zero - 0.5, values.length * wide, 1);
    pen.textAlign = "right";
    if (high) pen.fillText(number(high), left - 6, top + size / 2, left - 6);
    if (low) pen.fillText(number(low), left - 6, top + BARS - size / 2, left - 6);
    pen.textAlign = "left";
    pen.fillStyle = ui.color("--ink");
    pen.fillText(name, 0, top + BARS / 2, left - 6);
  }

  return {
    node,
    point,
    /**
     * Shows bars; null hides the chart.
     * @param {Bars | null} bars
     */
    set(bars) {
      node.hidden = !bars;
      const many = shown?.values.length;
      shown = /** @type {Bars} */ (bars);
      if (!bars) return;
      if (bars.values.length !== many) pointed = null;
      write();
      tell();
      draw();
      const { label, rows, name, values, called } = bars;
      /** @param {number} x @param {number} k */
      const line = (x, k) => [called(k), ...rows.map(([, numbers]) => inSum(numbers[k])), inSum(x)];
      table.set(() => ({ caption: label, columns: [...rows.map(([what]) => what), name], rows: values.map(line) }));
    },
  };
}
