// The card that a reader shares: a picture of 1200 x 630 pixels, the size that sites show beside a link. It has the claim
// as its headline, the sentence before and after the changes with the guesses, the model's name and an address.

import { el } from "../base/elements.js";
import { cut, directionOf, named, visible } from "../base/format.js";
import { headlineOf } from "./outcome.js";
import { guessOf, linesTo, marksOf, placesIn, stageWords, wayOf, weightsOf } from "./stage.js";
import { plainOf } from "./words.js";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("./outcome.js").Looked} Looked */
/** @typedef {import("./words.js").Said} Said */

/**
 * A text that is not broken into lines. `colour`: the name of a CSS property; `spaced`: whether a blank is before the
 * text; `note`: a small text below it; `off`: whether it is struck out.
 * @typedef {{text: string, colour: string, spaced: boolean, note?: string, off?: boolean, slanted?: boolean, gap?: boolean}} Atom
 * @typedef {Atom & {left: number, right: number, line: number}} Placed
 */

export const [WIDE, TALL] = [1200, 630];
const HOME = "qkv-attention.github.io/qkv"; // the address on the card of a page that has no address on the web
const MARGIN = 60;
const LONGEST_WORD = 28; // longer words are cut

/**
 * The state before the reader's changes.
 * @param {Now} now
 * @returns {Now}
 */
export function beforeChanges(now) {
  const { original: run, state } = now;
  return { ...now, sentence: state.text, run, words: run.words ?? [], state: { ...state, edits: [] } };
}

/**
 * A card of the page's state. `update` draws it.
 * @param {Ui} ui
 */
