// The reader can share a picture of the sentence before and after the changes, and the page in its current state. A
// page on the web is shared as an address, any other page as a file that contains the changes.

import { el, fill } from "../base/elements.js";
import { claimOf } from "./outcome.js";
import { pictureOf, pngOf } from "./picture.js";
import { handOver, toTakeAway } from "./save.js";
import { reachOf } from "./sentence.js";
import { stage } from "./stage.js";
import { spelled } from "./words.js";
import "./share.css";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("./outcome.js").Looked} Looked */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */

/** @param {Ui} ui @param {LiveStore} store @param {() => void} close */
export function sharePart(ui, store, close) {
  const [before, after] = [stage(ui), stage(ui)];
  const [first, second] = [before, after].map(({ node }) => el("div", { class: "side" }, el("h3", {}), node));
  const card = el("div", { class: "postcard" }, first, second);
  const done = el("span", { class: "dim", role: "status" });
  const paper = toTakeAway(ui);
  /** @param {string} label @param {() => any} act */
  const button = (label, act) => el("button", { type: "button", onclick: () => attempt(act) }, label);
  const far = ["http:", "https:"].includes(location.protocol);
  const page = far
    ? button("Copy the address", () => paper.show("The address of this view", store.address({ theme: null }), reachOf(location)))
    : button("Save this page with your changes", savePage);
  const node = el("section", { class: "share", "data-part": "share", "aria-label": "Share", hidden: true },
    card, el("div", { class: "acts" }, button("Copy the picture", copy), button("Save the picture", save), page, el("button", { type: "button", onclick: close }, "Close")), done, paper.node);
  /** @type {Now | null} */
  let last = null;

  /** @param {() => any} act */
  async function attempt(act) {
    try {
      fill(done, (await act()) ?? "");
    } catch (/** @type {any} */ reason) {
      fill(done, `That did not work: ${reason.message}`);
    }
  }

  const png = () => pngOf(pictureOf(ui, card, `${last?.model.name} · qkv, attention you can read, see and run`));

  async function copy() {
    const blob = await png();
    try {
      await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
      return "Copied.";
    } catch {
      return "This browser does not let a page copy pictures: save it instead.";
    }
  }

  async function save() {
    handOver("qkv.png", await png());
    return "Saved as qkv.png.";
  }

  function savePage() {
    handOver("qkv-play.html", new Blob([pageWith(new URL(store.address({ theme: null })).hash)], { type: "text/html" }));
    return "Saved as qkv-play.html: it opens as you left it, offline, on any machine.";
  }

  /** @param {Now} now */
  function update(now) {
    last = now;
    if (node.hidden) return;
    const { edits } = now.state;
    second.hidden = !edits.length;
    const { original: run, state } = now;
    const plain = { ...now, sentence: state.text, run, words: run.words ?? [], state: { ...state, edits: [] } };
    [plain, now].forEach((told, k) => {
      [before, after][k].update(told);
      fill([first, second][k].firstChild, state.position === null ? null : spelled(claimOf(/** @type {Looked} */ (told))));
    });
  }
  return {
    node,
    update,
    toggle() {
      node.hidden = !node.hidden;
      if (last) update(last);
      return !node.hidden;
    },
  };
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
