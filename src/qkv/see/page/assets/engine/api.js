// globalThis.qkv is the interface to the model in the page.
// A worker runs the model. The worker is made from the scripts in `compute` (worker.js and its imports), because a page
// that was opened from a file cannot load a worker from another file.

import { downloadOf } from "./download.js";

/** @typedef {import("./edits.js").Edit} Edit */

/**
 * The result of a run. D is the size of a vector, V the size of the vocabulary, n the number of requested positions.
 * @typedef {object} Run
 * @property {string[]} tokens the T tokens
 * @property {Float32Array[][]} pattern  the weights (T, T) of each head of each layer, with one row for each query
 * @property {Float32Array[]} resid (T, D): hook_full_embed, then the output of each block
 * @property {Float32Array} logits (T, V), or (n, V) at the requested positions
 * @property {Float32Array[]} [lens]  layers + 1 arrays like `logits`: from the vectors before and after each layer
 * @property {number[]} ids  (T)
 * @property {[number, number][]} offsets  (T, 2): the part of the text for each token: text.slice(start, end)
 * @property {boolean[]} special  whether the tokenizer added the token
 * @property {boolean} cut  whether the text was cut because it was too long
 * @property {boolean} [causal]  whether the model hides later tokens from each token
 * @property {Record<number, any>} blocks  the activations of the requested layers, by their names in a trace
 * @property {[number, number, string][]} [words]  [first, last + 1, word]: the words of the text, once a page has computed them
 * @property {import("./recorded.js").Source} [source]  for a recorded run, the functions that read the numbers
 */

/**
 * A new token. `likeliest`: the likeliest tokens at this position, with their probabilities. `looked`: for each layer
 * and head, the attention weights that the last token before the new token gives to all tokens before the new token.
 * `text`: the new text so far.
 * @typedef {{id: number, token: string, text: string, probability: number, likeliest: [number, number][], looked: Float32Array[][]}} Chosen
 *
 * All new tokens (including a token that ends a text), their text, and the probability of each token without
 * temperature.
 * @typedef {{tokens: string[], ids: number[], text: string, probabilities: number[]}} Written
 */

/**
 * Starts the worker that runs one model; returns a function that sends questions to the worker.
 * @param {string} url the address of the worker's script
 * @param {string} text the model in the format of engine.py
 */
