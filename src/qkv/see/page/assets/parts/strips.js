// Vectors as strips with a stripe for each number, red or blue by its sign.

import { canvas2d, css, shade } from "../base/colours.js";
import { drawn, el, fill } from "../base/elements.js";
import "./strips.css";

/** @typedef {import("../base/mount.js").Ui} Ui */

const TALL = 22; // the height of a strip, in pixels
const MAX_STRIPS = 14; // the largest number of strips

/** @param {Ui} ui */
export function strips(ui) {
  const node = el("div", { class: "strips" });
  /** @type {[[string, Float32Array][], number]} */
  let [rows, all] = [[], 0]; // the shown strips, and the number of all vectors

  function draw() {
    const high = Math.max(1e-9, ...rows.flatMap(([, vector]) => [...vector].map(Math.abs)));
    fill(node, rows.map(([name, vector]) => {
      const canvas = el("canvas", { "aria-hidden": "true" });
      queueMicrotask(() => paint(canvas, vector, high));
      return el("div", { class: "strip" }, drawn(name), canvas);
    }), all > rows.length ? el("p", { class: "note" }, `${rows.length} of ${all} are shown.`) : null);
  }

  /** @param {any} canvas @param {Float32Array} vector @param {number} high */
  function paint(canvas, vector, high) {
    const wide = canvas.parentNode?.clientWidth - canvas.offsetLeft + canvas.parentNode?.offsetLeft;
    if (!(wide > 0)) return;
    const pen = canvas2d(canvas, wide, TALL);
    const each = wide / vector.length;
    vector.forEach((x, c) => {
      pen.fillStyle = css(shade(ui, x / high));
      pen.fillRect(c * each, 0, each + 0.5, TALL);
    });
  }
  ui.redraw(draw);
  return {
    node,
    /**
     * @param {[string, Float32Array][]} next  names, and vectors (D)
     * @param {number} at  this vector is shown in any case
     * @returns {Element | undefined}  the strip of this vector
     */
    update(next, at) {
      const first = Math.max(0, Math.min(at - MAX_STRIPS / 2, next.length - MAX_STRIPS));
      [rows, all] = [next.slice(first, first + MAX_STRIPS), next.length];
      draw();
      return node.children[at - first];
    },
  };
}
