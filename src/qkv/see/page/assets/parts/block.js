// The data flow of a layer: a node for each step, and ribbons between the nodes. The width of a ribbon
// shows the length of one token's vector at this step. On the left is the residual stream, to which the parts of the
// layer add. steps.js shows the results of a node; the top of page/payload.py describes a step.

import { roving } from "../base/controls.js";
import { el, fill, svg, word } from "../base/elements.js";
import { number } from "../base/format.js";
import "./block.css";

/** @typedef {import("./sums.js").Numbers} Numbers */
/** @typedef {import("../base/mount.js").Ui} Ui */

/**
 * A step of a flow.
 * @typedef {object} FlowStep
 * @property {string} title
 * @property {string} formula
 * @property {string} shape
 * @property {string} code
 * @property {string} name  of its array
 * @property {string} note
 * @property {"queries" | "keys" | "position"} side  the meaning of the rows
 * @property {"keys" | null} columns  the meaning of the columns; null: components of vectors
 * @property {{at: number[], names: string[]} | null} shown  the shown columns
 * @property {boolean} weights
 * @property {[number, number] | null} cell  the cell whose sum the page shows first
 * @property {any} op  how a number is computed (parts/sums.js); `op.from` has the steps that lead to a given array
 * @property {ArrayLike<number> | null} lengths  the lengths of the rows, if the rows are vectors
 * @property {boolean} [changed]  whether the reader changed this step
 * @property {string[]} [reads]  the names of the steps that this step reads, if the diagram leaves out intermediate steps
 * @property {string} [sign]  the sign beside the name; by default the sign of the step's operation
 */

/**
 * The steps of one head and of its layer, recorded or computed in the page.
 * @typedef {object} Flow
 * @property {number} layer
 * @property {number} head
 * @property {string[]} tokens
 * @property {string[] | null} keys null: the same as the tokens
 * @property {number[] | null} rows  the positions of the queries in the page; null: all
 * @property {number[] | null} key_rows
 * @property {number[]} start  the position of a query and the position of a key. In a matrix of queries and keys, the page
 *     first shows how the number at these two positions is computed
 * @property {FlowStep[]} steps
 * @property {(name: string) => Numbers} array
 * @property {string} [own]  the trace's name for the array "own". This array holds the model's own numbers for one
 *     step; the page compares the step with these numbers
 * @property {number} [own_step]
 * @property {number} [difference]  the largest difference of all steps
 * @property {string} [said]  a sentence with the likeliest word
 */

const LINE = 44; // the distance between lines of nodes, in pixels
const WIDEST = 34; // the largest width of a ribbon
const FAR = 6; // a ribbon may go around the nodes in between if it leads down by more than this number of lines
const THIN = 2; // the fixed width of a ribbon for numbers such as logits; the widths of other ribbons show the lengths of vectors
const OTHER_NUMBERS = ["pre", "act", "up", "post", "raw", "logits", "probs"];
const BESIDE = ["P", "C", "K", "V"]; // nodes on the same line as the preceding node
/** @type {Record<string, string>} */
const PARTS = { out: "attention", A: "attention", mlp: "the MLP", M: "the MLP" }; // maps an added array to the part that computes it
/** @type {Record<string, string>} */
const SIGNS = { given: "", row: "row", wave: "wave", sum: "+", norm: "norm", rotated: "", masked: "", softmax: "softmax", capped: "cap", times: "×" };

/**
 * The positions of the steps that are drawn as a block: {lane, line}. Lane 0 is the residual stream.
 * @param {FlowStep[]} steps
 */
function positionsInBlock(steps) {
  let line = -1;
  return steps.map(({ name }) => {
    if (!BESIDE.includes(name)) line += 1;
    return { lane: laneOf(name), line };
  });
}

/** @param {string} name */
function laneOf(name) {
  if (/^Q(_|$)/.test(name)) return 1;
  if (/^K(_|$)/.test(name)) return 2;
  if (/^V$/.test(name)) return 3;
  if (name === "C" || name === "up") return 2.5;
  if (["P", "scores", "scaled", "capped", "masked", "weights", "yours", "act"].includes(name)) return 1.5;
  if (["N", "N2", "A", "M", "context", "instead", "joined", "out", "pre", "post", "mlp"].includes(name)) return 2;
  return 0;
}

