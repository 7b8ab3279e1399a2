// The door to texts that were run when the page was written: it gives what the payload holds, and computes nothing.
// Goes after sight.js.

/**
 * A text of the payload as a run. A long one holds the largest of its weights, and has no pattern.
 * @param {any} written  TEXT of payload.py
 * @returns {Run}
 */
function recordedRun(written) {
  const flags = (places, count_) => places && places.reduce((found, i) => found.fill(1, i, i + 1), Array(count_).fill(0));
  const { special, key_special: others } = written;
  const text = { ...written, special: flags(special, written.length), key_special: flags(others, written.key_length) };
  const source = reader(text);
  const { heads, length: L, key_length: S } = text;
  let pattern = null;
  return {
    tokens: text.tokens,
    special: text.special.map(Boolean),
    source,
    get pattern() {
      if (!text.weights || pattern) return pattern;
      const all = unpack(text.weights);
      const one = (l, h) => all.subarray((l * heads + h) * L * S, (l * heads + h + 1) * L * S);
      pattern = text.layers.map((_, l) => Array.from({ length: heads }, (__, h) => one(l, h)));
      return pattern;
    },
    resid: [],
    logits: new Float32Array(),
    ids: [],
    offsets: [],
    cut: false,
    blocks: {},
  };
}

/**
 * The door to the texts of a payload, each by its name.
 * @param {any} data  PAYLOAD of payload.py
 */
function openRecorded(data) {
  const runs = data.texts.map(recordedRun);
  const refuse = (what) => Promise.reject(new Error(`${what} needs a model: this page holds what was computed before.`));
  return {
    name: data.model,
    where: "recorded",
    runs,
    /** @param {string} text  the name of one */
    run(text, edits = []) {
      const found = data.texts.findIndex(({ name }) => name === text);
      return edits.length || found < 0 ? refuse(found < 0 ? "Another text" : "A change") : Promise.resolve(runs[found]);
    },
    sweep: () => refuse("To remove heads"),
  };
}

/**
 * The state of a page that shows what was run before, and what its parts are told: as in store.js, but all of it is
 * there at once. The state's text is the name of one, its layer and head count from 0 within what the text holds.
 * @param {any} data  PAYLOAD of payload.py
 * @param {(now: any) => void} heard  is called at every change
 */
function recordedStore(data, heard) {
  const engine = openRecorded(data);
  const { start } = data;
  const first = data.texts[start.text || 0];
  const place = { text: first.name, layer: Math.max(0, first.layers.indexOf(start.layer)), head: start.head || 0 };
  const looks = { colouring: "pattern", inside: true, ...SIGHT, merge: start.merge, stretch: data.stretch };
  let state = Object.freeze({ ...place, query: start.query || 0, place: null, edits: [], ...looks });
  const held = () => data.texts.findIndex(({ name }) => name === state.text);

  return {
    data,
    engine,
    recorded: true,
    get state() {
      return state;
    },
    /** What the parts are told. */
    get now() {
      const { layers, heads } = data.texts[held()];
      const run = engine.runs[held()];
      const model = { name: data.model, layers: layers.length, heads };
      return { state, model, run, original: run, busy: false, error: null, words: [] };
    },
    /** Changes the state; where another text has fewer layers or heads, its last is shown. */
    set(patch) {
      state = Object.freeze({ ...state, ...patch });
      const { layers, heads } = data.texts[held()];
      state = Object.freeze({ ...state, layer: Math.min(state.layer, layers.length - 1), head: Math.min(state.head, heads - 1) });
      heard(this.now);
    },
  };
}
