// The game "Break it": the reader turns off as few heads as possible until the guess changes. The page searches for a
// few heads itself: it removes one head after another, each time the head whose removal hurts the guess most.

import { el, fill, word } from "../base/elements.js";
import { guessName } from "../base/tokens.js";
import { range } from "../base/arrays.js";
import { likeliestOf, probabilitiesOf } from "../engine/sampling.js";
import { isGap, maskOf } from "../store/positions.js";
import { isRemoved } from "../parts/map.js";
import { stage } from "../parts/stage.js";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("./lab.js").Screen} Screen */

const MAX_HEADS = 6; // the number of heads after which the page gives up

/** @param {Ui} ui @param {LiveStore} store @returns {Screen} */
export function breakScreen(ui, store) {
  const picture = stage(ui);
  const say = el("div", { class: "say", role: "status" });
  const switches = el("div", { class: "switches", role: "group", "aria-label": "heads of the model" });
  const clear = el("button", { type: "button", onclick: () => store.set({ edits: others() }) }, "All heads on");
  const show = el("button", { type: "button", onclick: () => best && store.set({ edits: [...others(), ...best] }) }, "Show me");
  const par = el("p", { class: "note" });
  const node = el("div", { class: "game-on break", "data-part": "break" }, el("h2", { tabindex: -1 }, "Break it"), picture.node, say, switches, el("div", { class: "acts" }, clear, show), par);
  /** @type {Now} */
  let last;
  /** @type {Edit[] | null} */
  let best = null; // the smallest set of heads that the page has found
  let asked = ""; // the text and the edits of the page's last search, without ablated heads

  /** @param {Edit} edit */
  const isHead = ({ op, head }) => op === "ablate" && Number.isInteger(head);
  const others = (edits = store.state.edits) => edits.filter((edit) => !isHead(edit));

  /** @param {number} layer @param {number} head */
  function flip(layer, head) {
    const { edits } = store.state;
    const rest = edits.filter((edit) => !(isHead(edit) && edit.layer === layer && edit.head === head));
    store.set({ edits: rest.length < edits.length ? rest : [...edits, { op: "ablate", layer, head }] });
  }

  /** @param {Float32Array} logits */
  const firstOf = (logits) => likeliestOf(probabilitiesOf(logits), 1)[0];

  /**
   * Searches for a small set of heads: each step removes the head whose removal makes the guess least probable.
   * @param {Edit[]} kept  the other changes
   * @param {number} word_  the guess with these changes
   */
  async function search(kept, word_) {
    const { state } = last;
    const [at, key] = [[/** @type {number} */ (state.position)], JSON.stringify([state.text, kept])];
    if (key === asked) return;
    [asked, best] = [key, null];
    fill(par, "The page is searching for its own answer …");
    const engine = /** @type {Api} */ (store.engine);
    /** @type {Edit[]} */
    const out = [];
    while (out.length < MAX_HEADS) {
      /** @type {{edit: Edit, share: number, changes: boolean}[]} */
      const results = [];
      const stop = new AbortController();
      await engine.sweep(state.text, [...kept, ...out], (/** @type {any} */ { layer, head, logits }) => {
        if (asked !== key || !node.isConnected) stop.abort();
        const probabilities = probabilitiesOf(logits);
        results.push({ edit: { op: "ablate", layer, head }, share: probabilities[word_], changes: likeliestOf(probabilities, 1)[0] !== word_ });
      }, { at, signal: stop.signal }).catch((reason) => {
        if (!stop.signal.aborted) throw reason;
      });
      if (!node.isConnected) asked = ""; // the search continues when the reader comes back
      if (asked !== key) return;
      const fresh = results.filter(({ edit }) => !out.some(({ layer, head }) => layer === edit.layer && head === edit.head));
      const next = fresh.sort((a, b) => Number(b.changes) - Number(a.changes) || a.share - b.share)[0];
      if (!next) break;
      out.push(next.edit);
      if (next.changes) {
        best = out;
        fill(par, out.length === 1 ? "The page has found an answer with one head." : `The page has found an answer with ${out.length} heads. Can you do it with fewer?`);
        show.disabled = false;
        return;
      }
    }
    fill(par, `The page has not found an answer with ${out.length} heads.`);
  }

  /** @param {Told} now */
  async function update(now) {
    if (!now.run) return;
    last = /** @type {Now} */ (now);
    const { run, state, model } = last;
    picture.update(last);
    if (!switches.children.length)
      fill(switches, range(0, model.layers).reverse().map((layer) => el("div", {}, el("span", { "aria-hidden": "true" }, `layer ${layer}`),
        range(0, model.heads).map((head) => el("button", { type: "button", "data-head": `${layer}.${head}`, "aria-label": `head ${layer}.${head} off`, onclick: () => flip(layer, head) }, `${layer}.${head}`)))));
    for (const button of switches.querySelectorAll("button")) {
      const [layer, head] = button.dataset.head.split(".").map(Number);
      button.setAttribute("aria-pressed", String(isRemoved(state.edits, layer, head)));
    }
    show.disabled = !best;
    clear.disabled = !state.edits.some(isHead);
    if (!run.logits.length || state.position === null || !(model.next || isGap(last))) {
      const elsewhere = run.logits.length > 0 && run.tokens.includes(maskOf(model));
      fill(say, model.next ? "Start a sentence first." : elsewhere ? "The guess is at another word: choose the gap in the lab first." : "Write a sentence with a gap first.");
      fill(par);
      return;
    }
    const kept = others(state.edits);
    const off = state.edits.length - kept.length;
    const before = off ? await /** @type {Api} */ (store.engine).run(state.text, kept, { at: [state.position] }) : run;
    if (last !== now) return;
    const [was, is] = [before, run].map(({ logits }) => firstOf(logits));
    const heads = `${off} head${off === 1 ? "" : "s"} off`;
    const name = (/** @type {number} */ id) => word(guessName(model.words, id));
    fill(say, !off ? ["The model says ", name(is), ". Press a head to turn it off."]
      : is === was ? [`${heads}. It still says `, name(is), "."]
      : [el("b", {}, "Broken! "), `${heads}: `, name(was), " has become ", name(is), "."]);
    search(kept, was).catch(reportError);
  }
  return { node, update };
}
