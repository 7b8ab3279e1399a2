// The lab: the sentence, one head and the result fill the window, and a drawer holds what the reader can change, one kind
// at a time: words, links, heads or numbers. This module places the parts and the headline, and creates the badge and the
// tabs of the drawer. Each part is a function in its own file that returns {node, update(now)}; store.js describes
// `now`.

import { roving } from "../base/controls.js";
import { el, fill } from "../base/elements.js";
import { visible } from "../base/format.js";
import { inTurn } from "../base/turns.js";
import { PART_OF } from "../store/state.js";
import { changesPart } from "../parts/changes.js";
import { aboutPart } from "../parts/about.js";
import { headPart } from "../parts/head.js";
import { layerPart } from "../parts/layer.js";
import { DENSE, mapPart } from "../parts/map.js";
import { motionPart } from "../parts/motion.js";
import { paintBar } from "../parts/paint_bar.js";
import { saveMenu } from "../parts/save.js";
import { scorePart } from "../parts/score.js";
import { secondPart } from "../parts/second.js";
import { sentencePart } from "../parts/sentence.js";
import { steerPart } from "../parts/steer.js";
import { viewBarPart } from "../parts/view_bar.js";
import { weightHandles } from "../parts/weight_handles.js";
import "./lab.css";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../store/store.js").Store} Store */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {{node: HTMLElement, update: (now: Told) => Promise<void>, shown?: () => void}} Screen  `update` resolves when everything is drawn; `shown` is called when the reader moves to the screen */
/** @typedef {import("../store/state.js").PlayState} PlayState */
/** @typedef {ReturnType<typeof regionOf>} Region */
/** @typedef {Record<string, Part> & {head: import("../parts/head.js").HeadPart}} Parts */

const NARROW = 727; // the largest width of a page, in pixels, the same as in lab.css
/** @type {Record<PlayState["tab"], string>} */
const TABS = { sentence: "Words", links: "Links", heads: "Heads", steps: "Numbers", result: "Result" };
/** @type {Record<string, string[]>} */
const ON_TAB = {
  sentence: ["sentence", "writing", "words", "changes", "second"],
  links: ["changes", "links", "head"],
  heads: ["map", "head"],
  steps: ["changes", "steps"],
  result: ["outcome"],
};
const ABOVE = ["sentence", "writing"]; // these regions are above the headline
const DRAWER = ["words", "changes", "links", "map"]; // these regions are in the drawer, below its tabs
/** @type {Record<string, string[]>} */
const WITH = { sentence: ["words"], head: ["links"] }; // if the page shows only some regions, a region in the drawer comes with another
const INSIDE = ["map", "motion", "steps", "block"]; // parts that need an unfolded page: if `state.only` lists one, the page is unfolded
const SAYING = ["headline", "outcome"]; // the parts in the box of the headline
const SAVED = ["map", "head", "steps", "outcome", "second"]; // the regions that can be saved
const REGIONS = {
  sentence: "The sentence",
  writing: "What the model writes",
  words: "Change a word",
  changes: "What you changed",
  links: "Change links",
  map: "The heads of the model",
  head: "One head",
  steps: "The layer, step by step",
  outcome: "Result",
  second: "A second sentence",
};
const HANDS = { paintBar, weightHandles };

/**
 * @param {any} box  the element that contains the page; its `data-` attributes tell the style sheet what to show
 * @param {Ui} ui
 * @param {LiveStore} store
 * @param {{cards: Part, outcome: Part, writing: Part}} shared  the parts that other screens also use
 * @returns {Screen}
 */
