// The state of a page, as an immutable object and as a part of an address.

import { pick } from "../base/arrays.js";
import { LONGEST, MOST_MASKS } from "./limits.js";

/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../engine/edits.js").ByOp} ByOp */

/**
 * @typedef {object} PlayState
 * @property {string} text
 * @property {string | null} second  a second text, shown beside the first
 * @property {Edit[]} edits  the reader's changes (see edits.js)
 * @property {number | null} position  the position at which the model guesses a word
 * @property {number} layer
 * @property {number} head
 * @property {number | null} query  the position of the chosen token
 * @property {"lab" | "front" | "story" | "games" | "beat" | "break" | "watch" | "findings"} view  the screen that is open
 * @property {boolean} inside  whether the lab is unfolded
 * @property {"pattern" | "effect" | "change"} colouring  of the map
 * @property {boolean} beside  whether the run without edits is shown beside the run with edits
 * @property {"sentence" | "links" | "heads" | "steps" | "result"} tab  the open kind of changes: words, links, heads or numbers; "result" is a tab of a narrow window only
 * @property {number | null} card  the open card of the lesson; null if the lesson is closed
 * @property {number | null} guess  the option that the reader chose on this card
 * @property {boolean} merge  whether the subwords of a word are merged
 * @property {string[] | null} only  the regions that the page shows; null for all regions
 * @property {"light" | "dark" | null} theme  the theme that this page gets from the page around it
 * @property {Steer | null} [steer]  the origin of the steering vector
 * @property {boolean} [dare]  whether the first screen asks what the model will say before it shows the changes
 * @property {boolean} [skip]  whether special tokens are left out; this and the next fields exist for recorded texts
 * @property {"weight" | "length"} [mode]  the shown numbers: weights, or the lengths of contributions
 * @property {string} [part]  the visible part of a text of two sentences, A and B. "all" shows all weights; "AB" shows the queries of A and
 * the keys of B
 * @property {boolean} [stretch]  whether the scale of a head ends at the head's largest number
 */

/**
 * The texts and the strength of a steering vector. The steering vector is the last vector that an edit adds to the residual stream before a
 * layer.
 * @typedef {{towards: string, away: string, strength: number}} Steer  `away` may be empty
 */

/** @typedef {Readonly<Required<Pick<PlayState, "merge" | "skip" | "mode" | "part">>>} Sight  the choices that decide which part of a text is visible */

/**
 * The choices when a page opens: subwords are shown separately, all tokens are shown, and cells show weights.
 * @type {Sight}
 */
export const SIGHT = Object.freeze({ merge: false, skip: false, mode: "weight", part: "all" });

/** @type {Record<string, any>} */
export const PLAIN = { text: "", second: null, edits: [], position: null, layer: 0, head: 0, query: null };
/** @type {Record<string, any>} */
export const FOLDED = { view: "lab", inside: false, colouring: "pattern", beside: false, tab: "sentence", merge: false, card: null, guess: null, only: null, theme: null, steer: null, dare: false };
/** @type {Record<string, string>} */
export const PART_OF = { temperature: "changes", motion: "head", block: "steps" }; // the region of each part that a page can show alone
const ONLY = ["sentence", "writing", "changes", "headline", "map", "head", "steps", "outcome", "second", ...Object.keys(PART_OF)];
/** @type {Record<string, any[]>} */
export const ONE_OF = { view: ["lab", "front", "story", "games", "beat", "break", "watch", "findings"], colouring: ["pattern", "effect", "change"], tab: ["sentence", "links", "heads", "steps", "result"], theme: [null, "light", "dark"] };

const OF_LAB = ["second", "inside", "colouring", "beside", "tab", "merge", "card", "steer"]; // fields that only the lab shows; an address with one of them opens the lab

/** @param {any} fields @returns {PlayState} */
export function stateOf(fields) {
  return Object.freeze({ ...fields, edits: Object.freeze([...fields.edits]) });
}

// ---- the address

/**
 * Writes a state as the fragment of an address (the part after the #). The fragment contains only the fields that differ
 * from the page's first state.
 * @param {any} state
 * @param {any} start
 */
export function toHash(state, start) {
  /** @param {any} of @param {string} name */
  const written = (of, name) => JSON.stringify(name === "edits" ? joinedMasks(of.edits) : of[name]);
  const fields = Object.keys(start).filter((name) => written(state, name) !== written(start, name));
  // If the text or the edits differ from the page's first state, write all fields of PLAIN. If
  // some of these fields were missing from the address, the page might give them values that differ from `state`.
  const moves = fields.some((name) => name === "text" || name === "edits");
  if (start.view !== "lab" && fields.some((name) => OF_LAB.includes(name))) fields.push("view");
  const all = [...new Set(moves ? [...Object.keys(PLAIN), ...fields] : fields)];
  const put = new URLSearchParams();
  for (const name of all) {
    put.set(name, name === "text" ? state.text : written(state, name));
  }
  return all.length ? `#${put}` : "";
}

/**
 * Writes the fragment of a state into the page's address, and returns the fragment that the address now has.
 * @param {"replaceState" | "pushState"} how  `pushState` adds an entry to the browser's history
 * @param {string} hash
 */
