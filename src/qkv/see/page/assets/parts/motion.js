// An animation of the chosen query's row. The keys slide under the query, and the bars of the products fold together
// into scores. The scores become weights, and each value shrinks until its height is proportional to its weight.
// Finally, the values are added up. With a slider, the reader can go to any time of
// the animation.

import { canvas2d, css, hatch, shade } from "../base/colours.js";
import { drawn, el, fill, word } from "../base/elements.js";
import { count, number, percent, readingTime } from "../base/format.js";
import { hiddenBy, scaleOf, setRow } from "../engine/edits.js";
import { vectorsOf } from "./head.js";
import { isRemoved } from "./map.js";
import "./motion.css";

/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("./head.js").HeadVectors} HeadVectors */
/** @typedef {NonNullable<ReturnType<typeof arising>>} Arising */
/** @typedef {ReturnType<typeof tinted>} Colours */

const MOMENTS = ["keys", "products", "scores", "weights", "values", "sum"]; // the phases of the animation
// In each phase, the picture moves for MOVES milliseconds and then rests for RESTS milliseconds.
const [MOVES, RESTS] = [800, 1000];
const TICKS = 10; // the number of slider steps in each phase of the animation
const SEPARATE = 12; // the maximum number of rows; if there are more keys, the last row stands for all other keys
const TALL = 22; // the height of a row, in pixels
const GAP = 6; // the gap above the sum, in pixels

/**
 * A row of the animation. It shows one key; if `others` is true, it shows several keys together, and no score.
 * @typedef {object} Rising
 * @property {string} name
 * @property {boolean} others
 * @property {number[]} k  (d)
 * @property {number[]} products  (d): the query's numbers times the key's
 * @property {number} raw  the sum of the products
 * @property {number} score  the input of the softmax; -Infinity if a mask hides the key
 * @property {boolean} own  whether the reader hid this key from the query
 * @property {number} weight
 * @property {number[]} v  (d)
 */

/**
 * Returns what the animation shows for the chosen query: one entry for each of the keys with the largest weights, in
 * the order of the text, and a last entry for all other keys together. Null if the run contains no results of the
 * layer.
 * @param {Now} now
 */
function arising({ run, state }) {
  const { layer, head, edits } = state;
  const block = run?.blocks?.[layer];
  const vectors = block?.attn_scores && run.tokens.length ? vectorsOf(run, layer, head) : null;
  if (!vectors) return null;
  const T = run.tokens.length;
  const query = Math.min(state.query ?? state.position ?? 0, T - 1);
  const across = Array.from({ length: vectors.d }, (_, c) => c);
  const q = across.map((c) => vectors.q.at(query, c));
  const weights = run.pattern[layer][head].subarray(query * T, (query + 1) * T);
  const hidden = hiddenBy(edits, layer, head, T);
  const positions = Array.from(weights, (_, key) => key);
  const most = [...positions].sort((a, b) => weights[b] - weights[a] || a - b);
  const kept = T > SEPARATE ? most.slice(0, SEPARATE - 1).sort((a, b) => a - b) : positions;
  /** @type {Rising[]} */
  const rows = kept.map((key) => {
    const k = across.map((c) => vectors.k.at(key, c));
    const products = across.map((c) => q[c] * k[c]);
    return {
      name: run.tokens[key],
      others: false,
      k,
      products,
      raw: products.reduce((sum, x) => sum + x, 0),
      score: block.attn_scores[head][query * T + key],
      own: hidden[query * T + key] === 1,
      weight: weights[key],
      v: across.map((c) => vectors.v.at(key, c)),
    };
  });
  const rest = positions.filter((key) => !kept.includes(key));
  if (rest.length) rows.push(together(rest, weights, across, vectors));
  const overridden = Boolean(setRow(edits, layer, head, query));
  const z = across.map((c) => vectors.z.at(query, c));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const removed = isRemoved(edits, layer, head);
  const scaling = factorIn(rows, edits, vectors.d, block);
  return { name: run.tokens[query], d: vectors.d, q, rows, z, total, overridden, removed, vectors, ...scaling };
}

