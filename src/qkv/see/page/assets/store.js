// The state of the live page: what its address holds, what can be taken back, and the runs of the model that belong
// to it. A newer state supersedes the run that is going; what the parts are told always belongs together.

/**
 * @typedef {object} PlayState
 * @property {string} text
 * @property {string | null} second  another text, to stand beside it
 * @property {Edit[]} edits  what the reader has changed, see edits.js
 * @property {number | null} place  the token whose word is looked at
 * @property {number} layer
 * @property {number} head
 * @property {number | null} query  the token that is chosen
 * @property {boolean} inside  whether the page is unfolded
 * @property {"pattern" | "effect" | "change"} colouring  of the map
 * @property {boolean} beside  whether the original stands beside
 * @property {"sentence" | "heads" | "steps" | "result"} tab  of a narrow window
 * @property {number | null} card  of the lesson, where it is open
 * @property {number | null} guess  the option that the reader took on it
 * @property {boolean} merge  whether the pieces of a word are one
 * @property {string[] | null} only  the regions that are on the page, where that is not all of it
 * @property {"light" | "dark" | null} theme  that of a page that frames this one
 */

/**
 * What the parts are told: `run` is of `state.text` with `state.edits`, `original` of the text alone (the same where
 * there are no edits). Both have logits at `state.place` alone, (1, V), and `blocks[state.layer]`.
 * @typedef {object} Now
 * @property {PlayState} state
 * @property {any} model  sizes, name and vocabulary; null until they are known
 * @property {Run | null} run
 * @property {Run | null} original
 * @property {Second | null} second  of the second text, see parts/second.js
 * @property {boolean} busy  a newer state is being computed
 * @property {string | null} error
 * @property {string} sentence  the text that the model reads: with the words that are swapped for others
 * @property {[number, number, string][]} words  [first, last + 1, word]: the tokens that are one word of the text
 * @property {Ruled | null} ruled  the head of this text by the rule, see parts/rule.js; null where the rule was not asked
 */

const PLAIN = { text: "", second: null, edits: [], place: null, layer: 0, head: 0, query: null };
const FOLDED = { inside: false, colouring: "pattern", beside: false, tab: "sentence", merge: false, card: null, guess: null, only: null, theme: null };
const RUN_FOR = ["text", "second", "edits", "place", "layer"]; // what a run depends on
const LONGEST = 100_000; // characters of a text: an address with two of them is within what a browser takes
const MOST_MASKS = 4_000_000; // in an address
const PART_OF = { temperature: "changes", motion: "head", block: "steps" }; // what may be there without the rest of its region
const PLACES = ["sentence", "changes", "headline", "map", "head", "steps", "outcome", "second", ...Object.keys(PART_OF)];
const ONE_OF = { colouring: ["pattern", "effect", "change"], tab: ["sentence", "heads", "steps", "result"], theme: [null, "light", "dark"] };

/**
 * @param {any} data  the payload
 * @param {(now: Now) => Promise<void>} heard  is called at every change; promises that all is drawn
 */
