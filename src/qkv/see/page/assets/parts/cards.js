// A first lesson in cards. Each card describes the picture and asks for a guess; then the page shows the result, and
// the card explains it. The page runs the model to find out which guess is right.

import { el, fill, word } from "../base/elements.js";
import { percent } from "../base/format.js";
import { probabilitiesOf } from "../engine/sampling.js";
import { movedProbability } from "../store/measures.js";
import "./cards.css";

/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../store/state.js").PlayState} PlayState */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../store/store.js").Store} Store */
/** @typedef {import("../base/mount.js").Ui} Ui */

const AS_MUCH = 0.1; // smaller changes count as no change; training/play_cards.py has the same number

/**
 * A measurement of one of three kinds: the sum of a query's weights on keys; the probability of a word at the position;
 * how much probability moves to other words after edits. If `head` is missing, the weights are the mean over all heads.
 * @typedef {{of: "weight" | "probability" | "moved", edits: Edit[], layer?: number, head?: number, query?: number, keys?: number[], word?: string}} Probe
 *
 * A card of the lesson. In the texts of a card, *word* stands for a word of the sentence, and {0} for the result of
 * the first probe.
 * @typedef {object} Card
 * @property {string} name
 * @property {string} read
 * @property {string} ask
 * @property {string[]} options
 * @property {string} told the explanation after the guess
 * @property {Partial<PlayState> & {text: string, position: number}} before the state that the page shows
 * @property {Partial<PlayState>} after the fields of the state that change after the reader's guess
 * @property {Probe[]} probes
 * @property {{of: "largest", among: number[]} | {of: "change", from: number, to: number}} right
 */

/**
 * Runs the measurements of a card.
 * @param {Api} engine  of the store
 * @param {Card} card
 * @returns {Promise<number[]>}
 */
async function probedBy(engine, { before, probes }) {
  const { words } = await engine.model;
  const runs = new Map();
  /** @param {Edit[]} edits */
  const run = (edits) => {
    const key = JSON.stringify(edits);
    if (!runs.has(key)) runs.set(key, engine.run(before.text, edits, { at: [before.position] }));
    return runs.get(key);
  };
  return Promise.all(probes.map(async (probe) => {
    const result = await run(probe.edits);
    if (probe.of === "weight") return weightOf(result, /** @type {Required<Probe>} */ (probe));
    const probabilities = probabilitiesOf(result.logits);
    return probe.of === "probability" ? probabilities[words.indexOf(/** @type {string} */ (probe.word))] : movedProbability(probabilitiesOf((await run([])).logits), probabilities);
  }));
}

/**
 * @param {Run} run
 * @param {Required<Probe>} probe
 */
function weightOf({ tokens, pattern }, { layer, head, query, keys }) {
  const heads = head === undefined ? pattern.flat() : [pattern[layer][head]];
  const total = heads.reduce((sum, weights) => sum + keys.reduce((own, key) => own + weights[query * tokens.length + key], 0), 0);
  return total / heads.length;
}

/**
 * The index of the right option.
 * @param {Card} card
 * @param {number[]} values  the results of the card's probes
 */
function rightOf({ right }, values) {
  if (right.of === "largest") {
    const own = right.among.map((probe) => values[probe]);
    return own.indexOf(Math.max(...own));
  }
  const by = values[right.to] - values[right.from];
  return Math.abs(by) < AS_MUCH ? 1 : by < 0 ? 0 : 2;
}

/**
 * Converts a text of a card to nodes.
 * @param {string} text
 * @param {any} values
 */
function cardWords(text, values) {
  return text.split(/(\*[^*]+\*|\{\d+\})/).map((part) => {
    if (part.startsWith("*")) return word(part.slice(1, -1));
    return part.startsWith("{") ? el("b", {}, percent(values[Number(part.slice(1, -1))])) : part;
  });
}

/**
 * A button that begins the lesson; null if the model has no lesson.
 * @param {Store} store
 */
export function lessonButton(store) {
  const { cards = [] } = store.data;
  const open = () => openCard(store, 0);
  return cards.length ? el("button", { type: "button", class: "lesson in-whole", onclick: open }, `A lesson: ${cards.length} cards`) : null;
}

