// The live page: of one model or of two, of which one is open. Its screens take turns in one room: the first one that a
// reader sees, the story, the games, and the lab, which has everything at once. store.js says what they are told.

import { el } from "../base/elements.js";
import { starting } from "../base/mount.js";
import { sideOf } from "../store/state.js";
import { playStore } from "../store/store.js";
import { inFrame } from "../parts/frame.js";
import { outcomePart } from "../parts/outcome.js";
import { labScreen } from "../screens/lab.js";
import "./play.css";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").Told} Told */

/** @type {Record<string, string>} */
const SIDES = { encoder: "Guess a word", decoder: "Write a text" };

/**
 * The page of one model, or of two, of which one is open: each keeps its state while the other is.
 * @param {any} box
 * @param {any} data
 * @param {Ui} ui
 */
function play(box, data, ui) {
  box.classList.add("play");
  const room = el("div", { class: "room" });
  if (!data.other) {
    box.append(room);
    pageOf(box, room, data, ui);
    return;
  }
  /** @type {Record<string, any>} */
  const all = { encoder: data, decoder: data.other };
  /** @type {Record<string, string>} */
  const left = {}; // by side: its address when it was left
  const buttons = Object.entries(SIDES).map(([side, label]) => el("button", { type: "button", "data-side": side, onclick: () => turnTo(side) }, label));
  /** @type {{side: string, hash: () => string, close: () => void}} */
  let open;
  box.append(el("div", { class: "sides", role: "group", "aria-label": "what the model does" }, buttons), room);
  /** @param {string} side */
  function show(side) {
    open?.close();
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.side === side)));
    room.replaceChildren();
    let alive = true;
    const own = { ...ui, redraw: (/** @type {() => any} */ draw) => ui.redraw(() => alive && draw()) };
    const page = pageOf(box, room, all[side], own);
    open = { side, hash: page.hash, close: () => [alive] = [false, page.close()] };
  }
  /** @param {string} side */
  function turnTo(side) {
    if (side === open.side) return;
    left[open.side] = open.hash();
    try {
      history.replaceState(history.state, "", left[side] ?? `#model=${side}`);
    } catch {
      // a page inside another has no address of its own
    }
    show(side);
  }
  window.addEventListener("hashchange", () => sideOf(location.hash) !== open.side && show(sideOf(location.hash)));
  show(sideOf(location.hash || data.state));
}

/**
 * The page of one model, put into a room of its box.
 * @param {any} box
 * @param {any} room
 * @param {any} data
 * @param {Ui} ui
 */
function pageOf(box, room, data, ui) {
  const store = playStore(data, update);
  inFrame(store);
  ui.theme(store.state.theme);
  const lab = labScreen(box, ui, store, outcomePart(ui, store));
  room.append(lab.node);
  const undo = (/** @type {any} */ event) => {
    const typing = event.composedPath()[0].matches?.("input, textarea");
    if (typing || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.key !== "z") return;
    store.undo();
    event.preventDefault();
  };
  room.addEventListener("keydown", undo);

  /** @param {Told} now */
  function update(now) {
    ui.theme(now.state.theme);
    return lab.update(now);
  }
  const close = () => {
    store.close();
    room.removeEventListener("keydown", undo);
  };
  return { close, hash: () => new URL(store.address()).hash };
}

export const start = starting(play);
