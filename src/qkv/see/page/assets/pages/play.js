// The live page. It has one model, or two models, and shows one model at a time. The page shows one screen at a time:
// the front screen, the findings, the story, the games, or the lab, which has all controls. store.js
// describes the data that the screens receive.

import { el } from "../base/elements.js";
import { mounter } from "../base/mount.js";
import { gapsOf } from "../engine/gaps.js";
import { openingOf, sideOf, writeAddress } from "../store/state.js";
import { playStore } from "../store/store.js";
import { inFrame } from "../parts/frame.js";
import { cardsPart } from "../parts/cards.js";
import { outcomePart } from "../parts/outcome.js";
import { writingPart } from "../parts/writing.js";
import { beatScreen } from "../screens/beat.js";
import { breakScreen } from "../screens/break.js";
import { findingsScreen } from "../screens/findings.js";
import { frontScreen } from "../screens/front.js";
import { gamesScreen } from "../screens/games.js";
import { labScreen } from "../screens/lab.js";
import { storyScreen } from "../screens/story.js";
import { watchScreen } from "../screens/watch.js";
import "./play.css";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("../store/state.js").PlayState} PlayState */
/** @typedef {import("../screens/lab.js").Screen} Screen */

const GAMES = ["beat", "break", "watch"];
/** @type {Partial<Record<PlayState["view"], string>>} */
const WAYS = { findings: "Findings", front: "Start", story: "How it works", games: "Games", lab: "Lab" };
/** @type {Record<string, string>} */
const SIDES = { encoder: "Guess a word", decoder: "Write a text" };

/**
 * The page of one model or of two models. With two models, the page shows one model and keeps the state
 * of the other model.
 * @param {any} box
 * @param {any} data
 * @param {Ui} ui
 */
function play(box, data, ui) {
  box.classList.add("play");
  const content = el("div", { class: "content" });
  if (!data.other) {
    box.append(content);
    pageOf(box, content, data, ui);
    return;
  }
  /** @type {Record<string, any>} */
  const all = { encoder: data, decoder: data.other };
  /** @type {Record<string, string>} */
  const left = {}; // for each model, the page's address when the reader last left this model
  const buttons = Object.entries(SIDES).map(([side, label]) => el("button", { type: "button", "data-side": side, onclick: () => turnTo(side) }, label));
  /** @type {{side: string, hash: () => string, text: () => string, close: () => void}} */
  let open;
  let written = ""; // the text that the decoder has continued
  box.append(el("div", { class: "sides", role: "group", "aria-label": "what the model does" }, buttons), content);
  /** @param {string} side */
  function show(side) {
    open?.close();
    if (open) document.documentElement.dataset.qkv = "busy";
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.side === side)));
    content.replaceChildren();
    let alive = true;
    const own = { ...ui, redraw: (/** @type {() => any} */ draw) => ui.redraw(() => alive && draw()) };
    const page = pageOf(box, content, all[side], own);
    open = { side, hash: page.hash, text: page.text, close: () => [alive] = [false, page.close()] };
  }
  /** @param {string} side */
  function turnTo(side) {
    if (side === open.side) return;
    left[open.side] = open.hash();
    const text = opening();
    if (text) left.decoder = `#${new URLSearchParams({ model: "decoder", text })}`;
    writeAddress("replaceState", left[open.side]);
    writeAddress("pushState", left[side] ?? `#model=${side}`);
    show(side);
  }

  /**
   * The text that the decoder continues: the text that the reader wrote for the encoder, up to the first gap. Null if
   * the encoder's text is still the page's first text, or if the decoder has already received the encoder's text.
   */
  function opening() {
    const text = open.text();
    if (open.side !== "encoder" || text === data.start.text || text === written) return null;
    written = text;
    const [gap] = gapsOf(text.replaceAll(data.mask ?? "[MASK]", "_"));
    return (gap ? text.slice(0, gap.start) : text).trim() || null;
  }
  window.addEventListener("hashchange", () => sideOf(location.hash) !== open.side && show(sideOf(location.hash)));
  show(sideOf(openingOf(data)));
}

