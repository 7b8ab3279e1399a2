// The sentence of the live page: the reader's text, its words as chips, and two groups of controls. One group changes
// the chosen word. The other group is for the whole text: examples, undo, comparison with the original, address, and
// Python code.

import { roving } from "../base/controls.js";
import { drawn, el, fill, word } from "../base/elements.js";
import { directionOf, GAP, named, visible } from "../base/format.js";
import { range } from "../base/arrays.js";
import { isCut } from "../base/tokens.js";
import { editsOf } from "../engine/edits.js";
import { gapsOf, withSigns } from "../engine/gaps.js";
import { maskOf } from "../store/positions.js";
import { LONGEST } from "../store/limits.js";
import { lessonButton } from "./cards.js";
import { pythonOf } from "./python.js";
import { toTakeAway } from "./save.js";
import { sharePart } from "./share.js";
import { listOf, nameIn, spelled } from "./words.js";
import "./sentence.css";

/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../store/store.js").Store} Store */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("../store/state.js").PlayState} PlayState */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../base/mount.js").Ui} Ui */

/**
 * @typedef {{token: number, tokens: [number, number], word: string, chosen: boolean, kinds: string[],
 *            pieces: string[], said: string}} Chip  a word; `tokens`: [first, last + 1]
 * @typedef {{text: string, hide?: number[], ablate?: [number, number][], change: string, why: string}} Story  STORY of page/play.py
 */

/**
 * The change that the first button suggests.
 * @typedef {{label: any[], on: boolean, edits: Edit[], why: string, tokens: number[]}} Offer
 */

/** @param {any} data */
export const gapsSaid = ({ mask }) => `A gap is a word that the model guesses. Type it as ${GAP}, _ or ${mask}, or as ? between words.`;
const UNKNOWN = /^[[<]unk[\]>]$/i; // the tokens for unknown words

/**
 * `acts` has the controls that change the words; a page can show them elsewhere.
 * @param {Ui} ui
 * @param {LiveStore} store
 * @returns {Part & {acts: HTMLElement}}
 */
export function sentencePart(ui, store) {
  const field = el("textarea", { class: "text", dir: "auto", rows: 1, spellcheck: "false", autocomplete: "off", maxlength: LONGEST, "aria-label": "Your sentence" });
  const chips = chipRow(ui, store);
  const offer = el("button", { type: "button", class: "offer primary", "data-qkv-first": !store.data.next });
  const chosen = chosenWord(store);
  const undo = el("button", { type: "button", onclick: () => store.undo() }, "Undo");
  const beside = el("button", { type: "button", onclick: () => store.set({ beside: !store.state.beside }) }, "Beside the original");
  const another = el("button", { type: "button", class: "in-whole another", onclick: () => store.set({ second: last.sentence, tab: "sentence" }) }, "Beside another sentence");
  const paper = toTakeAway(ui);
  const share = sharePart(ui, store);
  const python = el("button", { type: "button", class: "in-whole", onclick: () => paper.show("The same numbers in Python", pythonOf(store.data, /** @type {Now} */ (last))) }, "Copy as Python");
  const notes = el("div", { class: "unread" });
  /** @type {Told} */
  let last; // the last data that the part received
  /** @type {[number, Offer | null]} */
  let [typed, pending] = [-Infinity, null];

  field.addEventListener("input", () => {
    store.set({ text: field.value.toWellFormed() }, { undo: performance.now() - typed > 1000 });
    typed = performance.now();
  });
  field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault(); // the text is one line, which the model reads while the reader types
    chips.focus();
  });
  offer.addEventListener("click", () => pending && store.set({ edits: pending.edits }));

  const node = el("div", { "data-part": "sentence" }, el("div", { class: "write" }, field, exampleMenu(store), lessonButton(store)),
    notes, el("div", { class: "row" }, el("span", { class: "tools", role: "group", "aria-label": "the whole" }, undo, beside, another, share.opener, python), chips.node),
    share.node, paper.node);
  const acts = el("div", { class: "acts", "data-part": "words" }, offer, chosen.node);

  /** @param {Told} now */
  function update(now) {
    last = now;
    const { state, run } = now;
    const told = withSigns(run && state.text === store.state.text ? now.sentence : store.state.text, store.data);
    if (withSigns(field.value, store.data) !== told) [field.value, typed] = [told, -Infinity];
    undo.disabled = !store.canUndo;
    beside.disabled = !state.edits.length;
    another.hidden = !state.inside || state.second !== null || state.tab !== "sentence";
    beside.setAttribute("aria-pressed", String(state.beside && state.edits.length > 0));
    python.disabled = share.opener.disabled = offer.disabled = !run;
    if (!run) return;
    share.update(/** @type {Now} */ (now));
    pending = offerOf(store.data, now);
    fill(offer, pending ? pending.label : "Hide a word");
    offer.disabled = !pending;
    offer.setAttribute("aria-pressed", String(Boolean(pending?.on)));
    chips.update(/** @type {Now} */ (now));
    chosen.update(/** @type {Now} */ (now), pending);
    const about = state.only ? "" : [store.data.guesses ? gapsSaid(store.data) : "", addedTo(run)].filter(Boolean).join(" "); // a frame in a lesson is small
    fill(notes, unreadOf(now.sentence, run, now.model), about && el("p", { class: "note" }, about));
  }
  return { node, acts, update };
}

