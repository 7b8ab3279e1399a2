// Steps and their numbers. A diagram of the block lets the reader choose a step. Beside the diagram, the part shows the title, formula,
// line of NumPy and matrix of the chosen step. If the reader points at a number of the matrix, the part shows how this number is computed.
// The steps come from a recorded walk or from a run on this page.

import { stretcher, toggle } from "../base/controls.js";
import { el, fill } from "../base/elements.js";
import { heatmap } from "../base/heatmap.js";
import { fixed, named, number, visible } from "../base/format.js";
import { inTurn } from "../base/turns.js";
import { blockPart, lengthIn } from "./block.js";
import { productBars, shareBars, sumBars } from "./bars.js";
import { inSum, powers, sumsOf } from "./sums.js";
import "./steps.css";

/** @typedef {import("./block.js").Flow} Flow */
/** @typedef {import("./block.js").FlowStep} FlowStep */
/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("./sums.js").Held} Held */
/** @typedef {[number, number]} Cell */

/**
 * The part with the steps of a flow.
 * @param {Ui} ui
 * @param {{stretch?: boolean, onpick?: (step: FlowStep, row: number) => void}} options  `onpick`: called when a cell is chosen
 */
export function stepsView(ui, { stretch = false, onpick: heard } = {}) {
  /** @type {Map<string, Cell>} */
  const picks = new Map(); // maps the name of a step to the cell whose sum is shown
  /** @type {Flow} */
  let flow; // `flow` and `sums` are undefined until the part receives its first flow
  /** @type {ReturnType<typeof sumsOf>} */
  let sums;
  /** @type {[number, number, string[], Record<string, number> | null]} */
  let [at, token, keys, before] = [0, 0, [], null];
  /** @type {Cell | null} */
  let pointed = null; // the cell under the pointer

  const drawn = inTurn();

  const step = () => flow.steps[at];
  /** @param {string} name @param {number} i @param {number} j */
  const value = (name, i, j) => /** @type {Held} */ (flow.array(name)).get(i, j);
  /** @param {number} x */
  const apart = (x) => (Number.isFinite(x) ? x.toExponential(1) : number(x));
  /** @type {(one: FlowStep) => string[]} */
  const names = ({ side }) => {
    if (side === "position") return [flow.tokens[flow.start[0]]];
    return side === "keys" ? keys : flow.tokens;
  };
  /** @param {FlowStep} one */
  const held = (one) => (one.side === "position" ? null : one.side === "keys" ? flow.key_rows : flow.rows);
  /** @param {FlowStep} one */
  const rowsOf = (one) => held(one) || names(one).map((_, i) => i);
  /** @param {FlowStep} one */
  const columnsOf = (one) => (one.shown ? one.shown.at : Array.from({ length: flow.array(one.name).shape.at(-1) }, (_, j) => j));
  const isLast = () => at === flow.steps.length - 1;
  const isOwn = () => at === flow.own_step;
  /** @param {FlowStep} one */
  const first = (one) => (one.side === "position" ? 0 : flow.start[one.side === "keys" && flow.keys ? 1 : 0]);
  /** @type {(one: FlowStep) => Cell} */
  const start = (one) => one.cell || [first(one), one.columns ? flow.start[1] : columnsOf(one)[0]];
  /** @param {FlowStep} one */
  const pickOf = (one) => picks.get(one.name) || start(one);

  const id = ui.id("walk");
  const block = blockPart(ui, { onshow: (k) => show(k), panel: id });
  // if the block is below the step, a click on a node scrolls up to the step
  block.node.addEventListener("click", () => way.getBoundingClientRect().bottom < 0 && way.scrollIntoView());
  /** @param {number} by */
  const go = (by) => () => by && block.go(at + by);
  /** @param {KeyboardEvent} event */
  const turn = ({ key }) => (go(/** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1 })[key] || 0)());
  const [back, next] = /** @type {[string, number][]} */ ([["◀ Back", -1], ["Next ▶", 1]]).map(([text, by]) => el("button", { type: "button", onclick: go(by) }, text));
  const [title, note, end, mapTitle] = ["h3", "p", "p", "h4"].map((tag) => el(tag, { class: /** @type {Record<string, string>} */ ({ p: "note" })[tag] }));
  const [formula, code] = [el("dd", { class: "formula" }), el("dd", { class: "code" })];
  const written = toggle(ui, "Numbers in the cells", true, () => draw());
  const stretched = stretcher(ui, stretch, () => draw());
  const bars = sumBars(ui, { writes: false });
  /** @param {number | null} k @param {number} j */
  const onpoint = (k, j) => {
    pointed = k === null ? null : [rowsOf(step())[k], columnsOf(step())[j]];
    for (const each of isOwn() ? [map, own] : []) each.point(k, j);
    drawBars();
  };
  /** @param {number} k @param {number} j */
  const onpick = (k, j) => {
    picks.set(step().name, [rowsOf(step())[k], columnsOf(step())[j]]);
    for (const each of [map, own]) each.set({ picked: [k, j], home: [k, j] });
    drawBars();
    if (heard) return heard(step(), rowsOf(step())[k]);
    if (step().side === "queries") token = rowsOf(step())[k];
    tell();
  };
  const [map, own] = ["Result", "The model's own"].map((label) => heatmap(ui, { label, value: () => 0, onpoint, onpick }));
  const ownTitle = el("h4", {});
  const ownPanel = el("div", { class: "panel", hidden: true }, ownTitle, own.node);
  /** @type {HTMLElement[]} */
  const boxes = [map, own].map((each) => each.node.querySelector(".map"));
  boxes.forEach((one, k) => one.addEventListener("scroll", () => isOwn() && boxes[1 - k].scrollTo(one.scrollLeft, one.scrollTop)));
  const panels = el("div", {}, el("div", { class: "panel" }, mapTitle, map.node, bars.node), ownPanel);
  const lines = el("dl", { class: "walk-lines" }, el("dt", {}, "Formula"), formula, el("dt", {}, "NumPy"), code);
  const panel = el("div", { id, role: "tabpanel", class: "walk-panel" }, title, lines, note, end, el("div", { class: "bar" }, written.node, stretched.node), panels);
  const way = el("div", { class: "walk-way", onkeydown: turn }, back, next);
  const node = el("div", { class: "steps-view" }, block.node, el("div", { class: "steps-panel" }, way, panel));

  /**
   * The terms of a step's number as bars; null if the number is not a sum.
   * @param {FlowStep} one
   * @param {number} i
   * @param {number} j
   */
  function behind(one, i, j) {
    const { op, name } = one;
    const label = `what ${name} is made of`;
    /** @param {string} matrix @param {string} cell */
    const of = (matrix, cell) => `${matrix}[${cell}]`;
    const query = named(names(one)[i]);
    if (op.kind === "softmax") {
      const along = columnsOf(one);
      /** @param {Float64Array} row */
      const few = (row) => along.map((k) => row[k]);
      const row = /** @type {Held} */ (flow.array(op.of)).row(i);
      const parts = { scores: few(row), raised: few(powers(row)[1]), shares: along.map((k) => value(name, i, k)) };
      return shareBars(label, { ...parts, names: one.columns ? keys : /** @type {NonNullable<FlowStep["shown"]>} */ (one.shown).names, at: along.indexOf(j), of: op.of, name });
    }
    const sum = sums.products(op, i, j);
    return sum && productBars(label, sum, of(op.left, query), of(op.right, op.flip ? named(keys[j]) : `:, ${j}`));
  }

  /**
   * The contents of the heat map for a step: the step's own result, or the model's numbers.
   * @param {FlowStep} one
   * @param {string} name  of the array
   */
  function matrix(one, name) {
    const rows = rowsOf(one);
    const shownColumns = columnsOf(one);
    /** @param {number} i @param {number} j */
    const get = (i, j) => /** @type {Held} */ (flow.array(name)).get(i, shownColumns[j]);
    const wide = shownColumns.length;
    const columns = one.columns ? keys : one.shown ? one.shown.names : shownColumns.map(String);
    const sizes = rows.flatMap((i) => columns.map((_, j) => get(i, j))).filter(Number.isFinite).sort((a, b) => a - b);
    const [least, most] = sizes.length ? [sizes[0], sizes.at(-1)] : [0, 1];
    const size = Math.max(-least, most);
    // in a trained vector, a few numbers are far larger than all others; a colour scale up to the largest would make the others look equal
    const trim = Math.floor(sizes.length / (wide > 100 ? 200 : Infinity));
    const full = one.weights ? (stretched.input.checked ? most : 1) : Math.max(-sizes[trim], /** @type {number} */ (sizes.at(-1 - trim)));
    const high = full || 1;
    /** @param {number} k @param {number} j */
    const hidden = (k, j) => one.weights && one.op.of === "masked" && value("masked", rows[k], j) === -Infinity;
    /** @param {number} x */
    const text = (x) => (size < 0.01 ? inSum(x) : fixed(x, size < 100 ? 3 : 1));
    /** @param {number} k @param {number} j */
    const cellName = (k, j) => `${one.name}[${visible(names(one)[rows[k]])}, ${visible(columns[j])}]`;
    /** @type {Cell} */
    const home = [Math.max(0, rows.indexOf(pickOf(one)[0])), shownColumns.indexOf(pickOf(one)[1])];
    return {
      label: name === "own" ? `The model's own ${flow.own}` : `${one.name}, ${one.title}`,
      rows: rows.map((i) => names(one)[i]),
      columns,
      low: least < 0 ? -high : 0, // 0 is in the middle of the scale
      high,
      value: (/** @type {number} */ k, /** @type {number} */ j) => (hidden(k, j) || get(rows[k], j) === -Infinity ? NaN : get(rows[k], j)),
      text: written.input.checked ? (/** @type {number} */ k, /** @type {number} */ j) => (hidden(k, j) || get(rows[k], j) === -Infinity ? "" : text(get(rows[k], j))) : null,
      cell: written.input.checked ? { min: 58, max: 96, height: 26 } : {},
      /** @param {number} k @param {number} j */
      describe(k, j) {
        const x = get(rows[k], j);
        const how = name === "own" ? "" : sums.spell(one.op, rows[k], shownColumns[j]);
        const fields = how ? [["=", how]] : [];
        const same = name === "own" ? value(one.name, rows[k], shownColumns[j]) : x;
        if (name === "own") fields.push(["recomputed", inSum(same)], ["difference", apart(Math.abs(x - same))]);
        const where = cellName(k, j);
        return { title: `${name === "own" ? where.replace(one.name, /** @type {string} */ (flow.own)) : where} = ${inSum(x)}`, fields };
      },
      picked: home,
      home,
      bar: name === "own" ? flow.own : size > high ? `${name} (the largest is ${inSum(size)})` : name,
    };
  }

  function drawBars() {
    bars.set(behind(step(), ...(pointed || pickOf(step()))));
  }

  /** The jobs that draw the step. */
  function drawings() {
    const both = isOwn() ? [() => own.set(matrix(step(), "own"))] : [];
    return [() => map.set(matrix(step(), step().name)), ...both, drawBars];
  }

  function draw() {
    drawn(drawings());
  }

  /** Writes the texts of the step. */
  function tell() {
    const one = step();
    block.set(flow, token, at, before);
    panel.setAttribute("aria-labelledby", block.idOf(at));
    fill(title, `${at + 1}. ${one.title} `, el("span", { class: "dim" }, one.shape));
    fill(formula, one.formula);
    fill(code, one.code);
    const few = held(one) && `shown: the ${/** @type {number[]} */ (held(one)).length} of ${names(one).length} rows with the largest weights`;
    const length = lengthIn(flow, one, token);
    const long = length === null ? "" : `the vector of ${named(names(one)[one.side === "position" ? 0 : one.side === "keys" && flow.keys ? flow.start[1] : token])} has length ${number(length)}`;
    fill(note, /** @type {string[]} */ ([one.note, few, long].filter(Boolean)).map((text) => `${text[0].toUpperCase()}${text.slice(1)}. `));
    if (flow.own) fill(end, `${flow.said && `${flow.said} `}The largest difference between the recomputed numbers and the model's own is ${apart(/** @type {number} */ (flow.difference))}.`);
    stretched.node.hidden = !one.weights;
    end.hidden = !flow.own || (!isLast() && !isOwn());
    end.className = "lead";
    ownPanel.hidden = !isOwn();
    fill(ownTitle, isOwn() ? `The model's own ${flow.own}` : "");
    panels.className = isOwn() ? "walk-pair" : "";
    fill(mapTitle, isOwn() ? "Recomputed" : one.name);
    back.setAttribute("aria-disabled", String(!at));
    next.setAttribute("aria-disabled", String(isLast()));
  }

  /**
   * Shows a step.
   * @param {number} k
   */
  function show(k) {
    [at, pointed] = [k, null];
    const one = step();
    written.input.checked = !one.columns || keys.length <= 24;
    return drawn([tell, ...drawings(), intoSight]);
  }

  /** Scrolls to the cell whose sum is shown. */
  function intoSight() {
    const one = step();
    const [i, j] = pickOf(one);
    /** @param {number} position @param {number} count_ @param {number} whole @param {number} part */
    const middle = (position, count_, whole, part) => ((position + 0.5) / count_) * whole - part / 2;
    const [rows, columns] = [rowsOf(one), columnsOf(one)];
    for (const each of boxes) {
      each.scrollLeft = middle(columns.indexOf(j), columns.length, each.scrollWidth, each.clientWidth);
      each.scrollTop = middle(rows.indexOf(i), rows.length, each.scrollHeight, each.clientHeight);
    }
  }

  return {
    node,
    /**
     * Shows a step of a flow, with the vectors of a token. If no step has this name, the first step is shown. If `name` is omitted, the
     * current step stays.
     * @param {Flow} next
     * @param {{name?: string, of?: number, was?: Record<string, number> | null}} options  `was`: see block.js
     */
    set(next, { name, of, was: unchanged = null } = {}) {
      const was = name ?? flow?.steps[at].name;
      [flow, before] = [next, unchanged];
      const array = /** @type {(name: string) => Held} */ (next.array);
      [token, keys, sums, pointed] = [of ?? next.start[0], next.keys || next.tokens, sumsOf(array), null];
      const same = next.steps.findIndex((one) => one.name === was);
      return show(same < 0 ? 0 : same);
    },
  };
}
