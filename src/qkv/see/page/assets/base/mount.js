// Puts a view on the page. html.py writes the bundle of a page into one function together with a call of
// start(hash, payload, css); the payload is described at the top of payload.py.

import { el, fill } from "./elements.js";
import { atOnce, inTurn } from "./turns.js";
import "./view.css";

const ABOUT = "about"; // the slot of what the page says of its model
let lastId = 0;

/**
 * What starts a view, which `view(box, payload, ui)` puts into a box: it fills each place on the page that waits for
 * this view; what it holds already shows without scripts.
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

function mount(host, data, styles, view) {
  const root = host.attachShadow({ mode: "open" });
  const live = el("div", { class: "sr", role: "status", "aria-live": "polite" });
  const box = el("div", { class: "view" });
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const drawers = [];
  const turn = inTurn();
  let [pending, width, asked] = [0, 0, null];
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
  const ui = {
    stops(name) {
      if (!ramps.has(name)) ramps.set(name, ui.color(name).match(/\w\w/g).map((part) => parseInt(part, 16)));
      return ramps.get(name);
    },
    say(text) {
      clearTimeout(pending);
      pending = setTimeout(() => fill(live, text), 150);
    },
    /** Has the whole document light or dark, or with null again as it was made. */
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
  box.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey) event.stopPropagation(); // a notebook has keys of its own
  });
  root.append(el("style", {}, styles), box, live);
  try {
    view(box, data, ui);
    const notes = (data.notes || []).map((line) => el("p", { class: "note" }, line));
    box.querySelector(":scope > .sentence, :scope > .lead")?.after(...notes);
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