// A sentence about the tokens that the tokenizer adds to a text; empty if it adds none.
/** @param {Run} run */
export function addedTo({ tokens, special }) {
  const begin = special.includes(false) ? special.indexOf(false) : Math.ceil(tokens.length / 2);
  const added = tokens.flatMap((token, t) => (special[t] ? [`${token} at the ${t < begin ? "start" : "end"}`] : []));
  return added.length ? `The tokenizer adds ${added.join(" and ")} of every text.` : "";
}

/**
 * A note about parts of a text that the model does not read, or reads in another form.
 * @param {string} text
 * @param {Run} run
 * @param {any} model
 */
export function unreadOf(text, { tokens, offsets, cut }, model) {
  const end = Math.max(0, ...offsets.map(([, last]) => last));
  const missed = cut && !model.next && model.mask !== null && gapsOf(text).some(({ start }) => start >= end);
  const gap = missed ? ` The gap is beyond the first ${tokens.length} tokens, so nothing is guessed there.` : "";
  const unknown = tokens.findIndex((token) => UNKNOWN.test(token));
  const parts = offsets.filter((_, t) => UNKNOWN.test(tokens[t])).map(([first, last]) => text.slice(first, last).trim());
  const named = [...new Set(parts)].filter((part) => part && !UNKNOWN.test(part)).map((part) => ({ word: part }));
  return [
    cut ? el("p", { class: "note" }, `The text is too long: the model reads only its first ${tokens.length} tokens.${gap}`) : null,
    named.length ? el("p", { class: "note" }, "The model does not know ", spelled(listOf(named)), `: it reads ${tokens[unknown]} there.`) : null,
  ];
}

// ---- chips

/**
 * A row of chips, one for each word of the text; the reader can choose one word. The row begins and ends with the
 * tokens that the tokenizer added.
 * @param {Ui} ui
 * @param {Store} store
 */
function chipRow(ui, store) {
  const node = el("div", { class: "chips", role: "listbox", "aria-label": "words of the sentence" });
  /** @type {Chip[]} */
  let spans = [];
  /** @param {number} i */
  const choose = (i) => {
    const { token, kinds } = spans[i];
    store.set(kinds.includes("mask") ? { query: token, position: token } : { query: token });
  };
  const move = roving(node, { count: () => spans.length, onmove: choose, onpick: choose });

  /** @param {Now} now */
  function update(now) {
    spans = chipsOf(now);
    const focused = node.contains(ui.focused());
    node.dir = directionOf(now.sentence);
    fill(node, spans.map((span, i) =>
      el("span", { class: `chip ${span.kinds.join(" ")}`, role: "option", "data-i": i, "data-token": span.token, "aria-selected": String(span.chosen), "aria-label": span.said },
        span.pieces.flatMap((piece, k) => [k ? el("i", { "aria-hidden": "true" }, "·") : null, drawn(piece)]))));
    move.at = Math.max(0, spans.findIndex(({ chosen }) => chosen));
    move.refresh();
    if (focused) node.children[move.at]?.focus();
  }
  return { node, update, focus: () => node.children[move.at]?.focus() };
}

/**
 * The contents of the chips: words of the text, and tokens that the tokenizer added.
 * @param {Now} now
 * @returns {Chip[]}
 */
