// The sentence in large type: its words, which can be tapped, the model's guess in the gap, and lines above the words.
// The lines go from the gap to the words with the largest weights, averaged over all heads. Changes are animated.

import { range } from "../base/arrays.js";
import { drawn, el, fill, svg } from "../base/elements.js";
import { directionOf, named, percent, visible } from "../base/format.js";
import { guessName } from "../base/tokens.js";
import { editsOf } from "../engine/edits.js";
import { likeliestOf, probabilitiesOf } from "../engine/sampling.js";
import { maskOf } from "../store/positions.js";
import "./stage.css";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {{first: number, last: number, text: string, before: string, gap: boolean, plain: boolean}} StageWord  `plain`: no letters */
/** @typedef {{left: number, top: number, right: number, bottom: number}} Row  the extent of a row of text */
/** @typedef {{x: number, top: number, bottom: number, row: number}} Place  of a word and the note below it */

const [THINNEST, PER_WEIGHT] = [1.5, 26]; // the width of a line in pixels is THINNEST + PER_WEIGHT * weight
// Lines show the largest weights. The first FEWEST lines are drawn for weights of any size; a further line is drawn only
// for a weight of LEAST or more. There are at most MAX_LINES lines in total.
const [LEAST, FEWEST, MAX_LINES] = [0.02, 3, 12];
const LONG = 70; // longer sentences have smaller type

/**
 * @param {Ui} ui
 * @param {((tokens: [number, number]) => void) | null} onword  gets the tokens of a tapped word: [first, last + 1]
 */
export function stage(ui, onword = null) {
  const lines = svg("svg", { class: "arcs", role: "img" });
  const words = el("span", { class: "words", role: "group", "aria-label": onword ? "The sentence: press a word to hide it" : "The sentence" });
  const text = el("p", { class: "big" }, lines, words);
  const legend = el("p", { class: "note legend" });
  const node = el("div", { class: "stage", "data-part": "stage" }, text, legend);
  let built = ""; // the words that are on the page
  /** @type {StageWord[]} */
  let all = [];
  /** @type {Map<number, any>} */
  const paths = new Map(); // maps the first token of each word to its line
  /** @type {any} */
  let gap = null; // {node, word, share}: the guess
  /** @type {Float64Array | null} */
  let weights = null; // the weight of each word
  let from = -1; // the word at which the lines begin

  /** @param {Now} now */
  function build(now) {
    all = stageWords(now);
    paths.clear();
    fill(lines);
    gap = null;
    fill(words, all.flatMap((one) => [one.before, one.gap ? gapNode(one) : one.plain || !onword ? el("span", { class: "w plain", "data-token": one.first }, drawn(one.text)) : wordNode(one)]));
    text.dir = directionOf(now.sentence);
    text.classList.toggle("long", now.sentence.length > LONG);
  }

  /** @param {StageWord} one */
  function wordNode({ first, last, text: name }) {
    return el("button", { type: "button", class: "w", "data-token": first, onclick: () => onword?.([first, last]) }, drawn(name));
  }

  /** @param {StageWord} one */
  function gapNode({ first }) {
    const guess = el("span", { class: "guess" });
    const share = el("small", {});
    gap = { guess, share, word: null };
    return el("span", { class: "gap", role: "img", "data-token": first }, guess, share);
  }

  /** @param {Now} now */
  function guessNow({ run, model }) {
    if (!gap || !run.logits.length) return;
    const { word: name, share: said } = guessOf(run.logits, model.words);
    fill(gap.share, said);
    gap.guess.parentNode.setAttribute("aria-label", `the model's guess: ${name}, ${said}`);
    if (gap.word === name) return;
    const old = gap.guess.querySelector(".now");
    const next = el("b", { class: old ? "now arriving" : "now" }, el("bdi", {}, name));
    if (!old) fill(gap.guess, next);
    else {
      old.className = "leaving";
      const leaves = old.getAnimations().map((/** @type {Animation} */ { finished }) => finished);
      Promise.allSettled(leaves).then(() => old.remove()); // if nothing is animated, the old words are removed at once
      for (const other of gap.guess.querySelectorAll(".leaving")) if (other !== old) other.remove();
      gap.guess.append(next);
    }
    gap.word = name;
  }

  /** Draws the lines at the current positions of the words. */
  function draw() {
    if (!weights || !text.clientWidth) return;
    const own = weights;
    const box = text.getBoundingClientRect();
    const size = parseFloat(getComputedStyle(text).fontSize);
    lines.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    const [places, rows] = placesIn([...words.children].map(boxOf));
    const shown = linesTo(all, own, from);
    all.forEach(({ first }, i) => {
      const [path, drawn_] = [paths.get(first), shown.get(i)];
      if (!drawn_) return path?.style.setProperty("stroke-opacity", "0");
      const wide = drawn_.wide * Math.min(1, size / 32); // small type has thinner lines
      const d = wayOf(places[from], places[i], rows, wide, size);
      const line = path ?? svg("path", { d });
      if (!path) {
        paths.set(first, line);
        lines.append(line);
      }
      line.setAttribute("d", d);
      line.style.setProperty("stroke-width", String(wide));
      line.style.setProperty("stroke-opacity", String(drawn_.opacity));
    });
  }

  /**
   * @param {Now} now
   * @param {boolean} bare  whether the sentence has no lines
   * @param {{heads?: [number, number][], query?: number}} shows  `heads`: the heads whose weights the lines
   *     show, by default all heads; `query`: the token at which the lines begin, by default the guess
   */
  function update(now, bare = false, { heads, query } = {}) {
    const made = JSON.stringify([now.sentence, now.words, now.state.position]);
    if (made !== built) build(now);
    built = made;
    const { isOff, isSwapped } = marksOf(now);
    all.forEach((one, i) => {
      const button = words.children[i];
      if (one.gap || one.plain) return;
      const off = isOff(one);
      if (onword) button.setAttribute("aria-pressed", String(off));
      button.classList.toggle("off", off);
      button.classList.toggle("changed", isSwapped(one));
    });
    guessNow(now);
    const row = bare ? null : weightsOf(now, all, { heads, query });
    [from, weights] = [row?.from ?? -1, row?.weights ?? null];
    const who = query !== undefined ? named(now.run.tokens[query]) : now.model.next ? "the last word" : gap ? "the gap" : "the word";
    const where = heads?.length === 1 ? `in head ${heads[0].join(".")}` : heads ? `averaged over the ${heads.length} edited heads` : `averaged over all ${now.model.layers * now.model.heads} heads`;
    const own = weights;
    const order = own && inOrder(all, own, from);
    const sink = query === undefined && now.model.next && order?.[0] === 0 ? " Many heads with nothing to add attend to the first word." : "";
    fill(legend, row ? `A thicker line: more attention from ${who}, ${where}.${sink}` : null);
    const most = own && order?.slice(0, FEWEST).map((i) => `${named(all[i].text)} ${percent(own[i])}`);
    const off = all.filter((one) => !one.gap && isOff(one)).map(({ text: name }) => named(name));
    lines.setAttribute("aria-label", [most?.length && `${who} attends most to ${most.join(", ")}, ${where}`, off.length && `hidden: ${off.join(", ")}`].filter(Boolean).join("; ") || "no lines");
    if (!weights) {
      paths.clear();
      fill(lines);
    }
    draw();
  }

  ui.redraw(draw);
  new ResizeObserver(draw).observe(text);
  return { node, update, words };
}

