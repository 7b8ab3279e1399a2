// The door to the model that is in the page: globalThis.qkv. Behind it is a worker, made of the scripts that stand
// in `compute` (worker.js and what it needs), since a page that was opened from a file has no other.

/** @typedef {import("./edits.js").Edit} Edit */

/**
 * What a run gives. D is the size of a vector, V that of the vocabulary, n how many places were asked for.
 * @typedef {object} Run
 * @property {string[]} tokens  T of them
 * @property {Float32Array[][]} pattern  by layer and head: weights (T, T), query by query
 * @property {Float32Array[]} resid  (T, D): hook_full_embed, then what each block hands to the next
 * @property {Float32Array} logits  (T, V), or (n, V) at the places asked for
 * @property {number[]} ids  (T)
 * @property {[number, number][]} offsets  (T, 2): the part of the text a token stands for, text.slice(start, end)
 * @property {boolean[]} special  whether the tokenizer put a token in
 * @property {boolean} cut  whether the text was too long
 * @property {boolean} [causal]  whether the model lets no token see what follows it
 * @property {Record<number, any>} blocks  all that the layers asked for have computed, by a trace's names
 * @property {[number, number, string][]} [words]  [first, last + 1, word]: its tokens as words of the text, once a page has them
 * @property {import("./recorded.js").Source} [source]  of a recorded run: how its numbers are read
 */

/**
 * A new token, as it is chosen. `likeliest`: tokens in its place, with their probabilities; `looked`: by layer and head what
 * the token before it looked at meanwhile, a weight for each token so far; `text`: all new text.
 * @typedef {{id: number, token: string, text: string, probability: number, likeliest: [number, number][], looked: Float32Array[][]}} Chosen
 *
 * New tokens, one that ends texts among them, and their text; the probability of each that was chosen, before any temperature.
 * @typedef {{tokens: string[], ids: number[], text: string, probabilities: number[]}} Written
 */

/**
 * The worker that computes one model, as a function that asks it.
 * @param {string} url  of its script
 * @param {string} text  the model, as engine.py has written it
 */
function workerFor(url, text) {
  const worker = new Worker(url);
  const waiting = new Map(); // what was asked, by number
  let count = 0;
  /** @type {Error | null} */
  let broken = null;
  const model = new Promise((resolve, reject) => waiting.set(0, { resolve, reject }));
  model.catch(() => {}); // each question says so by itself

  worker.onmessage = ({ data: { ready, id = 0, error, done, value } }) => {
    const asker = waiting.get(id);
    if (!asker) return; // it was given up
    if (error) asker.reject(error);
    else if (ready || done) asker.resolve(ready ?? value);
    else asker.onpart(value);
    if (error || ready || done) waiting.delete(id);
  };
  worker.onerror = (event) => {
    broken = new Error(`qkv: the model in this page does not run: ${event.message ?? "the browser allows no worker"}`);
    for (const { reject } of waiting.values()) reject(broken);
    waiting.clear();
  };
  worker.postMessage({ read: text });

  /**
   * Asks the worker; `signal` gives up what was asked, `onpart` hears of each part.
   * @param {{ask: string, text?: string, edits?: Edit[], at?: number[], layers?: number[], names?: string[],
   *     rows?: Record<string, number[]>, most?: number, options?: object}} question
   * @param {{signal?: AbortSignal, onpart?: (part: any) => void}} heard
   * @returns {Promise<any>}
   */
  function ask(question, { signal, onpart }) {
    return new Promise((resolve, reject) => {
      if (broken) throw broken;
      signal?.throwIfAborted();
      const id = (count += 1);
      waiting.set(id, { resolve, reject, onpart });
      worker.postMessage({ id, ...question });
      signal?.addEventListener("abort", () => {
        if (!waiting.delete(id)) return;
        worker.postMessage({ drop: id });
        reject(signal.reason);
      }, { once: true });
    });
  }
  return { model, ask };
}

/**
 * Opens the door.
 * @param {() => void} compute
 * @param {Iterable<HTMLElement>} parts  hold the models, each with its side of the page in `data-side`: "encoder" or "decoder"
 */
