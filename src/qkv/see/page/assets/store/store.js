// The state of the live page. This file sets the first state, keeps the earlier states for undo, and runs the model for
// each new state. A newer state cancels the current run. The data that the parts receive always belong to one state.

import { plainTokens } from "../base/tokens.js";
import { pick } from "../base/arrays.js";
import { editsOf } from "../engine/edits.js";
import { placed, withWords } from "./positions.js";
import { headByRule } from "./rule.js";
import { secondOf } from "./second.js";
import { FOLDED, fromHash, namesNoHead, openingOf, PLAIN, sideOf, stateOf, toHash, writeAddress } from "./state.js";

/** @typedef {import("./state.js").PlayState} PlayState */
/** @typedef {import("./rule.js").Ruled} Ruled */
/** @typedef {import("../engine/api.js").Run} Run */
/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("./second.js").Second} Second */

/**
 * The data that the parts receive. `run` is the run of `state.text` with `state.edits`; `original` is the run of the
 * text without edits (the same run if there are no edits). Both runs have logits (1, V) for `state.position` only,
 * and blocks for `state.layer` only.
 * @typedef {object} Now
 * @property {PlayState} state
 * @property {any} model  the sizes, name and vocabulary; null until they are known
 * @property {Run} run
 * @property {Run} original
 * @property {Second | null} second  the second text: see second.js
 * @property {boolean} busy  a newer state is being computed
 * @property {string | null} error
 * @property {string} sentence  the text that the model reads, after words are swapped
 * @property {[number, number, string][]} words  [first, last + 1, word]: the tokens of each word of the text
 * @property {Ruled | null} ruled  the head that the rule chose for this text (see rule.js); null if the rule was not applied
 */

/** @typedef {Now | (Omit<Now, "run" | "original" | "second"> & {run: null, original: null, second: null})} Told  `Now`; before the first run, its runs are null */

/**
 * The interface through which parts read and change the state of a page, live or with recorded texts.
 * @typedef {object} Store
 * @property {any} data  the payload
 * @property {Partial<Api> & {name?: string}} engine
 * @property {PlayState} state
 * @property {(patch: Partial<PlayState>, options?: {undo?: boolean}) => void} set
 * @property {boolean} [recorded]  whether the texts are recorded; the fields below exist only on a live page
 * @property {() => void} [undo]
 * @property {boolean} [canUndo]
 * @property {(patch?: Partial<PlayState>) => string} [address]
 * @property {boolean} [picked]  whether the reader chose the head
 * @property {() => void} [byRule]
 * @property {number} [painted]  the number of times the page was drawn
 */

/** @typedef {Store & Required<Pick<Store, "undo" | "canUndo" | "address" | "picked" | "byRule">>} LiveStore  of the live page */

/**
 * `Shown` contains the results for a state; `Read` contains the tokens of a text.
 * @typedef {{state: PlayState, run: Run, original: Run, second: Second | null, sentence: string}} Shown
 * @typedef {{text: string, run: Run}} Read
 */

/**
 * A part of the page.
 * @typedef {{node: HTMLElement, update: (now: Told) => void | Promise<void>, headline?: HTMLElement}} Part
 */

const MAX_TOKENS = 256; // the maximum number of tokens in a page's text; the limit is low because the page shows all heads
const KEPT = ["text", "second", "edits"]; // the fields whose changes can be undone
const RUN_FOR = ["text", "second", "edits", "position", "layer"]; // the fields of the state on which a run depends

/**
 * @param {any} data  the payload
 * @param {(now: Told) => Promise<void>} heard  is called at every change; the promise resolves when everything is
 *     drawn
 */
