// A dare: the address of a state with changes may ask the reader first what the model will say. The page shows the sentence
// without the changes, takes the reader's guess, and then shows the state itself.

import { el, fill, word } from "../base/elements.js";
import { beforeChanges } from "./card.js";
import { causeOf } from "./outcome.js";
import { guessOf, stage } from "./stage.js";
import { spelled } from "./words.js";
import "./dare.css";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("./outcome.js").Looked} Looked */

/**
 * Whether a state has an answer that a reader can guess: the model's word after some changes.
 * @param {LiveStore} store
 * @param {Now} now
 */
export function canDare({ data }, { state, run }) {
  return (data.next || data.guesses) && state.edits.length > 0 && run.logits.length > 0;
}

/**
 * @param {Ui} ui
 * @param {LiveStore} store
 */
export function darePart(ui, store) {
  const sentence = stage(ui);
  const field = el("input", { type: "text", dir: "auto", maxlength: 60, size: 14, autocomplete: "off", spellcheck: "false", "aria-label": "Your guess", placeholder: "your guess" });
  const form = el("form", { class: "acts" }, field, el("button", { class: "primary" }, "See the answer"));
  const node = el("div", { class: "dare", "data-part": "dare", hidden: true }, sentence.node, form);
  const verdict = el("p", { class: "verdict", role: "status", tabindex: -1, hidden: true });
  /** @type {[string, Now["run"] | null, Now["run"] | null]} */
  let [guess, answered, last] = ["", null, null]; // the reader's guess, and the run to which it belongs; the run on the page

  form.addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    [guess, answered] = [field.value.trim().toWellFormed(), last];
    field.value = "";
    store.set({ dare: false });
    verdict.focus();
  });

  /**
   * Shows the question or, after the reader's answer, whether the answer was right; returns the question, if it is open.
   * @param {Now} now
   */
  function update(now) {
    const open = now.state.dare && canDare(store, now);
    node.hidden = !open;
    last = now.run;
    verdict.hidden = open || !guess || answered !== last;
    if (!verdict.hidden) {
      const { word: said } = guessOf(now.run.logits, now.model.words);
      const right = guess.toLowerCase() === said.toLowerCase();
      fill(verdict, "You said ", word(guess), right ? ": you know this model." : ". The model says ", right ? null : [word(said), "."]);
    }
    if (!open) return null;
    sentence.update(beforeChanges(now));
    return ["What will it say ", ...spelled(causeOf(/** @type {Looked} */ (now))), "?"];
  }
  return { node, verdict, update };
}