export function openDoor(compute, parts) {
  const url = URL.createObjectURL(new Blob([`"use strict";\n(${compute})();`], { type: "text/javascript" }));
  /** @type {Record<string, () => ReturnType<typeof workerFor>>} */
  const sides = {};
  for (const part of parts) {
    /** @type {ReturnType<typeof workerFor>} */
    let worker; // from the first question on
    sides[part.dataset.side ?? ""] = () => (worker ??= workerFor(url, part.textContent ?? ""));
  }
  const first = Object.keys(sides)[0];
  /**
   * The worker that is asked: of the model that is wanted, else of this side, where the page has both.
   * @param {string | undefined} wanted
   * @param {string} usual
   */
  function of(wanted, usual) {
    const side = wanted ?? (usual in sides ? usual : first);
    if (!Object.hasOwn(sides, side)) throw new RangeError(`qkv: model is ${JSON.stringify(wanted)}: this page has ${Object.keys(sides).join(", ")}`);
    return sides[side]();
  }

  globalThis.qkv = {
    /** Name and sizes of the model, and its vocabulary, once they are known; of the encoder, where there are two. */
    model: of(undefined, first).model,
    /** The same of each, by its side. */
    models: Object.create(null, Object.fromEntries(Object.entries(sides).map(([side, worker]) => [side, { get: () => worker().model }]))),

    /**
     * Runs a text, changed as the edits say (see edits.js). The newest run goes first, an older one after it.
     * @param {string} text
     * @param {Edit[]} edits
     * @param {{model?: string, at?: number[], layers?: number[], most?: number, signal?: AbortSignal}} options  `model`: "encoder" or
     *     "decoder", the encoder unless given; `at`: the places whose logits are wanted, else all; `layers`: those of which
     *     everything is wanted, and of a text of over 256 tokens the only ones of which there are patterns; `most`: tokens that
     *     are read, if not all that the model has places for
     * @returns {Promise<Run>}
     */
    run: async (text, edits = [], { model, at, layers, most, signal } = {}) =>
      of(model, "encoder").ask({ ask: "run", text, edits, at, layers, most }, { signal }),

    /**
     * Goes on from a text, token by token.
     * @param {string} text
     * @param {{max?: number, temperature?: number, top_k?: number | null, seed?: number, begun?: number[], model?: string,
     *     signal?: AbortSignal, onpart?: (part: Chosen) => void}} options  `max`: new tokens; `temperature` 0 takes the likeliest each
     *     time, above it one of the `top_k` likeliest is drawn, which a seed makes the same again; `begun`: new tokens that are
     *     there already; `onpart` hears of each new one as it is chosen
     * @param {Edit[]} edits  of the text; what is not of its tokens alone holds for new ones too
     * @returns {Promise<Written>}
     */
    generate: async (text, { model, signal, onpart = () => {}, ...options } = {}, edits = []) =>
      of(model, "decoder").ask({ ask: "generate", text, edits, options }, { signal, onpart }),

    /**
     * Removes each head in turn, whenever no run is wanted, the last layers first.
     * @param {string} text
     * @param {Edit[]} edits
     * @param {(part: {layer: number, head: number, resid: Float32Array, logits: Float32Array}) => void} onpart  hears
     *     what is left without this head: the last vectors (T, D), and the logits (n, V) at the places `at`
     * @param {{model?: string, at?: number[], most?: number, signal?: AbortSignal}} options
     */
    sweep: async (text, edits, onpart, { model, at, most, signal } = {}) =>
      of(model, "encoder").ask({ ask: "sweep", text, edits, at, most }, { signal, onpart }),

    /**
     * Parameters of the model by their names, a linear layer's weight as (out, in).
     * @param {string[]} names
     * @param {Record<string, number[]>} rows  of tables of vectors, those that are wanted; else all
     * @param {{model?: string}} options
     * @returns {Promise<Record<string, Float32Array>>}
     */
    parameters: async (names, rows = {}, { model } = {}) => of(model, "encoder").ask({ ask: "parameters", names, rows }, {}),
  };
  window.dispatchEvent(new Event("qkv")); // what stands before the model in the page waits for it
}
