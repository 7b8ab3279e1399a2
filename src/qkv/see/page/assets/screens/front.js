// The first screen: a sentence in large type with the model's guess in its gap. A tap on a word hides the word, and
// the guess and the lines change. Buttons lead to the other screens.

import { el, fill } from "../base/elements.js";
import { GAP } from "../base/format.js";
import { range } from "../base/arrays.js";
import { withSigns } from "../engine/gaps.js";
import { LONGEST } from "../store/limits.js";
import { maskOf } from "../store/positions.js";
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

const TITLES = { guess: "Hide a word. Watch the model change its mind.", next: "Write a beginning. Watch the model continue." };

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
  const own = el("button", { type: "button", "aria-expanded": "false", onclick: () => type() }, "Your own sentence");
  const field = el("input", { type: "text", dir: "auto", maxlength: LONGEST, spellcheck: "false", autocomplete: "off", "aria-label": "Your sentence", oninput: () => store.set({ text: field.value.toWellFormed() }) });
  const hint = el("p", { class: "note", id: ui.id("hint") }, next ? "The model continues after your last word." : gapsSaid(store.data));
  field.setAttribute("aria-describedby", hint.id);
  const typed = el("div", { class: "typed", hidden: true }, field, hint);
  const notes = el("div", { class: "unread" });
  const trouble = el("p", { class: "trouble", role: "alert", hidden: true });
  const clear = el("button", { type: "button", hidden: true, onclick: () => [store.set({ edits: [] }), own.focus()] }, "Clear all changes");
  const share = sharePart(ui, store, () => [send.click(), send.focus()]);
  const send = el("button", { type: "button", "aria-expanded": "false", onclick: () => send.setAttribute("aria-expanded", String(share.toggle())) }, "Share");
  const tap = el("span", { class: "tap", "aria-hidden": "true" }, "tap to hide");
  const node = el("div", { class: "front", "data-part": "front" },
    el("h2", { tabindex: -1 }, next ? TITLES.next : TITLES.guess),
    picture.node,
    says,
    store.data.read ? el("p", { class: "note read" }, store.data.read) : null,
    typed,
    notes,
    trouble,
    next ? writing.node : null,
    el("div", { class: "acts" }, to("story", "How does it do that?", "primary"), own, to("games", "Games"), send, to("lab", "Open the lab"), clear),
    share.node,
  );
  /** @type {Told} */
  let last;

  /** @param {number[]} tokens */
  function hide(tokens) {
    store.set({ edits: hiding(store.state.edits, tokens) });
  }

  function type() {
    typed.hidden = !typed.hidden;
    own.setAttribute("aria-expanded", String(!typed.hidden));
    if (!typed.hidden) field.select();
  }

  /** @param {Told} now */
  async function update(now) {
    last = now;
    const { run, error } = now;
    if (outcome.headline?.parentNode !== says) fill(says, outcome.headline);
    if (next && writing.node.parentNode !== node) node.querySelector(".acts")?.before(writing.node);
    trouble.hidden = !error;
    fill(trouble, error);
    if (ui.focused() !== field) field.value = run ? withSigns(now.sentence, now.model) : now.state.text;
    if (!run) return;
    clear.hidden = now.state.edits.every(({ op }) => op === "hide"); // to show a hidden word again, press it
    picture.update(/** @type {Now} */ (now));
    share.update(/** @type {Now} */ (now));
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