/**
 * Puts the page of one model into an element of the box.
 * @param {any} box
 * @param {any} content
 * @param {any} data
 * @param {Ui} ui
 */
function pageOf(box, content, data, ui) {
  const store = playStore(data, update);
  const parts = { cards: cardsPart(ui, store), outcome: outcomePart(ui, store), writing: writingPart(ui, store) };
  /** @type {Partial<Record<PlayState["view"], () => Screen>>} */
  const kinds = {
    lab: () => labScreen(box, ui, store, parts),
    front: () => frontScreen(ui, store, parts),
    story: () => storyScreen(ui, store, parts),
    games: () => gamesScreen(store),
    ...(data.game?.sentences && { beat: () => beatScreen(ui, store) }),
    break: () => breakScreen(ui, store),
    watch: () => watchScreen(store),
    ...(data.findings && { findings: () => findingsScreen(ui, store) }),
  };
  /** @type {Partial<Record<PlayState["view"], Screen>>} */
  const screens = {}; // the screens that the reader has opened
  const ways = wayBar(store);
  const whole = el("a", { class: "whole", target: "_blank", rel: "noopener" }, "The whole page");
  const loading = el("p", { class: "loading", role: "status" }, "The model is loading …");
  content.append(ways.node, loading, whole);
  inFrame(store);
  ui.theme(store.state.theme);
  const undo = (/** @type {any} */ event) => {
    const typing = event.composedPath()[0].matches?.("input, textarea");
    if (typing || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.key !== "z") return;
    store.undo();
    event.preventDefault();
  };
  content.addEventListener("keydown", undo);
  for (const kind of ["click", "input", "change"]) content.addEventListener(kind, (/** @type {any} */ event) => event.target.closest("[inert]") && event.stopPropagation(), true); // presses by scripts too

  /** @param {Told} now */
  function update(now) {
    const { state } = now;
    ui.theme(state.theme);
    const view = state.only || !kinds[state.view] ? "lab" : state.view;
    const screen = (screens[view] ??= /** @type {() => Screen} */ (kinds[view])());
    if (screen.node.parentNode !== content) {
      const before = content.contains(ui.focused()); // after a click on a button, the focus moves to the top of the screen
      for (const { node } of Object.values(screens)) if (node !== screen.node) node.remove();
      whole.before(screen.node);
      box.dataset.view = view;
      if (before) /** @type {HTMLElement | null} */ (screen.node.querySelector("h2"))?.focus({ preventScroll: true });
      window.scrollTo({ top: Math.min(window.scrollY, box.getBoundingClientRect().top + window.scrollY) });
      screen.shown?.();
    }
    loading.hidden = now.run !== null || now.error !== null;
    screen.node.inert = !loading.hidden; // before the first run, the screen's controls have nothing to act on
    ways.update(view);
    whole.hidden = state.only === null;
    whole.href = store.address(state.only === null ? {} : { only: null, view: "lab" }); // the lab shows all regions
    if (view !== "lab") parts.cards.update(now); // this part keeps the state from before a lesson, and restores it after the lesson
    return screen.update(now);
  }
  const close = () => {
    store.close();
    content.removeEventListener("keydown", undo);
  };
  return { close, hash: () => new URL(store.address()).hash, text: () => store.state.text };
}

/**
 * The links to the other screens, if the page has any; the first screen has its own buttons.
 * @param {LiveStore} store
 */
function wayBar(store) {
  const { view: first } = store.data.start;
  const ways = /** @type {[PlayState["view"], string][]} */ (Object.entries(WAYS)).filter(([view]) => view !== "findings" || view === first);
  const buttons = ways.map(([view, label]) => el("button", { type: "button", "data-view": view, onclick: () => store.set({ view }) }, view === first ? `← ${label}` : label));
  const node = el("nav", { class: "ways", "aria-label": "screens", hidden: true }, buttons);
  /** @param {string} view */
  const update = (view) => {
    node.hidden = !["front", "findings"].includes(first) || view === first || store.state.only !== null;
    for (const button of buttons) button.setAttribute("aria-current", String(button.dataset.view === (GAMES.includes(view) ? "games" : view)));
  };
  return { node, update };
}

export const start = mounter(play);
