// Heat maps: matrices in colours.

import { canvas2d, css, hatch, ink, raster, shade } from "./colours.js";
import { scaleBar } from "./controls.js";
import { el, fill } from "./elements.js";
import { count, cut, visible } from "./format.js";

/** @typedef {import("./mount.js").Ui} Ui */
/** @typedef {ReturnType<typeof heatmap>} HeatMap */

export const MATRICES = new WeakMap(); // maps the node of each heat map to the options of the map

/**
 * A matrix in colours. The canvas is only as large as the visible part of the matrix. If the cells would be too small
 * for the names of rows and columns, the whole matrix is one small picture, and a button shows the cells.
 *
 * Options:
 * - label: the name of the map; rows, columns: the names of rows and columns
 * - value(i, j): a number, NaN = masked (hatched), undefined = not known (blank), null = the cell does not exist
 * - entries(i), which replaces value(i, j): the list of known [j, value] pairs of a sparse row
 * - high: the upper end of the scale; low: the lower end, 0 or -high
 * - text(i, j): the text in a cell; describe(i, j): words, or {title, fields: [[name, value], ...]}
 * - home: the cell that is described while the pointer is outside; picked: [i, j] of the outlined cell
 * - marked: the outlined rows; extra: {name, value(i)}, an additional column
 * - changed(i, j): whether the reader hid this cell; named: whether row names are beside the rows
 * - left, top: a vector beside each row, or above each column: {name, count, value(k, c), high, size: in pixels}
 * - onpoint(i, j) or onpoint(null); onpick(i, j, event); onfree(); onlayout(shape), with the positions of cells
 * - onnumber(c) or (null): the reader points at number c of a vector
 * - cell: {min, max, height}, the smallest and the largest width of a cell, and its height, in pixels
 * - bar: the name of the scale, or false for no scale; say(x): the text of a number of the scale
 * - absent: the meaning of a grey cell, which is not in the matrix
 * @param {Ui} ui
 * @param {any} options
 */