export function labScreen(box, ui, store, shared) {
  const { data } = store;
  const parts = partsOf(ui, store, shared);
  const badge = el("p", { class: "badge" });
  const trouble = el("p", { class: "trouble", role: "alert", hidden: true });
  const headline = el("div", { class: "headline", "data-part": "headline" }, parts.outcome.headline);
  const regions = Object.entries(REGIONS).map(([name, label]) => regionOf(ui, name, label, parts));
  const saves = regions.filter(({ name }) => SAVED.includes(name)).map(({ name, node }) => {
    const menu = saveMenu(ui, node, () => aboutPart(name, told, store, parts[name]));
    node.append(menu.node);
    return menu;
  });
  /** @param {(name: string) => boolean} has */
  const those = (has) => regions.filter(({ name }) => has(name)).map(({ node }) => node);
  const tabs = tabsOf(store, regions);
  const drawer = el("div", { class: "drawer" }, tabs.node, those((name) => DRAWER.includes(name)));
  const notes = (data.notes || []).map((/** @type {string} */ line) => el("p", { class: "note" }, line));
  const inside = el("button", { type: "button", class: "inside", onclick: () => store.set(store.state.inside ? { inside: false } : { inside: true, tab: "heads" }) });
  // `last`: the store's data; `told`: the copy of `last` that the parts receive. In this copy, `state.inside` says whether
  // the page is unfolded.
  /** @type {Told[]} */
  let [last, told] = [];
  const turn = inTurn();

  const title = el("h2", { class: "title", tabindex: -1 }, "Write a sentence, change something, and see what happens.");
  const saying = el("div", { class: "saying" }, headline, inside);
  const node = el("div", { class: "lab" }, el("header", { class: "top" }, title, badge), parts.cards.node,
    el("div", { class: "regions" }, those((name) => ABOVE.includes(name)), drawer, saying, those((name) => ![...ABOVE, ...DRAWER].includes(name))), trouble, ...notes);
  let narrow = false;
  new ResizeObserver(() => {
    const now = node.clientWidth <= NARROW;
    if (now === narrow || !node.clientWidth) return;
    narrow = now;
    if (last) update(last);
  }).observe(node);
  restrict(store.state.only);

  /**
   * Shows only the regions that `only` lists, or all regions if `only` is null.
   * @param {string[] | null} only
   */
  function restrict(only) {
    if (only) box.dataset.only = only.join(" ");
    else delete box.dataset.only;
    const held = only?.flatMap((name) => [PART_OF[name] ?? name, ...(WITH[name] ?? [])]);
    for (const { name, node } of regions) node.hidden = only !== null && !held?.includes(name);
    for (const node of [title, parts.cards.node, tabs.node]) node.hidden = only !== null;
    saying.hidden = only !== null && !only.some((name) => SAYING.includes(name));
    inside.hidden = only !== null;
  }

  /** @param {Told} now */
  function update(now) {
    last = now;
    if (parts.outcome.headline?.parentNode !== headline) headline.append(/** @type {Node} */ (parts.outcome.headline));
    const written = /** @type {Region} */ (regions.find(({ name }) => name === "writing")).node;
    if (parts.writing.node.parentNode !== written) written.append(parts.writing.node);
    const result = /** @type {Region} */ (regions.find(({ name }) => name === "outcome")).node;
    if (parts.outcome.node.parentNode !== result) result.prepend(parts.outcome.node);
    const { state, model, busy, error } = now;
    const asked = state.only ? state.only.some((name) => INSIDE.includes(name)) : narrow && state.card === null;
    const unfolded = state.inside || asked;
    box.dataset.tab = narrow || state.tab !== "result" ? state.tab : "sentence";
    box.dataset.inside = String(unfolded);
    box.toggleAttribute("data-second", state.second !== null);
    box.dataset.beside = String(state.beside && state.edits.length > 0);
    box.setAttribute("aria-busy", String(busy));
    restrict(state.only);
    inside.textContent = state.inside ? "Fold" : "Look inside";
    inside.setAttribute("aria-expanded", String(state.inside));
    trouble.hidden = !error;
    fill(trouble, error);
    if (model) fill(badge, badgeOf(store, model));
    tabs.update(now);
    told = { ...now, state: Object.freeze({ ...state, inside: unfolded }) };
    const folded = { ...told, state: Object.freeze({ ...state, inside: false }) };
    const closed = !state.only && state.tab !== "heads" && model?.layers * model?.heads > DENSE; // a large map is drawn on its tab only
    return turn([...Object.entries(parts).map(([name, part]) => () => part.update(closed && name === "map" ? folded : told)), ...saves.map((menu) => () => menu.update())]);
  }
  return { node, update };
}

/**
 * Creates the parts and returns them by name, the most important first. The part `before` shows the chosen head for
 * the text without edits.
 * @param {Ui} ui
 * @param {LiveStore} store
 * @param {{cards: Part, outcome: Part, writing: Part}} shared
 * @returns {Parts}
 */