/**
 * Returns the row for the keys without a row of their own: the sum of these keys' weights, and the weighted mean of
 * their values.
 * @param {number[]} keys
 * @param {Float32Array} weights  (T)
 * @param {number[]} across  the indices of a vector's numbers, (d)
 * @param {HeadVectors} vectors
 * @returns {Rising}
 */
function together(keys, weights, across, vectors) {
  const weight = keys.reduce((sum, key) => sum + weights[key], 0);
  const v = across.map((c) => keys.reduce((sum, key) => sum + weights[key] * vectors.v.at(key, c), 0) / (weight || 1));
  return { name: `${count(keys.length)} others`, others: true, k: [], products: [], raw: 0, score: 0, own: false, weight, v };
}

/**
 * The factor of the scores before the softmax. It is computed from the layer's scores, since the factor differs between
 * models.
 * @param {Rising[]} rows
 * @param {Edit[]} edits
 * @param {number} d
 * @param {{scale?: number, softcap?: number | null}} block
 */
function factorIn(rows, edits, d, { scale, softcap }) {
  const seen = rows.filter(({ others, score }) => !others && Number.isFinite(score));
  const best = seen.reduce((far, row) => (Math.abs(row.raw) > Math.abs(far?.raw ?? 0) ? row : far), /** @type {Rising | null} */ (null));
  const factor = best ? best.score / best.raw : scaleOf(edits, 1 / Math.sqrt(d));
  const usual = Math.abs(factor * Math.sqrt(d) - 1) < 1e-3;
  const by = softcap ? `× ${number(scale, 3)}, capped` : usual ? `÷ √${d}` : `× ${number(factor, 3)}`;
  return { by, rescaled: edits.some(({ op }) => op === "scale") };
}

// ---- the picture of a moment

/** @param {number} a @param {number} b @param {number} share */
const mix = (a, b, share) => a + (b - a) * share;
/** @param {number} x */
const within1 = (x) => Math.max(0, Math.min(1, x));
/** @param {number} x */
const eased = (x) => within1(x) ** 2 * (3 - 2 * within1(x));

/**
 * The colours of a row's numbers and the largest length of its bars, for the current theme.
 * @param {Ui} ui
 * @param {CanvasRenderingContext2D} pen
 * @param {Arising} row
 */
function tinted(ui, pen, row) {
  const { q, k, v } = row.vectors;
  /** @param {number[]} values @param {number} high */
  const tint = (values, high) => values.map((value) => css(shade(ui, value / high)));
  const products = row.rows.flatMap((one) => one.products);
  const high = Math.max(1e-9, ...products.map(Math.abs));
  /** @param {Rising} one @param {number} sign */
  const sum = (one, sign) => one.products.reduce((total, x) => total + Math.max(0, sign * x), 0);
  const [left, right] = [-1, 1].map((sign) => Math.max(1e-9, ...row.rows.map((one) => sum(one, sign))));
  return {
    q: tint(row.q, q.high),
    z: tint(row.z, v.high),
    rows: row.rows.map((one) => ({
      k: tint(one.k, k.high),
      products: tint(one.products, high),
      v: tint(one.v.map((value) => value * Math.sign(one.weight || 1)), v.high),
      up: sum(one, 1),
      down: sum(one, -1),
    })),
    left,
    right,
    bar: ui.color(row.overridden ? "--changed" : "--line-0"),
    ink: ui.color("--ink"),
    hidden: ["--hatch", "--changed"].map((name) => hatch(ui, pen, name)),
    signs: [css(shade(ui, -0.7)), css(shade(ui, 0.7))],
  };
}

/**
 * Draws the picture at the time `at`, which is measured in moments and starts at 0.
 * @param {CanvasRenderingContext2D} pen
 * @param {Arising} row
 * @param {Colours} colours
 * @param {number} at
 * @param {number} wide
 */