/**
 * The indices of the steps that a step reads.
 * @param {FlowStep[]} steps
 * @param {number} k
 * @returns {number[]}
 */
function readIn(steps, k) {
  const { op, name, reads } = steps[k];
  /** @type {Map<string, any>} */
  const known = new Map(steps.slice(0, k).map((step, i) => [step.name, i]));
  if (reads) return reads.map((one) => known.get(one));
  const asked = [op.of, op.left, op.right, ...(op.from ?? []), ...(op.kind === "sum" ? op.terms : [])];
  const sources = asked.filter((one) => known.has(one)).map((one) => known.get(one));
  if (sources.length || ["E", "P", "X", "C", "instead"].includes(name) || op.kind === "wave") return sources;
  if (/^[QKV]$/.test(name)) return [known.get("N") ?? known.get("X")].filter((one) => one !== undefined);
  if (/_rotated$/.test(name)) return [known.get(name[0])];
  return k ? [k - 1] : [];
}

/**
 * Reduces a flow to the residual stream: its sums, and the inputs and outputs of each part.
 * @param {Flow} flow
 * @returns {Flow}
 */
export function streamOf(flow) {
  const { steps } = flow;
  const first = Math.max(0, steps.findIndex(({ name }) => name === "X"));
  const kept = steps.map(({ name }, k) => k >= first && (!laneOf(name) || /^N2?$/.test(name) || Boolean(PARTS[name])));
  /** @type {(k: number) => string[]} */
  const read = (k) => readIn(steps, k).flatMap((i) => (kept[i] ? [steps[i].name] : read(i)));
  const left = steps.map((step, k) => ({ ...step, reads: [...new Set(read(k))], sign: PARTS[step.name] }));
  return { ...flow, steps: left.filter((_, k) => kept[k]) };
}

/**
 * A sign for the operation of a step.
 * @param {FlowStep} step
 */
function signOf({ op, sign }) {
  if (sign) return sign;
  if (op.kind === "product") return `·${op.right}${op.flip ? "ᵀ" : ""}`;
  if (op.kind === "scaled") return op.by.replace("/", "÷").replace("*", "×");
  if (op.kind === "activation") return op.name.split("_")[0];
  if (op.kind === "joined") return "heads";
  return SIGNS[op.kind];
}

/**
 * The index of a token's row in a step. If each row belongs to a key of another text, no row belongs to the token. In
 * this case, the function returns the index of the row that belongs to the key `flow.start[1]`.
 * @param {Flow} flow
 * @param {FlowStep} step
 * @param {number} token
 */
function rowIn(flow, step, token) {
  if (step.side === "position") return 0;
  const [held, position] = step.side === "keys" ? [flow.key_rows, flow.keys ? flow.start[1] : token] : [flow.rows, token];
  return held ? held.indexOf(position) : position;
}

/**
 * The length of a token's vector at a step; null if the token has no vector there.
 * @param {Flow} flow
 * @param {FlowStep} step
 * @param {number} token
 * @returns {number | null}
 */
export function lengthIn(flow, step, token) {
  const length = step.lengths?.[rowIn(flow, step, token)];
  return Number.isFinite(length) ? /** @type {number} */ (length) : null;
}

/**
 * Returns a text about the residual stream if this step adds a part to it; otherwise an empty text.
 * @param {Flow} flow
 * @param {number} k
 * @param {number} token
 * @param {Record<string, number> | null} before  in a run without the reader's changes, the lengths of the vectors that
 *     the layer adds to the residual stream, by name
 */
function streamWords(flow, k, token, before) {
  const step = flow.steps[k];
  const length = lengthIn(flow, step, token);
  if (laneOf(step.name) || length === null || ["E", ...OTHER_NUMBERS].includes(step.name)) return "";
  // the name of the array that the step adds; empty if the step adds two arrays at once
  const adds = step.op.kind === "sum" && step.op.terms.length === 2 ? step.op.terms[1] : "";
  const part = PARTS[adds];
  if (!part) return `length ${number(length, 1)}`;
  const long = number(lengthIn(flow, /** @type {FlowStep} */ (flow.steps.find(({ name }) => name === adds)), token), 1);
  const was = number(before?.[adds], 1);
  return `length ${number(length, 1)}: ${part} ${before && was !== long ? `${was} →` : "added"} ${long}`;
}