/**
 * The best guess, and its probability in words.
 * @param {Float32Array} logits @param {string[]} words  the vocabulary
 */
export function guessOf(logits, words) {
  const probabilities = probabilitiesOf(logits);
  const [id] = likeliestOf(probabilities, 1);
  return { word: visible(guessName(words, id)), share: `${probabilities[id] < 0.1 ? "not sure, " : ""}${percent(probabilities[id])}` };
}

/** @param {HTMLElement} node */
function boxOf(node) {
  const { offsetLeft: left, offsetTop: top, offsetWidth: wide, offsetHeight: tall } = node;
  const note = node.querySelector("small");
  return { left, top, right: left + wide, bottom: top + tall, foot: note ? top + note.offsetTop + note.offsetHeight : undefined };
}

/** @param {(Row & {foot?: number})[]} boxes  of the words; `foot`: the lower end of the note below @returns {[Place[], Row[]]} */
export function placesIn(boxes) {
  /** @type {Row[]} */
  const rows = [];
  const places = boxes.map(({ left, right, top, bottom, foot = bottom }) => {
    if (!rows.length || top >= /** @type {Row} */ (rows.at(-1)).bottom) rows.push({ left, right, top, bottom });
    const row = /** @type {Row} */ (rows.at(-1));
    [row.left, row.right] = [Math.min(row.left, left), Math.max(row.right, right)];
    [row.top, row.bottom] = [Math.min(row.top, top), Math.max(row.bottom, bottom)];
    return { x: (left + right) / 2, top, bottom: foot, row: rows.length - 1 };
  });
  return [places, rows];
}

/**
 * The path of a line that crosses no word: an arc above a row; to another row, curves through the spaces between rows,
 * past the ends of the rows on the way. `wide`: the width of the line; `size`: the size of the type.
 * @param {Place} from @param {Place} to @param {Row[]} rows @param {number} wide @param {number} size
 */
