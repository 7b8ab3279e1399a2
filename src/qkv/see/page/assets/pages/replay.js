// The replay: one head in training, with a slider over the snapshots. The top of page/payload.py describes the
// payload.

import { LINES, raster } from "../base/colours.js";
import { choice, roving, stretcher } from "../base/controls.js";
import { el, fill, svg } from "../base/elements.js";
import { heatmap } from "../base/heatmap.js";
import { mounter } from "../base/mount.js";
import { count, named, number, roundEnds, visible } from "../base/format.js";
import { inTurn } from "../base/turns.js";
import { unpack } from "../base/arrays.js";
import "./replay.css";

/**
 * @typedef {object} Replay
 * @property {string} run
 * @property {string[]} tokens  (L)
 * @property {number[]} layers  the indices of the recorded layers in the model
 * @property {number} heads
 * @property {number[]} steps  of all snapshots
 * @property {number[]} shown  the snapshots with weights, as indices into `steps`
 * @property {{b64: string, bits: 16, per: number}} weights  (shown, layers, H, L, L): each weight times `per`
 * @property {{b64: string, bits: number, shape: number[]} | null} hidden  bits, 1 for masked cells
 * @property {{of: string, head: string, values: number[][], controls: number[][] | null}[]} scores  `values`: for each step, the scores of all heads
 * @property {number} score  the index in `scores` of the score that the sentence describes
 * @property {number} becomes
 * @property {string} control  describes the random tokens of `controls`
 * @property {[number, number][]} losses  a step and its loss
 * @property {(number | null)[]} logged  the loss at each of `steps`
 * @property {number[]} knots
 * @property {string[]} left_out
 */

/**
 * @typedef {{stroke?: string, "stroke-dasharray"?: string}} Look
 * @typedef {{points: [number, number][], name: string, look: Look, faint?: boolean, value: number}} Line  `value`: the number at the
 * current step
 * @typedef {{label: string, low: number, high: number, lines: Line[]}} Chart
 */

