// Puts a view on the page. html.py writes the bundle of a page into one function together with a call of
// start(hash, payload, css); the payload is described at the top of payload.py.

import { el, fill } from "./elements.js";
import { atOnce, inTurn } from "./turns.js";
import "./view.css";

/**
 * What a view draws and speaks with.
 * @typedef {object} Ui
 * @property {(name: string) => number[]} stops  of a ramp of colours: red, green and blue of each, one after the other
 * @property {(text: string) => void} say  to those who listen
 * @property {(name: "light" | "dark" | null) => void} theme  has the whole document light or dark, or with null again as it was made
 * @property {(draw: () => any) => void} redraw  is to be done again in other colours, or at another width
 * @property {() => void} repaint
 * @property {(name: string) => string} color  a property of the style
 * @property {(name: string) => string} id  one that nothing else has
 * @property {() => Element | null} focused
 */

const ABOUT = "about"; // the slot of what the page says of its model
let lastId = 0;

/**
 * What starts a view, which `view(box, payload, ui)` puts into a box: it fills each place on the page that waits for
 * this view; what it holds already shows without scripts.
 * @param {(box: any, payload: any, ui: Ui) => void} view
 * @returns {(hash: string, data: any, styles: string) => void}
 */
export function starting(view) {
  return (hash, data, styles) => {
    const script = document.currentScript;
    /** @type {any} */
    const root = script ? script.getRootNode() : document;
    const found = [...root.querySelectorAll(`.qkv-view[data-qkv="${hash}"]`)];
    const hosts = found.length ? found : [...document.querySelectorAll(`.qkv-view[data-qkv="${hash}"]`)];
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
    const wanted = [asked, data.theme, document.body.dataset.theme].find((name) => name === "light" || name === "dark");
    const theme = wanted ?? (dark.matches ? "dark" : "light");
    box.dataset.theme = theme;
    colours.clear();
    ramps.clear();
    turn(box.clientWidth ? drawers : []);
  };
  const colours = new Map(); // by property of the style
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
    if (!event.ctrlKey && !event.metaKey) event.stopPropagation(); // a notebook has keys of its own
  });
  root.append(el("style", {}, styles), box, live);
  try {
    view(box, data, ui);
    const notes = (data.notes || []).map((/** @type {number} */ line) => el("p", { class: "note" }, line));
    if (box.querySelector(":scope > .sentence, :scope > .lead")) box.append(...notes);
    box.append(el("slot", { name: ABOUT })); // see about.py
  } catch (error) {
    fill(root, el("slot"), el("slot", { name: ABOUT })); // the static picture is better than half a view
    throw error;
  }
  width = box.clientWidth;
  atOnce(paint);
  dark.addEventListener("change", paint);
  new MutationObserver(paint).observe(document.body, { attributeFilter: ["data-theme"] }); // a site's own switch
  new ResizeObserver(() => {
    if (box.clientWidth === width) return;
    width = box.clientWidth;
    paint();
  }).observe(box);
}
