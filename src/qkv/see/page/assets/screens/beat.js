// The game "Beat the model": the reader and the model choose the last words of sentences from a book that the model has
// not read. The author's word counts. The page runs the model to get the model's choices.

import { drawn, el, fill } from "../base/elements.js";
import { MASKS, percent, visible } from "../base/format.js";
import { plainName } from "../base/tokens.js";
import { likeliestOf, probabilitiesOf } from "../engine/sampling.js";
import { maskOf } from "../store/positions.js";
import { toTakeAway } from "../parts/save.js";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("./lab.js").Screen} Screen */

const [ROUNDS, OFFERED] = [10, 4]; // the rounds of a game, and the words to choose from in a round

/** @param {Ui} ui @param {LiveStore} store @returns {Screen} */
export function beatScreen(ui, store) {
  const { author, title, sentences } = store.data.game;
  const score = el("p", { class: "scores", role: "status" });
  const [text, say, acts] = [el("p", { class: "big" }), el("div", { class: "say", role: "status" }), el("div", { class: "acts" })];
  const paper = toTakeAway(ui);
  const rule = el("p", { class: "note" }, "The last word of a sentence is missing. You and the model choose among four words. Only the author's word counts, even if another word fits too. The sentences are from ", el("cite", {}, title), ` by ${author}, a book that the model has not read. A fixed rule and a random draw chose the sentences and the words, without running the model.`);
  const node = el("div", { class: "game-on beat", "data-part": "beat" }, el("h2", { tabindex: -1 }, "Beat the model"), rule, score, text, say, acts, paper.node);
  let [begun, begin] = [false, 0]; // `begin` is the index of the game's first sentence
  /** @type {{you: boolean, it: boolean}[]} */
  let rounds = [];

  /**
   * The model's choice among some words for the gap of a text, and its first guess from the whole vocabulary.
   * @param {string} gapped
   * @param {string[]} offered
   */
  async function chosen(gapped, offered) {
    const engine = /** @type {Api} */ (store.engine);
    const model = await engine.model;
    const sentence = gapped.replace("_", maskOf(model));
    const { tokens } = await engine.run(sentence, [], { at: [] });
    const { logits } = await engine.run(sentence, [], { at: [tokens.indexOf(maskOf(model))] });
    const probabilities = probabilitiesOf(logits);
    const order = likeliestOf(probabilities, model.words.length);
    const names = order.map((id) => plainName(model.words[id]));
    return { its: names.find((name) => offered.includes(name)), first: names[0], share: probabilities[order[0]] };
  }

  /** @param {"you" | "it"} who */
  const hits = (who) => rounds.filter((one) => one[who]).length;

  /** @param {number} round */
  function tell(round) {
    fill(score, el("span", {}, "You: ", el("b", {}, String(hits("you")))), el("span", {}, "Model: ", el("b", {}, String(hits("it")))), el("span", { class: "dim" }, `${round} of ${ROUNDS}`));
  }

  function ask() {
    tell(rounds.length + 1);
    // each word is offered once in a game: the other words belong to sentences of other games
    const [[gapped, right], ...others] = Array.from({ length: OFFERED }, (_, k) =>
      sentences[(begin + rounds.length + k * ROUNDS) % sentences.length]);
    const offered = [right, ...others.map(([, other]) => other)].sort();
    const [before, after] = gapped.split("_");
    fill(text, before, drawn(MASKS[0]), after);
    fill(say, "Which word did the author write?");
    fill(acts, offered.map((name) => el("button", { type: "button", onclick: () => answer(name, gapped, right, offered) }, name)));
    if (begin + rounds.length) acts.firstChild.focus({ preventScroll: true }); // not on a screen that has just opened
  }

  /** @param {string} mine @param {string} gapped @param {string} right @param {string[]} offered */
  async function answer(mine, gapped, right, offered) {
    for (const button of acts.children) button.disabled = true;
    const { its, first, share } = await chosen(gapped, offered);
    rounds.push({ you: mine === right, it: its === right });
    tell(rounds.length);
    text.children[0].replaceWith(el("em", { class: "tok" }, right));
    fill(say, [["You", mine], ["The model", its]].map(([who, what]) => el("div", { class: what === right ? "right" : "wrong" }, `${who}: `, el("b", {}, what))),
      el("div", {}, "The author: ", el("b", {}, right)), el("div", { class: "dim" }, "If any word were allowed, the model would say ", el("b", {}, visible(first)), ` (${percent(share)}).`));
    if (rounds.length === ROUNDS) finish();
    else fill(acts, el("button", { type: "button", class: "go primary", onclick: ask }, "Next"));
    acts.firstChild.focus({ preventScroll: true });
  }

  function finish() {
    const [you, it] = [hits("you"), hits("it")];
    say.append(el("div", {}, el("b", {}, you > it ? `You win, ${you} to ${it}.` : you < it ? `The model wins, ${it} to ${you}.` : `A draw: ${you} each.`)));
    const marks = (/** @type {"you" | "it"} */ who) => rounds.map((one) => (one[who] ? "■" : "□")).join("");
    const result = `Beat the model: of ${ROUNDS} words missing from "${title}", I found ${you} and the model found ${it}.\nme    ${marks("you")}\nmodel ${marks("it")}`;
    const again = () => [([rounds, begin] = [[], begin + ROUNDS]), (paper.node.hidden = true), ask()];
    fill(acts, el("button", { type: "button", class: "go primary", onclick: () => paper.show("Your score", result) }, "Copy the score"), el("button", { type: "button", onclick: again }, "Play again"));
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
