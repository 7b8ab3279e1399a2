// Saves a part: its picture as SVG or PNG, its numbers as CSV. The page sends nothing anywhere: the reader saves a
// file or, in a frame that may forbid files, copies text.

import { el, fill } from "../base/elements.js";
import { MATRICES } from "../base/heatmap.js";
import { cut } from "../base/format.js";
import { pictureOf, pngOf, svgText } from "./picture.js";
import "./save.css";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {{name: string, text: string, caption: string, numbers: Sheet[]}} About */

/**
 * @typedef {{columns: string[], rows: any[][]}} Table  numbers and texts; null and numbers that are not finite are saved as empty cells
 * @typedef {[string, string, () => Table]} Sheet  the label of the button, the name of the file, the table
 */

// ---- CSV

/**
 * A number with all its digits: the shortest text that gives the same float32 or float64.
 * @param {number} x
 */
function exactly(x) {
  if (!Number.isFinite(x)) return "";
  if (Math.fround(x) !== x) return String(x);
  let digits = 1;
  while (digits < 9 && Math.fround(Number(x.toPrecision(digits))) !== x) digits += 1;
  return String(Number(x.toPrecision(digits)));
}

/**
 * A cell of a table. If a spreadsheet would read a text as a formula, a ' is written before the text.
 * @param {any} value
 */
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return exactly(value);
  if (typeof value === "boolean") return String(value);
  const text = /^[\s\p{C}]*[=+\-@＝＋－＠]|^[\t\r\n]/u.test(value) ? `'${value}` : value.toWellFormed();
  return /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** @param {Table} table */
export function csvOf({ columns, rows }) {
  return [columns, ...rows].map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");
}

/**
 * The numbers of every heat map in a part, row by row.
 * @param {HTMLElement} node
 * @returns {Sheet[]}
 */
export function matricesIn(node) {
  const blocks = [...node.querySelectorAll(".map-block")].filter((block) => block.checkVisibility() && MATRICES.has(block));
  return blocks.map((block) => {
    /**
     * @type {{label: string, rows: string[], columns: string[], value: (i: number, j: number) => any,
     *         entries: (i: number) => [number, any][]}}
     */
    const { label, rows, columns, value, entries } = MATRICES.get(block);
    /** @type {(i: number) => (j: number) => any} */
    const at = entries ? (i) => ((known) => (j) => known.get(j))(new Map(entries(i))) : (i) => (j) => value(i, j);
    const table = () => ({
      columns: ["position", "row", ...columns.map((name, j) => `${j} ${name}`)],
      rows: rows.map((name, i) => [i, name, ...columns.map((_, j) => j).map(at(i))]),
    });
    return [label, label, table];
  });
}

// ---- the menu

/**
 * A menu that saves a part. `about` is called each time and describes the part.
 * @param {Ui} ui
 * @param {HTMLElement} around  the element that the picture shows: the part, or an element that contains the part
 * @param {() => About | null} about returns null if nothing can be saved; otherwise `name`: the name of the
 * part in file names; `text`: the text of the page; `caption`: the text below the picture
 */
