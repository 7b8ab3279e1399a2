// The text that a decoder generates after the reader's text. For each new token, this part shows the decoder's attention weights, and the
// likeliest words at the position of the token. The reader can replace the token with one of these words.

import { choice } from "../base/controls.js";
import { el, fill, svg, word } from "../base/elements.js";
import { directionOf, fixed, percent, visible } from "../base/format.js";
import { guessName, plainName } from "../base/tokens.js";
import { likeliestOf, probabilitiesOf } from "../engine/sampling.js";
import { placesIn, wayOf } from "./stage.js";
import "./writing.css";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../engine/api.js").Chosen} Chosen */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {Chosen & {piece: string}} New  a new token, and the text that it adds */

const LENGTHS = [20, 40, 80];
// the default temperature, the highest temperature, and the number of likeliest tokens from which a token is drawn
const [USUAL, HOTTEST, AMONG] = [0.8, 2, 40];
const SHOWN = 5; // the number of possible next tokens that the page shows
const [LINES, FAINTEST] = [8, 0.02]; // the number of drawn lines, and the least weight of a line

/** @param {Ui} ui @param {LiveStore} store @returns {Part} */
export function writingPart(ui, store) {
  if (!store.data.next) return { node: el("div", { hidden: true }), update: () => {} };
  const write = el("button", { type: "button", class: "on primary", disabled: true, "data-qkv-first": true, onclick: () => begin() }, "Continue");
  const stop = el("button", { type: "button", onclick: () => going?.abort(STOPPED) }, "Stop");
  const again = el("button", { type: "button", onclick: () => [(seed += 1), go([])] }, "Try again");
  const take = el("button", { type: "button", onclick: () => store.set({ text: told.sentence + textOf(tokens) }) }, "Use as the sentence");
  const heat = el("input", { type: "range", min: 0, max: HOTTEST, step: 0.1, value: USUAL, id: ui.id("heat"), oninput: () => sayHeat() });
  const degree = el("output", { for: heat.id });
  const length = choice(ui, "Tokens", LENGTHS.map((count) => [count, String(count)]), LENGTHS[1], () => {});
  const [lines, prompt, fresh] = [svg("svg", { class: "lines", "aria-hidden": "true" }), el("span", { class: "prompt" }), el("span", { class: "fresh" })];
  const text = el("p", { class: "written" }, lines, prompt, fresh);
  const drawn = el("ol", { class: "drawn", "aria-label": "What may come next" });
  const [about, trouble] = [el("div", { class: "instead" }), el("p", { class: "refused", role: "alert", hidden: true })];
  const node = el("div", { "data-part": "writing", "data-writing": "none" },
    el("div", { class: "acts" }, write, stop, again, take, el("span", { class: "control heat" }, el("label", { for: heat.id }, "Temperature"), heat, degree), el("span", { class: "more" }, length.node)),
    drawn, trouble, text, about);
  const STOPPED = new Error("stopped");
  /** @type {New[]} */
  let tokens = [];
  /** @type {AbortController | null} */
  let going = null;
  /** @type {[number | null, number, string]} */
  let [chosen, seed, key] = [null, 0, ""]; // the chosen new token; the state for which the text was generated
  let waiting = false; // whether generation waits until the run of a changed text is ready
  /** @type {Now} */
  let told;

  function sayHeat() {
    fill(degree, Number(heat.value) ? `${fixed(Number(heat.value), 1)}: at random` : "0: always the likeliest");
    if (told) showDrawn();
  }

  /** The likeliest next tokens: the model's probability of each, and how often it is drawn at this temperature. */
  function showDrawn() {
    const { run, state, model } = told;
    drawn.hidden = !(run.logits.length > 0 && state.position === run.tokens.length - 1);
    if (drawn.hidden) return;
    const temperature = Number(heat.value);
    const [own, all] = [1, temperature || 1].map((one) => probabilitiesOf(run.logits, one));
    const ids = likeliestOf(own, AMONG);
    const total = temperature ? ids.reduce((sum, id) => sum + all[id], 0) : all[ids[0]];
    fill(drawn, ids.slice(0, SHOWN).map((id, i) => el("li", { style: { "--share": String(own[id]) } }, el("bdi", {}, visible(guessName(model.words, id))), el("b", {}, percent(own[id])), el("small", {}, `drawn at ${fixed(temperature, 1)}: ${percent(temperature || !i ? all[id] / total : 0)}`))));
  }

  /** Whether the part has received the text and the edits that the reader requested. */
  function isCurrent() {
    return ["text", "edits"].every((name) => JSON.stringify(/** @type {any} */ (store.state)[name]) === JSON.stringify(/** @type {any} */ (told.state)[name]));
  }

  function begin() {
    waiting = !isCurrent();
    if (!waiting) go([]);
  }

  /**
   * Continues after the new tokens that are kept.
   * @param {New[]} kept
   */
  async function go(kept) {
    going?.abort(STOPPED);
    const mine = new AbortController();
    [going, tokens, chosen] = [mine, kept, null];
    trouble.hidden = true;
    show("going");
    const begun = kept.map(({ id }) => id);
    const temperature = Number(heat.value);
    const options = { max: begun.length + Number(length.node.querySelector("select").value), temperature, top_k: temperature ? AMONG : null, seed, begun };
    /** @param {Chosen} part */
    const onpart = (part) => {
      const before = textOf(tokens);
      const whole = part.text.replace(/\ufffd+$/, ""); // an incomplete character at the end is not shown yet
      const piece = whole.startsWith(before) ? whole.slice(before.length) : spelled(told.model.words, part.id);
      tokens.push({ ...part, piece });
      show("going");
    };
    try {
      await /** @type {any} */ (store.engine).generate(told.sentence, { ...options, signal: mine.signal, onpart }, told.state.edits.filter(({ op }) => op !== "swap"));
    } catch (reason) {
      if (reason !== STOPPED) fill(trouble, String(/** @type {any} */ (reason)?.message ?? reason)).hidden = false;
    }
    if (going !== mine) return;
    going = null;
    show("done");
    ui.say(`The model wrote: ${textOf(tokens)}`);
  }

  /** @param {"none" | "going" | "done"} state */
  function show(state) {
    node.dataset.writing = state;
    stop.disabled = state !== "going";
    again.disabled = take.disabled = !tokens.length || state === "going";
    const { sentence, run } = told;
    let last = 0;
    fill(prompt, run.offsets.map(([, end], t) => {
      const piece = sentence.slice(last, Math.max(last, end));
      last = Math.max(last, end);
      return el("span", { "data-token": t }, piece);
    }), sentence.slice(last));
    fill(fresh, tokens.map(({ piece, id }, i) => [
      el("button", { type: "button", class: "piece", "aria-pressed": String(i === chosen), "data-token": run.tokens.length + i, title: `token ${id}`, onclick: () => look(i) }, piece.replaceAll("\n", "") || guessName(told.model.words, id).replace("part of a character", "…")), piece.replace(/[^\n]/g, "")]));
    text.dir = directionOf(sentence);
    instead();
    draw();
  }

  /** @param {number} i */
  function look(i) {
    chosen = chosen === i ? null : i;
    show(/** @type {any} */ (node.dataset.writing));
    fresh.children[i]?.focus();
  }

  /** Shows the words that the model could have written instead of the chosen token. */
  function instead() {
    const at = chosen === null ? null : tokens[chosen];
    if (!at) return fill(about, tokens.length ? el("p", { class: "note" }, "Click a new word to see what the model attended to and which other words were likely.") : null);
    const { words } = told.model;
    fill(about, el("h3", {}, "In place of ", word(guessName(words, at.id)), `, ${percent(at.probability)}`),
      el("ol", {}, at.likeliest.map(([id, share]) =>
        el("li", {}, el("button", { type: "button", disabled: Boolean(going), "aria-pressed": String(id === at.id), onclick: () => takeInstead(id, share), style: { "--share": String(share) } },
          el("bdi", {}, visible(guessName(words, id))), el("b", {}, percent(share)))))),
      el("p", { class: "note" }, `Lines show what the model attended to when it chose this word, ${headName()}. A thicker line: more attention. Choose another word to continue from it.`));
  }

  function headName() {
    const { inside, layer, head } = told.state;
    return inside ? `in head ${layer}.${head}` : "averaged over all heads";
  }

  /**
   * Continues with another word at the chosen position.
   * @param {number} id
   * @param {number} probability
   */
  function takeInstead(id, probability) {
    const at = /** @type {number} */ (chosen);
    const token = told.model.words[id];
    go([...tokens.slice(0, at), { ...tokens[at], id, probability, token, piece: spelled(told.model.words, id) }]);
  }

  /** Draws lines from the chosen or the newest token to the tokens that it attended to. */
  function draw() {
    fill(lines);
    const at = chosen ?? (node.dataset.writing === "going" ? tokens.length - 1 : -1);
    if (!tokens[at] || !text.clientWidth) return;
    const weights = weightsOf(tokens[at], told.state);
    const box = text.getBoundingClientRect();
    lines.setAttribute("viewBox", `${box.left} ${box.top} ${box.width} ${box.height}`);
    const boxes = [...text.querySelectorAll("[data-token]")].map((node_) => {
      const range = document.createRange();
      range.selectNodeContents(node_);
      return [...range.getClientRects()].at(-1) ?? node_.getBoundingClientRect();
    });
    const [[places, rows], size] = [placesIn(boxes), parseFloat(getComputedStyle(text).fontSize)];
    const best = Array.from(weights.keys()).sort((a, b) => weights[b] - weights[a]).slice(0, LINES).filter((t) => weights[t] >= FAINTEST);
    for (const t of best) {
      const wide = 1 + 7 * weights[t];
      const d = wayOf(places[told.run.tokens.length + at], places[t], rows, wide, size);
      lines.append(svg("path", { d, "stroke-width": wide, "stroke-opacity": 0.3 + 0.7 * weights[t] }));
    }
  }

  /** @param {Told} now */
  function update(now) {
    const { run, model, state, sentence } = now;
    const able = Boolean(model?.next && store.engine?.generate);
    node.hidden = !able;
    if (!run || !able) return;
    told = /** @type {Now} */ (now);
    const next = JSON.stringify([sentence, state.edits]);
    if (next !== key) {
      going?.abort(STOPPED);
      [key, tokens, chosen, going] = [next, [], null, null];
      trouble.hidden = true;
    }
    write.disabled = !run.tokens.length;
    showDrawn();
    show(going ? "going" : tokens.length ? "done" : "none");
    if (!waiting || now.busy || !isCurrent()) return;
    waiting = false;
    if (!now.error) go([]);
  }
  sayHeat();
  ui.redraw(draw);
  return { node, update };
}

/** @param {New[]} tokens */
function textOf(tokens) {
  return tokens.map(({ piece }) => piece).join("");
}

/**
 * The text that a token adds to the tokens before it; none for the end of the text and for a part of a character.
 * @param {string[]} words  the vocabulary
 * @param {number} id
 */
function spelled(words, id) {
  const plain = plainName(words[id]).replaceAll("⏎", "\n");
  return plain.includes("\n") || guessName(words, id) === plain ? `${/^[Ġ▁]/.test(words[id]) ? " " : ""}${plain}` : "";
}

/**
 * The attention weights with which the model predicted a token. In the unfolded lab, they are the weights of the head
 * that the reader selected; otherwise, they are the mean of all heads.
 * @param {Chosen} token
 * @param {import("../store/state.js").PlayState} state
 */
function weightsOf({ looked }, { inside, layer, head }) {
  if (inside) return looked[layer][head];
  const all = looked.flat();
  return all[0].map((_, t) => all.reduce((total, one) => total + one[t], 0) / all.length);
}
