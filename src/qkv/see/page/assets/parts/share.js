// The reader can share a card that says what the changes do, and the page in its current state: as an address, or as a
// file that contains the changes. The address may be a dare: the page then first asks the reader what the model will say.

import { el, fill } from "../base/elements.js";
import { cardPart, isHosted } from "./card.js";
import { canDare } from "./dare.js";
import { handOver, toTakeAway } from "./save.js";
import "./share.css";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */

/**
 * A button, and the part that it opens.
 * @param {Ui} ui
 * @param {LiveStore} store
 */
export function sharePart(ui, store) {
  const card = cardPart(ui);
  const done = el("span", { class: "dim", role: "status" });
  const paper = toTakeAway(ui);
  /** @param {string} label @param {() => any} act */
  const button = (label, act) => el("button", { type: "button", onclick: () => attempt(act) }, label);
  const far = ["http:", "https:"].includes(location.protocol);
  const ask = el("input", { type: "checkbox" });
  const asks = el("label", { class: "asks" }, ask, " ask readers first what the model will say");
  const opener = el("button", { type: "button", class: "in-whole", "aria-expanded": "false", onclick: () => toggle() }, "Share");
  const node = el("section", { class: "share", "data-part": "share", "aria-label": "Share", hidden: true },
    card.node,
    el("div", { class: "acts" }, button("Save the card", save), button("Copy the card", copy), button("Copy the address", () => paper.show("The address of this view", address(), reachOf(location))),
      far ? null : button("Save this page with your changes", savePage), asks, el("button", { type: "button", onclick: () => [toggle(), opener.focus()] }, "Close")),
    done, paper.node);
  /** @type {Now | null} */
  let last = null;

  /** @param {() => any} act */
  async function attempt(act) {
    try {
      fill(done, (await act()) ?? "");
    } catch (/** @type {any} */ reason) {
      fill(done, `The page cannot do this: ${reason.message}`);
    }
  }

  const address = () => store.address({ theme: null, dare: false, ...(!asks.hidden && ask.checked ? { dare: true, view: "front" } : {}) });

  async function copy() {
    const blob = await card.png();
    try {
      await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
      return "Copied.";
    } catch {
      return "This browser does not let pages copy pictures: save the picture instead.";
    }
  }

  async function save() {
    handOver("qkv.png", await card.png());
    return "Saved as qkv.png.";
  }

  function savePage() {
    handOver("qkv-play.html", new Blob([pageWith(new URL(address()).hash)], { type: "text/html" }));
    return "Saved as qkv-play.html: it opens as you left it, offline, on any machine.";
  }

  /** @param {Now} now */
  function update(now) {
    last = now;
    if (node.hidden) return;
    asks.hidden = !canDare(store, now);
    card.update(now);
  }

  function toggle() {
    node.hidden = !node.hidden;
    opener.setAttribute("aria-expanded", String(!node.hidden));
    if (last) update(last);
  }
  return { node, opener, update };
}

/**
 * A note about an address that other people cannot open; an empty text for other addresses.
 * @param {{protocol: string, hostname: string}} page  the location of the page
 */
export function reachOf(page) {
  if (["about:", "data:"].includes(page.protocol)) return "This page is embedded in another page, so its address does not work elsewhere.";
  return isHosted(page) ? "" : "This address works on this machine only.";
}

/**
 * Returns this page as a file; when a reader opens the file, the page has the state that `hash` describes.
 * @param {string} hash
 */
function pageWith(hash) {
  const whole = /** @type {HTMLElement} */ (document.documentElement.cloneNode(true));
  for (const name of Object.keys(whole.dataset)) delete whole.dataset[name];
  whole.querySelector('meta[name="qkv-state"]')?.remove();
  whole.querySelector("head")?.append(el("meta", { name: "qkv-state", content: hash }));
  return `<!doctype html>\n${whole.outerHTML}`;
}