function chipsOf({ state, run, original, words, model }) {
  const at = new Map(words.map((span) => [span[0], span]));
  const hidden = hiddenTokens(state.edits);
  const swaps = new Map(editsOf(state.edits, "swap").map((edit) => [edit.token, edit]));
  /** @type {Chip[]} */
  const chips = [];
  for (let t = 0; t < run.tokens.length; ) {
    const [first, last, word] = at.get(t) ?? [t, t + 1, run.tokens[t]];
    const tokens = run.tokens.slice(first, last);
    const mask = tokens[0] === maskOf(model);
    /** @param {number | null} position */
    const here = (position) => position !== null && position >= first && position < last;
    /** @type {Record<string, boolean>} */
    const is = { special: run.special[first], mask, hidden: hidden.has(first), swapped: swaps.has(first), position: here(state.position) };
    const shown = last - first > 1 && !isCut(tokens) ? tokens.map((token) => token.replace(/^##/, "")) : [word];
    const said = [mask ? "gap" : shown.map(visible).join(""), is.hidden && "hidden", is.swapped && `in place of ${named(nameIn(original, first))}`, is.position && "its guesses are shown"];
    chips.push({
      token: first,
      tokens: [first, last],
      word,
      chosen: here(state.query),
      kinds: Object.keys(is).filter((kind) => is[kind]),
      pieces: shown,
      said: said.filter(Boolean).join(", "),
    });
    t = last;
  }
  return chips;
}

/** @param {Edit[]} edits */
function hiddenTokens(edits) {
  return new Set(editsOf(edits, "hide").map(({ token }) => token));
}

/**
 * Returns edits that hide these tokens or, if all of these tokens are already hidden, show them again.
 * @param {Edit[]} edits
 * @param {number[]} tokens
 */
export function hiding(edits, tokens) {
  const hidden = hiddenTokens(edits);
  if (tokens.every((token) => hidden.has(token))) return edits.filter(({ op, token }) => !(op === "hide" && tokens.includes(/** @type {number} */ (token))));
  return [...edits, ...tokens.filter((token) => !hidden.has(token)).map((token) => ({ op: "hide", token }))];
}

/**
 * Returns edits in which the swap of a token is replaced or, if `put` is null, removed.
 * @param {Edit[]} edits
 * @param {number} token
 * @param {string | null} put
 */
function swapping(edits, token, put) {
  const others = edits.filter((edit) => !(edit.op === "swap" && edit.token === token));
  return put === null ? others : [...others, { op: "swap", token, with: put }];
}

// ---- the controls for the chosen word

/** @param {Store} store */
function chosenWord(store) {
  const name = el("span", { class: "which" });
  /** @param {string} label @param {() => void} act */
  const button = (label, act) => el("button", { type: "button", onclick: () => act() }, label);
  const hide = button("Hide", () => store.set({ edits: hiding(store.state.edits, positions()) }));
  const mask = button("", maskIt);
  const guess = button(store.data.next ? "What comes next here?" : "Guess here", () => store.set({ position: span.token }));
  const swap = el("input", { type: "text", size: 10, placeholder: "swap for …", autocomplete: "off", spellcheck: "false" });
  const form = el("form", {}, swap);
  const node = el("span", { class: "acting", role: "group", "aria-label": "the chosen word" }, name, hide, mask, guess, form);
  /** @type {Now} */
  let now; // `now` and the two variables below are undefined before the first run
  /** @type {Chip} */
  let span;
  /** @type {Set<string>} */
  let known;
  const positions = () => range(span.tokens[0], span.tokens[1]);

  form.addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const put = swap.value.trim().toWellFormed();
    if (!put) return;
    swap.value = "";
    swapFor(put);
  });

  /**
   * Masks the chosen word. If the word is one token, an edit swaps this token for the mask token, and the text stays
   * the same. If the word has several tokens, the mask token is written into the text instead of the word. If the word is
   * already swapped, the function restores the original word instead.
   */
  function maskIt() {
    const { edits } = store.state;
    if (span.kinds.includes("swapped")) store.set({ edits: swapping(edits, span.token, null) });
    else if (positions().length === 1) store.set({ edits: swapping(edits, span.token, maskOf(now.model)), position: span.token });
    else writeInstead(maskOf(now.model));
  }

  /** @param {string} put */
  function swapFor(put) {
    if (gapsOf(` ${put} .`)[0]?.end === put.length + 1 && known.has(maskOf(now.model))) put = maskOf(now.model);
    const [blank = ""] = /^[Ġ▁]/u.exec(now.run.tokens[span.tokens[0]]) ?? []; // a swap keeps the space before the word
    const isOne = (/** @type {string} */ one) => known.has(one) && (/^[Ġ▁]/u.test(one) || !(known.has(`Ġ${one}`) || known.has(`▁${one}`)));
    const entry = [put, put.toLowerCase()].flatMap((one) => [blank + one, one]).find(isOne);
    if (entry && positions().length === 1) store.set({ edits: swapping(store.state.edits, span.token, entry) });
    else writeInstead(put);
  }

  /**
   * The text with other words in place of the chosen word.
   * @param {string} put
   */
  function writeInstead(put) {
    const { offsets } = now.run;
    const [first, last] = span.tokens;
    const text = now.sentence;
    store.set({ text: text.slice(0, offsets[first][0]) + put + text.slice(offsets[last - 1][1]) });
  }

  /** @param {Now} next @param {Offer | null} offer */
  function update(next, offer) {
    now = next;
    known ??= now.model && new Set(now.model.words);
    span = /** @type {Chip} */ (chipsOf(now).find(({ chosen }) => chosen));
    node.hidden = !span || span.kinds.includes("special");
    if (node.hidden) return;
    /** @param {string} kind */
    const has = (kind) => span.kinds.includes(kind);
    fill(name, word(span.word));
    hide.textContent = has("hidden") ? "Show" : "Hide";
    hide.setAttribute("aria-pressed", String(has("hidden")));
    hide.hidden = String(offer?.tokens) === String(positions());
    mask.hidden = !has("swapped") && (has("mask") || !known.has(maskOf(now.model)));
    mask.textContent = has("swapped") ? "Put back" : "Replace with a gap";
    guess.hidden = has("position");
    swap.setAttribute("aria-label", `a word in place of ${named(span.word)}`);
  }
  return { node, update };
}

