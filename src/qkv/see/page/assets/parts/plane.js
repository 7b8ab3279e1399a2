// Words as arrows in one plane, from the position before attention to the current position; words are named if there
// is room.

import { LINES } from "../base/colours.js";
import { el, fill, svg } from "../base/elements.js";
import { cut, number, visible } from "../base/format.js";

/** @typedef {import("../base/mount.js").Ui} Ui */

/**
 * The data that page/payload.py writes: the positions of words before attention and at each stage.
 * @typedef {[number, number]} Point
 * @typedef {{name: string, points: Point[], moved: number[], held: number, cosine: number[]}} Stage
 * @typedef {{sentences: string[], tokens: string[], of: number[], before: Point[], explained: [number, number], stages: Stage[],
 *            labelled: number[], pairs: {word: string, a: number, b: number, cosine: number[]}[]}} Shift
 * @typedef {{width: number, height: number, size: number, ends: [number, number][], x: (p: Point) => number,
 * y: (p: Point) => number}} Scale the mapping from the plane to the picture
 */

/**
 * The colour of item k.
 * @param {number} k
 */
export function lineColour(k) {
  return `var(--line-${k % LINES})`;
}

/**
 * Says where a stage is, for use after "vectors".
 * @param {Stage} stage
 */
export function whereOf({ name }) {
  return name === "embeddings" ? "at the embeddings" : name;
}

/**
 * Round numbers along an axis.
 * @param {number} low
 * @param {number} high
 */
function ticks(low, high) {
  const rough = (high - low) / 7 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = /** @type {number} */ ([1, 2, 5, 10].find((k) => k * power >= rough)) * power;
  const marks = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) marks.push(k * step);
  return marks;
}

/**
 * The nearest free box [left, top, right, bottom] around a point; null if no free box is near.
 * @param {number} x
 * @param {number} y
 * @param {number} wide
 * @param {number} tall
 * @param {number[][]} boxes
 * @param {Point[]} dots
 * @param {number[]} area
 */
function freeBox(x, y, wide, tall, boxes, dots, area) {
  const near = [0, 8, 4, 12, 2, 14, 6, 10, 1, 15, 7, 9, 3, 5, 11, 13]; // sixteenths of a circle
  const all = Array.from({ length: 128 }, (_, k) => k / 8);
  for (let ring = 0; ring < 120; ring++) {
    const radius = 6 + 4 * ring;
    for (const turn of ring < 12 ? near : all) {
      const [u, v] = [Math.cos((Math.PI * turn) / 8), -Math.sin((Math.PI * turn) / 8)];
      const left = x + radius * u + ((u - 1) / 2) * wide;
      const top = y + radius * v + ((v - 1) / 2) * tall;
      const [right, bottom] = [left + wide, top + tall];
      if (left < area[0] || top < area[1] || right > area[2] || bottom > area[3]) continue;
      if (boxes.some((b) => left < b[2] && b[0] < right && top < b[3] && b[1] < bottom)) continue;
      if (ring < 12 && dots.some(([a, b]) => a > left - 3 && a < right + 3 && b > top - 2 && b < bottom + 2)) continue;
      return [left, top, right, bottom];
    }
  }
  return null;
}

/**
 * The plane. `draw(k)` draws each arrow up to its point at stage k. `press(i)` marks the arrow of a word or removes the mark, and
 * returns whether the arrow is marked.
 * @param {Ui} ui
 * @param {Shift} shift
 * @param {(i: number) => string} named  the name beside the end of an arrow
 */