export function writeAddress(how, hash) {
  try {
    history[how](history.state, "", hash || location.href.replace(/#.*$/s, ""));
    return hash;
  } catch {
    return location.hash; // a page in a frame has no address of its own
  }
}

/**
 * Returns the state with which a page opens, as the fragment of an address (the part after the #). The state comes from
 * the page's address. If that address has no fragment, the state comes from the page's file.
 * @param {any} data  the payload
 * @returns {string}
 */
export function openingOf(data) {
  if (location.hash.length > 1) return location.hash;
  return /** @type {HTMLMetaElement | null} */ (document.querySelector('meta[name="qkv-state"]'))?.content || (data.state ?? "");
}

/**
 * The model that an address names, by its name on the page; if the address names none, the page's first model.
 * @param {string} hash
 * @param {string[]} sides
 */
export function sideOf(hash, sides) {
  const side = new URLSearchParams(hash.slice(1)).get("model") ?? "";
  return sides.includes(side) ? side : sides[0];
}

/**
 * Whether an address has a text but no head.
 * @param {string} hash
 */
export function namesNoHead(hash) {
  const put = new URLSearchParams(hash.slice(1));
  return put.has("text") && !put.has("layer") && !put.has("head");
}

/**
 * Reads the state in an address; null if the address contains no valid state.
 * @param {string} hash
 * @param {any} start
 */
export function fromHash(hash, start) {
  try {
    const own = (/** @type {string} */ name) => (name === "place" ? "position" : name); // the key in addresses of earlier versions
    const put = [...new URLSearchParams(hash.slice(1))].map(([name, value]) => [own(name), value]).filter(([name]) => name in start);
    const fields = Object.fromEntries(put.map(([name, value]) => [name, name === "text" ? value : JSON.parse(value)]));
    if (fields.edits !== undefined) fields.edits = splitMasks(fields.edits);
    if (OF_LAB.some((name) => name in fields && fields[name] !== start[name])) fields.view ??= "lab";
    const state = { ...start, ...(fields.text === undefined ? {} : { edits: [], position: null, query: null }), ...fields };
    return put.length && isState(state, start) ? stateOf(state) : null;
  } catch {
    return null;
  }
}

/** @param {any} state @param {any} start */
function isState(state, start) {
  /** @param {any} value */
  const whole = (value) => Number.isInteger(value) && value >= 0;
  /** @param {any} value */
  const isText = (value) => typeof value === "string" && value.length <= LONGEST;
  return Object.keys(start).every((name) => {
    const value = state[name];
    if (name in ONE_OF) return ONE_OF[name].includes(value);
    if (["second", "only"].includes(name) && value === null) return true;
    if (name === "only") return Array.isArray(value) && value.length > 0 && value.every((one) => ONLY.includes(one));
    if (name === "steer") return value === null || (isText(value.towards) && isText(value.away) && Number.isFinite(value.strength));
    if (name === "text" || name === "second") return isText(value);
    if (name === "edits") return Array.isArray(value) && value.every((edit) => edit !== null && typeof edit === "object");
    if (typeof start[name] === "boolean") return typeof value === "boolean";
    return whole(value) || (value === null && ["position", "query", "card", "guess"].includes(name));
  });
}

const JOINED = new WeakMap(); // maps a list of edits to its form in an address

/**
 * Joins consecutive masks to one edit: {op: "masks", layer, head, rows: [[query, first key, last key], ...]}.
 * @param {readonly Edit[]} edits
 */
export function joinedMasks(edits) {
  if (JOINED.has(edits)) return JOINED.get(edits);
  /** @type {any[]} */
  const joined = [];
  JOINED.set(edits, joined);
  for (const edit of edits) {
    const { op, query, key, ...where } = /** @type {ByOp["mask"]} */ (edit);
    let last = joined.at(-1);
    if (op !== "mask") {
      joined.push(edit);
      continue;
    }
    if (last?.op !== "masks" || last.layer !== where.layer || last.head !== where.head) joined.push((last = { op: "masks", ...where, rows: [] }));
    const row = last.rows.at(-1);
    if (row?.[0] === query && row[2] === key - 1) row[2] = key;
    else last.rows.push([query, key, key]);
  }
  return joined;
}

/**
 * The reverse of `joinedMasks`: makes one edit for each mask. Throws if the address has more masks than a page allows.
 * @param {any[]} edits
 */
function splitMasks(edits) {
  /** @type {[any[], Map<string, Set<number>>]} */
  const [all, known] = [[], new Map()]; // known: maps each layer and head to the masks of this head
  let read = 0;
  for (const edit of edits) {
    if (edit?.op !== "masks") {
      all.push(edit);
      continue;
    }
    const where = pick(edit, ["layer", "head"]);
    const name = JSON.stringify(where);
    if (!known.has(name)) known.set(name, new Set());
    const there = /** @type {Set<number>} */ (known.get(name));
    for (const [query, first, last] of edit.rows) {
      read += last - first + 1;
      if (!(read <= MOST_MASKS)) throw new RangeError("There are too many masks.");
      for (let key = first; key <= last; key++) {
        const cell = query * MOST_MASKS + key;
        if (!there.has(cell)) all.push({ op: "mask", query, key, ...where });
        there.add(cell);
      }
    }
  }
  return all;
}
