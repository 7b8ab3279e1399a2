// The colours of numbers, and the canvases that show them.

import { el } from "./elements.js";

/** @typedef {import("./mount.js").Ui} Ui */

export const LINES = 6; // the number of line colours: --line-0 to --line-5

/**
 * The colour of a value from -1 to 1, as [red, green, blue]; 0 has the colour of the page (see colours.py).
 * @param {Pick<Ui, "stops">} ui
 * @param {number} share
 */
export function shade(ui, share) {
  const stops = ui.stops(share < 0 ? "--less" : "--more");
  const position = Math.min(1, Math.abs(share || 0)) * (stops.length / 3 - 1);
  const low = Math.min(Math.floor(position), stops.length / 3 - 2);
  return [0, 1, 2].map((part) => {
    const [from, to] = [stops[3 * low + part], stops[3 * low + 3 + part]];
    return Math.floor(from + (position - low) * (to - from) + 0.5);
  });
}

/** @param {number[]} rgb */
export function css(rgb) {
  return `rgb(${rgb.join(", ")})`;
}

/**
 * Black or white, for text on a background colour; chosen by the relative luminance of WCAG.
 * @param {number[]} rgb
 */
export function ink(rgb) {
  const [r, g, b] = rgb.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

/** @type {{other: ((canvas: HTMLCanvasElement, width: number, height: number) => any) | null}} */
export const pens = { other: null }; // a function that returns a pen to use instead of the canvas's own: see parts/picture.js

/**
 * Clears a canvas, makes it as sharp as the screen, and returns a pen that draws in CSS pixels.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 */
export function canvas2d(canvas, width, height) {
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  if (pens.other) return pens.other(canvas, width, height);
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

/**
 * The pattern of masked cells: diagonal stripes.
 * @param {Ui} ui
 * @param {CanvasRenderingContext2D} pen
 * @returns {CanvasPattern}
 */
export function hatch(ui, pen, colour = "--hatch") {
  const tile = el("canvas", { width: 6, height: 6, "data-stroke": ui.color(colour) });
  const brush = tile.getContext("2d");
  brush.strokeStyle = ui.color(colour);
  brush.lineWidth = 1.2;
  brush.beginPath();
  for (const shift of [-6, 0, 6]) {
    brush.moveTo(shift, 6);
    brush.lineTo(shift + 6, 0);
  }
  brush.stroke();
  return /** @type {CanvasPattern} */ (pen.createPattern(tile, "repeat"));
}

/**
 * A canvas with one pixel for each number, positive or negative; -Infinity stays transparent.
 * @param {Ui} ui
 * @param {ArrayLike<number>} values
 * @param {number} wide
 * @param {number} tall
 * @param {(value: number) => number} share
 */
export function raster(ui, values, wide, tall, share) {
  const canvas = el("canvas", { width: wide, height: tall, "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(wide, tall);
  const [table, below] = [1, -1].map((sign) => Array.from({ length: 256 }, (_, i) => shade(ui, (sign * i) / 255)));
  const absent = [1, 3, 5].map((at) => parseInt(ui.color("--absent").slice(at, at + 2), 16)); // Infinity marks a missing cell
  for (let k = 0; k < values.length; k++) {
    if (values[k] === -Infinity) continue;
    const step = Math.max(-255, Math.min(255, Math.round(255 * share(values[k])))) || 0;
    const colour = values[k] === Infinity ? absent : step < 0 ? below[-step] : table[step];
    image.data.set(colour, 4 * k);
    image.data[4 * k + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}