export function playStore(data, heard) {
  let start = stateOf({ ...PLAIN, ...FOLDED, ...pick(data.start, [...Object.keys(PLAIN), ...Object.keys(FOLDED)]) });
  /** @type {PlayState[]} */
  const past = []; // the earlier states for undo, the newest last
  const address = openingOf(data);
  let state = fromHash(address, start) ?? start;
  /** @type {Shown | null} */
  let shown = null; // the results for the state that the page shows
  /** @type {Read | null} */
  let tokens = null; // the tokens of a text
  /** @type {Read | null} */
  let carry = null; // the earlier text, if the positions in the state still refer to it
  /** @type {{key: string, run: Run | Promise<Run> | null}} */
  let unchanged = { key: "", run: null }; // the last run without edits
  /** @type {[any, AbortController | null, string | null, string, any]} */
  let [model, going, error, written, writing] = [null, null, null, location.hash, 0];
  let asked = 0; // the number of requested states
  let unchecked = state !== start; // whether the state comes from an address and has not been checked
  let unruled = unchecked ? namesNoHead(address) : data.start.layer === undefined; // whether the rule still has to choose the head
  // picked: whether the reader chose the head (a new text then keeps this head); asking: whether the reader chose the query
  let [picked, asking] = [false, new URLSearchParams(address.slice(1)).has("query")];
  const ruled = new Map(); // maps each text to the head that the rule chose
  if (data.start.said) ruled.set(start.text, { text: start.text, ...pick(data.start, ["layer", "head", "query", "said"]) });
  const closed = new AbortController();
  /** @param {PlayState} of */
  const hashOf = (of) => {
    const hash = toHash(of, start);
    return data.side && data.side !== data.sides[0] ? `#${new URLSearchParams({ model: data.side })}${hash && `&${hash.slice(1)}`}` : hash;
  };
  let drawn = Promise.resolve(); // resolved when all data are drawn

  const self = {
    data,
    engine: /** @type {any} */ (null),
    painted: 0,
    get state() {
      return state;
    },
    get canUndo() {
      return past.length > 0;
    },
    /** The address of this state, or of the state with some changes. */
    address: (patch = {}) => location.href.replace(/#.*$/s, "") + hashOf({ ...state, ...patch }),
    get picked() {
      return picked;
    },
    set,
    undo,
    /** Stops using the address and the window, so that another page can use them. */
    close() {
      closed.abort();
      going?.abort(new Error("closed"));
      [going, writing] = [null, clearTimeout(writing)];
    },
    /** Lets the rule choose the head again. */
    byRule() {
      [picked, asking, unruled] = [false, false, true];
      follow(RUN_FOR);
    },
  };

  /**
   * Changes the state. If `patch` has a new text but no edits or positions, edits are kept as far as possible. If
   * `patch` has a new text with edits or positions, these edits and positions belong to the new text.
   * @param {Partial<PlayState>} patch
   * @param {{undo?: boolean}} options  whether a change of the text or the edits can be undone
   */
  function set(patch, { undo: keep = true } = {}) {
    const alone = "text" in patch && !["edits", "position", "query"].some((name) => name in patch);
    /** @type {Edit[]} */
    const told = alone && !carry && shown ? editsOf(shown.state.edits, "swap") : []; // a new text drops all word swaps, because they belong to the old text
    const next = stateOf({ ...state, edits: state.edits.filter((edit) => !told.includes(edit)), ...patch });
    const before = state;
    const changed = [...Object.keys(patch), ...(told.length ? ["edits"] : [])].filter((name) => differs(before, next, name));
    if (!changed.length) return;
    if (keep && KEPT.some((name) => changed.includes(name))) past.push(carry ? /** @type {Shown} */ (shown).state : state);
    if (past.length > 200) past.shift();
    const ownHead = "layer" in patch || "head" in patch;
    if (ownHead && !("text" in patch)) picked = true;
    if ("query" in patch) asking = !("text" in patch);
    unruled = !ownHead && !picked && (unruled || changed.includes("text"));
    if (changed.includes("text")) {
      carry = alone ? carry ?? (shown && { text: shown.sentence, run: shown.run }) : null;
      state = alone && carry ? next : stateOf({ ...next, edits: [], position: null, query: null, ...patch });
    } else state = next;
    if (changed.includes("view")) {
      writeAddress("replaceState", hashOf(/** @type {PlayState} */ (before)));
      written = writeAddress("pushState", hashOf(state)); // the browser's Back leads to the screen before
    }
    follow(changed);
  }

  /** Undoes the last change of the text or the edits. */
  function undo() {
    const last = past.pop();
    if (!last) return;
    carry = null;
    unruled = false;
    state = stateOf({ ...state, ...pick(last, [...Object.keys(PLAIN), "steer"]) });
    follow(RUN_FOR);
  }

  /** @param {string[]} changed */
  function follow(changed) {
    asked += 1;
    if (shown) document.documentElement.dataset.qkv = "busy";
    if (changed.some((name) => RUN_FOR.includes(name))) compute();
    else if (!going && shown) settle({ ...shown, state });
    else tell();
    write();
  }

  async function compute() {
    going?.abort(new Error("superseded"));
    const mine = new AbortController();
    going = mine;
    const late = setTimeout(tell, shown ? 150 : 0); // if a run takes longer than 150 ms, the page shows that it is computing
    try {
      let runs = await runsOf(mine.signal);
      if (going !== mine) return;
      if (unruled) {
        shown = { ...runs, state }; // show the results before the rule has chosen the head, so that the reader need not wait
        tell();
        drawn.then(() => requestAnimationFrame(() => (document.documentElement.dataset.told = state.text)));
        const own = ruled.get(state.text) ?? (await headByRule(self.engine, state.text, runs.original, model, data, mine.signal));
        if (going !== mine) return;
        if (unruled) runs = await atHead(own, mine.signal);
        if (going !== mine) return;
      }
      going = error = null;
      settle(runs);
    } catch (reason) {
      if (going !== mine) return;
      going = null;
      failed(reason);
    } finally {
      clearTimeout(late);
    }
  }

  /**
   * Puts the head that the rule has chosen into the state, and returns the runs for this state.
   * @param {Ruled | null} own
   * @param {AbortSignal} signal
   */
  async function atHead(own, signal) {
    unruled = false;
    ruled.set(state.text, own);
    const query = asking ? state.query : own?.query ?? state.position;
    state = stateOf({ ...state, ...pick(own, ["layer", "head"]), query });
    if (data.start.layer === undefined && state.text === start.text) start = stateOf({ ...start, ...pick(own, ["layer", "head"]) });
    return runsOf(signal);
  }

  /**
   * Two runs: the run of the state's text with its edits, and the run of the same text without edits.
   * @param {AbortSignal} signal
   */
  async function runsOf(signal) {
    model ??= await self.engine.model;
    const { text } = state;
    if (tokens?.text !== text) {
      const run = await self.engine.run(text, [], { at: [], signal });
      tokens = { text, run };
    }
    signal.throwIfAborted();
    state = placed(state, tokens.run, carry, model);
    carry = null;
    const { edits, position, layer } = state;
    const options = { at: position === null ? [] : [position], layers: [layer], signal };
    const key = JSON.stringify([text, position, layer]);
    const plain = unchanged.key === key ? unchanged.run : self.engine.run(text, [], options);
    const [original, run] = await Promise.all([plain, edits.length ? self.engine.run(text, edits, options) : plain]);
    const sentence = withWords(text, original, run, edits, model);
    unchanged = { key, run: original };
    const second = await secondOf(self.engine, state, tokens.run, model, signal);
    return { state, run, original, second, sentence };
  }

  /**
   * Restores the latest valid state, because the requested state cannot be computed.
   * @param {any} reason
   */
  function failed(reason) {
    carry = null;
    const plain = unchecked;
    unchecked = false;
    if (plain) [state, unruled] = [start, data.start.layer === undefined];
    else if (shown) [state, error] = [stateOf({ ...state, ...pick(shown.state, Object.keys(PLAIN)) }), String(reason?.message ?? reason)];
    else error = String(reason?.message ?? reason);
    if (plain) compute();
    else tell();
    write();
    if (shown && !plain) whenDrawn();
  }

  /** @param {any} runs */
  function settle(runs) {
    shown = { ...runs, state };
    unchecked = false;
    tell();
    write();
    whenDrawn();
  }

  /** Marks the document as ready when the last data are painted, unless another state was requested meanwhile. */
  function whenDrawn() {
    const mine = asked;
    drawn.then(() =>
      requestAnimationFrame(() => {
        self.painted += 1;
        document.documentElement.dataset.painted = String(self.painted);
        document.documentElement.dataset.told = state.text;
        if (mine === asked) document.documentElement.dataset.qkv = "ready";
      }),
    );
  }

  function tell() {
    const computed = going && shown ? pick(shown.state, Object.keys(PLAIN)) : {};
    const { run = null, original = null, second = null, sentence = "" } = shown ?? {};
    const said = stateOf({ ...state, ...computed });
    const own = ruled.get(said.text) ?? null;
    const words = run?.words ?? [];
    const told = { state: said, model, run, original, second, sentence, words, busy: Boolean(going), error, ruled: own };
    drawn = heard(/** @type {Told} */ (told));
  }

  /** Writes the address when the reader pauses and everything is drawn, so that the address always matches the page. */
  function write() {
    clearTimeout(writing);
    const mine = setTimeout(async () => {
      await drawn;
      if (going || mine !== writing || closed.signal.aborted) return;
      written = writeAddress("replaceState", hashOf(state));
    }, 250);
    writing = mine;
  }

  // the page may have overwritten the address before this event arrives, so the address in the event is used
  window.addEventListener("hashchange", ({ newURL }) => {
    const { hash } = new URL(newURL);
    if (hash === written || (data.side && sideOf(hash, data.sides) !== data.side)) return;
    const before = state;
    carry = null;
    state = fromHash(hash, start) ?? start;
    if (KEPT.some((name) => differs(before, state, name))) past.push(before);
    unchecked = state !== start;
    [unruled, picked, asking] = [unchecked && namesNoHead(hash), false, new URLSearchParams(hash.slice(1)).has("query")];
    if (self.engine) follow(RUN_FOR);
  }, { signal: closed.signal });
  whenOpen((qkv) => {
    self.engine = engineOf(qkv, data);
    compute();
  }, (reason) => failed(reason));
  return self;
}

/** @param {any} one @param {any} other @param {string} name */
function differs(one, other, name) {
  return JSON.stringify(one[name]) !== JSON.stringify(other[name]);
}

/**
 * The interface through which the parts use a page's model. In each run, the tokens have readable names.
 * @param {any} qkv
 * @param {any} data
 */
function engineOf({ where = "on this page", run, sweep, models, model, parameters, generate }, { model: name, side }) {
  const own = { most: MAX_TOKENS, model: side };
  return {
    name,
    where,
    model: models?.[side] ?? model,
    /** @type {Api["run"]} */
    run: async (text, edits, options) => {
      const result = await run(text, edits, { ...own, ...options });
      return Object.assign(result, { tokens: plainTokens(result.tokens, result.special) });
    },
    /** @type {Api["sweep"]} */
    sweep: (text, edits, onpart, options) => sweep(text, edits, onpart, { ...own, ...options }),
    /** @type {Api["parameters"]} */
    parameters: parameters && ((names, rows) => parameters(names, rows, own)),
    /** @type {Api["generate"]} */
    generate: generate && ((text, options, edits) => generate(text, { ...own, ...options }, edits)),
  };
}

/**
 * Calls `open` with the interface to a model (api.js) as soon as it exists; calls `missing` if the page has loaded
 * and has no model.
 * @param {(qkv: any) => void} open
 * @param {(reason: Error) => void} missing
 */
export function whenOpen(open, missing) {
  if (globalThis.qkv) return open(globalThis.qkv);
  window.addEventListener("qkv", () => open(globalThis.qkv), { once: true });
  const late = () => globalThis.qkv ?? missing(new Error("This page has no model."));
  if (document.readyState === "complete") setTimeout(late, 0);
  else window.addEventListener("load", late, { once: true });
}
