// The three games, with a button for each.

import { el } from "../base/elements.js";
import "./games.css";

/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("../store/state.js").PlayState} PlayState */
/** @typedef {import("./lab.js").Screen} Screen */

/** @type {[PlayState["view"], string, string][]} */
const GAMES = [
  ["beat", "Beat the model", "Ten sentences from a book, each without its last word. Who finds the author's word more often, you or the model?"],
  ["break", "Break it", "Change the guess by turning off as few attention heads as you can."],
  ["watch", "Does *bank* change its mind?", "One word in two senses: how far apart are its vectors within a sense, and between the senses?"],
];

/**
 * The games of a page; the game of guessing needs sentences, which only some models have.
 * @param {any} data
 */
export function gamesOf(data) {
  return GAMES.filter(([view]) => view !== "beat" || data.game?.sentences);
}

/** @param {LiveStore} store @returns {Screen} */
export function gamesScreen(store) {
  const cards = gamesOf(store.data).map(([view, title, what]) =>
    el("button", { type: "button", class: "game", onclick: () => store.set({ view }) }, el("b", {}, title.split("*").map((part, i) => (i % 2 ? el("em", {}, part) : part))), el("span", {}, what)));
  const node = el("div", { class: "games" }, el("h2", { tabindex: -1 }, "Games"), el("div", { class: "all" }, cards));
  return { node, update: async () => {} };
}
