// The state of the live page: what it begins with, what can be taken back, and the runs of the model that belong
// to it. A newer state supersedes the run that is going; what the parts are told always belongs together.

import { plainTokens } from "../base/tokens.js";
import { pick } from "../base/values.js";
import { editsOf } from "../engine/edits.js";
import { placed, withWords } from "./places.js";
import { headByRule } from "./rule.js";
import { secondOf } from "./second.js";
import { FOLDED, fromHash, namesNoHead, openingOf, PLAIN, sideOf, stateOf, toHash } from "./state.js";

/** @typedef {import("./state.js").PlayState} PlayState */
/** @typedef {import("./rule.js").Ruled} Ruled */
/** @typedef {import("../engine/door.js").Run} Run */
/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("./second.js").Second} Second */

/**
 * What the parts are told: `run` is of `state.text` with `state.edits`, `original` of the text alone (the same where
 * there are no edits). Both have logits at `state.place` alone, (1, V), and `blocks[state.layer]`.
 * @typedef {object} Now
 * @property {PlayState} state
 * @property {any} model  sizes, name and vocabulary; null until they are known
 * @property {Run} run
 * @property {Run} original
 * @property {Second | null} second  of the second text, see second.js
 * @property {boolean} busy  a newer state is being computed
 * @property {string | null} error
 * @property {string} sentence  the text that the model reads: with the words that are swapped for others
 * @property {[number, number, string][]} words  [first, last + 1, word]: the tokens that are one word of the text
 * @property {Ruled | null} ruled  the head of this text by the rule, see rule.js; null where the rule was not asked
 */

/** @typedef {Now | (Omit<Now, "run" | "original" | "second"> & {run: null, original: null, second: null})} Told  `Now`, or that no text was run yet */

/**
 * What parts read a page's state in and change it through: that of a live page, or of texts that were run before.
 * @typedef {object} Store
 * @property {any} data  the payload
 * @property {Partial<Door> & {name?: string}} engine
 * @property {PlayState} state
 * @property {(patch: Partial<PlayState>, options?: {undo?: boolean}) => void} set
 * @property {boolean} [recorded]  whether the texts were run before; the live page has the others:
 * @property {() => void} [undo]
 * @property {boolean} [canUndo]
 * @property {(patch?: Partial<PlayState>) => string} [address]
 * @property {boolean} [picked]  whether the reader chose the head
 * @property {() => void} [byRule]
 * @property {number} [painted]  how often it was drawn
 */

/** @typedef {Store & Required<Pick<Store, "undo" | "canUndo" | "address" | "picked" | "byRule">>} LiveStore  of the live page */

/**
 * What was computed of a state, and how a text is cut into tokens.
 * @typedef {{state: PlayState, run: Run, original: Run, second: Second | null, sentence: string}} Shown
 * @typedef {{text: string, run: Run}} Read
 */

/**
 * A part of the page.
 * @typedef {{node: HTMLElement, update: (now: Told) => void | Promise<void>, headline?: HTMLElement}} Part
 */

const MOST = 256; // tokens of a text that a page reads: it shows all heads
const RUN_FOR = ["text", "second", "edits", "place", "layer"]; // what a run depends on

/**
 * @param {any} data  the payload
 * @param {(now: Told) => Promise<void>} heard  is called at every change; promises that all is drawn
 */
