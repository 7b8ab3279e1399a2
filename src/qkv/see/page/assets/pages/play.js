// The live page. It has one model or several models, and shows one model at a time. The page shows one screen at a time:
// the front screen, the findings, the story, the games, or the lab, which has all controls. store.js
// describes the data that the screens receive.

import { pick } from "../base/arrays.js";
import { el } from "../base/elements.js";
import { mounter } from "../base/mount.js";
import { gapsOf } from "../engine/gaps.js";
import { openingOf, sideOf, writeAddress } from "../store/state.js";
import { playStore, whenOpen } from "../store/store.js";
import { inFrame } from "../parts/frame.js";
import { cardsPart } from "../parts/cards.js";
import { downloadPart, megabytes } from "../parts/download.js";
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
/** @typedef {import("../engine/download.js").Download} Download */

const GAMES = ["beat", "break", "watch"];
/** @type {Partial<Record<PlayState["view"], string>>} */
const WAYS = { findings: "Findings", front: "Start", story: "How it works", games: "Games", lab: "Lab" };

/**
 * The page of one model or of several models. With several models, the page shows one model and keeps the states of the
 * others. When the reader switches to another model, that model reads the same sentence.
 * @param {any} box
 * @param {any} data
 * @param {Ui} ui
 */
function play(box, data, ui) {
  box.classList.add("play");
  const content = el("div", { class: "content" });
  if (!data.others) {
    box.append(content);
    pageOf(box, content, data, ui);
    whenOpen(({ downloads = {} }) => Object.values(downloads).forEach((one) => content.before(downloadPart(data, one))), () => {});
    return;
  }
  const sides = [data, ...data.others].map(({ side }) => side);
  /** @type {Record<string, any>} */
  const all = Object.fromEntries([data, ...data.others].map((one) => [one.side, { ...one, sides }]));
  /** @type {Record<string, {hash: string, sentence: number}>} */
  const left = {}; // for each model, the page's address when the reader last left this model, and the number of its sentence
  const buttons = sides.map((side) => sideButton(all, side, () => turnTo(side)));
  /** @type {{side: string, close: () => void} & Pick<ReturnType<typeof pageOf>, "hash" | "text" | "mark">} */
  let open;
  let [came, sentence] = ["", 0]; // the text with which the shown model opened, and the number of the current sentence
  /** @type {Record<string, Download>} */
  let downloads = {};
  /** @type {Record<string, HTMLElement>} */
  const lines = {}; // about the downloads
  /** @type {{side: string, mark: string, how: "replaceState" | "pushState"} | null} */
  let wish = null; // the model that will answer when it has arrived, unless the page has changed by then
  const isHere = (/** @type {string} */ side) => (downloads[side]?.stage ?? "done") === "done";
  box.append(el("div", { class: "sides", role: "group", "aria-label": "the model that answers" }, buttons), content);
  /** @param {string} side */
  function show(side) {
    open?.close();
    if (open) document.documentElement.dataset.qkv = "busy";
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.side === side)));
    content.replaceChildren();
    if (isHere(side)) lines[side]?.remove();
    let alive = true;
    const own = { ...ui, redraw: (/** @type {() => any} */ draw) => ui.redraw(() => alive && draw()) };
    const page = pageOf(box, content, all[side], own);
    open = { ...page, side, close: () => [alive] = [false, page.close()] };
    came = open.text();
  }
  /** @param {string} side @param {"replaceState" | "pushState"} how */
  function turnTo(side, how = "pushState") {
    wish = isHere(side) ? null : { side, mark: open.mark(), how };
    if (wish) downloads[side].start();
    for (const one of Object.values(downloads)) one.onchange();
    if (wish || side === open.side) return;
    const text = open.text();
    if (text !== came) sentence += 1;
    left[open.side] = { hash: open.hash(), sentence };
    writeAddress("replaceState", left[open.side].hash);
    const known = left[side]?.sentence === sentence ? left[side].hash : carried(all[open.side], all[side], text);
    writeAddress(how, known ?? `#model=${side}`);
    show(side);
  }
  /** Lets another model answer until the shown model has arrived. */
  function standIn() {
    const { side } = open;
    const here = sides.filter(isHere);
    if (!here.length || isHere(side)) return;
    turnTo(here.find((one) => all[one].next === all[side].next) ?? here[0], "replaceState");
    wish = { side, mark: open.mark(), how: "replaceState" };
    downloads[side].onchange();
  }
  /** @param {string} side */
  function receive(side) {
    const button = /** @type {HTMLElement} */ (buttons.find((one) => one.dataset.side === side));
    const { size } = downloads[side];
    const much = el("span", { class: "much" }, ` (${megabytes(size, size)} MB)`);
    const arrived = () => {
      much.remove();
      if (open.side === side) lines[side].remove();
      else if (wish?.side === side && wish.mark === open.mark() && !ui.focused()?.matches("input, textarea")) turnTo(side, wish.how);
    };
    button.append(much);
    lines[side] = downloadPart(all[side], downloads[side], { wished: () => wish?.side === side, arrived, answer: () => turnTo(side) });
    content.before(lines[side]);
  }
  window.addEventListener("hashchange", () => {
    if (sideOf(location.hash, sides) === open.side) return;
    show(sideOf(location.hash, sides));
    standIn();
  });
  show(sideOf(openingOf(data), sides));
  whenOpen((qkv) => {
    downloads = qkv.downloads ?? {};
    standIn();
    Object.keys(downloads).forEach(receive);
  }, () => {});
}

/**
 * The address at which a model reads the sentence of another model, up to the first gap; null if no words are before the
 * gap. A model that guesses words gets a gap after the last word.
 * @param {any} from  the payload of the other model
 * @param {any} to
 * @param {string} text
 */
function carried(from, to, text) {
  const [gap] = from.mask ? gapsOf(text.replaceAll(from.mask, "_")) : [];
  const words = (gap ? text.slice(0, gap.start) : text).trim();
  if (from.mask && to.mask) return `#${new URLSearchParams({ model: to.side, text: text.replaceAll(from.mask, to.mask) })}`;
  return words ? `#${new URLSearchParams({ model: to.side, text: to.mask ? `${words} ${to.mask}.` : words })}` : null;
}

/**
 * The button that switches to a model. It says what the model does, and the model's name if another model does the same.
 * @param {Record<string, any>} all
 * @param {string} side
 * @param {() => void} onclick
 */
function sideButton(all, side, onclick) {
  const { next, called } = all[side];
  const alone = Object.values(all).filter((one) => one.next === next).length === 1;
  return el("button", { type: "button", "data-side": side, onclick }, next ? "Write a text" : "Guess a word", alone ? null : el("span", { class: "called" }, `: ${called}`));
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
  const mark = () => JSON.stringify(pick(store.state, ["text", "edits", "view"]));
  return { close, hash: () => new URL(store.address()).hash, text: () => store.state.text, mark };
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