// ---- suggestions

/**
 * The change that the first button makes. A story is a text with a head to remove or words to hide. If the text belongs
 * to a story, the button removes the story's head or, if the story has no head to remove, hides the story's words. In the
 * page's first text, `data.start.hide` lists the tokens to hide. If there is no head to remove and no tokens are listed,
 * the button hides the tokens that `mostSeen` returns.
 * @param {any} data
 * @param {Now} now
 * @returns {Offer | null}
 */
export function offerOf(data, now) {
  const { state, words, sentence } = now;
  const story = storyOf(data, sentence);
  const removed = story?.ablate?.[0];
  if (removed) return offerToRemove(state, story, removed);
  /** @type {number[] | undefined} */
  const told = sentence === data.start.text ? data.start.hide : story?.hide;
  const tokens = told?.length ? told : mostSeen(now);
  if (!tokens?.length) return null;
  const on = tokens.every((token) => hiddenTokens(state.edits).has(token));
  const own = words.filter(([first]) => tokens.includes(first));
  const names = own.map(([, , name]) => name).join(" ");
  const alike = words.filter(([, , name]) => name.toLowerCase() === names.toLowerCase());
  const which_ = alike.length > 1 ? ` (${alike.indexOf(own[0]) + 1} of ${alike.length})` : "";
  return { label: [on ? "Show " : "Hide ", word(names), which_, on ? " again" : ""], on, edits: hiding(state.edits, tokens), why: story?.why ?? "", tokens };
}

/**
 * @param {PlayState} state
 * @param {Story} story
 * @param {[number, number]} removed  layer and head
 * @returns {Offer}
 */
function offerToRemove(state, story, [layer, head]) {
  /** @param {Edit} edit */
  const is = (edit) => edit.op === "ablate" && edit.layer === layer && edit.head === head;
  const on = state.edits.some(is);
  const edits = on ? state.edits.filter((edit) => !is(edit)) : [...state.edits, { op: "ablate", layer, head }];
  return { label: [`${on ? "Put back" : "Remove"} head ${layer}.${head}`], on, edits, why: story.why, tokens: [] };
}

/** @param {any} data @param {string} text @returns {Story | null} */
function storyOf(data, text) {
  return data.stories?.find((/** @type {Story} */ story) => story.text === text) ?? null;
}

/**
 * The tokens of the chosen word. If the page shows guesses for this word, the result is instead the tokens of another
 * word: the word that gets the largest weight from the chosen word in the chosen head.
 * @param {Now} now
 */
function mostSeen({ state, run, words }) {
  /** @param {number | null} position */
  const of = (position) => words.find(([first, last]) => position !== null && position >= first && position < last);
  const own = of(state.query);
  if (own && state.query !== state.position) return range(own[0], own[1]);
  const row = run.pattern[state.layer][state.head].subarray((state.query ?? 0) * run.tokens.length);
  const best = words.filter((span) => span !== own && /[\p{L}\p{N}]/u.test(span[2])).sort((a, b) => row[b[0]] - row[a[0]])[0];
  return best ? range(best[0], best[1]) : null;
}

/**
 * The stories in the model's card, each with a button to try it.
 * @param {Store} store
 */
function exampleMenu(store) {
  /** @type {{stories?: Story[]}} */
  const { stories = [] } = store.data;
  const select = el("select", { class: "in-whole", "aria-label": "Examples" }, el("option", { value: "" }, "Examples"),
    stories.map(({ text, change }, i) => el("option", { value: i }, `${visible(withSigns(text, store.data))} – ${change}`)));
  select.addEventListener("change", () => {
    const story = stories[select.value];
    select.value = "";
    if (!story) return;
    const [layer, head] = story.ablate?.[0] ?? [];
    store.set({ text: story.text, edits: [], position: null, query: null, ...(story.ablate ? { layer, head } : {}) });
  });
  return stories.length ? select : null;
}