function playStore(data, heard) {
  let start = stateOf({ ...PLAIN, ...FOLDED, ...pick(data.start, [...Object.keys(PLAIN), ...Object.keys(FOLDED)]) });
  const past = []; // what undo gives back, the newest last
  let state = fromHash(location.hash, start) ?? start;
  let shown = null; // {state, run, original, second}: the last that was computed
  let tokens = null; // {text, run}: how a text is cut into tokens
  let carry = null; // {text, run}: the text before, whose tokens the places in the state still are
  let unchanged = { key: "", run: null }; // the last run without edits
  let [model, going, error, written, writing] = [null, null, null, location.hash, 0];
  let asked = 0; // how many states were asked for
  let given = state !== start; // by an address, and not yet known to be possible
  let unruled = given ? namesNoHead(location.hash) : data.start.layer === undefined; // the head is still to be chosen, by the rule
  let [picked, asking] = [false, new URLSearchParams(location.hash.slice(1)).has("query")]; // whether a reader chose the head, and the query: they stay when another text is written
  const ruled = new Map(); // by text: the head that the rule chose
  if (data.start.said) ruled.set(start.text, { text: start.text, ...pick(data.start, ["layer", "head", "query", "said"]) });
  let drawn = Promise.resolve(); // kept when all that was told is drawn

  const self = {
    data,
    engine: null,
    painted: 0,
    get state() {
      return state;
    },
    get canUndo() {
      return past.length > 0;
    },
    /** The address that shows this state, or one that is otherwise in something. */
    address: (patch = {}) => location.href.replace(/#.*$/s, "") + toHash({ ...state, ...patch }, start),
    get picked() {
      return picked;
    },
    set,
    undo,
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
    const told = alone && !carry && shown ? editsOf(shown.state.edits, "swap") : []; // what a new text has as its own words
    const next = stateOf({ ...state, edits: state.edits.filter((edit) => !told.includes(edit)), ...patch });
    const changed = [...Object.keys(patch), ...(told.length ? ["edits"] : [])].filter((name) => JSON.stringify(next[name]) !== JSON.stringify(state[name]));
    if (!changed.length) return;
    if (keep && ["text", "second", "edits"].some((name) => changed.includes(name))) past.push(carry ? shown.state : state);
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
    state = stateOf({ ...state, ...pick(last, Object.keys(PLAIN)) });
    follow(RUN_FOR);
  }

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

  /** The runs at the head that the rule has chosen. */
  async function atHead(own, signal) {
    unruled = false;
    ruled.set(state.text, own);
    const query = asking ? state.query : own?.query ?? state.place;
    state = stateOf({ ...state, ...pick(own, ["layer", "head"]), query });
    if (data.start.layer === undefined && state.text === start.text) start = stateOf({ ...start, ...pick(own, ["layer", "head"]) });
    return runsOf(signal);
  }

  /** The run of the state, and of its text without edits. */
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
    original.words ??= wordsOf(text, original, model);
    const read = withSwaps(text, original, edits);
    if (run !== original) [run.offsets, run.words] = [read.offsets, wordsOf(read.text, { ...run, ...read }, model)];
    unchanged = { key, run: original };
    const second = await secondOf(self.engine, state, tokens.run, model, signal);
    return { state, run, original, second, sentence: read.text };
  }

  /** What the state asks for cannot be: the last that could be stands again. */
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
    drawn = heard({ state: said, model, run, original, second, sentence, words, busy: Boolean(going), error, ruled: own });
  }

  /** Writes the address, when the reader pauses and all is drawn: who reads it finds on the page what it says. */
  function write() {
    clearTimeout(writing);
    const mine = setTimeout(async () => {
      await drawn;
      if (going || mine !== writing) return;
      written = toHash(state, start);
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
    if (hash === written) return;
    past.push(state);
    carry = null;
    state = fromHash(hash, start) ?? start;
    given = state !== start;
    [unruled, picked, asking] = [given && namesNoHead(hash), false, new URLSearchParams(hash.slice(1)).has("query")];
    if (self.engine) follow(RUN_FOR);
  });
  whenOpen((qkv) => {
    self.engine = { name: data.model, where: qkv.where ?? "in this page", run: qkv.run, sweep: qkv.sweep, model: qkv.model, parameters: qkv.parameters };
    compute();
  }, (reason) => failed(reason));
  return self;
}

/** Calls `open` with the door to a model (door.js), once it is there; `missing` if the page ends without one. */
function whenOpen(open, missing) {
  if (globalThis.qkv) return open(globalThis.qkv);
  window.addEventListener("qkv", () => open(globalThis.qkv), { once: true });
  const late = () => globalThis.qkv ?? missing(new Error("There is no model in this page."));
  if (document.readyState === "complete") setTimeout(late, 0);
  else window.addEventListener("load", late, { once: true });
}

/** @returns {PlayState} */
function stateOf(fields) {
  return Object.freeze({ ...fields, edits: Object.freeze([...fields.edits]) });
}

// ---- places in a text

/**
 * The words of a text as tokens: [first, last + 1, word]. What the tokenizer put in is left out.
 * @param {string} text
 * @param {Run} run  of this text, without edits
 * @param {any} model
 * @returns {[number, number, string][]}
 */
function wordsOf(text, { tokens, offsets, special }, model) {
  const found = [];
  tokens.forEach((token, t) => {
    if (special[t]) return;
    const before = found.at(-1);
    const joined = before && before[1] === t && offsets[t][0] === offsets[t - 1][1];
    if (joined && isPiece(token, text, offsets[t][0])) before[1] = t + 1;
    else found.push([t, t + 1, ""]);
  });
  const name = (first, last) => text.slice(offsets[first][0], offsets[last - 1][1]).trim();
  return found.map(([first, last]) => [first, last, tokens[first] === maskOf(model) ? tokens[first] : name(first, last)]);
}