function drawMoment(pen, row, colours, at, wide) {
  const { d, rows } = row;
  const n = rows.length;
  const cell = wide / d;
  const [zero, unit] = [(wide * colours.left) / (colours.left + colours.right), wide / (colours.left + colours.right)];
  /** @param {number} r */
  const top = (r) => (r + 1) * TALL + 1;
  const foot = top(n) + GAP;
  const high = TALL - 2;
  const heights = rows.map(({ weight }) => high * Math.min(1, Math.abs(weight)));
  /** @param {string[]} tints @param {number} x @param {number} y @param {number} tall */
  const strip = (tints, x, y, tall) => tints.forEach((tint, c) => block(tint, x + c * cell, y, Math.ceil(cell), tall));

  /** @param {string | CanvasPattern} tint @param {number} x @param {number} y @param {number} width @param {number} tall */
  function block(tint, x, y, width, tall, seen = 1) {
    pen.globalAlpha = seen;
    pen.fillStyle = tint;
    pen.fillRect(x, y, width, tall);
    pen.globalAlpha = 1;
  }

  /**
   * The keys come in from the right; then, column by column, each number is multiplied by the query's number.
   * @param {number} r
   */
  function keysAndProducts(r) {
    const { k, products } = colours.rows[r];
    const away = (1 - eased(1.5 * at - (0.5 * r) / n)) * wide;
    const done = Math.round(within1(at - 1) * d);
    strip([...products.slice(0, done), ...k.slice(done)], away, top(r), high);
  }

  /**
   * The products become bars: positive products to the right of 0, negative products to the left of 0. Then the bars on
   * the side with the smaller sum move onto the bars on the other side.
   * @param {number} r
   */
  function fold(r) {
    const { products, up, down } = colours.rows[r];
    const [apart, over] = [eased((at - 2) / 0.6), eased((at - 2.6) / 0.4)];
    const net = up - down;
    let [right, left] = [0, 0];
    rows[r].products.forEach((x, c) => {
      const start = x > 0 ? right : left - Math.abs(x);
      const shift = net > 0 === x > 0 ? 0 : over * (net > 0 ? up : -down);
      if (x > 0) right += x;
      else left += x;
      const position = mix(c * cell, zero + (start + shift) * unit, apart);
      const width = mix(Math.ceil(cell), Math.abs(x) * unit, apart);
      block(products[c], position, top(r) + 3 * apart, width, high - 6 * apart, 1 - over);
    });
    if (over) bar(r, 0, over);
  }

  /**
   * Draws a score as a bar from 0. While the score becomes a weight, the bar moves to the left edge, and its length
   * becomes proportional to the weight. The bar for a weight of 1 has the full width of the picture.
   * @param {number} r
   * @param {number} share
   */
  function bar(r, share, seen = 1) {
    const { raw, weight, score, others } = rows[r];
    const hidden = score === -Infinity;
    const [from, to] = others ? [0, 0] : [zero + Math.min(0, raw) * unit, zero + Math.max(0, raw) * unit];
    const [x, end] = [mix(from, 0, share), mix(to, Math.abs(weight) * wide, share)];
    if (hidden && share) return;
    block(colours.signs[raw > 0 ? 1 : 0], x, top(r) + 3, end - x, high - 6, seen * (1 - share));
    block(colours.bar, x, top(r) + 3, end - x, high - 6, seen * share);
  }

  /**
   * Each value vector slides into its row, as the key did. Then the vector shrinks until its height is
   * proportional to its weight.
   * @param {number} r
   */
  function values(r) {
    const [come, shrunk] = [eased((at - 4) / 0.5), eased((at - 4.5) / 0.5)];
    if (come < 1) bar(r, 1, 1 - come);
    const tall = mix(high, heights[r], shrunk);
    strip(colours.rows[r].v, (1 - come) * wide, top(r) + (high - tall) / 2, tall);
  }

  /**
   * The shrunken values move into one row. They fill this row, since the weights sum to 1, and then blend into the sum.
   */
  function pile() {
    const down = eased((at - 5) / 0.65);
    const fit = high / Math.max(high, heights.reduce((sum, tall) => sum + tall, 0));
    let y = foot;
    rows.forEach((_, r) => {
      const tall = mix(heights[r], heights[r] * fit, down);
      strip(colours.rows[r].v, 0, mix(top(r) + (high - heights[r]) / 2, y, down), tall);
      y += heights[r] * fit;
    });
    const blended = eased((at - 5.65) / 0.35);
    colours.z.forEach((tint, c) => blended && block(tint, c * cell, foot, Math.ceil(cell), high, blended));
  }

  strip(colours.q, 0, 1, high);
  rows.forEach((one, r) => {
    if (at <= 2) keysAndProducts(r);
    else if (at < 3) fold(r);
    else if (at <= 4) bar(r, eased((at - 3.4) / 0.6));
    else values(r);
    if (at > 3 && one.score === -Infinity && !row.overridden) block(colours.hidden[Number(one.own)], 0, top(r), wide, high);
  });
  if (at > 1 && at < 2) block(colours.ink, Math.round((at - 1) * d) * cell - 1, 0, 2, top(n) - 2);
  if (at > 2 && at < 3.4) block(colours.ink, zero - 0.5, top(0), 1, top(n) - top(0));
  if (at > 5) pile();
}