function workerFor(url, text) {
  const worker = new Worker(url);
  const waiting = new Map(); // maps the number of each open question to its callbacks
  let count = 0;
  /** @type {Error | null} */
  let broken = null;
  const model = new Promise((resolve, reject) => waiting.set(0, { resolve, reject }));
  model.catch(() => {}); // callers receive this error as the answer to their questions

  /** @param {Error} error */
  const fail = (error) => {
    broken = error;
    for (const { reject } of waiting.values()) reject(error);
    waiting.clear();
  };
  worker.onmessage = ({ data: { ready, id = 0, error, done, value } }) => {
    if (error && !id) return fail(error);
    const asker = waiting.get(id);
    if (!asker) return; // the question was cancelled
    if (error) asker.reject(error);
    else if (ready || done) asker.resolve(ready ?? value);
    else asker.onpart(value);
    if (error || ready || done) waiting.delete(id);
  };
  worker.onerror = (event) => fail(new Error(`qkv: the model of this page does not run: ${event.message ?? "the browser does not allow workers"}`));
  worker.postMessage({ read: text });
  /** @param {string | Uint8Array | null} piece */
  const send = (piece) => worker.postMessage({ piece }, piece instanceof Uint8Array ? [piece.buffer] : []);

  /**
   * Sends a question to the worker. `signal` cancels the question; `onpart` is called with each part of the answer.
   * @param {{ask: string, text?: string, edits?: Edit[], at?: number[], layers?: number[], names?: string[],
   *     rows?: Record<string, number[]>, most?: number, lens?: boolean, options?: object}} question
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
  return { model, ask, send };
}

/**
 * Opens the interface to the models of the page.
 * @param {() => void} compute
 * @param {Iterable<HTMLElement>} parts  the elements that contain the models; the attribute `data-side` of each is
 *     "encoder" or "decoder"; the attribute `data-weights` names the file beside the page with a model's weights
 */
export function openApi(compute, parts) {
  const url = URL.createObjectURL(new Blob([`"use strict";\n(${compute})();`], { type: "text/javascript" }));
  /** @type {Record<string, () => ReturnType<typeof workerFor>>} */
  const sides = {};
  /** @type {Record<string, import("./download.js").Download>} */
  const downloads = {};
  for (const part of parts) {
    const { side = "", weights } = part.dataset;
    /** @type {ReturnType<typeof workerFor>} */
    let worker; // made when the page uses this model for the first time
    sides[side] = () => (worker ??= workerFor(url, part.textContent ?? ""));
    // the pieces of a model come later in the page; one that is missing then is lost
    if ("pieces" in part.dataset) window.addEventListener("DOMContentLoaded", () => worker.send(null));
    if (weights) downloads[side] = downloadOf(weights, JSON.parse(part.textContent ?? "").bytes, sides[side]);
  }
  const first = Object.keys(sides)[0];
  /**
   * The worker of the model whose name is `wanted`. If `wanted` is undefined, the function returns the worker of the
   * model whose name is the argument `usual`. If the page has no model of that name, it returns the worker of the page's
   * first model.
   * @param {string | undefined} wanted
   * @param {string} usual
   */
  function of(wanted, usual) {
    const side = wanted ?? (usual in sides ? usual : first);
    if (!Object.hasOwn(sides, side)) throw new RangeError(`qkv: model is ${JSON.stringify(wanted)}; choose among ${Object.keys(sides).join(", ")}`);
    if (downloads[side]?.stage === "idle") downloads[side].start();
    return sides[side]();
  }

  globalThis.qkv = {
    /** Sends the piece of a model in the element before the running script to its worker, and removes both elements. */
    receivePiece() {
      const script = /** @type {HTMLElement} */ (document.currentScript);
      const piece = /** @type {HTMLElement} */ (script.previousElementSibling);
      of(piece.dataset.piece, first).send(piece.textContent);
      piece.remove();
      script.remove();
    },

    /** Resolves to the name, sizes and vocabulary of the model. If the page has two models, the data is the encoder's. */
    model: sides[first]().model,
    /** The same data for each model of the page: `models.encoder` and `models.decoder` each resolve to the model's data. */
    models: Object.create(null, Object.fromEntries(Object.entries(sides).map(([side, worker]) => [side, { get: () => worker().model }]))),

    /** The downloads of the models whose weights are in a file beside the page. A question to a model starts its download. */
    downloads,

    /**
     * Runs a text with edits (see edits.js). The newest run is computed first.
     * @param {string} text
     * @param {Edit[]} edits
     * @param {{model?: string, at?: number[], layers?: number[], most?: number, lens?: boolean, signal?: AbortSignal}} options
     * `model`: "encoder" (the default) or "decoder"; `lens`: whether to return `lens`; `at`: the positions of the wanted logits, by default all;
     * `layers`: the layers of which all results are returned (for a text of over 256 tokens, only these layers have
     * patterns); `most`: the largest number of tokens to read, by default the model's limit
     * @returns {Promise<Run>}
     */
    run: async (text, edits = [], { model, at, layers, most, lens, signal } = {}) =>
      of(model, "encoder").ask({ ask: "run", text, edits, at, layers, most, lens }, { signal }),

    /**
     * Continues a text, token by token.
     * @param {string} text
     * @param {{max?: number, temperature?: number, top_k?: number | null, seed?: number, begun?: number[], model?: string,
     *     signal?: AbortSignal, onpart?: (part: Chosen) => void}} options  `max`: the number of new tokens, including `begun`;
     *     `temperature`: if it is 0, each new token is the likeliest token, otherwise each new token is drawn from the `top_k`
     *     likeliest tokens; `seed`: the same seed draws the same tokens; `begun`: the ids of the first new tokens, after which the
     *     model continues; `onpart`: called with each further new token
     * @param {Edit[]} edits  edits of the text; an edit without a token applies to new tokens too
     * @returns {Promise<Written>}
     */
    generate: async (text, { model, signal, onpart = () => {}, ...options } = {}, edits = []) =>
      of(model, "decoder").ask({ ask: "generate", text, edits, options }, { signal, onpart }),

    /**
     * Removes one head at a time, from the last layer to the first. The sweep pauses while a run is waiting.
     * @param {string} text
     * @param {Edit[]} edits
     * @param {(part: {layer: number, head: number, resid: Float32Array, logits: Float32Array}) => void} onpart is
     * called once for each head, with the results of the run in which this head is removed: the last vectors (T, D), and
     * the logits (n, V) at the positions `at`
     * @param {{model?: string, at?: number[], most?: number, signal?: AbortSignal}} options
     */
    sweep: async (text, edits, onpart, { model, at, most, signal } = {}) =>
      of(model, "encoder").ask({ ask: "sweep", text, edits, at, most }, { signal, onpart }),

    /**
     * Returns parameters of the model by their names; the weight of a linear layer is (out, in).
     * @param {string[]} names
     * @param {Record<string, number[]>} rows  the wanted rows of tables of vectors; by default all rows
     * @param {{model?: string}} options
     * @returns {Promise<Record<string, Float32Array>>}
     */
    parameters: async (names, rows = {}, { model } = {}) => of(model, "encoder").ask({ ask: "parameters", names, rows }, {}),
  };
  window.dispatchEvent(new Event("qkv")); // scripts that come before the model in the page wait for this event
}
