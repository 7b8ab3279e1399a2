// Three kinds of elements: controls for the reader, colour scales and tables.

import { el, fill } from "./elements.js";
import { number } from "./format.js";

/** @typedef {import("./mount.js").Ui} Ui */

/**
 * A menu with a label; options are [value, text].
 * @param {Ui} ui
 * @param {string} label
 * @param {any[][]} options
 * @param {any} value
 * @param {(value: any) => any} onchange
 */
export function choice(ui, label, options, value, onchange) {
  const id = ui.id("choice");
  const select = el("select", { id, onchange: () => onchange(select.value) });
  /** @param {any} chosen */
  const set = (chosen) => {
    select.value = String(chosen);
  };
  /** @param {any[][]} all */
  const put = (all) =>
    fill(select, all.map(([key, text]) => el("option", { value: key }, text)));
  put(options);
  set(value);
  return { node: el("span", { class: "control" }, el("label", { for: id }, label), select), put, set };
}

/**
 * A check box with a label.
 * @param {Ui} ui
 * @param {string} label
 * @param {boolean} checked
 * @param {(value: any) => any} onchange
 */
export function toggle(ui, label, checked, onchange) {
  const id = ui.id("toggle");
  const input = el("input", { id, type: "checkbox", onchange: () => onchange(input.checked) });
  input.checked = checked;
  return { node: el("span", { class: "control" }, input, el("label", { for: id }, label)), input };
}

/**
 * Lets the Tab key stop only once in a group of items. Inside the group, the arrow keys, Home, End and the page keys move the focus.
 * Enter, Space and a click call `onpick`; Esc calls `onfree`. Items have the attribute data-i. `onmove(i)` runs before item i gets
 * the focus, so that the caller can draw item i.
 * @param {any} box
 * @param {{count: () => number, columns?: number | (() => number), at?: number, onmove?: (i: number) => void,
 *          onpick?: (i: number, event?: any) => void, onfree?: () => void}} options
 */
export function roving(box, { count: size, columns = 1, at = 0, onmove, onpick, onfree }) {
  /** @param {number} i */
  const item = (i) => box.querySelector(`[data-i="${i}"]`);
  const self = {
    at,
    refresh() {
      for (const node of box.querySelectorAll("[data-i]"))
        node.tabIndex = Number(node.dataset.i) === self.at ? 0 : -1;
    },
    /** @param {number} i */
    go(i, focus = true) {
      self.at = Math.max(0, Math.min(size() - 1, i));
      if (onmove) onmove(self.at);
      self.refresh();
      if (focus && item(self.at)) item(self.at).focus({ preventScroll: false });
    },
  };
  /** @param {any} event */
  const of = (event) => {
    const node = event.target.closest("[data-i]");
    return node ? Number(node.dataset.i) : null;
  };
  box.addEventListener("click", (/** @type {any} */ event) => {
    const i = of(event);
    if (i === null) return;
    self.at = i;
    if (onpick) onpick(i, event);
    self.refresh();
  });
  box.addEventListener("keydown", (/** @type {any} */ event) => {
    const i = of(event);
    if (i === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const wide = typeof columns === "function" ? columns() : columns;
    /** @type {Record<string, number>} */
    const steps = { ArrowDown: wide, ArrowUp: -wide, PageDown: 10 * wide, PageUp: -10 * wide };
    Object.assign(steps, { ArrowRight: 1, ArrowLeft: -1, Home: -i, End: size() - 1 - i });
    if (event.key in steps) {
      const next = i + steps[event.key];
      if (wide === 1 || Math.abs(steps[event.key]) !== wide || (next >= 0 && next < size())) self.go(next);
    } else if (event.key === "Enter" || event.key === " ") {
      self.at = i;
      if (onpick) onpick(i, event);
      self.refresh();
    } else if (event.key === "Escape" && onfree) onfree();
    else return;
    event.preventDefault();
  });
  return self;
}

/**
 * A colour scale with numbers at both ends and in the middle.
 * @param {Ui} ui
 * @param {number} low
 * @param {number} high
 * @param {string} label
 * @param {(x: number) => string} [say] writes a number
 */
export function scaleBar(ui, low, high, label, say) {
  const [more, less] = ["--more", "--less"].map((name) => ui.color(name).split(" "));
  const stops = [...(low ? less.slice(1).reverse() : []), ...more];
  const digits = high - low >= 20 ? 0 : high - low >= 0.1 ? 2 : 4;
  return el("div", { class: "scale" },
    el("span", { class: "scale-name" }, label),
    el("span", { class: "scale-body" },
      el("span", { class: "scale-bar", style: { background: `linear-gradient(to right, ${stops.join(", ")})` } }),
      el("span", { class: "scale-ends" }, [low, (low + high) / 2, high].map((x) => el("span", {}, say ? say(x) : number(x, x ? digits : 0))))));
}

export const STRETCH = "stretch the scale to the largest"; // the label of the switch below

/**
 * A switch for a scale of weights: the scale ends at 1, or at the largest shown weight.
 * @param {Ui} ui
 * @param {boolean} checked
 * @param {(value: any) => any} onchange
 */
export function stretcher(ui, checked, onchange) {
  return toggle(ui, STRETCH, checked, onchange);
}

/**
 * A table that a reader can unfold; the table is made only when it is open. `set(told)` takes a function that returns
 * the contents: a caption, the names of columns, and rows. A row is a list of its name and its cells. A cell is a
 * text, or a pair: a text, and whether the reader has changed the cell.
 * @param {string} summary
 * @param {string} label
 */
export function foldedTable(summary, label) {
  const box = el("div", { class: "scroll table", tabindex: 0, role: "group", "aria-label": label });
  const node = el("details", { class: "as-table", ontoggle: draw }, el("summary", {}, summary), box);
  /** @type {(() => {caption: string, columns: string[], rows: any[][]}) | null} */
  let told = null;
  function draw() {
    if (!node.open || !told) return fill(box);
    const { caption, columns, rows } = told();
    const head = columns.map((name) => el("th", { scope: "col" }, name));
    /** @param {any[]} row */
    const line = ([name, ...cells]) =>
      el("tr", {}, el("th", { scope: "row" }, name), cells.map((/** @type {any} */ cell) => (Array.isArray(cell) ? el("td", { class: cell[1] ? "changed" : "" }, cell[0]) : el("td", {}, cell))));
    fill(box, el("table", {}, el("caption", { class: "sr" }, caption), el("thead", {}, el("tr", {}, el("td", {}), head)), el("tbody", {}, rows.map(line))));
  }
  return {
    node,
    /** @param {() => {caption: string, columns: string[], rows: any[][]}} next */
    set(next) {
      told = next;
      draw();
    },
  };
}