/**
 * The outline of a ribbon from (x0, y0) down to (x1, y1) with the given widths at both ends.
 * @param {number} x0
 * @param {number} y0
 * @param {number} wide0
 * @param {number} x1
 * @param {number} y1
 * @param {number} wide1
 */
function ribbonPath(x0, y0, wide0, x1, y1, wide1) {
  /** @type {string[][]} */
  const [left, right] = [[], []];
  for (let part = 0; part <= 1; part += 1 / 24) {
    const along = part * part * (3 - 2 * part); // so that the ribbon is vertical at both ends
    const [x, y] = [x0 + (x1 - x0) * along, y0 + (y1 - y0) * part];
    const [dx, dy] = [(x1 - x0) * 6 * part * (1 - part), y1 - y0];
    const half = (wide0 + (wide1 - wide0) * along) / 2 / Math.hypot(dx, dy);
    left.push(`${(x - dy * half).toFixed(2)} ${(y + dx * half).toFixed(2)}`);
    right.unshift(`${(x + dy * half).toFixed(2)} ${(y - dx * half).toFixed(2)}`);
  }
  return `M ${[...left, ...right].join(" L ")} Z`;
}

/**
 * The outline of a ribbon that goes around the nodes between its start and its end. Halfway, the ribbon runs vertically at `x`.
 * @param {number} x0
 * @param {number} y0
 * @param {number} wide0
 * @param {number} x1
 * @param {number} y1
 * @param {number} wide1
 * @param {number} x
 */
function ribbonAround(x0, y0, wide0, x1, y1, wide1, x) {
  const [from, to] = [y0 + 0.7 * LINE, y1 - 1.5 * LINE];
  return [ribbonPath(x0, y0, wide0, x, from, wide0), ribbonPath(x, from, wide0, x, to, wide0), ribbonPath(x, to, wide0, x1, y1, wide1)].join(" ");
}

/**
 * Whether a direct ribbon would be hidden behind the nodes of the attention. In a parallel block, for example, the
 * ribbon from the attention's input to the MLP would be hidden.
 * @param {{lane: number, line: number}} from
 * @param {{lane: number, line: number}} to
 */
function isAround(from, to) {
  return to.lane === 2 && from.lane !== 3 && to.line - from.line > FAR;
}

/**
 * The block. Its nodes are tabs that show their steps.
 * @param {Ui} ui
 * @param {{onshow: (k: number) => void, panel: string}} options  the panel that the tabs control
 */
