// The game "Beat the model": the reader and the model fill ten gaps; then one word is hidden from the model. The page
// runs the model to get the model's guesses.

import { el, fill, word } from "../base/elements.js";
import { percent, visible } from "../base/format.js";
import { plainName } from "../base/tokens.js";
import { likeliestOf, probabilitiesOf } from "../engine/sampling.js";
import { maskOf, wordsOf } from "../store/positions.js";
import { toTakeAway } from "../parts/save.js";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("./lab.js").Screen} Screen */

/**
 * Sentences with _ for the gap, and the words that most people would fill in.
 * @type {[string, string[]][]}
 */
const GAPS = [
  ["She locked the _ and put the key in her pocket.", ["door", "gate", "box"]],
  ["The horse drank some _ from the stream.", ["water"]],
  ["He sat down in the old wooden _.", ["chair", "seat", "bench"]],
  ["The sun rises in the _.", ["east", "morning", "sky"]],
  ["She wrote a long _ to her mother.", ["letter", "note", "message"]],
  ["The ship sailed across the _.", ["sea", "ocean", "water", "waves"]],
  ["He lit the _ because the room was dark.", ["lamp", "candle", "light", "candles", "lantern"]],
  ["The dog chased the _ up a tree.", ["cat", "squirrel"]],
  ["They ate bread and _ for breakfast.", ["butter", "milk", "cheese", "jam", "honey", "eggs"]],
  ["The _ sang in the trees all morning.", ["birds", "bird"]],
];
const HIDDEN = { text: "She drank a glass of _.", word: "glass" }; // the sentence of the last round, and the word that is hidden in it
const OFFERED = 4; // the number of words to choose from