export function playStore(data, heard) {
  let start = stateOf({ ...PLAIN, ...FOLDED, ...pick(data.start, [...Object.keys(PLAIN), ...Object.keys(FOLDED)]) });
  /** @type {PlayState[]} */
  const past = []; // what undo gives back, the newest last
  const address = openingOf(data);
  let state = fromHash(address, start) ?? start;
  /** @type {Shown | null} */
  let shown = null; // the last that was computed
  /** @type {Read | null} */
  let tokens = null; // how a text is cut into tokens
  /** @type {Read | null} */
  let carry = null; // the text before, whose tokens the places in the state still are
  /** @type {{key: string, run: Run | Promise<Run> | null}} */
  let unchanged = { key: "", run: null }; // the last run without edits
  /** @type {[any, AbortController | null, string | null, string, any]} */
  let [model, going, error, written, writing] = [null, null, null, location.hash, 0];
  let asked = 0; // how many states were asked for
  let given = state !== start; // by an address, and not yet known to be possible
  let unruled = given ? namesNoHead(address) : data.start.layer === undefined; // the head is still to be chosen, by the rule
  let [picked, asking] = [false, new URLSearchParams(address.slice(1)).has("query")]; // whether a reader chose the head, and the query: they stay when another text is written
  const ruled = new Map(); // by text: the head that the rule chose
  if (data.start.said) ruled.set(start.text, { text: start.text, ...pick(data.start, ["layer", "head", "query", "said"]) });
  const closed = new AbortController();
  /** @param {PlayState} of */
  const hashOf = (of) => {
    const hash = toHash(of, start);
    return data.side === "decoder" ? `#model=decoder${hash && `&${hash.slice(1)}`}` : hash;
  };
  let drawn = Promise.resolve(); // kept when all that was told is drawn

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
    /** The address that shows this state, or one that is otherwise in something. */
    address: (patch = {}) => location.href.replace(/#.*$/s, "") + hashOf({ ...state, ...patch }),
    get picked() {
      return picked;
    },
    set,
    undo,
    /** Leaves the address and the window to another page. */
    close() {
      closed.abort();
      going?.abort(new Error("closed"));
      [going, writing] = [null, clearTimeout(writing)];
    },
    /** Leaves the choice of the head to the rule again. */
    byRule() {
      [picked, asking, unruled] = [false, false, true];
      follow(RUN_FOR);
    },
  };

  /**
   * Changes the state. A new text alone keeps what can be kept of the edits; with them it takes all places anew.
   * @param {Partial<PlayState>} patch
   * @param {{undo?: boolean}} options  whether it can be taken back, where it changes the text or the edits
   */
  function set(patch, { undo: keep = true } = {}) {
    const alone = "text" in patch && !["edits", "place", "query"].some((name) => name in patch);
    /** @type {Edit[]} */
    const told = alone && !carry && shown ? editsOf(shown.state.edits, "swap") : []; // what a new text has as its own words
    const next = stateOf({ ...state, edits: state.edits.filter((edit) => !told.includes(edit)), ...patch });
    /** @type {Record<string, any>[]} */
    const [before, after] = [state, next];
    const changed = [...Object.keys(patch), ...(told.length ? ["edits"] : [])].filter((name) => JSON.stringify(after[name]) !== JSON.stringify(before[name]));
    if (!changed.length) return;
    if (keep && ["text", "second", "edits"].some((name) => changed.includes(name))) past.push(carry ? /** @type {Shown} */ (shown).state : state);
    if (past.length > 200) past.shift();
    const ownHead = "layer" in patch || "head" in patch;
    if (ownHead && !("text" in patch)) picked = true;
    if ("query" in patch) asking = !("text" in patch);
    unruled = !ownHead && !picked && (unruled || changed.includes("text"));
    if (changed.includes("text")) {
      carry = alone ? carry ?? (shown && { text: shown.sentence, run: shown.run }) : null;
      state = alone && carry ? next : stateOf({ ...next, edits: [], place: null, query: null, ...patch });
    } else state = next;
    follow(changed);
  }

  /** Takes back the last change of the text or of the edits. */
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
    const late = setTimeout(tell, 150); // a short wait need not be seen
    try {
      let found = await runsOf(mine.signal);
      if (going !== mine) return;
      if (unruled) {
        shown = { ...found, state }; // it can be read while the head is chosen
        tell();
        drawn.then(() => requestAnimationFrame(() => (document.documentElement.dataset.told = state.text)));
        const own = ruled.get(state.text) ?? (await headByRule(self.engine, state.text, found.original, model, data, mine.signal));
        if (going !== mine) return;
        if (unruled) found = await atHead(own, mine.signal);
        if (going !== mine) return;
      }
      going = error = null;
      settle(found);
    } catch (reason) {
      if (going !== mine) return;
      going = null;
      failed(reason);
    } finally {
      clearTimeout(late);
    }
  }

  /**
   * The runs at the head that the rule has chosen.
   * @param {Ruled | null} own
   * @param {AbortSignal} signal
   */
  async function atHead(own, signal) {
    unruled = false;
    ruled.set(state.text, own);
    const query = asking ? state.query : own?.query ?? state.place;
    state = stateOf({ ...state, ...pick(own, ["layer", "head"]), query });
    if (data.start.layer === undefined && state.text === start.text) start = stateOf({ ...start, ...pick(own, ["layer", "head"]) });
    return runsOf(signal);
  }

  /**
   * The run of the state, and of its text without edits.
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
    const { edits, place, layer } = state;
    const options = { at: place === null ? [] : [place], layers: [layer], signal };
    const key = JSON.stringify([text, place, layer]);
    const plain = unchanged.key === key ? unchanged.run : self.engine.run(text, [], options);
    const [original, run] = await Promise.all([plain, edits.length ? self.engine.run(text, edits, options) : plain]);
    const sentence = withWords(text, original, run, edits, model);
    unchanged = { key, run: original };
    const second = await secondOf(self.engine, state, tokens.run, model, signal);
    return { state, run, original, second, sentence };
  }

  /**
   * What the state asks for cannot be: the last that could be stands again.
   * @param {any} reason
   */
  function failed(reason) {
    carry = null;
    const plain = given;
    given = false;
    if (plain) [state, unruled] = [start, data.start.layer === undefined];
    else if (shown) [state, error] = [stateOf({ ...state, ...pick(shown.state, Object.keys(PLAIN)) }), String(reason?.message ?? reason)];
    else error = String(reason?.message ?? reason);
    if (plain) compute();
    else tell();
    write();
    if (shown && !plain) whenDrawn();
  }

  /** @param {any} found */
  function settle(found) {
    shown = { ...found, state };
    given = false;
    tell();
    write();
    whenDrawn();
  }

  /** Marks the document when what was told last is painted; it is ready unless another state was asked for meanwhile. */
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

  /** Writes the address, when the reader pauses and all is drawn: who reads it finds on the page what it says. */
  function write() {
    clearTimeout(writing);
    const mine = setTimeout(async () => {
      await drawn;
      if (going || mine !== writing || closed.signal.aborted) return;
      written = hashOf(state);
      try {
        history.replaceState(history.state, "", written || location.href.replace(/#.*$/s, ""));
      } catch {
        written = location.hash; // a page inside another has no address of its own
      }
    }, 250);
    writing = mine;
  }

  // the event may come when the address has been written over, so what counts is the address it tells
  window.addEventListener("hashchange", ({ newURL }) => {
    const { hash } = new URL(newURL);
    if (hash === written || (data.side && sideOf(hash) !== data.side)) return;
    past.push(state);
    carry = null;
    state = fromHash(hash, start) ?? start;
    given = state !== start;
    [unruled, picked, asking] = [given && namesNoHead(hash), false, new URLSearchParams(hash.slice(1)).has("query")];
    if (self.engine) follow(RUN_FOR);
  }, { signal: closed.signal });
  whenOpen((qkv) => {
    self.engine = engineOf(qkv, data);
    compute();
  }, (reason) => failed(reason));
  return self;
}

/**
 * The door to a page's model, as the parts ask it: tokens are named as a reader knows them.
 * @param {any} qkv
 * @param {any} data
 */
function engineOf({ where = "in this page", run, sweep, models, model, parameters, generate }, { model: name, side }) {
  const own = { most: MOST, model: side };
  return {
    name,
    where,
    model: models?.[side] ?? model,
    /** @type {Door["run"]} */
    run: async (text, edits, options) => {
      const found = await run(text, edits, { ...own, ...options });
      return Object.assign(found, { tokens: plainTokens(found.tokens, found.special) });
    },
    /** @type {Door["sweep"]} */
    sweep: (text, edits, onpart, options) => sweep(text, edits, onpart, { ...own, ...options }),
    /** @type {Door["parameters"]} */
    parameters: parameters && ((names, rows) => parameters(names, rows, own)),
    /** @type {Door["generate"]} */
    generate: generate && ((text, options, edits) => generate(text, { ...own, ...options }, edits)),
  };
}

/**
 * Calls `open` with the door to a model (door.js), once it is there; `missing` if the page ends without one.
 * @param {(qkv: any) => void} open
 * @param {(reason: Error) => void} missing
 */
function whenOpen(open, missing) {
  if (globalThis.qkv) return open(globalThis.qkv);
  window.addEventListener("qkv", () => open(globalThis.qkv), { once: true });
  const late = () => globalThis.qkv ?? missing(new Error("There is no model in this page."));
  if (document.readyState === "complete") setTimeout(late, 0);
  else window.addEventListener("load", late, { once: true });
}
