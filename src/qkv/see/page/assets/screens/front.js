// The first screen: a sentence in large type with the model's guess in its gap. A tap on a word hides the word, and
// the guess and the lines change. Buttons lead to the other screens.

import { el, fill } from "../base/elements.js";
import { GAP, visible } from "../base/format.js";
import { range } from "../base/arrays.js";
import { withSigns } from "../engine/gaps.js";
import { LONGEST } from "../store/limits.js";
import { maskOf } from "../store/positions.js";
import { darePart } from "../parts/dare.js";
import { gapsSaid, hiding, offerOf, unreadOf } from "../parts/sentence.js";
import { sharePart } from "../parts/share.js";
import { stage } from "../parts/stage.js";
import "./front.css";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("../store/state.js").PlayState} PlayState */
/** @typedef {import("./lab.js").Screen} Screen */

const TITLES = { guess: "Hide a word. Watch the model change its mind.", next: "Start a sentence. Watch the model continue." };

/**
 * @param {Ui} ui
 * @param {LiveStore} store
 * @param {{outcome: Part, writing: Part}} parts
 * @returns {Screen}
 */
export function frontScreen(ui, store, { outcome, writing }) {
  const { next } = store.data;
  const picture = stage(ui, ([first, last]) => hide(range(first, last)));
  const says = el("div", { class: "says", "data-part": "headline" });
  /** @param {PlayState["view"]} view @param {string} label */
  const to = (view, label, kind = "") => el("button", { type: "button", class: kind, onclick: () => store.set({ view }) }, label);
  const own = next ? null : el("button", { type: "button", "aria-expanded": "false", onclick: () => type() }, "Your own sentence");
  const field = el("input", { type: "text", dir: "auto", maxlength: LONGEST, spellcheck: "false", autocomplete: "off", "aria-label": "Your sentence", oninput: () => store.set({ text: field.value.toWellFormed() }) });
  const hint = next ? null : el("p", { class: "note", id: ui.id("hint") }, gapsSaid(store.data));
  if (hint) field.setAttribute("aria-describedby", hint.id);
  const typed = el("div", { class: "typed", hidden: !next }, field, hint);
  const notes = el("div", { class: "unread" });
  const trouble = el("p", { class: "trouble", role: "alert", hidden: true });
  const clear = el("button", { type: "button", hidden: true, onclick: () => [store.set({ edits: [] }), (own ?? field).focus()] }, "Clear all changes");
  const [share, dare] = [sharePart(ui, store), darePart(ui, store)];
  const shelf = shelfOf(store, () => screen.scrollIntoView({ block: "start" }));
  const title = el("h2", { tabindex: -1 });
  const tap = el("span", { class: "tap", "aria-hidden": "true" }, "tap to hide");
  const acts = el("div", { class: "acts" }, to("story", "How does it do that?", "primary"), own, to("games", "Games"), share.opener, to("lab", "Open the lab"), clear);
  const screen = el("div", { class: "front", "data-part": "front" },
    title,
    el("p", { class: "read" }, el("b", {}, visible(store.data.called)), ` ${store.data.read}.`),
    dare.node,
    next ? typed : null,
    picture.node,
    dare.verdict,
    says,
    next ? null : typed,
    notes,
    trouble,
    next ? writing.node : null,
    acts,
    share.node,
  );
  const node = el("div", { class: "first" }, screen, shelf.node);
  /** @type {Told} */
  let last;

  /** @param {number[]} tokens */
  function hide(tokens) {
    store.set({ edits: hiding(store.state.edits, tokens) });
  }

  function type() {
    typed.hidden = !typed.hidden;
    own?.setAttribute("aria-expanded", String(!typed.hidden));
    if (!typed.hidden) field.select();
  }

  /** @param {Told} now */
  async function update(now) {
    last = now;
    const { run, error } = now;
    if (outcome.headline?.parentNode !== says) fill(says, outcome.headline);
    if (next && writing.node.parentNode !== screen) acts.before(writing.node);
    trouble.hidden = !error;
    fill(trouble, error);
    if (ui.focused() !== field) field.value = run ? withSigns(now.sentence, now.model) : now.state.text;
    const asks = run && dare.update(/** @type {Now} */ (now));
    screen.classList.toggle("daring", Boolean(asks));
    fill(title, asks || (next ? TITLES.next : TITLES.guess));
    if (!run || asks) return;
    clear.hidden = now.state.edits.every(({ op }) => op === "hide"); // to show a hidden word again, press it
    picture.update(/** @type {Now} */ (now));
    share.update(/** @type {Now} */ (now));
    shelf.update(now.state);
    const missing = !next && !run.tokens.includes(maskOf(now.model));
    fill(notes, unreadOf(now.sentence, run, now.model), missing ? el("p", { class: "note" }, `There is no gap: type ${GAP} where the model should guess.`) : null);
    markFirst();
    await Promise.all([outcome.update(now), next ? writing.update(now) : null]);
  }

  /** Marks the word that the reader should press first. */
  function markFirst() {
    const before = picture.words.querySelector("[data-qkv-first]");
    const wanted = next ? undefined : offerOf(store.data, /** @type {Now} */ (last))?.tokens[0];
    const chip = wanted === undefined ? null : picture.words.querySelector(`button[data-token="${wanted}"]`);
    if (before !== chip) before?.removeAttribute("data-qkv-first");
    if (before !== chip || !chip) tap.remove();
    chip?.setAttribute("data-qkv-first", "");
    if (last.state.edits.length) tap.remove();
    else chip?.append(tap);
  }
  return { node, update };
}

/**
 * Sentences to try, one press each; below the first screen.
 * @param {LiveStore} store
 * @param {() => void} tried
 */
function shelfOf(store, tried) {
  /** @type {{kind: string, text: string}[]} */
  const shelf = store.data.shelf ?? [];
  /** @param {string} text */
  const take = (text) => [store.set({ text, edits: [], position: null, query: null }), tried()];
  const buttons = shelf.map(({ kind, text }) =>
    el("button", { type: "button", onclick: () => take(text) }, el("b", {}, kind), el("span", { class: "dim" }, store.data.next ? `${text}\u00a0…` : withSigns(text, store.data))));
  const node = el("section", { class: "shelf", "aria-label": "Sentences to try", hidden: !shelf.length }, el("h3", {}, "Sentences to try ↓"), buttons);
  /** @param {PlayState} state */
  const update = ({ text }) => buttons.forEach((one, i) => one.setAttribute("aria-pressed", String(shelf[i].text === text)));
  return { node, update };
}