/** @param {Edit} edit */
function isSwap({ op }) {
  return op === "swap";
}

/**
 * A text with the words that are swapped for others, and where each token stands in it.
 * @param {string} text
 * @param {Run} run  of this text, without edits
 * @param {Edit[]} edits
 * @returns {{text: string, offsets: [number, number][]}}
 */
function withSwaps(text, { offsets }, edits) {
  const put = new Map(editsOf(edits, "swap").map(({ token, with: name }) => [token, name]));
  if (!put.size) return { text, offsets };
  let [found, last] = ["", 0];
  /** @type {[number, number][]} */
  const moved = offsets.map(([start, end], t) => {
    if (start === end) return [start, end]; // the tokenizer put it in
    const own = text.slice(start, end);
    found += text.slice(last, start);
    last = end;
    const name = put.has(t) ? plainName(put.get(t)).replace(/^##(?=.)/, "") : own.trimStart();
    const begins = put.has(t) && !put.get(t).startsWith("##") && /[\p{L}\p{N}]$/u.test(found) && /^[\p{L}\p{N}]/u.test(name);
    found += own.slice(0, own.length - own.trimStart().length) || (begins ? " " : "");
    const first = found.length;
    found += name;
    return [first, found.length];
  });
  return { text: found + text.slice(last), offsets: moved };
}

/** Whether a token goes on where another ended: WordPiece marks it, elsewhere it is told by the letters. */
function isPiece(token, text, at) {
  const letters = /[\p{Script=Latin}\p{Script=Cyrillic}\p{Script=Greek}\p{M}]/u;
  return token.startsWith("##") || (letters.test(text.slice(0, at).slice(-1)) && letters.test(text.slice(at)[0] ?? ""));
}

/**
 * A state whose places are those of this run's tokens, and whose heads are the model's.
 * @param {PlayState} state
 * @param {Run} run  of its text
 * @param {{text: string, run: Run} | null} before  the text whose places the state has, if it is another one
 * @param {any} model
 */
function placed(state, run, before, model) {
  const { text, layer, head } = state;
  if (!(layer < model.layers && head < model.heads)) throw new RangeError(`There is no head ${layer}.${head} in this model.`);
  const own = (place) => (place !== null && place < run.tokens.length ? place : null);
  const at = before ? carried(before, text, run) : own;
  const edits = before ? state.edits.map((edit) => moved(edit, at, before.run.tokens.length === run.tokens.length)) : state.edits;
  const usual = usualPlace(text, run, model);
  const stays = before && state.place === usualPlace(before.text, before.run, model) ? null : at(state.place);
  const place = stays ?? usual;
  return stateOf({ ...state, edits: edits.filter(Boolean), place, query: at(state.query) ?? place });
}

/** What stands in a text where a word is missing. */
function maskOf(model) {
  return model?.mask ?? "[MASK]";
}

/** The first mask, else the last word that has letters, else none; the end for a model that goes on from there. */
function usualPlace(text, run, model) {
  if (model.next) return run.tokens.length ? run.tokens.length - 1 : null;
  const mask = run.tokens.findIndex((token, t) => token === maskOf(model) && !run.special[t]);
  if (mask >= 0) return mask;
  return wordsOf(text, run, model).findLast(([, , word]) => /[\p{L}\p{N}]/u.test(word))?.[0] ?? null;
}

/** Where a token of one text is in another that begins or ends alike; null where it is not there. */
function carried(before, text, run) {
  const old = before.text;
  const least = Math.min(old.length, text.length);
  let [begin, end] = [0, 0];
  while (begin < least && old[begin] === text[begin]) begin += 1;
  while (end < least - begin && old.at(-1 - end) === text.at(-1 - end)) end += 1;
  return (place) => {
    if (place === null || !(place in before.run.offsets)) return null;
    const [[first, last], name] = [before.run.offsets[place], before.run.tokens[place]];
    if (before.run.special[place]) return place ? run.tokens.length - 1 : 0;
    const shift = last <= begin ? 0 : first >= old.length - end ? text.length - old.length : null;
    const there = shift === null ? -1 : run.offsets.findIndex(([a, b], t) => a === first + shift && b === last + shift && !run.special[t]);
    return there >= 0 && (run.tokens[there] === name || before.run.tokens.length === run.tokens.length) ? there : null;
  };
}

/** An edit for the tokens of another text; null where one of them is gone. */
function moved(edit, at, alike) {
  const places = ["token", "query", "key"].filter((name) => edit[name] !== undefined);
  const found = places.map((name) => [name, at(edit[name])]);
  if (found.some(([, place]) => place === null) || (edit.op === "row" && !alike)) return null;
  return { ...edit, ...Object.fromEntries(found) };
}

// ---- the address

/** What an address holds behind its #: only what is not as the page starts. */
function toHash(state, start) {
  const written = (of, name) => JSON.stringify(name === "edits" ? joinedMasks(of.edits) : of[name]);
  const fields = Object.keys(start).filter((name) => written(state, name) !== written(start, name));
  const moves = fields.some((name) => name === "text" || name === "edits"); // places say nothing without them
  const all = moves ? [...new Set([...Object.keys(PLAIN), ...fields])] : fields;
  const put = new URLSearchParams();
  for (const name of all) {
    put.set(name, name === "text" ? state.text : written(state, name));
  }
  return all.length ? `#${put}` : "";
}

/** Whether an address has a text and says nothing of a head. */
function namesNoHead(hash) {
  const put = new URLSearchParams(hash.slice(1));
  return put.has("text") && !put.has("layer") && !put.has("head");
}

/** The state of an address; null where it holds none, or anything that is not one. */
function fromHash(hash, start) {
  try {
    const put = [...new URLSearchParams(hash.slice(1))].filter(([name]) => name in start);
    const fields = Object.fromEntries(put.map(([name, value]) => [name, name === "text" ? value : JSON.parse(value)]));
    if (fields.edits !== undefined) fields.edits = splitMasks(fields.edits);
    const found = { ...start, ...(fields.text === undefined ? {} : { edits: [], place: null, query: null }), ...fields };
    return put.length && isState(found, start) ? stateOf(found) : null;
  } catch {
    return null;
  }
}

function isState(found, start) {
  const whole = (value) => Number.isInteger(value) && value >= 0;
  return Object.keys(start).every((name) => {
    const value = found[name];
    if (name in ONE_OF) return ONE_OF[name].includes(value);
    if (["second", "only"].includes(name) && value === null) return true;
    if (name === "only") return Array.isArray(value) && value.length > 0 && value.every((one) => PLACES.includes(one));
    if (name === "text" || name === "second") return typeof value === "string" && value.length <= LONGEST;
    if (name === "edits") return Array.isArray(value) && value.every((edit) => edit !== null && typeof edit === "object");
    if (typeof start[name] === "boolean") return typeof value === "boolean";
    return whole(value) || (value === null && ["place", "query", "card", "guess"].includes(name));
  });
}

const JOINED = new WeakMap(); // edits -> the same as an address has them

/** Edits with masks that follow each other as one: {op: "masks", layer, head, rows: [[query, first key, last key], ...]}. */
function joinedMasks(edits) {
  if (JOINED.has(edits)) return JOINED.get(edits);
  const found = [];
  JOINED.set(edits, found);
  for (const edit of edits) {
    const { op, query, key, ...where } = edit;
    let last = found.at(-1);
    if (op !== "mask") {
      found.push(edit);
      continue;
    }
    if (last?.op !== "masks" || last.layer !== where.layer || last.head !== where.head) found.push((last = { op: "masks", ...where, rows: [] }));
    const row = last.rows.at(-1);
    if (row?.[0] === query && row[2] === key - 1) row[2] = key;
    else last.rows.push([query, key, key]);
  }
  return found;
}

/** The same the other way, each mask once; an address with more than a page can take is none. */
function splitMasks(edits) {
  const [found, known] = [[], new Map()]; // by layer and head: the masks that are there
  let read = 0;
  for (const edit of edits) {
    if (edit?.op !== "masks") {
      found.push(edit);
      continue;
    }
    const where = pick(edit, ["layer", "head"]);
    const name = JSON.stringify(where);
    if (!known.has(name)) known.set(name, new Set());
    const there = known.get(name);
    for (const [query, first, last] of edit.rows) {
      read += last - first + 1;
      if (!(read <= MOST_MASKS)) throw new RangeError("There are too many masks.");
      for (let key = first; key <= last; key++) {
        const cell = query * MOST_MASKS + key;
        if (!there.has(cell)) found.push({ op: "mask", query, key, ...where });
        there.add(cell);
      }
    }
  }
  return found;
}
