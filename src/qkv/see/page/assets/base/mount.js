// Starts a view on a page. For each page, html.py writes one function, which contains the page's bundle and the call
// `start(hash, payload, css)`. The top of payload.py describes the payload.

import { el, fill } from "./elements.js";
import { atOnce, inTurn } from "./turns.js";
import "./view.css";

/**
 * The functions that a view calls to draw and to announce texts.
 * @typedef {object} Ui
 * @property {(name: string) => number[]} stops  the colours of a scale: red, green and blue of each, in one list
 * @property {(text: string) => void} say  announces a text to screen readers
 * @property {(name: "light" | "dark" | null) => void} theme  sets the document's theme; null restores the theme from
 *     before
 * @property {(draw: () => any) => void} redraw  registers a function to call again for other colours or another width
 * @property {() => void} repaint
 * @property {(name: string) => string} color  a CSS property of the view
 * @property {(name: string) => string} id  makes a unique id
 * @property {() => Element | null} focused
 */

const ABOUT = "about"; // the name of the slot for the documents about the model
let lastId = 0;

/**
 * A function that starts a view. It calls `view(box, payload, ui)` for each element on the page that waits for this
 * view. Such an element contains a picture, which the browser shows instead of the view if scripts are disabled.
 * @param {(box: any, payload: any, ui: Ui) => void} view
 * @returns {(hash: string, data: any, styles: string) => void}
 */
export function mounter(view) {
  return (hash, data, styles) => {
    const script = document.currentScript;
    /** @type {any} */
    const root = script ? script.getRootNode() : document;
    const inside = [...root.querySelectorAll(`.qkv-view[data-qkv="${hash}"]`)];
    const hosts = inside.length ? inside : [...document.querySelectorAll(`.qkv-view[data-qkv="${hash}"]`)];
    for (const host of hosts) if (!host.shadowRoot) mount(host, data, styles, view);
  };
}

/** @param {any} host @param {any} data @param {string} styles @param {(box: HTMLElement, data: any, ui: Ui) => void} view */
function mount(host, data, styles, view) {
  const root = host.attachShadow({ mode: "open" });
  const live = el("div", { class: "sr", role: "status", "aria-live": "polite" });
  const box = el("div", { class: "view" });
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  /** @type {(() => any)[]} */
  const drawers = [];
  const turn = inTurn();
  let [pending, width] = [0, 0];
  /** @type {"light" | "dark" | null} */
  let asked = null;
  const paint = () => {
    const { theme, jpThemeLight, vscodeThemeKind } = document.body.dataset; // of a site, JupyterLab and VS Code
    const jupyter = { true: "light", false: "dark" }[jpThemeLight ?? ""];
    const code = vscodeThemeKind && (/light$/.test(vscodeThemeKind) ? "light" : "dark");
    const wanted = [asked, data.theme, theme, jupyter, code].find((name) => name === "light" || name === "dark");
    box.dataset.theme = wanted ?? (dark.matches ? "dark" : "light");
    colours.clear();
    ramps.clear();
    turn(box.clientWidth ? drawers : []);
  };
  const colours = new Map(); // maps names of CSS properties to their values
  const ramps = new Map();
  /** @type {Ui} */
  const ui = {
    stops(name) {
      if (!ramps.has(name)) ramps.set(name, /** @type {string[]} */ (ui.color(name).match(/\w\w/g)).map((part) => parseInt(part, 16)));
      return ramps.get(name);
    },
    say(text) {
      clearTimeout(pending);
      pending = setTimeout(() => fill(live, text), 150);
    },
    theme(name) {
      if (name === asked) return;
      asked = name;
      document.documentElement.style.colorScheme = name ?? "";
      atOnce(paint);
    },
    redraw: (draw) => drawers.push(draw),
    repaint: () => atOnce(paint),
    color(name) {
      if (!colours.has(name)) colours.set(name, getComputedStyle(box).getPropertyValue(name).trim());
      return colours.get(name);
    },
    id: (name) => `qkv-${name}-${(lastId += 1)}`,
    focused: () => root.activeElement,
  };
  box.dataset.theme = "light";
  box.addEventListener("keydown", (/** @type {any} */ event) => {
    if (!event.ctrlKey && !event.metaKey) event.stopPropagation(); // so that a notebook does not use the key as a shortcut
  });
  root.append(el("style", {}, styles), box, live);
  try {
    view(box, data, ui);
    const notes = (data.notes || []).map((/** @type {number} */ line) => el("p", { class: "note" }, line));
    if (box.querySelector(":scope > .sentence, :scope > .lead")) box.append(...notes);
    box.append(el("slot", { name: ABOUT })); // html.py writes these documents
  } catch (error) {
    fill(root, el("slot"), el("slot", { name: ABOUT })); // if a view fails, keep the static picture
    throw error;
  }
  width = box.clientWidth;
  atOnce(paint);
  dark.addEventListener("change", paint);
  new MutationObserver(paint).observe(document.body, { attributeFilter: ["data-theme", "data-jp-theme-light", "data-vscode-theme-kind"] });
  new ResizeObserver(() => {
    if (box.clientWidth === width) return;
    width = box.clientWidth;
    paint();
  }).observe(box);
}