export const start = mounter((box, payload, ui) => {
  /** @type {Replay} */
  const { tokens, layers, heads: H, steps, shown, scores, losses, knots, ...data } = payload.replay;
  const [L, last, first] = [tokens.length, shown.length - 1, payload.start];
  const [packed, { per }] = [/** @type {Uint16Array} */ (unpack(data.weights)), data.weights];
  const bits = data.hidden && unpack(data.hidden);
  const dashes = ["", "8 4", "2 4", "10 3 2 3"];
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");
  const state = { at: last, l: layers.indexOf(first.layer), h: first.head, score: data.score };
  let timer = 0;

  // ---- the numbers

  /** @param {number} at @param {number} l @param {number} h @param {number} i @param {number} j */
  const indexOf = (at, l, h, i, j) => (((at * layers.length + l) * H + h) * L + i) * L + j;
  /** @param {number} at @param {number} l @param {number} h @param {number} i @param {number} j */
  const weight = (at, l, h, i, j) => packed[indexOf(at, l, h, i, j)] / per;
  /** @param {number} at @param {number} l @param {number} h */
  const cells = (at, l, h) => packed.subarray(indexOf(at, l, h, 0, 0), indexOf(at, l, h + 1, 0, 0));
  /** @param {number} l @param {number} h @param {number} i @param {number} j */
  function hides(l, h, i, j) {
    if (!bits) return false;
    const [a, b] = /** @type {NonNullable<Replay["hidden"]>} */ (data.hidden).shape; // if an axis has length 1, its only entry holds for all layers or heads
    const k = (((a > 1 ? l : 0) * b + (b > 1 ? h : 0)) * L + i) * L + j;
    return (bits[k >> 3] >> (7 - (k & 7))) & 1;
  }
  /** @param {number} score @param {number} l @param {number} h */
  const course = (score, l, h) => scores[score].values.map((row) => row[l * H + h]);
  const now = () => shown[state.at]; // an index in `steps`
  /** @param {number} l @param {number} h */
  const called = (l, h) => `layer ${layers[l]}, head ${h}`;
  /** @param {number} k */
  const step = (k) => `step ${count(steps[k])}`;
  /** @param {number} k */
  const line = (k) => ({ stroke: `var(--line-${k % LINES})`, "stroke-dasharray": dashes[k % dashes.length] });

  /** @param {number} x */
  const share = (x) => number(x < 0.005 ? 0 : x); // weights are written without powers of ten

  /**
   * The index of the score that rose most in this head. `choose` in analysis/snapshots.py uses the same rule.
   * @param {number} l
   * @param {number} h
   */
  function risen(l, h) {
    if (layers[l] === first.layer && h === first.head) return data.score;
    const rises = scores.map((_, k) => course(k, l, h).at(-1) - (steps.length > 1 ? course(k, l, h)[0] : 0));
    return rises.indexOf(Math.max(...rises));
  }

  /**
   * Describes how a head's score changes over the steps, in the same words as `in_words` in analysis/snapshots.py.
   * @param {number} l
   * @param {number} h
   */
  function words(l, h) {
    if (layers[l] === first.layer && h === first.head) return first.sentence;
    const { of, head, controls } = scores[risen(l, h)];
    const values = course(risen(l, h), l, h);
    const [a, b, where] = [values[0], values.at(-1), called(l, h)];
    if (steps.length < 2) return `In ${where}, the ${of} is ${share(b)} at ${step(0)}, the only snapshot.`;
    if (share(a) === share(b)) return `In ${where}, the ${of} stays at ${share(b)} from ${step(0)} to ${step(steps.length - 1)}.`;
    const parts = values.slice(1).map((value, k) => (value - values[k]) * (b > a ? 1 : -1));
    const most = parts.indexOf(Math.max(...parts));
    const part = parts.length > 1 ? `, with the largest change between steps ${count(steps[most])} and ${count(steps[most + 1])}` : "";
    const went = `${of} ${b > a ? "rises" : "falls"} from ${share(a)} at ${step(0)} to ${share(b)} at ${step(steps.length - 1)}${part}`;
    const [before, after] = controls?.map((values) => values[l * H + h]) ?? [];
    if (!(b > a && before < data.becomes && after >= data.becomes)) return `In ${where}, the ${went}.`;
    return `L${where.slice(1)} becomes ${head}: its ${went}. On ${data.control}, this weight rises from ${share(before)} to ${share(after)}.`;
  }

  // ---- charts over the steps

  /**
   * A chart of lines over the steps, with a mark at the current step; what() returns {label, low, high, lines}.
   * @param {() => Chart} what
   * @param {number} high_
   * @param {number} low_
   */
  function chart(what, high_, low_) {
    const node = el("div", { class: "replay-chart", onclick: (/** @type {MouseEvent} */ { clientX }) => x && near((k) => Math.abs(x(steps[k]) - clientX + node.getBoundingClientRect().left)) });
    /** @type {(step: number) => number} */
    let x; // the mapping from steps to pixels; set when the chart is drawn
    function draw() {
      const width = node.clientWidth;
      const tall = width < 420 ? low_ : high_;
      if (!width) return;
      const { label, low, high, lines } = what();
      const [left, right, top, bottom] = [44, width - 14, 10, tall - 24];
      const wide = (right - left) / Math.max(1, knots.length - 1);
      x = (value) => {
        const k = Math.max(0, Math.min(knots.length - 2, knots.findLastIndex((knot) => knot <= value)));
        return left + (k + (value - knots[k]) / (knots[k + 1] - knots[k] || 1)) * wide;
      };
      /** @param {number} value */
      const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
      /** @param {string} text @param {number} px @param {number} py @param {string} anchor */
      const words_ = (text, px, py, anchor) => svg("text", { x: px, y: py, "text-anchor": anchor }, text);
      const here = x(steps[now()]);
      const every = Math.ceil((8 * count(knots.at(-1)).length + 12) / wide); // label only every nth step, so that names do not overlap
      const names = knots.filter((_, k) => (knots.length - 1 - k) % every < 1);
      fill(node, svg("svg", { width, height: tall, viewBox: `0 0 ${width} ${tall}`, role: "img", "aria-label": label },
          [low, (low + high) / 2, high].map((value) => [
            svg("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "axis" }),
            words_(number(value, high - low < 0.2 ? 3 : 2), left - 6, y(value) + 4, "end"),
          ]),
          names.map((knot) => words_(count(knot), Math.min(x(knot), width - 4 * count(knot).length - 2), tall - 6, "middle")),
          svg("line", { x1: here, x2: here, y1: top - 6, y2: bottom + 4, class: "replay-now" }),
          lines.map(({ points, name, look, faint, value }) => [
            svg("polyline", { points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "), class: faint ? "faint" : "", ...look }, svg("title", {}, name)),
            faint ? null : svg("circle", { cx: here, cy: y(value), r: 5, style: { fill: look.stroke } }),
          ])));
    }
    return { node, draw };
  }

  /** @param {number[]} values @returns {[number, number][]} */
  const points = (values) => values.map((value, k) => [steps[k], value]);
  const own = chart(() => {
    const lines = scores.map(({ of }, k) => {
      const values = course(k, state.l, state.h);
      return { points: points(values), name: of, look: line(k), value: values[now()] };
    });
    const said = scores.map(({ of }, k) => `${of} ${share(lines[k].points[0][1])} at the start, ${share(lines[k].points.at(-1)[1])} at the end`);
    return { label: `Scores of ${called(state.l, state.h)}: ${said.join("; ")}`, low: 0, high: 1, lines };
  }, losses.length ? 250 : 380, 180);
  const every = chart(() => {
    const k = state.score;
    const all = layers.flatMap((_, l) => Array.from({ length: H }, (__, h) => ({ l, h, values: course(k, l, h) })));
    const chosen = all.findIndex(({ l, h }) => l === state.l && h === state.h);
    all.push(...all.splice(chosen, 1)); // the chosen line is drawn last, on top of the others
    const lines = all.map(({ l, h, values }) => ({ points: points(values), name: `${called(l, h)}: ${share(values[now()])}`, faint: l !== state.l || h !== state.h, look: l === state.l && h === state.h ? line(k) : {}, value: values[now()] }));
    const reach = all.filter(({ values }) => values.at(-1) >= data.becomes).length;
    return { label: `${scores[k].of} in each of ${all.length} heads; at the end, it is ${number(data.becomes, 1)} or more in ${reach}`, low: 0, high: 1, lines };
  }, 330, 220);
  const fall = chart(() => {
    const values = losses.map(([, value]) => value);
    return { label: `Loss: ${number(values[0])} at the start, ${number(values.at(-1))} at the end`, ...roundEnds(values), lines: [{ points: losses, name: "loss", look: { stroke: "var(--ink)" }, value: /** @type {number} */ (data.logged[now()]) }] };
  }, 170, 130);

  // ---- one head, and all heads

  const map = heatmap(ui, { label: "Weights", value: () => 0, cell: { max: 44 } });
  const stretched = stretcher(ui, payload.stretch, () => go(state.at));
  const legend = el("ul", { class: "replay-legend" });
  const lossNow = el("b");
  const [sentence, why] = [el("p", { class: "sentence" }), el("p", { class: "note" })];
  const [mapTitle, ownTitle] = [el("h3"), el("h3")];
  const grid = el("div", { class: "heads scroll", role: "listbox", "aria-label": "all heads" });
  const order = layers.flatMap((_, l) => Array.from({ length: H }, /** @returns {[number, number]} */ (__, h) => [l, h]));
  const wide = Math.min(H, 16);
  const pictures = inTurn();
  const move = roving(grid, { count: () => order.length, columns: wide, at: state.l * H + state.h, onpick: (i) => open(...order[i]) });
  fill(grid,
    order.map(([, h], i) => el("div", { class: "head", role: "option", "data-i": i }, el("span", { class: "thumb" }), el("span", { class: "head-name" }, `${layers[order[i][0]]} · ${h}`), el("b", { class: "head-name" }))));

  /** The upper end of the scale, which is the same at every step. */
  function high() {
    /** @param {number} k */
    const largest = (k) => cells(k, state.l, state.h).reduce((a, b) => Math.max(a, b));
    return (stretched.input.checked && Math.max(...shown.map((_, k) => largest(k))) / per) || 1;
  }

  function drawGrid() {
    const size = Math.round(Math.max(40, Math.min(84, (grid.clientWidth || 600) / wide - 8)));
    grid.style.setProperty("--wide", wide);
    grid.style.setProperty("--size", `${size}px`);
    order.forEach(([l, h], i) => {
      const value = scores[state.score].values[now()][l * H + h];
      const [node, text] = [grid.children[i], share(value)];
      node.setAttribute("aria-selected", String(l === state.l && h === state.h));
      node.setAttribute("aria-label", `${called(l, h)}: ${text}`);
      node.title = `${called(l, h)}: ${scores[state.score].of} ${text}`;
      fill(node.lastChild, text);
    });
    const end = high();
    pictures(
      order.map((head, i) => () => {
        const picture = raster(ui, cells(state.at, head[0], head[1]), L, L, (value) => (value / per) / end);
        fill(grid.children[i].firstChild, picture);
      }),
    );
  }

  /** @param {boolean} fresh */
  function drawMap(fresh) {
    const { l, h } = state;
    const [before, after] = [0, last].map((k) => cells(k, l, h));
    /** @param {number} k */
    const rise = (k) => after[k] - (last ? before[k] : 0);
    const best = after.reduce((top, _, k) => (rise(k) > rise(top) ? k : top), 0); // the cell whose weight rose most in the run
    /** @param {number} i @param {number} j */
    const value = (i, j) => (hides(l, h, i, j) ? NaN : weight(state.at, l, h, i, j));
    const home = [Math.floor(best / L), best % L];
    /** @param {number} i @param {number} j */
    const describe = (i, j) => ({
      title: `${named(tokens[i])} → ${named(tokens[j])}${hides(l, h, i, j) ? ": hidden by the mask" : ""}`,
      fields: hides(l, h, i, j) ? [] : [...new Set([0, state.at, last])].map((k) => [step(shown[k]), share(weight(k, l, h, i, j))]),
    });
    if (fresh) map.set({ label: `Weights of ${called(l, h)}`, rows: tokens, columns: tokens });
    map.set({ value, describe, home, high: high() });
  }

  // ---- moving

  const id = ui.id("step");
  const slider = el("input", { id, type: "range", "aria-label": "Training step", min: 0, max: last, step: 1, disabled: !last, oninput: () => (stop(), go(Number(slider.value))) });
  const there = el("span", { class: "replay-step" });
  const button = el("button", { type: "button", class: "replay-play", disabled: !last, onclick: () => (timer ? stop(true) : play()) });

  /** @param {number} at */
  function go(at, fresh = false) {
    state.at = Math.max(0, Math.min(last, at));
    const k = now();
    const best = risen(state.l, state.h);
    const lost = losses.length ? `, loss ${number(data.logged[k])}` : "";
    slider.value = state.at;
    slider.setAttribute("aria-valuetext", `${step(k)}${lost}, ${scores[best].of} ${share(course(best, state.l, state.h)[k])}`);
    fill(there, `${step(k)}`, el("span", { class: "dim" }, ` of ${count(steps.at(-1))}`));
    fill(mapTitle, `What each token attends to in ${called(state.l, state.h)}, at ${step(k)}`);
    fill(legend,
      scores.map(({ of }, s) => el("li", {}, svg("svg", { width: 28, height: 10, "aria-hidden": "true" }, svg("line", { x1: 0, x2: 28, y1: 5, y2: 5, ...line(s) })), `${of} `, el("b", {}, share(course(s, state.l, state.h)[k])))));
    if (losses.length) fill(lossNow, number(data.logged[k]));
    drawMap(fresh);
    draw();
  }

  function draw() {
    for (const each of [own, every, ...(losses.length ? [fall] : [])]) each.draw();
    drawGrid();
  }

  /**
   * Moves to the nearest snapshot.
   * @param {(k: number) => number} distance
   */
  function near(distance) {
    stop();
    const far = shown.map(distance);
    go(far.indexOf(Math.min(...far)));
  }

  /** @param {number} l @param {number} h */
  function open(l, h) {
    Object.assign(state, { l, h });
    move.at = l * H + h;
    const was = called(layers.indexOf(first.layer), first.head);
    const same = layers[l] === first.layer && h === first.head;
    fill(sentence, words(l, h));
    fill(why, same ? `L${was.slice(1)} is shown because ${first.chosen}.` : `You chose ${called(l, h)}. The page opened on ${was} because ${first.chosen}.`);
    fill(ownTitle, `Scores of ${called(l, h)} over the steps`);
    go(state.at, true);
    move.refresh();
    const [node, height] = [grid.children[move.at], grid.clientHeight];
    const down = node.offsetTop - grid.offsetTop - grid.scrollTop;
    if (down < 0 || down + node.offsetHeight > height) grid.scrollTop += down - height / 2;
  }

  function play() {
    if (state.at === last) go(0);
    timer = setInterval(() => {
      go(state.at + 1);
      if (state.at === last) stop(true);
    }, still.matches ? 1600 : 700);
    fill(button, "❚❚ Pause");
  }

  function stop(aloud = false) {
    clearInterval(timer);
    timer = 0;
    fill(button, "▶ Play");
    if (aloud) ui.say(slider.getAttribute("aria-valuetext"));
  }

  const menu = choice(ui, "Score", scores.map(({ of }, k) => [k, of]), state.score, (k) => {
    state.score = Number(k);
    go(state.at);
  });
  /** @param {KeyboardEvent} event */
  function turn({ key, target }) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (!by || target === slider) return; // the slider moves by itself
    stop();
    go(state.at + by);
  }

  fill(box, el("h2", { class: "title" }, data.run ? [el("bdi", {}, visible(data.run)), ": "] : null, el("bdi", {}, visible(payload.title))),
    sentence, why,
    el("div", { class: "bar replay-bar", role: "group", "aria-label": "training steps", onkeydown: turn }, button, el("label", { for: id }, "Training step"), slider, there),
    data.left_out.map((text) => el("p", { class: "note" }, text)),
    el("div", { class: "panels" },
      el("section", { class: "panel" }, mapTitle, map.node, stretched.node),
      el("section", { class: "panel" }, ownTitle, legend, own.node, losses.length ? [el("h3", {}, "Loss ", lossNow), fall.node] : null)),
    el("section", { class: "panel" },
      el("div", { class: "bar" }, el("h3", {}, `All heads: ${layers.length} × ${H}`), menu.node),
      el("p", { class: "note" }, "Each picture shows a head at this step, with its name (layer · head) and its score. Click a picture to open its head. In the chart, each head is a line."),
      el("div", { class: H > 8 ? "" : "panels replay-all" }, grid, every.node)));
  stop();
  open(state.l, state.h);
  ui.redraw(draw);
});