function partsOf(ui, store, { cards, outcome, writing }) {
  const [sentence, head] = [sentencePart(ui, store), headPart(ui, store, HANDS)];
  const parts = {
    cards,
    sentence,
    writing,
    words: still(sentence.acts),
    changes: changesPart(ui, store),
    steer: steerPart(ui, store),
    outcome,
    links: still(el("div", { "data-part": "links" }, el("p", { class: "note" }, "Hide links of the chosen head, or drag the ends of its bars to set its weights."), /** @type {HTMLElement} */ (head.paint))),
    head,
    before: originalHead(ui, store),
    motion: motionPart(ui),
    view: viewBarPart(ui, store),
    map: mapPart(ui, store),
    steps: layerPart(ui, store),
    second: secondPart(ui, store),
  };
  parts.head.body.append(parts.motion.node);
  scorePart(ui, parts.head);
  return parts;
}

/**
 * A part that shows the chosen head in the run without edits. In this part, the reader can choose what to look at, but
 * cannot change the run.
 * @param {Ui} ui
 * @param {Store} store
 */
function originalHead(ui, store) {
  const looking = Object.create(store, {
    set: {
      value: (/** @type {Partial<PlayState>} */ { text, edits, ...patch }, /** @type {{undo?: boolean}} */ options) =>
        store.set(patch, options),
    },
  });
  const part = headPart(ui, looking, HANDS);
  part.node.dataset.part = "before";
  /** @param {Told} now */
  const update = (now) => {
    const { state, original } = now;
    const shows = state.beside && state.edits.length > 0;
    return shows ? part.update(/** @type {Told} */ ({ ...now, run: original, state: Object.freeze({ ...state, edits: [] }) })) : undefined;
  };
  return { node: part.node, update };
}

/**
 * A part whose controls another part updates.
 * @param {HTMLElement} node
 * @returns {Part}
 */
const still = (node) => ({ node, update: () => {} });

/**
 * Creates a region of the page around the part called `name`.
 * @param {Ui} ui
 * @param {string} name
 * @param {string} label
 * @param {Parts} parts
 */
function regionOf(ui, name, label, parts) {
  const node = el("section", { class: "region", id: ui.id(name), "aria-label": label, "data-region": name }, parts[name].node);
  if (name === "changes") node.append(parts.steer.node);
  if (name === "head")
    fill(node, el("div", { class: "beside" }, el("h3", {}, "Original"), parts.before.node), el("div", { class: "own" }, el("h3", {}, "Changed"), parts.view.node, parts.head.node));
  return { name, node };
}

/**
 * Returns the tabs of the drawer; on a narrow page, they choose which regions the page shows.
 * @param {Store} store
 * @param {Region[]} regions
 */
function tabsOf(store, regions) {
  const names = /** @type {PlayState["tab"][]} */ (Object.keys(TABS));
  /** @param {string} tab */
  const idOf = (tab) => ON_TAB[tab].map((name) => /** @type {Region} */ (regions.find((region) => region.name === name)).node.id).join(" ");
  const node = el("div", { class: "tabs", role: "tablist", "aria-label": "what to change" });
  const buttons = names.map((tab, i) =>
    el("button", { type: "button", role: "tab", "data-i": i, "data-tab": tab, "aria-controls": idOf(tab) }, TABS[tab]),
  );
  node.append(...buttons);
  /** @param {number} i */
  const choose = (i) => store.set({ tab: names[i] });
  const move = roving(node, { count: () => names.length, onmove: choose, onpick: choose });
  /** @param {Told} now */
  const update = ({ state }) => {
    move.at = names.indexOf(state.tab);
    buttons.forEach((button, i) => button.setAttribute("aria-selected", String(i === move.at)));
    move.refresh();
  };
  return { node, update };
}

/**
 * Returns the contents of the badge: the name and the size of the model, and where it is computed.
 * @param {Store} store
 * @param {any} model
 */
function badgeOf(store, model) {
  const { name, where } = store.engine;
  const offline = where === "on this page" ? ", offline" : "";
  return [
    el("b", {}, el("bdi", {}, visible(name || model.name))),
    ` · ${model.layers} layers × ${model.heads} heads · `,
    `computes ${where}${offline}`,
  ];
}