export function heatmap(ui, options) {
  const o = { rows: [], columns: [], low: 0, high: 1, marked: [], named: true, bar: "weight", ...options };
  const canvas = el("canvas", { "aria-hidden": "true" });
  const sizer = el("div", { class: "map-size" }, canvas);
  const box = el("div", { class: "map scroll", tabindex: 0, role: "application", "aria-roledescription": "heat map" }, sizer);
  const readout = el("div", { class: "readout" });
  const bar = el("div");
  const zoom = el("button", { type: "button", class: "zoom", hidden: true, onclick: enlarge });
  const node = el("div", { class: "map-block" }, zoom, box, readout, bar);
  /** @type {[number, number] | null} */
  let at = null; // the cell under the pointer
  let large = false; // whether single cells are shown even if the whole matrix does not fit
  /** @type {HTMLCanvasElement | null} */
  let picture = null; // the picture of the whole matrix: one pixel for one or more cells
  /** @type {number[] | null} */
  let widths = null; // the widths of the widest row name and column name
  /** @type {any} */
  let shape = null; // the positions of all parts: see `layout`
  /** @type {[CanvasPattern | null, [number, number][]]} */
  let [orange, mine] = [null, []]; // the pattern `orange` fills the cells hidden by the reader; `mine` lists these cells as [row, column]
  /** @type {number | null} */
  let lit = null; // the index of the marked number in the cell's vectors

  /** @param {number} size */
  const font = (size) => `${size}px ${ui.color("--font")}`;
  /** @param {number} j */
  const x = (j) => shape.left + j * shape.cell + (j >= shape.m ? shape.gap : 0);
  /** @param {number} i */
  const y = (i) => shape.top + i * shape.tall;
  /** @param {number} value */
  const share = (value) => value / o.high;
  /** @param {number} i */
  const row = (i) => (o.entries ? o.entries(i) : o.columns.map((/** @type {any} */ _, /** @type {number} */ j) => [j, o.value(i, j)]));
  /** @param {number} k @param {number} end */
  const clamp = (k, end) => Math.max(0, Math.min(end, k));

  function enlarge() {
    large = !large;
    draw();
    const cell = at || o.picked || o.home;
    if (cell) reveal(cell[0], cell[1]);
  }

  /** @param {string[]} names */
  function widest(names) {
    const pen = canvas.getContext("2d");
    pen.font = font(12);
    return Math.max(24, ...names.slice(0, 400).map((name) => pen.measureText(cut(visible(name), 14)).width));
  }

  function layout() {
    const width = node.clientWidth;
    if (!width) return false;
    widths = widths || [o.rows, o.extra ? [o.extra.name, ...o.columns] : o.columns].map(widest);
    const [n, m] = [o.rows.length, o.columns.length];
    const { min = 12, max = 32, height } = o.cell || {};
    const names = o.named ? Math.ceil(Math.min(widths[0], width < 480 ? 76 : 104)) + 8 : 0;
    const left = Math.max(2, names + (o.left ? o.left.size + 4 : 0)); // at least 2 pixels, for the frames around cells
    const gap = o.extra ? 8 : 0;
    const all = m + (o.extra ? 1 : 0);
    const fits = (width - left - gap - 2) / all;
    const whole = n * m > 0 && fits < min && !large && !o.text;
    const roomy = Math.floor(Math.min(max, fits, Math.max(min, 600 / n)));
    const cell = whole ? Math.min(fits, 480 / n) : Math.max(min, roomy);
    const tall = (!whole && height) || cell;
    const heading = whole ? 22 : Math.ceil(Math.min(widths[1], 88)) + 8;
    const top = heading + (o.top ? o.top.size + 4 : 0);
    zoom.hidden = fits >= min || Boolean(o.text);
    zoom.textContent = whole ? "Show cells" : "Show the whole";
    shape = { left, top, names, heading, gap, cell, tall, whole, n, m };
    sizer.style.width = `${Math.floor(left + all * cell + gap)}px`;
    sizer.style.height = `${Math.ceil(top + n * tall + 1)}px`;
    if (o.onlayout) o.onlayout(shape);
    return true;
  }

  function draw() {
    if (!layout()) return;
    const { left, top, names, heading, cell, tall, whole, n, m } = shape;
    const { clientWidth: width, clientHeight: height, scrollLeft: right, scrollTop: down } = box;
    const pen = canvas2d(canvas, width, height);
    const stripes = hatch(ui, pen);
    if (o.changed) orange = hatch(ui, pen, "--changed");
    const [i0, i1] = [Math.floor(down / tall), Math.min(n, Math.ceil((down + height - top) / tall))];
    const [j0, j1] = [Math.floor(right / cell), Math.min(m, Math.ceil((right + width - left) / cell))];
    /** @param {number} px @param {number} py @param {() => void} body */
    const within = (px, py, body) => {
      pen.save();
      pen.beginPath();
      pen.rect(px, py, px ? width : left, py ? height : top);
      pen.clip();
      body();
      pen.restore();
    };
    /** @param {number} i @param {number} j @param {number} wide @param {number} high @param {number} line @param {string} colour */
    const frame = (i, j, wide, high, line, colour) => {
      pen.lineWidth = line;
      pen.strokeStyle = colour;
      pen.strokeRect(x(j) - 0.5, y(i) - 0.5, wide, high);
    };
    within(left - 1, top - 1, () => {
      pen.translate(-right, -down);
      pen.fillStyle = ui.color(whole || tall <= 8 ? "--paper" : "--grid");
      pen.fillRect(left, top, m * cell, n * tall);
      if (o.extra) pen.fillRect(x(m), top, cell, n * tall);
      if (whole) {
        if (!o.entries) pen.fillStyle = stripes;
        pen.fillRect(left, top, m * cell, n * tall);
        pen.imageSmoothingEnabled = false;
        picture = picture || paint();
        pen.drawImage(picture, left, top, m * cell, n * tall);
        pen.fillStyle = orange ?? stripes;
        for (const [i, j] of mine) pen.fillRect(x(j), y(i), cell, tall);
      }
      for (let i = i0; i < i1; i++) {
        const known = whole ? null : new Map(row(i));
        if (known) for (let j = j0; j < j1; j++) square(pen, stripes, i, j, known.get(j));
        if (o.extra) square(pen, stripes, i, m, o.extra.value(i));
      }
      const mark = ui.color("--ink");
      frame(0, 0, m * cell + 1, n * tall + 1, 1, ui.color("--line"));
      if (o.extra) frame(0, m, cell + 1, n * tall + 1, 1, ui.color("--line"));
      for (const i of o.marked) frame(i, 0, m * cell, tall, whole ? 1 : 2, mark);
      for (const [i, j] of [o.picked, at].filter(Boolean)) {
        if (whole) {
          frame(i, 0, m * cell, 0, 1, mark);
          frame(0, j, 0, n * tall, 1, mark);
          frame(i - 4 / tall, j - 4 / cell, 9, 9, 2, mark);
        } else {
          frame(i, j, cell, tall, 4, ui.color("--ink"));
          frame(i, j, cell, tall, 2, ui.color("--paper"));
        }
      }
    });
    if (o.left) within(0, top, () => beside(pen, i0, i1, down));
    if (o.top) within(left, 0, () => above(pen, j0, Math.min(j1, m), right));
    if (o.left && o.top && lit !== null) encircle(pen, right, down);
    pen.textBaseline = "middle";
    [pen.fillStyle, pen.font, pen.textAlign] = [ui.color("--dim"), `bold ${font(12)}`, "right"];
    if (o.left) pen.fillText(o.left.name, left - 8, top - 10);
    if (o.top) pen.fillText(o.top.name, left - 8, heading + o.top.size / 2);
    /** @param {boolean | null} on @param {number} size */
    const style = (on, size) => {
      pen.fillStyle = ui.color(on ? "--ink" : "--dim");
      pen.font = (on ? "bold " : "") + font(Math.min(12, Math.max(9, size)));
    };
    if (whole) {
      // there is no room for names: label a few positions
      style(false, 11);
      for (const part of [0, 0.25, 0.5, 0.75]) {
        const [i, j] = [Math.round(part * n), Math.round(part * m)];
        pen.textAlign = "right";
        if (o.named) pen.fillText(count(i), names - 6, Math.max(top + 5, y(i)));
        pen.textAlign = "left";
        pen.fillText(count(j), x(j), heading - 8);
      }
      return;
    }
    within(0, top, () => {
      if (!o.named) return;
      pen.textAlign = "right";
      for (let i = i0; i < i1; i++) {
        style(o.marked.includes(i) || (at && at[0] === i), tall - 1);
        pen.fillText(cut(visible(o.rows[i]), 14), names - 6, y(i) + tall / 2 - down, names - 6);
      }
    });
    within(left, 0, () => {
      pen.textAlign = "left";
      for (let j = j0; j < j1 + (o.extra ? 1 : 0); j++) {
        style(at && at[1] === j, cell - 1);
        pen.save();
        pen.translate(x(j) + cell / 2 - right, heading - 6);
        pen.rotate(-Math.PI / 2);
        pen.fillText(cut(visible(j === m ? o.extra.name : o.columns[j]), 14), 0, 0, heading - 8);
        pen.restore();
      }
    });
  }

  /** @param {CanvasRenderingContext2D} pen @param {CanvasPattern} stripes @param {number} i @param {number} j @param {number} value */
  function square(pen, stripes, i, j, value) {
    const [wide, tall] = shape.whole
      ? [Math.max(6, shape.cell), Math.max(1, shape.tall)]
      : [shape.cell, shape.tall];
    const line = tall > 8 ? 1 : 0;
    if (value === null) {
      pen.fillStyle = ui.color("--absent");
      return pen.fillRect(x(j), y(i), wide - line, tall - line);
    }
    const colour = shade(ui, share(value));
    const over = o.changed && j < shape.m && o.changed(i, j) ? /** @type {CanvasPattern} */ (orange) : stripes;
    for (const style of Number.isNaN(value) ? [css(colour), over] : [css(colour)]) {
      pen.fillStyle = style;
      pen.fillRect(x(j), y(i), wide - line, tall - line);
    }
    const text = o.text ? o.text(i, j) : null;
    if (text === null || text === undefined) return;
    pen.font = font(11);
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillStyle = Number.isNaN(value) ? ui.color("--ink") : ink(colour);
    if (pen.measureText(text).width <= wide - 4) pen.fillText(text, x(j) + wide / 2, y(i) + tall / 2);
  }

  /**
   * Draws the vectors beside the rows.
   * @param {CanvasRenderingContext2D} pen
   * @param {number} i0
   * @param {number} i1
   * @param {number} down
   */
  function beside(pen, i0, i1, down) {
    const { names, tall } = shape;
    const wide = o.left.size / o.left.count;
    for (let i = i0; i < i1; i++)
      for (let c = 0; c < o.left.count; c++) {
        pen.fillStyle = css(shade(ui, o.left.value(i, c) / o.left.high));
        pen.fillRect(names + c * wide, y(i) - down, Math.ceil(wide), Math.max(1, tall - (tall > 8 ? 1 : 0)));
      }
  }

  /**
   * Draws the vectors above the columns; a vector's first number is at the bottom, next to the cells.
   * @param {CanvasRenderingContext2D} pen
   * @param {number} j0
   * @param {number} j1
   * @param {number} right
   */
  function above(pen, j0, j1, right) {
    const { top, cell } = shape;
    const high = o.top.size / o.top.count;
    for (let j = j0; j < j1; j++)
      for (let c = 0; c < o.top.count; c++) {
        pen.fillStyle = css(shade(ui, o.top.value(j, c) / o.top.high));
        pen.fillRect(x(j) - right, top - 4 - (c + 1) * high, Math.max(1, cell - (cell > 8 ? 1 : 0)), Math.ceil(high));
      }
  }

  /**
   * Marks one number in both vectors of a cell.
   * @param {CanvasRenderingContext2D} pen
   * @param {number} right
   * @param {number} down
   */
  function encircle(pen, right, down) {
    const [i, j] = at || o.picked || [];
    if (!(j < shape.m)) return;
    const { names, top, left, cell, tall } = shape;
    const [wide, high] = [o.left.size / o.left.count, o.top.size / o.top.count];
    const [own, over] = [names + /** @type {number} */ (lit) * wide, top - 4 - (/** @type {number} */ (lit) + 1) * high];
    const spots = [];
    if (y(i) >= down + top - 1) spots.push([own, y(i) - down, wide, tall - 1]);
    if (x(j) >= right + left - 1) spots.push([x(j) - right, over, cell - 1, high]);
    for (const [px, py, w, h] of spots) {
      pen.lineWidth = 2;
      for (const [colour, margin] of /** @type {[string, number][]} */ ([["--paper", 3], ["--ink", 1.5]])) {
        pen.strokeStyle = ui.color(colour);
        pen.strokeRect(px - margin, py - margin, w + 2 * margin, h + 2 * margin);
      }
    }
  }

  /**
   * Finds the number under the pointer in the vector beside a row or in the vector above a column. Returns the number's
   * index in its vector. If the pointer is on none of these vectors, returns null.
   * @param {any} event
   */
  function numberUnder(event) {
    if (!shape || !o.left || !o.top) return null;
    const { left, top, names, cell, tall, n, m } = shape;
    const frame = box.getBoundingClientRect();
    const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
    const [i, j] = [(py + box.scrollTop - top) / tall, (px + box.scrollLeft - left) / cell];
    const own = Math.floor(((px - names) / o.left.size) * o.left.count);
    const over = Math.floor(((top - 4 - py) / o.top.size) * o.top.count);
    if (py >= top && i < n && own >= 0 && own < o.left.count) return own;
    return px >= left && j < m && over >= 0 && over < o.top.count ? over : null;
  }

  /** Draws the whole matrix as a small picture; each pixel shows the largest of its cells. */
  function paint() {
    const { n, m } = shape;
    const [wide, tall] = [Math.min(m, 640), Math.min(n, 640)];
    const most = new Float32Array(wide * tall).fill(-Infinity);
    mine = [];
    for (let i = 0; i < n; i++) {
      for (const [j, value] of row(i)) {
        if (o.changed && Number.isNaN(value) && o.changed(i, j)) mine.push([i, j]);
        const index = Math.floor((i * tall) / n) * wide + Math.floor((j * wide) / m);
        const blank = !Number.isFinite(most[index]);
        if (value === null && blank) most[index] = Infinity;
        else if (value !== null && Math.abs(value) > (blank ? -1 : Math.abs(most[index]))) most[index] = value;
      }
    }
    return raster(ui, most, wide, tall, share);
  }

  /**
   * The cell under the pointer; in the picture of the whole matrix, the cell with the largest value near the pointer.
   * @param {any} event
   * @returns {[number, number] | null}
   */
  function under(event) {
    if (!shape) return null;
    const { left, top, cell, tall, whole, n, m, gap } = shape;
    const frame = box.getBoundingClientRect();
    const [px, py] = [event.clientX - frame.left - left, event.clientY - frame.top - top];
    const [u, v] = [(px + box.scrollLeft) / cell, (py + box.scrollTop) / tall];
    let [i, j] = [Math.floor(v), Math.floor(u)];
    if (o.extra && u >= m) j = u >= m + gap / cell ? m : m - 1;
    if (px < 0 || py < 0 || i >= n || j > m || (j === m && !o.extra)) return null;
    if (!whole || j === m) return [i, j];
    let best = -Infinity;
    for (let a = Math.floor(clamp(v - 1 / tall, n - 1)); a < Math.min(n, v + 2 / tall); a++) {
      for (const [b, value] of row(a))
        if (Math.abs(b - u) <= 1 + 2 / cell && value > best) [best, i, j] = [value, a, b];
    }
    return [i, j];
  }

  /** @param {number} i @param {number} j */
  function reveal(i, j) {
    const { left, top, cell, tall, whole } = shape;
    /** @param {number} position @param {number} size @param {number} now @param {number} extent */
    const near = (position, size, now, extent) => (position < now ? position : Math.max(now, position + size - extent));
    if (whole) return;
    box.scrollTop = near(i * tall, tall, box.scrollTop, box.clientHeight - top);
    box.scrollLeft = near(x(j) - left, cell, box.scrollLeft, box.clientWidth - left);
  }

  /** @param {boolean} aloud */
  function tell(aloud) {
    const cell = at || o.picked || o.home;
    let said = cell && o.describe ? o.describe(...cell) : "";
    if (typeof said === "string") said = { title: said, fields: [] };
    const fields = said.fields.map((/** @type {any} */ [name, value]) =>
      el("span", { class: "field" }, el("span", { class: "dim" }, name), " ", el("b", {}, value)),
    );
    fill(readout, el("span", { class: fields.length ? "readout-title" : "" }, said.title), fields);
    if (aloud) ui.say([said.title, ...said.fields.map((/** @type {any} */ field) => field.join(" "))].join(", "));
  }

  /**
   * Shows the description of cell (i, j). If `i` is null, shows the description of the picked cell or, if no cell is
   * picked, of the cell `home`.
   * @param {number | null} i
   * @param {number | null} [j]
   */
  function point(i, j, aloud = false) {
    const next = i === null ? null : /** @type {[number, number]} */ ([i, j]);
    if (String(next) === String(at)) return;
    at = next;
    if (o.onpoint) o.onpoint(i, j);
    tell(aloud);
    draw();
  }

  /** @param {string} key @param {boolean} whole */
  function step(key, whole) {
    const [end, last] = [shape.n - 1, shape.m - 1 + (o.extra ? 1 : 0)];
    let [i, j] = at || o.picked || o.home || [0, 0];
    const across = { ArrowRight: 1, ArrowLeft: -1, Home: -last, End: last }[key] || 0;
    const down =
      { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: whole ? -end : 0, End: whole ? end : 0 }[
        key
      ] || 0;
    if (at) {
      i = clamp(i + down, end);
      if (!o.entries) j = clamp(j + across, last);
      else {
        // a key press moves to the next known weight
        /** @type {number[]} */
        const known = row(i)
          .map((/** @type {any} */ [b]) => b)
          .filter((/** @type {number} */ b) => !across || (b - j) * across > 0);
        const sign = Math.abs(across) > 1 ? -1 : 1; // Home and End move to the first or last known weight
        if (known.length) j = known.sort((a, b) => sign * (Math.abs(a - j) - Math.abs(b - j)))[0];
      }
    }
    reveal(i, j);
    point(i, j, true);
  }

  box.addEventListener("pointermove", (/** @type {any} */ event) => {
    if (event.pointerType === "touch") return;
    const [i, j] = under(event) || [null];
    point(i, j);
    if (o.onnumber) o.onnumber(numberUnder(event));
  });
  box.addEventListener("pointerleave", () => {
    if (o.onnumber) o.onnumber(null);
    if (ui.focused() !== box) point(null);
  });
  box.addEventListener("blur", () => point(null));
  box.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  box.addEventListener("click", (/** @type {any} */ event) => {
    const cell = under(event);
    if (o.onnumber) o.onnumber(numberUnder(event));
    if (!cell) return;
    const [i, j] = cell;
    point(i, j);
    if (o.onpick) o.onpick(i, j, event);
  });
  box.addEventListener("keydown", (/** @type {any} */ event) => {
    if (!shape || event.altKey || event.metaKey) return;
    if (/^(Arrow|Page|Home|End)/.test(event.key)) step(event.key, event.ctrlKey);
    else if (event.key === "Enter" || event.key === " ") {
      if (at && o.onpick) o.onpick(...at, event);
    } else if (event.key === "Escape") {
      point(null);
      if (o.onfree) o.onfree();
    } else return;
    event.preventDefault();
  });

  /**
   * Changes options and redraws the map.
   * @param {Record<string, any>} changed
   */
  function set(changed) {
    Object.assign(o, changed);
    const fresh = ["rows", "columns", "value", "entries", "high"].filter((name) => name in changed);
    if (fresh.length) [at, picture, widths] = [null, null, null];
    box.setAttribute(
      "aria-label",
      `${o.label}: ${count(o.rows.length)} rows, ${count(o.columns.length)} columns; move with the arrow keys`,
    );
    tell(false);
    paintAll();
  }

  /** Redraws the map in the colours of the current theme. */
  function paintAll() {
    picture = null;
    fill(bar, o.bar ? scaleBar(ui, o.low, o.high, o.bar, o.say) : null, o.absent ? el("p", { class: "note absent" }, el("i", {}), o.absent) : null);
    draw();
  }

  /**
   * Marks a number in the vectors of the cell, or removes the mark.
   * @param {number | null} c
   */
  function mark(c) {
    if (c === lit) return;
    lit = c;
    draw();
  }

  set({});
  MATRICES.set(node, o);
  ui.redraw(paintAll);
  return { node, set, draw, point, under, mark };
}