// ---- the part

/**
 * The animation of the chosen query, below the lines of its head. It plays when a query is chosen, but not after a
 * change. If the reader prefers reduced motion, the end is shown at once. `play(from, to)` plays from one moment to
 * another, pauses until each description can be read (unless `reading` is false), and returns how long this takes, in
 * milliseconds.
 * @param {Ui} ui
 * @returns {Part & {play: (from: number, to: number, reading?: boolean) => number}}
 */
export function motionPart(ui) {
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");
  const last = MOMENTS.length;
  const title = el("h4", {});
  const said = el("p", { class: "motion-said" });
  const canvas = el("canvas", { "aria-hidden": "true" });
  const list = el("ul", { class: "motion-rows", role: "list", "aria-label": "the row, key by key" });
  const button = el("button", { type: "button", class: "motion-play", onclick: () => (playing ? stop() : begin()) });
  const slider = el("input", { type: "range", class: "motion-at", "aria-label": "moment", min: 0, max: last * TICKS, step: 1, oninput: scrub, onkeydown: leap });
  const stage = el("div", { class: "motion-stage" }, list, canvas);
  const names = MOMENTS.map((name) => el("span", {}, name));
  const node = el("div", { class: "motion", "data-part": "motion" }, el("div", { class: "motion-top" }, title, button), said, stage, slider,
    el("div", { class: "motion-moments", "aria-hidden": "true" }, names));
  /** @type {Now | null} */
  let now = null;
  /** @type {Arising} */
  let row; // undefined if the run has no row for the query
  /** @type {Colours | null} */
  let colours = null;
  /** @type {[CanvasRenderingContext2D, number, number, boolean, boolean, number]} */
  let [pen, wide, at, playing, inView, before] = [/** @type {any} */ (null), 0, last, false, false, 0];
  // end: the moment at which the animation ends; reads: whether a pause lasts until the description can be read; rested:
  // how long the current pause has lasted
  let [end, reads, rested] = [last, false, 0];
  /** @type {[number, number, boolean] | null} */
  let asked = null; // the arguments of a call of `play` that waits until there is a row to show
  let [figures, told] = ["", -1]; // the current numbers, and their description
  ui.redraw(() => {
    colours = null;
    fit();
  });
  new IntersectionObserver((entries) => {
    inView = entries.at(-1).isIntersecting;
    if (!inView) return;
    fit();
    before = 0;
    if (playing) requestAnimationFrame(frame);
  }, { threshold: 0.6 }).observe(stage);

  /** Plays, with the rows in the window: the animation rests while they are out of sight. */
  function begin() {
    stage.scrollIntoView({ block: "nearest" });
    play(at < last ? at : 0);
  }

  /** @param {number} time */
  function frame(time) {
    if (!playing || !inView || !row) return;
    advance(before ? Math.min(300, time - before) : 0); // the limit avoids a jump when the window becomes visible again
    before = time;
    if (at >= end) stop();
    else requestAnimationFrame(frame);
    show();
  }

  /** @param {number} by  milliseconds */
  function advance(by) {
    const next = Math.min(end, Math.floor(at) + 1);
    if (Number.isInteger(at) && at > 0 && rested < (reads ? readingTime(said.textContent) : RESTS)) rested += by;
    else at = Math.min(next, at + by / MOVES);
    if (at === next) rested = 0;
  }

  /** @param {number} from */
  function play(from, to = last, reading = false) {
    const runs = playing;
    [at, playing, before, end, reads, rested] = [from, true, 0, to, reading, Infinity];
    fill(button, "❚❚ Pause");
    show();
    if (!runs && inView) requestAnimationFrame(frame);
  }

  function stop() {
    playing = false;
    fill(button, "▶ Play");
  }

  function scrub() {
    stop();
    at = Number(slider.value) / TICKS;
    show();
  }

  /**
   * Page Up moves the slider forward, to the start of the next moment. Page Down moves the slider back, to the start of
   * the current moment; if the slider is there already, Page Down moves it to the start of the previous moment.
   * @param {KeyboardEvent} event
   */
  function leap(event) {
    const by = { PageUp: 1, PageDown: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    slider.value = String(TICKS * (by > 0 ? Math.floor(at) + 1 : Math.ceil(at) - 1));
    scrub();
  }

  /** Places the canvas over the middle of the rows. */
  function fit() {
    const track = list.querySelector(".motion-track");
    wide = track && !node.hidden ? track.clientWidth : 0;
    if (!wide) return;
    pen = canvas2d(canvas, wide, (row.rows.length + 2) * TALL + GAP);
    canvas.style.left = `${track.offsetLeft}px`;
    show();
  }

  function show() {
    if (!row) return;
    slider.value = String(Math.round(at * TICKS));
    const moment = Math.min(last - 1, Math.max(0, Math.ceil(at) - 1));
    if (told !== moment) {
      told = moment;
      fill(said, sentence(moment));
      names.forEach((name, i) => name.classList.toggle("on", i === moment));
      slider.setAttribute("aria-valuetext", `${MOMENTS[moment]}: ${said.textContent}`);
    }
    const due = at < 2.6 ? "" : at <= 3.1 ? "raw" : at < 3.5 ? "score" : at <= 5 ? "weight" : "end";
    if (figures !== due) write(due);
    if (!wide) return;
    colours ??= tinted(ui, pen, row);
    pen.clearRect(0, 0, wide, (row.rows.length + 2) * TALL + GAP);
    drawMoment(pen, row, colours, at, wide);
  }

  /**
   * Describes a moment of the animation. The example is the key that has the largest weight: some of the descriptions
   * contain its numbers.
   * @param {number} moment
   */
  function sentence(moment) {
    const { rows, name, d, by, overridden, removed, total } = row;
    const best = rows.filter(({ others }) => !others).reduce((a, b) => (b.weight > a.weight ? b : a));
    const none = rows.every(({ weight }) => weight === 0);
    /** @param {string} text */
    const its = (text) => (none ? "" : [" For ", word(best.name), `: ${text}.`]);
    if (moment === 0) return ["The query ", word(name), ` has ${d} numbers, and so does each key. The keys slide under the query.`];
    if (moment === 1) return "Each number of the query is multiplied by the matching number of the key: blue if the signs agree, red if not.";
    if (moment === 2) return ["The products of each key add up to its score: how well the key fits the query.", its(number(best.raw))];
    if (moment === 3 && overridden) return el("span", { class: "changed" }, "You set the weights of this row: the softmax of the scores is not used.");
    if (moment === 3 && none) return "Every key is hidden: all weights are 0.";
    if (moment === 3) return [`${by}, then softmax: scores become weights, which sum to ${percent(total)}.`, its(`${number(best.score)} → ${percent(best.weight)}`)];
    if (moment === 4) return "Each key contributes its value, scaled by its weight.";
    if (removed) return [el("span", { class: "changed" }, "This head is removed: it adds nothing,"), " whatever its weights are."];
    return ["The scaled values sum to this head's output for ", word(name), "."];
  }

  /**
   * The numbers beside the keys.
   * @param {string} due
   */
  function write(due) {
    figures = due;
    const { rows, by, rescaled, overridden, total, removed } = row;
    const weighed = due === "weight" || due === "end";
    /** @type {Record<string, [string, boolean]>} */
    const heads = { "": ["", false], raw: ["score", false], score: [by, rescaled] };
    /** @param {Rising} one @returns {[string, boolean]} */
    const figure = ({ others, raw, score, weight, own }) => {
      if (weighed) return score === -Infinity && !overridden ? ["hidden", own] : [percent(weight).replace("under ", "<"), overridden];
      if (!due || others) return ["", false];
      if (due === "raw") return [number(raw), false];
      return score === -Infinity ? ["hidden", own] : [number(score), rescaled];
    };
    /** @type {[string, boolean]} */
    const foot = !weighed ? ["", false] : removed && due === "end" ? ["removed", true] : [percent(total), false];
    /** @type {[string, boolean][]} */
    const all = [heads[due] ?? ["weight", overridden], ...rows.map(figure), foot];
    list.querySelectorAll(".motion-figure").forEach((/** @type {HTMLElement} */ cell, /** @type {number} */ i) => {
      const [text, changed] = all[i];
      fill(cell, text);
      cell.classList.toggle("changed", changed);
    });
  }

  /** @param {Told} next */
  function update(next) {
    const was = now;
    now = next.run && next.state.inside ? next : null;
    row = /** @type {Arising} */ (now && arising(now));
    node.hidden = !row;
    if (!row || !now) return stop();
    /** @param {Now} now */
    const about = ({ state: { text, edits, layer, head } }) => JSON.stringify([text, edits, layer, head]);
    const same = was !== null && about(was) === about(now);
    const chosen = same && was.state.query !== now.state.query;
    if (same && !chosen && was.run === now.run) return fit();
    [colours, figures, told] = [null, "none", -1];
    fill(title, "How ", word(row.name), " gets its weights");
    /**
     * @param {any} name  the name at the beginning of the row
     */
    const line = (name, kind = "") => el("li", { class: kind }, el("span", { class: "motion-name" }, name), el("span", { class: "motion-track" }), el("span", { class: "motion-figure" }));
    fill(list, line(word(row.name), "query"), row.rows.map(({ name, others }) => line(others ? name : drawn(name))), line("sum", "sum"));
    button.hidden = still.matches;
    if (asked) part.play(...asked);
    else if (chosen && !still.matches) play(0);
    else if (!playing || !same) {
      at = last;
      stop();
    }
    fit();
  }
  const part = {
    node,
    update,
    /** @param {number} from @param {number} to */
    play(from, to, reads_ = true) {
      asked = row ? null : [from, to, reads_];
      if (!row) return 0;
      if (!still.matches) {
        play(from, to, reads_);
        return MOMENTS.slice(from, to).reduce((sum, _, i) => sum + MOVES + (reads_ ? readingTime(fill(el("p", {}), sentence(from + i)).textContent) : RESTS), 0);
      }
      at = to;
      stop();
      show();
      return 0;
    },
  };
  return part;
}
