// A line chart with one number for each layer.

import { svg } from "../base/elements.js";
import { fixed } from "../base/format.js";

/**
 * Draws a line through numbers, and writes each number beside its point if it fits.
 * @param {number} wide  in pixels
 * @param {number[]} values
 * @param {{low: number, high: number, name: (i: number) => string, say?: (x: number) => string, label: string}} about
 *     `low`, `high`: the ends of the axis; `name`: the text below a point; `say`: the format of a number; `label`:
 *     the description for screen readers
 */
export function lineChart(wide, values, { low, high, name, say = (x) => fixed(x, 3), label }) {
  const [tall, left, span] = [160, 44, high - low];
  /** @param {number} i */
  const x = (i) => left + 24 + (i * (wide - left - 48)) / Math.max(1, values.length - 1);
  /** @param {number} value */
  const y = (value) => (span > 1e-9 ? tall - 46 - ((value - low) / span) * (tall - 76) : 30);
  const every = Math.ceil((values.length * 44) / (wide - left));
  const lowest = values.indexOf(Math.min(...values));
  /** @param {number} i */
  const named = (i) => i === lowest || i === 0 || (i % every === 0 && Math.abs(i - lowest) >= every);
  /** @param {number} px @param {number} py @param {any} words */
  const text = (px, py, words, kind = "") => svg("text", { x: px, y: py, class: kind }, words);
  const spoken = values.map((value, i) => `${name(i)} ${say(value)}`).join(", ");
  return svg("svg", { class: "chart", width: wide, height: tall, role: "img", "aria-label": `${label}: ${spoken}` },
    (span > 1e-9 ? [low, high] : [high]).map((end) => [
      svg("line", { x1: left, x2: wide - 4, y1: y(end), y2: y(end), class: "axis" }),
      text(left / 2, y(end) + 4, say(end), "dim"),
    ]),
    svg("polyline", { points: values.map((value, i) => `${x(i)},${y(value)}`).join(" ") }),
    values.map((value, i) => [
      svg("circle", { cx: x(i), cy: y(value), r: 4 }),
      named(i) ? [text(...besideLine(values, i, x(i), y(value)), say(value)), text(x(i), tall - 8, name(i), "dim")] : [],
    ]));
}

/**
 * The position of a point's number, chosen so that the line does not cross the number.
 * @param {number[]} values
 * @param {number} i
 * @param {number} x
 * @param {number} y
 * @returns {[number, number]}
 */
function besideLine(values, i, x, y) {
  const [before, after] = [values[i - 1] ?? values[i], values[i + 1] ?? values[i]].map((other) => Math.sign(other - values[i]));
  if (before > 0 && after < 0) return [x + 20, y - 8];
  if (before < 0 && after > 0) return [x - 20, y - 8];
  return [x, before + after > 0 ? y + 18 : y - 9];
}