export function saveMenu(ui, around, about) {
  const done = el("span", { class: "note" });
  const bar = el("div", { class: "bar" });
  const box = el("details", { class: "save", ontoggle: () => list() }, el("summary", {}, "Save"), bar);
  /** @type {[{node: HTMLElement, show: (name: string, value: any, note?: string) => Promise<void>} | null, any]} */
  let [paper, later] = [null, 0]; // paper: the field with text to copy
  /** @param {string} label @param {any} make */
  const button = (label, make) => el("button", { type: "button", onclick: () => save(make) }, label);
  const there = /** @type {() => About} */ (about); // while the menu is open, about() is not null
  const picture = () => pictureOf(ui, around, there().caption);

  function list() {
    const content = about();
    box.hidden = !content;
    if (!box.open || !content) return;
    const sheets = content.numbers.map(([what], k) => button(`CSV: ${what}`, () => csvFile(k)));
    fill(bar, button("SVG", svgFile), button("PNG", pngFile), sheets, done);
  }

  /**
   * The current numbers: the reader may have chosen another step after the buttons were made.
   * @param {number} k
   */
  function csvFile(k) {
    const [, name, table] = there().numbers[k];
    return { name, kind: "csv", text: csvOf(table()) };
  }

  function svgFile() {
    return { name: there().name, kind: "svg", text: svgText(picture()) };
  }

  async function pngFile() {
    return { name: there().name, kind: "png", blob: await pngOf(picture()) };
  }

  /** @param {any} make */
  async function save(make) {
    try {
      const { name, kind, text, blob } = await make();
      const called = `${fileName(name, there().text)}.${kind}`;
      const free = letsFilesOut();
      handOver(called, blob ?? new Blob([text], { type: kind === "svg" ? "image/svg+xml" : "text/csv" }));
      fill(done, free ? `Saved: ${called}` : `The frame around this page may prevent you from saving ${called}.${text ? " Copy it from here." : " Open the page in its own window instead."}`);
      if (!free && text) {
        paper ??= toTakeAway(ui);
        box.append(paper.node);
        paper.show(called, text);
      }
    } catch (/** @type {any} */ reason) {
      fill(done, `The file cannot be saved: ${reason.message}`);
    }
    ui.say(done.textContent);
  }
  const update = () => {
    clearTimeout(later);
    later = setTimeout(list, 0); // waits for parts that update later
  };
  box.addEventListener("pointerenter", list);
  return { node: box, update };
}

/**
 * A file name that every system accepts: the kind of data, and the first words of the text.
 * @param {string} name
 * @param {string} text
 */
function fileName(name, text) {
  /** @param {string} x */
  const plain = (x) => x.replace(/[^\p{L}\p{N}.]+/gu, "-").replace(/^[-.]+|[-.]+$/g, "");
  return [plain(name), plain(cut(text, 40).replace("[MASK]", "mask"))].filter(Boolean).join("_");
}

/**
 * Gives the reader a file.
 * @param {string} name
 * @param {Blob} blob
 */
export function handOver(name, blob) {
  const href = URL.createObjectURL(blob);
  el("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

/** Whether the page can be sure that the browser lets it save files. The answer is false in a frame of another origin. */
function letsFilesOut() {
  const own = self.origin !== "null" || location.protocol === "file:";
  if (window === window.parent) return own;
  try {
    const frame = /** @type {any} */ (window.frameElement);
    return frame !== null && (!frame.hasAttribute("sandbox") || frame.sandbox.contains("allow-downloads"));
  } catch {
    return false;
  }
}

// ---- text to copy

/**
 * A field with text to copy. The text is also copied to the clipboard if the browser allows it.
 * @param {Ui} ui
 */
export function toTakeAway(ui) {
  const id = ui.id("take");
  const label = el("label", { for: id });
  const told = el("p", { class: "note", id: ui.id("take-note"), hidden: true });
  const text = el("textarea", { id, readonly: true, rows: 8, spellcheck: "false", wrap: "off", "aria-describedby": told.id });
  const done = el("span", { class: "dim", role: "status" });
  const copy = el("button", { type: "button", onclick: () => take() }, "Copy");
  const close = el("button", { type: "button", onclick: () => (node.hidden = true) }, "Close");
  const node = el("div", { class: "take", hidden: true }, el("div", { class: "bar" }, label, copy, close, done), told, text);

  async function take() {
    text.select();
    try {
      await navigator.clipboard.writeText(text.value);
      fill(done, "Copied.");
    } catch {
      fill(done, "Selected: press Ctrl+C or ⌘C to copy it.");
    }
  }

  /** @param {string} name @param {any} value */
  function show(name, value, note = "") {
    fill(label, name);
    fill(told, note);
    told.hidden = !note;
    text.value = value;
    text.rows = Math.min(18, value.split("\n").length + 1);
    node.hidden = false;
    return take();
  }
  return { node, show };
}