export function wayOf(from, to, rows, wide, size) {
  if (from.row === to.row) {
    const space = to.row ? rows[to.row].top - rows[to.row - 1].bottom - wide / 2 : size * 1.9;
    const high = Math.min(space, 12 + Math.abs(from.x - to.x) * 0.28) / 0.75;
    return `M${from.x} ${from.top}C${from.x} ${from.top - high} ${to.x} ${to.top - high} ${to.x} ${to.top}`;
  }
  const down = to.row > from.row;
  const passed = down ? rows.slice(from.row + 1, to.row) : rows.slice(to.row + 1, from.row).reverse();
  const around = passed.flatMap(({ left, right, top, bottom }) => {
    const x = from.x + to.x < left + right ? left - 4 - wide / 2 : right + 4 + wide / 2;
    return down ? [[x, top], [x, bottom]] : [[x, bottom], [x, top]];
  });
  const points = [[from.x, down ? from.bottom : from.top], ...around, [to.x, down ? to.top : to.bottom]];
  return points.map(([x, y], i) => (i ? `C${points[i - 1][0]} ${(points[i - 1][1] + y) / 2} ${x} ${(points[i - 1][1] + y) / 2} ${x} ${y}` : `M${x} ${y}`)).join("");
}

/**
 * The words of the sentence, and the gap: a missing word, or the next word.
 * @param {Now} now
 * @returns {StageWord[]}
 */
export function stageWords({ sentence, run, words, state, model }) {
  let end = 0;
  /** @type {StageWord[]} */
  const shownWords = words.map(([first, last, name]) => {
    const [start, stop] = [run.offsets[first][0], run.offsets[last - 1][1]];
    const own = sentence.slice(start, stop);
    const blank = own.length - own.trimStart().length;
    const before = sentence.slice(end, start + blank);
    end = Math.max(end, stop);
    const missing = !model.next && name === maskOf(model);
    const plain = !missing && !/[\p{L}\p{N}]/u.test(own);
    return { first, last, text: missing ? name : own.trim() || name, before, gap: missing && first === state.position, plain };
  });
  const behind = shownWords.findLastIndex(({ first }) => first <= (state.position ?? Infinity)) + 1;
  if (model.next && run.logits.length) shownWords.splice(behind, 0, { first: run.tokens.length, last: run.tokens.length, text: "", before: " ", gap: true, plain: false });
  return shownWords;
}

/**
 * Which words the reader hid, and which words replace others.
 * @param {Now} now
 */
export function marksOf({ state }) {
  const [hidden, swapped] = [editsOf(state.edits, "hide"), editsOf(state.edits, "swap")].map((edits) => new Set(edits.map(({ token }) => token)));
  return {
    /** @param {StageWord} one */
    isOff: ({ first, last }) => range(first, last).every((t) => hidden.has(t)),
    /** @param {StageWord} one */
    isSwapped: ({ first }) => swapped.has(first),
  };
}

/**
 * The word at which the lines begin, and the weight of each word, averaged over these heads, or over all heads of all
 * layers. Null if the lines begin at no word.
 * @param {Now} now
 * @param {StageWord[]} all
 * @param {{heads?: [number, number][], query?: number}} shows
 */
export function weightsOf({ run, state }, all, { heads, query } = {}) {
  const T = run.tokens.length;
  const position = query ?? state.position;
  const hasGap = query === undefined && all.some(({ gap }) => gap);
  const from = all.findIndex(({ first, last, gap }) => (hasGap ? gap : position !== null && first <= position && position < last));
  if (position === null || from < 0) return null;
  const patterns = heads ? heads.map(([layer, head]) => run.pattern[layer][head]) : run.pattern.flat();
  /** @param {number} t */
  const mean = (t) => patterns.reduce((sum, weights) => sum + weights[position * T + t], 0) / patterns.length;
  const weights = Float64Array.from(all, ({ first, last }) => range(first, Math.min(last, T)).reduce((sum, t) => sum + mean(t), 0));
  return { from, weights };
}

/**
 * The words to which lines may lead, the largest weight first.
 * @param {StageWord[]} all @param {Float64Array} own  the weight of each word @param {number} from
 */
function inOrder(all, own, from) {
  return [...own.keys()].filter((i) => i !== from && !all[i].plain && !all[i].gap && own[i] > 0).sort((a, b) => own[b] - own[a]);
}

/**
 * The lines to draw: the width and the opacity of each, by the word to which it leads.
 * @param {StageWord[]} all @param {Float64Array} own @param {number} from
 */
export function linesTo(all, own, from) {
  const order = inOrder(all, own, from).slice(0, MAX_LINES).filter((i, rank) => rank < FEWEST || own[i] >= LEAST);
  return new Map(order.map((i) => [i, { wide: THINNEST + PER_WEIGHT * own[i], opacity: 0.35 + 0.65 * Math.min(1, own[i] * 4) }]));
}