/** @param {Ui} ui @param {LiveStore} store @returns {Screen} */
export function beatScreen(ui, store) {
  const score = el("p", { class: "scores", role: "status" });
  const [text, say] = [el("form", { class: "big" }), el("div", { class: "say", role: "status" })];
  const acts = el("div", { class: "acts" });
  const paper = toTakeAway(ui);
  const node = el("div", { class: "game-on beat", "data-part": "beat" }, el("h2", { tabindex: -1 }, "Beat the model"), score, text, say, acts, paper.node);
  /** @type {{you: boolean, it: boolean}[]} */
  let rounds = [];
  let begun = false;

  /**
   * The model's most probable words at the gap of a text. If `hidden` is given, the model does not see this word.
   * @param {string} gapped
   * @param {string} [hidden]
   */
  async function guessed(gapped, hidden) {
    const engine = /** @type {Door} */ (store.engine);
    const model = await engine.model;
    const sentence = gapped.replace("_", maskOf(model));
    const plain = await engine.run(sentence, [], { at: [] });
    const position = plain.tokens.indexOf(maskOf(model));
    const span = wordsOf(sentence, plain, model).find(([, , name]) => name === hidden);
    const edits = span ? Array.from({ length: span[1] - span[0] }, (_, i) => ({ op: "hide", token: span[0] + i })) : [];
    const { logits } = await engine.run(sentence, edits, { at: [position] });
    const probabilities = probabilitiesOf(logits);
    return likeliestOf(probabilities, OFFERED).map((id) => ({ name: plainName(model.words[id]), share: probabilities[id] }));
  }

  /** @param {string} gapped @param {any} middle */
  function put(gapped, middle) {
    const [before, after] = gapped.split("_");
    fill(text, before, middle, after);
  }

  function tell() {
    const [you, it] = [rounds.filter((one) => one.you).length, rounds.filter((one) => one.it).length];
    fill(score, el("span", {}, "You: ", el("b", {}, String(you))), el("span", {}, "Model: ", el("b", {}, String(it))), el("span", { class: "dim" }, `${Math.min(rounds.length + 1, GAPS.length + 1)} of ${GAPS.length + 1}`));
  }

  function ask() {
    tell();
    if (rounds.length >= GAPS.length) {
      askHidden();
      return;
    }
    const [gapped, right] = GAPS[rounds.length];
    const field = el("input", { type: "text", "aria-label": "the missing word", autocomplete: "off", spellcheck: "false", maxlength: 40 });
    put(gapped, field);
    fill(say, "Which word is missing?");
    fill(acts, el("button", { type: "button", class: "go primary", onclick: () => text.requestSubmit() }, "Guess"));
    text.onsubmit = async (/** @type {Event} */ event) => {
      event.preventDefault();
      const mine = field.value.trim().toLowerCase();
      if (!mine) {
        field.focus();
        return;
      }
      text.onsubmit = (/** @type {Event} */ again) => again.preventDefault();
      const [its] = await guessed(gapped);
      rounds.push({ you: right.includes(mine), it: right.includes(its.name.toLowerCase()) });
      put(gapped, el("em", { class: "tok" }, right[0]));
      fill(say, verdict("You", mine, right.includes(mine)), verdict("The model", `${visible(its.name)}, ${percent(its.share)}`, right.includes(its.name.toLowerCase())));
      more();
    };
    field.focus({ preventScroll: true });
  }

  /** @param {string} who @param {string} what @param {boolean} right */
  function verdict(who, what, right) {
    return el("div", { class: right ? "right" : "wrong" }, `${who}: `, el("b", {}, what), right ? "" : " – not this time");
  }

  function more() {
    tell();
    const next = el("button", { type: "button", class: "go primary", onclick: () => ask() }, "Next");
    fill(acts, next);
    next.focus({ preventScroll: true });
  }

  async function askHidden() {
    const [before, now] = await Promise.all([guessed(HIDDEN.text), guessed(HIDDEN.text, HIDDEN.word)]);
    const best = now[0].name;
    const likely = [before[0], ...now, ...before].map(({ name }) => name);
    const names = [...new Set(likely)].slice(0, OFFERED).sort();
    text.onsubmit = (/** @type {Event} */ event) => event.preventDefault();
    const [front, back] = HIDDEN.text.replace(HIDDEN.word, "\0").split("\0");
    fill(text, front, el("s", { class: "hidden-word" }, HIDDEN.word), back.replace("_", "?"));
    fill(say, "Last one. With ", word(HIDDEN.word), " in sight the model says ", word(before[0].name), ". Now ", word(HIDDEN.word), " is hidden. What does it say?");
    fill(acts, names.map((name) => el("button", { type: "button", onclick: () => finish(name, best, now[0].share) }, visible(name))));
  }

  /** @param {string} mine @param {string} best @param {number} share */
  function finish(mine, best, share) {
    rounds.push({ you: mine === best, it: false });
    tell();
    const [you, it] = [rounds.filter((one) => one.you).length, rounds.filter((one) => one.it).length];
    fill(say, verdict("You", mine, mine === best), el("div", {}, "It says ", word(best), `, ${percent(share)}.`),
      el("div", {}, el("b", {}, you > it ? `You win, ${you} to ${it}.` : you < it ? `The model wins, ${it} to ${you}.` : `A draw: ${you} each.`)));
    const marks = (/** @type {"you" | "it"} */ who) => rounds.map((one) => (one[who] ? "■" : "□")).join("");
    const result = `Beat the model: I had ${you} of ${rounds.length} right, the model ${it} of ${GAPS.length}.\nme    ${marks("you")}\nmodel ${marks("it").slice(0, GAPS.length)}`;
    fill(acts, el("button", { type: "button", class: "go primary", onclick: () => paper.show("Your score", result) }, "Copy the score"), el("button", { type: "button", onclick: () => [(rounds = []), (paper.node.hidden = true), ask()] }, "Play again"));
  }

  return {
    node,
    async update({ run }) {
      if (begun || !run) return;
      begun = true;
      ask();
    },
  };
}
