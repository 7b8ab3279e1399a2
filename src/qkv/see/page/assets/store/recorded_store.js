// The state of a page of recorded texts.

import { openRecorded } from "../engine/recorded.js";
import { SIGHT } from "./state.js";

/**
 * The state of a page of recorded texts, and the data for its parts: the same as in store.js, but all data are
 * available at once. In the state, `text` is the name of a text, and `layer` and `head` are indices of the layers and heads in the page.
 * @param {any} data  PAYLOAD of payload.py
 * @param {(now: any) => void} heard  is called at every change
 */
export function recordedStore(data, heard) {
  const engine = openRecorded(data);
  const { start } = data;
  const first = data.texts[start.text || 0];
  const opening = { text: first.name, layer: Math.max(0, first.layers.indexOf(start.layer)), head: start.head || 0 };
  const looks = { colouring: "pattern", inside: true, ...SIGHT, merge: start.merge, stretch: data.stretch };
  /** @type {any} */
  let state = Object.freeze({ ...opening, query: start.query || 0, position: null, edits: [], ...looks });
  const held = () => data.texts.findIndex((/** @type {any} */ { name }) => name === state.text);

  return {
    data,
    engine,
    recorded: true,
    /** @returns {import("./state.js").PlayState} */
    get state() {
      return state;
    },
    /**
     * The data that the parts receive.
     * @returns {any}
     */
    get now() {
      const { layers, heads } = data.texts[held()];
      const run = engine.runs[held()];
      const model = { name: data.model, layers: layers.length, heads };
      return { state, model, run, original: run, busy: false, error: null, words: [] };
    },
    /**
     * Changes the state. If the layer or head of the state does not exist in the run of the text, the page shows the
     * run's last layer or head.
     * @param {object} patch
     */
    set(patch) {
      state = Object.freeze({ ...state, ...patch });
      const { layers, heads } = data.texts[held()];
      state = Object.freeze({ ...state, layer: Math.min(state.layer, layers.length - 1), head: Math.min(state.head, heads - 1) });
      heard(this.now);
    },
  };
}