export function blockPart(ui, { onshow, panel }) {
  const id = ui.id("step");
  const list = el("div", { class: "block-nodes", role: "tablist", "aria-label": "Steps", "aria-orientation": "vertical" });
  const picture = svg("svg", { class: "block-flow", "aria-hidden": "true" });
  const words = el("p", { class: "note" });
  const body = el("div", { class: "block-body" }, picture, list);
  const node = el("div", { class: "block" }, words, body);
  /** @type {Flow} */
  let flow; // undefined before the first update
  /** @type {[number, string, Record<string, number> | null]} */
  let [token, made, before] = [0, "", null];
  const tabs = roving(list, {
    count: () => flow.steps.length,
    onmove(k) {
      onshow(k);
      ui.say(`Step ${k + 1} of ${flow.steps.length}: ${flow.steps[k].title}`);
    },
    onpick: (k) => tabs.go(k),
  });
  ui.redraw(draw);

  /** Makes a new button for each step if the contents of the buttons have changed since the last call. */
  function build() {
    const { steps } = flow;
    const wanted = JSON.stringify(steps.map((step) => [step.name, step.title, signOf(step), step.changed]));
    if (wanted === made) return;
    made = wanted;
    const held = list.contains(ui.focused());
    fill(list, steps.map((step, k) =>
      el("button", {
        type: "button", role: "tab", id: `${id}-${k}`, "data-i": k, "aria-controls": panel, tabindex: -1,
        "aria-label": `${k + 1} ${step.name}: ${step.title}`, class: step.changed ? "changed" : "",
      }, el("span", { class: "block-name", "data-sign": signOf(step) }, el("span", { class: "walk-count" }, String(k + 1)), ` ${step.name}`))));
    if (held) list.children[Math.min(tabs.at, steps.length - 1)].focus();
  }

  function draw() {
    const width = Math.min(460, node.clientWidth);
    if (!flow || !width) return;
    const { steps } = flow;
    const positions = positionsInBlock(steps);
    const [stream, first] = width < 400 ? [60, 122] : [68, 162]; // the positions of lanes 0 and 1
    const pitch = Math.min(96, (width - first - 44) / 2);
    const at = positions.map(({ lane, line }) => [lane ? first + (lane - 1) * pitch : stream, LINE * (line + 0.5)]);
    const height = LINE * (positions.at(-1).line + 1);
    const lengths = steps.map((step) => (OTHER_NUMBERS.includes(step.name) ? null : lengthIn(flow, step, token)));
    const scale = WIDEST / Math.max(1e-9, .../** @type {number[]} */ (lengths));
    const wide = lengths.map((length) => (length === null ? THIN : length && Math.max(1, length * scale)));
    for (const [k, button] of [...list.children].entries()) Object.assign(button.style, { left: `${at[k][0]}px`, top: `${at[k][1]}px` });
    body.style.height = `${height}px`;
    for (const attributes of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) picture.setAttribute(...attributes);
    const ribbons = steps.map((step, k) => {
      const read = readIn(steps, k);
      const [stays, sum] = [["sum", "norm", "joined", "given", "row"].includes(step.op.kind), step.op.kind === "sum"];
      let left = at[k][0] - (sum ? wide[read[0]] / 2 : 0); // the ribbons of the terms of a sum lie side by side
      return read.map((i) => {
        const end = sum ? left + wide[i] / 2 : left;
        left += sum ? wide[i] : 0;
        const kind = lengths[i] === null ? "numbers" : positions[i].lane || positions[k].lane ? "branch" : "stream";
        const last = stays && lengths[i] !== null ? wide[i] : wide[k];
        const about = { class: `ribbon ${kind}`, "data-from": steps[i].name, "data-to": step.name, "data-wide": wide[i].toFixed(3) };
        /** @type {[number, number, number, number, number, number]} */
        const ends = [at[i][0], at[i][1] + 8, wide[i], end, at[k][1] - 8, last];
        const around = isAround(positions[i], positions[k]);
        return svg("path", { ...about, d: around ? ribbonAround(...ends, (3 * stream + 2 * first) / 5) : ribbonPath(...ends) });
      });
    });
    const said = steps.map((_, k) => svg("text", { x: stream + 66, y: at[k][1] + 4, class: "block-words" }, streamWords(flow, k, token, before)));
    fill(picture, ribbons, others(at, scale), said);
  }

  /**
   * Draws the ribbons from the other heads to the node that joins all heads.
   * @param {number[][]} at  the position of each step's node
   * @param {number} scale
   */
  function others(at, scale) {
    const k = flow.steps.findIndex(({ op }) => op.kind === "joined");
    const joined = k >= 0 ? flow.array(flow.steps[k].name) : null;
    if (!joined?.row) return [];
    const [row, size, [x, y]] = [joined.row(token), flow.steps[k].op.width, at[k]];
    let left = x + 74;
    return Array.from({ length: row.length / size }, (_, h) => {
      if (h === flow.head) return null;
      const across = Math.max(1, Math.hypot(...row.slice(h * size, (h + 1) * size)) * scale);
      if (!Number.isFinite(across)) return null;
      left += across + 3;
      return svg("path", { class: "ribbon other", "data-head": h, d: ribbonPath(left - across / 2, y - LINE + 8, across, x + 34, y - 8, across) });
    });
  }

  return {
    node,
    /** @param {number} k */
    idOf: (k) => `${id}-${k}`,
    /** @param {number} k */
    go: (k) => tabs.go(k, false),
    /**
     * Shows a flow with the vectors of one token.
     * @param {Flow} next
     * @param {number} of
     * @param {number} at  the shown step
     * @param {Record<string, number> | null} was  in a run without the reader's changes, the lengths of the vectors that
     *     the layer adds to the residual stream, by name
     */
    set(next, of, at, was = null) {
      [flow, token, before] = [next, of, was];
      build();
      for (const tab of list.children) tab.setAttribute("aria-selected", String(Number(tab.dataset.i) === at));
      tabs.at = at;
      tabs.refresh();
      const thin = flow.steps.some(({ reads }) => reads) ? "" : "; thin lines carry other numbers, such as scores";
      fill(words, "A ribbon's width shows the length of the vector of ", word(flow.tokens[token]), ` at each step${thin}. On the left is the residual stream, to which each part adds.`);
      draw();
    },
  };
}