export function cardPart(ui) {
  const canvas = el("canvas", { class: "card", width: WIDE, height: TALL, role: "img" });
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  /** @type {Now | null} */
  let last = null;

  function draw() {
    if (!last) return;
    const now = /** @type {Looked} */ (last);
    const { state, model } = now;
    const told = state.position === null ? ["There is no word yet."] : headlineOf(now);
    const sides = state.edits.length ? [beforeChanges(now), now] : [now];
    pen.fillStyle = ui.color("--paper");
    pen.fillRect(0, 0, WIDE, TALL);
    const top = fitted(atomsOf(told), { top: sides.length > 1 ? 40 : 130, tall: 140, most: 54, least: 30, spread: 1.2 });
    const each = (TALL - 60 - top) / sides.length;
    const said = sides.map((side, k) => sentence(side, top + k * each, each));
    put(`model: ${model.name}`, "--dim", MARGIN, "left");
    put(isHosted(location) ? location.host + location.pathname.replace(/\/(index\.html)?$/, "") : HOME, "--accent", WIDE - MARGIN, "right");
    canvas.setAttribute("aria-label", [plainOf(told), ...said].join(" "));
  }

  /** @param {number} size @param {{slanted?: boolean}} how */
  const font = (size, { slanted } = {}, weight = 700) => (pen.font = `${slanted ? "italic " : ""}${weight} ${size}px ${ui.color("--font")}`);

  /** @param {string} text @param {string} colour @param {number} x @param {CanvasTextAlign} align */
  function put(text, colour, x, align) {
    font(24, {}, 400);
    [pen.fillStyle, pen.textAlign, pen.direction] = [ui.color(colour), align, "ltr"];
    pen.fillText(text, x, TALL - 32);
  }

  /**
   * Breaks texts into lines.
   * @param {Atom[]} atoms @param {number} size @param {boolean} back  whether the text runs from right to left
   */
  function broken(atoms, size, back) {
    /** @type {Placed[]} */
    const placed = [];
    let [line, x] = [0, 0];
    for (const atom of atoms) {
      font(size, atom);
      const wide = pen.measureText(atom.text).width;
      const blank = atom.spaced && x ? size * 0.3 : 0;
      if (x && x + blank + wide > WIDE - 2 * MARGIN && (atom.spaced || wide > size)) [line, x] = [line + 1, 0];
      else x += blank;
      placed.push({ ...atom, left: x, right: x + wide, line });
      x += wide;
    }
    for (let k = 0; k <= line; k++) {
      const row = placed.filter((one) => one.line === k);
      const from = (WIDE - Math.max(...row.map(({ right }) => right))) / 2;
      for (const one of row) {
        const { left, right } = one;
        [one.left, one.right] = back ? [WIDE - from - right, WIDE - from - left] : [from + left, from + right];
      }
    }
    return { placed, lines: line + 1 };
  }

  /**
   * Writes texts in the largest type that fits, and returns where they end. If the smallest type does not fit either, only
   * the lines around `kept` are written, between dots.
   * @param {Atom[]} atoms
   * @param {{top: number, tall: number, most: number, least: number, spread: number, above?: number, back?: boolean, kept?: number,
   *     before?: (placed: Placed[], yOf: (line: number) => number, size: number) => void}} box  `spread`: the distance of
   *     lines, in sizes of the type; `above`: the room above the first line, also in sizes; `before` draws below the texts
   */
  function fitted(atoms, { top, tall, most, least, spread, above = 1, back = false, kept = 0, before }) {
    let size = most;
    /** @param {number} of  lines */
    const high = (of) => (above + (of - 1) * spread) * size;
    let { placed, lines } = broken(atoms, size, back);
    const wide = () => placed.some(({ left, right }) => right - left > WIDE - 2 * MARGIN);
    while (size > least && (high(lines) > tall || wide())) ({ placed, lines } = broken(atoms, (size -= 2), back));
    let shown = lines;
    while (shown > 1 && high(shown) > tall) shown -= 1;
    const first = Math.max(0, Math.min((placed[kept]?.line ?? 0) - shown + 1, lines - shown));
    /** @param {number} line */
    const yOf = (line) => top + above * size + (line - first) * spread * size;
    const seen = placed.filter(({ line }) => line >= first && line < first + shown);
    before?.(seen, yOf, size);
    [pen.textAlign, pen.direction, pen.fillStyle] = ["left", back ? "rtl" : "ltr", ui.color("--dim")];
    font(30);
    if (first) pen.fillText("…", back ? WIDE - MARGIN + 8 : 22, yOf(first));
    if (first + shown < lines) pen.fillText("…", back ? 22 : WIDE - MARGIN + 8, yOf(first + shown - 1));
    for (const { text, colour, left, right, line, off, note, slanted } of seen) {
      font(size, { slanted });
      pen.fillStyle = ui.color(colour);
      pen.textAlign = "left";
      pen.fillText(text, left, yOf(line));
      if (off) pen.fillRect(left, yOf(line) - size * 0.32, right - left, size / 14);
      if (!note) continue;
      font(22, {}, 400);
      [pen.fillStyle, pen.textAlign] = [ui.color("--dim"), "center"];
      pen.fillText(note, (left + right) / 2, yOf(line) + 36);
    }
    return yOf(first + shown - 1) + size * 0.5;
  }

  /**
   * Draws a sentence with its guess and its lines; returns the sentence as text.
   * @param {Now} now @param {number} top @param {number} tall
   */
  function sentence(now, top, tall) {
    const { run, model } = now;
    const all = stageWords(now);
    const { isOff, isSwapped } = marksOf(now);
    const guess = run.logits.length ? guessOf(run.logits, model.words) : null;
    const atoms = all.map((one, i) => {
      const off = !one.gap && isOff(one);
      const text = one.gap && guess ? guess.word : visible(one.text);
      const colour = one.gap ? "--accent" : off || isSwapped(one) ? "--changed" : "--ink";
      return { text: cut(text, LONGEST_WORD), colour, off, gap: one.gap, note: one.gap && guess ? guess.share : "", spaced: i > 0 && /\s$/.test(one.before) };
    });
    const shows = weightsOf(now, all);
    const back = directionOf(now.sentence) === "rtl";
    const kept = Math.max(0, atoms.findIndex(({ gap }) => gap));
    fitted(atoms, { top, tall: tall - 44, most: 60, least: 26, spread: 2.1, above: 2.7, back, kept, before: arcs });
    return `${atoms.map(({ text, spaced, off, note }) => `${spaced ? " " : ""}${text}${off ? " (hidden)" : ""}${note ? ` (${note})` : ""}`).join("")}`;

    /** @param {Placed[]} placed @param {(line: number) => number} yOf @param {number} size */
    function arcs(placed, yOf, size) {
      pen.strokeStyle = ui.color("--accent");
      [pen.lineCap, pen.lineWidth] = ["round", 3];
      for (const { gap, left, right, line } of placed) if (gap) pen.strokeRect(left, yOf(line) + size * 0.25, right - left, 0);
      if (!shows || placed.length < all.length) return; // only a whole sentence has lines
      const [places, rows] = placesIn(placed.map(({ left, right, line, note }) => {
        const y = yOf(line);
        return { left, right, top: y - size * 0.95, bottom: y + size * 0.3, foot: note ? y + 40 : undefined };
      }));
      for (const [i, { wide, opacity }] of linesTo(all, shows.weights, shows.from)) {
        [pen.lineWidth, pen.globalAlpha] = [wide, opacity];
        pen.stroke(new Path2D(wayOf(places[shows.from], places[i], rows, wide, size)));
      }
      pen.globalAlpha = 1;
    }
  }

  ui.redraw(draw);
  return {
    node: canvas,
    /** @param {Now} now */
    update(now) {
      last = now;
      draw();
    },
    /** @returns {Promise<Blob>} */
    png: () => new Promise((resolve, reject) => canvas.toBlob((/** @type {Blob | null} */ blob) => (blob ? resolve(blob) : reject(new Error("The browser cannot make a picture of this size."))))),
  };
}

/**
 * The texts of a sentence of the page, word by word.
 * @param {Said[]} said
 * @returns {Atom[]}
 */
function atomsOf(said) {
  let spaced = false;
  return said.flatMap((part) => {
    const name = typeof part === "string" ? part : cut(named(part.word), LONGEST_WORD);
    const texts = typeof part === "string" ? part.split(" ") : [name];
    const atoms = texts.map((text, i) => ({ text, colour: typeof part === "string" ? "--ink" : "--accent", slanted: typeof part !== "string", spaced: i > 0 || spaced }));
    spaced = typeof part === "string" && part.endsWith(" ");
    return atoms.filter(({ text }) => text);
  });
}

/**
 * Whether other people can open a page at its address.
 * @param {{protocol: string, hostname: string}} page  the location of the page
 */
export function isHosted({ protocol, hostname }) {
  return ["http:", "https:"].includes(protocol) && !/^(127\.[\d.]+|\[::1\]|(.+\.)?localhost)$/.test(hostname);
}