export function planePart(ui, shift, named) {
  const { stages, tokens, of, before, labelled, explained } = shift;
  const picture = svg("svg", { class: "shift-plane", role: "img" });
  const node = el("div", {}, picture);
  /** @type {Set<number>} */
  const picked = new Set();
  let at = stages.length - 1;
  ui.redraw(() => draw(at));

  /**
   * The mapping from the plane to the picture, which is the same at every layer; a unit has the same length in both
   * directions.
   * @returns {Scale}
   */
  function scale() {
    const width = node.clientWidth;
    const height = Math.round(Math.min(620, Math.max(320, width * 0.62)));
    const points = [before, ...stages.map((stage) => stage.points)].flat();
    /** @type {[number, number][]} */
    const ends = [0, 1].map((axis) => [Math.min(...points.map((p) => p[axis])), Math.max(...points.map((p) => p[axis]))]);
    const space = [width - 160, height - 90];
    const unit = Math.min(...ends.map(([low, high], axis) => (high > low ? space[axis] / (high - low) : Infinity)));
    const size = Number.isFinite(unit) ? unit : 1;
    const [cx, cy] = ends.map(([low, high]) => (low + high) / 2);
    return { width, height, size, ends, x: (p) => width / 2 + 20 + (p[0] - cx) * size, y: (p) => height / 2 - 14 - (p[1] - cy) * size };
  }

  /** @param {Scale} scale */
  function axes({ width, height, size, ends, x, y }) {
    const bottom = height - 34;
    /** @param {string} text @param {number} px @param {number} py @param {object} more */
    const label = (text, px, py, more) => svg("text", { x: px, y: py, class: "shift-axis", ...more }, text);
    return [
      svg("rect", { x: 50, y: 4, width: width - 54, height: bottom - 4, class: "shift-frame" }),
      ticks(...ends[0]).map((t) => label(number(t, size > 60 ? 2 : 1), x([t, 0]), bottom + 14, { "text-anchor": "middle" })),
      ticks(...ends[1]).map((t) => label(number(t, size > 60 ? 2 : 1), 46, y([0, t]) + 4, { "text-anchor": "end" })),
      explained.map((share, k) => {
        const text = `PC ${k + 1} (${number(100 * share, 0)}% of the variance of unit vectors)`;
        return k ? label(text, 0, 0, { transform: `translate(11 ${bottom / 2}) rotate(-90)`, "text-anchor": "middle" }) : label(text, width / 2, height - 4, { "text-anchor": "middle" });
      }),
    ];
  }

  /**
   * Draws the arrow of a word; adds to `dots` the points that labels should not cover.
   * @param {number} i
   * @param {Stage} stage
   * @param {Scale} scale
   * @param {boolean} faint
   * @param {Point[]} dots
   */
  function arrow(i, stage, { x, y }, faint, dots) {
    const [a, b] = [before[i], stage.points[i]].map((p) => [x(p), y(p)]);
    for (let k = 0; k <= 20; k++) dots.push([a[0] + ((b[0] - a[0]) * k) / 20, a[1] + ((b[1] - a[1]) * k) / 20]);
    const far = Math.hypot(b[0] - a[0], b[1] - a[1]);
    const [u, v] = far ? [(b[0] - a[0]) / far, (b[1] - a[1]) / far] : [0, 0];
    const tip = far > 12 ? `M${b[0] - 4 * u} ${b[1] - 4 * v} l${-9 * u - 4 * v} ${-9 * v + 4 * u} l${8 * v} ${-8 * u} z` : "";
    return svg(
      "g",
      { class: `shift-arrow${faint ? " faint" : ""}${picked.has(i) ? " picked" : ""}`, "data-word": i, style: { "--its": lineColour(of[i]) } },
      svg("title", {}, `${visible(tokens[i])}: cosine ${number(stage.cosine[i], 3)}`),
      svg("line", { x1: a[0], y1: a[1], x2: b[0], y2: b[1] }),
      tip ? svg("path", { d: tip }) : null,
      svg("circle", { cx: a[0], cy: a[1], r: faint ? 2 : 4, class: "from" }),
      svg("circle", { cx: b[0], cy: b[1], r: faint ? 2 : 4, class: "to" }),
    );
  }

  /**
   * Writes the name of each word at both ends of its arrow. If the arrows of equal words begin at the same point,
   * the name is written there only once.
   * @param {Set<number>} shown_
   * @param {Stage} stage
   * @param {Scale} scale
   * @param {Point[]} dots
   */
  function labels(shown_, stage, { width, height, x, y }, dots) {
    /** @type {[number, Point, string][]} */
    const texts = [...shown_].map((i) => [i, stage.points[i], named(i)]);
    const spots = new Set();
    for (const i of shown_) {
      const spot = `${tokens[i]} ${Math.round(x(before[i]))} ${Math.round(y(before[i]))}`;
      if (!spots.has(spot)) texts.push([i, before[i], cut(visible(tokens[i]), 18)]);
      spots.add(spot);
    }
    const pen = el("canvas").getContext("2d");
    pen.font = `600 12px ${ui.color("--font")}`;
    /** @type {number[][]} */
    const boxes = [];
    return texts.map(([i, p, text], k) => {
      const wide = pen.measureText(text).width + 6;
      const spot = freeBox(x(p), y(p), wide, 18, boxes, dots, [52, 6, width - 6, height - 36]);
      if (!spot) return null;
      boxes.push(spot);
      const near = [Math.max(spot[0], Math.min(x(p), spot[2])), Math.max(spot[1], Math.min(y(p), spot[3]))];
      const far = Math.hypot(near[0] - x(p), near[1] - y(p)) > 14;
      return [
        far ? svg("line", { x1: x(p), y1: y(p), x2: near[0], y2: near[1], class: "shift-lead" }) : null,
        svg("text", { x: spot[0] + 3, y: spot[3] - 5, class: `shift-label ${k < shown_.size ? "after" : "alone"}`, style: { "--its": lineColour(of[i]) } }, text),
      ];
    });
  }

  /** @param {number} k */
  function draw(k) {
    at = k;
    const size = scale();
    if (!size.width) return;
    /** @type {[Stage, Point[]]} */
    const [stage, dots] = [stages[k], []];
    const shown_ = new Set([...labelled, ...picked]);
    const arrows = tokens.map((_, i) => arrow(i, stage, size, !shown_.has(i), dots));
    picture.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
    picture.setAttribute("width", String(size.width));
    picture.setAttribute("height", String(size.height));
    picture.setAttribute("aria-label", `${tokens.length} words as arrows from their static vectors to their vectors ${whereOf(stage)}; the table has the numbers`);
    fill(picture, axes(size), arrows, labels(shown_, stage, size, dots));
  }

  /** @param {number} i */
  function press(i) {
    if (!picked.delete(i)) picked.add(i);
    draw(at);
    return picked.has(i);
  }
  return { node, draw, press };
}