/** @param {Store} store @param {number} k */
export function openCard(store, k) {
  store.set({ ...store.data.cards[k].before, view: "lab", beside: false, second: null, card: k, guess: null });
}

/**
 * The lesson, with one open card.
 * @param {Ui} ui
 * @param {Store} store
 * @returns {Part}
 */
export function cardsPart(ui, store) {
  /** @type {Card[]} */
  const cards = store.data.cards ?? [];
  const title = el("h2", { tabindex: -1 });
  const [read, ask] = [el("p", {}), el("p", { class: "ask", id: ui.id("ask") })];
  const options = el("div", { class: "options", role: "group", "aria-labelledby": ask.id });
  const told = el("p", { class: "told", role: "status" });
  const back = el("button", { type: "button", onclick: () => openCard(store, at - 1) }, "Back");
  const next = el("button", { type: "button", class: "next", onclick: () => (at + 1 < cards.length ? openCard(store, at + 1) : close()) });
  const end = el("button", { type: "button", onclick: close }, "End");
  const node = el("section", { class: "cards", "data-part": "cards", "aria-label": "Lesson", hidden: true },
    el("div", { class: "card-says" }, title, read, ask), el("div", { class: "card-asks" }, options, told), el("div", { class: "card-goes" }, back, next, end));
  const measured = new Map(); // maps each card to the results of its measurements
  /** @type {[number, any, any]} */
  let [at, drawn, kept] = [/** @type {any} */ (null), null, null]; // the open card, the drawn card, the state before the lesson

  function close() {
    store.set({ ...kept, card: null, guess: null });
  }

  /** @param {number} i */
  function guess(i) {
    if (store.state.guess !== null) return;
    store.set({ ...cards[at].after, guess: i });
    next.focus({ preventScroll: true });
  }

  /** Shows a card when its measurements are ready. */
  function draw() {
    const [card, values] = [cards[at], measured.get(at)];
    fill(title, `Card ${at + 1} of ${cards.length}`);
    fill(read, cardWords(card.read, values));
    fill(ask, cardWords(card.ask, values));
    fill(options, card.options.map((label, i) => el("button", { type: "button", onclick: () => guess(i) },
      el("span", { class: "sign", "aria-hidden": "true" }), el("span", {}, cardWords(label, values)), el("span", { class: "figure" }))));
    back.disabled = at === 0;
    end.hidden = at + 1 === cards.length; // on the last card, the button Next closes the lesson
    // If the page's address opens the lesson, the page does not move the focus.
    if (drawn !== null || kept) title.focus({ preventScroll: true });
    drawn = at;
  }

  /**
   * Shows the reader's guess and the right answer.
   * @param {any} own
   */
  function mark(own) {
    const [card, values] = [cards[at], measured.get(at)];
    const best = rightOf(card, values);
    [...options.children].forEach((button, i) => {
      const [sign, , figure] = button.children;
      button.setAttribute("aria-pressed", String(own === i));
      button.setAttribute("aria-disabled", String(own !== null));
      button.classList.toggle("right", own !== null && i === best);
      fill(sign, own === null ? null : i === best ? "✓" : i === own ? "✗" : null);
      fill(figure, own === null || card.right.of !== "largest" ? null : percent(values[card.right.among[i]]));
    });
    fill(told, own === null ? null : [el("b", {}, own === best ? "Right. " : "Wrong. "), cardWords(card.told, values)]);
    fill(next, at + 1 === cards.length ? "Done" : "Next");
    next.classList.toggle("ready", own !== null);
  }

  /** @param {Pick<Told, "state" | "run">} now */
  function update({ state, run }) {
    at = /** @type {any} */ (state.card !== null && cards[state.card] ? state.card : null);
    node.hidden = at === null || !measured.get(at);
    if (at === null) [drawn, kept] = [null, state];
    if (at === null || !run) return;
    const mine = at;
    if (!measured.has(mine)) {
      measured.set(mine, null);
      /** @param {any} values */
      const heard = (values) => {
        measured.set(mine, values);
        update({ state: store.state, run });
      };
      probedBy(/** @type {Api} */ (store.engine), cards[mine]).then(heard, reportError);
    }
    node.hidden = !measured.get(mine);
    if (node.hidden) return;
    if (drawn !== mine) draw();
    mark(state.guess);
  }
  return { node, update };
}
