// The interface to a model on a server: the same globalThis.qkv as in api.js, but POST /v1/trace runs the
// model.

import { spelledOut } from "../base/tokens.js";
import { OPS } from "./edits.js";
import { chosenFrom, randomFrom } from "./sampling.js";

/** @typedef {import("./edits.js").Edit} Edit */
/** @typedef {import("./api.js").Run} Run */

const BINARY = "application/vnd.safetensors";

/**
 * The description of a model on a server.
 * @typedef {object} Served
 * @property {string} name
 * @property {number} layers
 * @property {number} heads
 * @property {number} dim
 * @property {number} kv_heads  the number of key/value heads
 * @property {number} vocabulary  0 if the model has no logits
 * @property {number | null} most  the largest number of tokens in a text
 * @property {string[]} words  the vocabulary
 * @property {boolean} next  whether logits are for the next position, not for the position itself
 * @property {string | null} mask the token in place of a missing word
 * @property {[string, number][]} scales  for each layer: the name of the activation that the edit "scale" multiplies, and the
 *   model's usual scale of the scores
 * @property {number[]} ends  the tokens that end a generated text
 * @property {boolean} plain  whether scores are only products of queries and keys
 */

/**
 * Opens the interface to a model on a server.
 * @param {Served} model
 * @param {HTMLFormElement} form  the form that asks for the key if the server requires one
 */
export function openServer(model, form) {
  const going = new Set(); // the current runs; a sweep waits for them
  /** @type {[string, Promise<string> | null]} */
  let [key, asking] = ["", null]; // the key is stored nowhere else

  /**
   * Sends a request to the server and returns its answer: {about, arrays}.
   * @param {object} body
   * @param {AbortSignal} [signal]
   */
  async function post(body, signal) {
    for (;;) {
      /** @type {Record<string, string>} */
      const headers = { "Content-Type": "application/json", Accept: BINARY };
      if (key) headers.Authorization = `Bearer ${key}`;
      const response = await fetch("v1/trace", { method: "POST", headers, body: JSON.stringify(body), signal });
      if (response.ok) return tensorsOf(await response.arrayBuffer());
      const { error } = await response.json().catch(() => ({ error: { message: `the server answered with status ${response.status}` } }));
      if (response.status !== 401) throw new Error(error.message);
      asking ??= keyFrom(form, error.message);
      key = await asking;
      asking = null;
    }
  }

  /**
   * One run; returns the whole answer as a Run of api.js.
   * @param {string} text
   * @param {Edit[]} edits
   * @param {{at?: number[], layers?: number[], signal?: AbortSignal}} options
   * @param {object} more fields of the request
   * @returns {Promise<Run>}
   */
  async function ask(text, edits, { at, layers = [], signal }, more = {}) {
    if (!model.vocabulary) at = undefined;
    else if (!at) {
      const { about } = await post({ input: text, layers: [0], heads: [0] }, signal);
      at = about.tokens.map((/** @type {any} */ _, /** @type {number} */ position) => position);
    }
    const inside = model.plain && layers.length ? layers : undefined;
    const { about, arrays } = await post({ input: text, edits, include: ["text", "resid"], at, inside, ...more }, signal);
    return runOf(text, about, arrays, model);
  }

  /**
   * @param {string} text
   * @param {any} options
   * @param {Edit[]} edits
   */
  async function write(text, options = {}, edits = []) {
    const { max = 32, temperature = 0, top_k = null, seed = 0, begun = [], signal, onpart = () => {} } = options;
    const whole = edits.find((edit) => edit.op !== "row" && OPS[edit.op].whole?.(edit));
    if (whole) throw new RangeError(`generate: the server cannot generate with the edit "${whole.op}"; undo the edit first`);
    const draw = randomFrom(seed);
    const { about } = await post({ input: text, edits, layers: [0], heads: [0], include: ["text"] }, signal);
    const [all, ids, probabilities] = [[...about.ids, ...begun], [...begun], /** @type {number[]} */ ([])];
    while (ids.length < max && !(model.most && all.length >= model.most)) {
      const longer = edits.filter(({ op }) => op !== "swap").map((edit) =>
        edit.op === "row" ? { ...edit, weights: all.map((_, key) => edit.weights?.[key] ?? 0) } : edit);
      const { arrays } = await post({ input: all, edits: longer, at: [all.length - 1] }, signal);
      const one = chosenFrom(Float64Array.from(arrays.logits.numbers), { max, temperature, top_k, seed, begun }, draw);
      const looked = cutUp(arrays.pattern).map((layer) => cutUp(layer).map((head) => head.numbers.slice(-all.length)));
      all.push(one.id);
      ids.push(one.id);
      probabilities.push(one.probability);
      onpart({ ...one, token: model.words[one.id], text: textOf(ids), looked });
      if (model.ends.includes(one.id)) break;
    }
    return { tokens: ids.map((id) => model.words[id]), ids, text: textOf(ids), probabilities };
  }
  /** @param {number[]} ids */
  const textOf = (ids) => spelledOut(ids.filter((id) => !model.ends.includes(id)).map((id) => model.words[id]));

  globalThis.qkv = {
    where: "on the server",
    model: Promise.resolve(/** @type {any} */ (model)),

    /** Like `run` of api.js, but `blocks` is empty unless `model.plain` is true. */
    async run(text, edits = [], options = {}) {
      const one = ask(text, edits, options);
      going.add(one);
      try {
        return await one;
      } finally {
        going.delete(one);
      }
    },

    /** Like `generate` of api.js, with one run for each token, since the server does not keep a cache. */
    generate: model.next ? write : undefined,

    /** Like `sweep` of api.js. */
    async sweep(text, edits, onpart, { at, signal } = {}) {
      for (let layer = model.layers - 1; layer >= 0; layer--)
        for (let head = 0; head < model.heads; head++) {
          while (going.size) await Promise.allSettled(going);
          signal?.throwIfAborted();
          const removed = [...edits, { op: "ablate", layer, head }];
          const run = await ask(text, removed, { at, signal }, { layers: [0], heads: [0] });
          signal?.throwIfAborted();
          onpart({ layer, head, resid: run.resid.at(-1), logits: run.logits });
        }
    },
  };
  window.dispatchEvent(new Event("qkv"));
}

/**
 * Returns the key that the reader types into the form.
 * @param {HTMLFormElement} form
 * @param {string} message
 */
function keyFrom(form, message) {
  const [input, said] = [/** @type {HTMLInputElement} */ (form.querySelector("input")), /** @type {Element} */ (form.querySelector("[role=status]"))];
  said.textContent = message;
  form.hidden = false;
  input.focus();
  return new Promise((resolve) => {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.hidden = true;
      resolve(input.value.trim());
      input.value = "";
    }, { once: true });
  });
}

/**
 * Reads a safetensors file. The first eight bytes hold the length of the JSON. The arrays follow the JSON, which lists
 * their positions.
 * @param {ArrayBuffer} file
 */
function tensorsOf(file) {
  const size = Number(new DataView(file).getBigUint64(0, true));
  const { __metadata__: written, ...headers } = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, size)));
  /** @type {Record<string, {shape: number[], numbers: Float32Array}>} */
  const arrays = {};
  for (const [name, { dtype, shape, data_offsets: [first, end] }] of Object.entries(headers)) {
    const bytes = file.slice(8 + size + first, 8 + size + end);
    const numbers = dtype === "F64" ? Float32Array.from(new Float64Array(bytes)) : new Float32Array(bytes);
    arrays[name] = { shape, numbers };
  }
  const about = Object.fromEntries(Object.entries(written).map(([name, value]) => [name, JSON.parse(value)]));
  return { about, arrays };
}

/**
 * Splits an array along its first axis.
 * @param {{shape: number[], numbers: Float32Array}} array
 */
function cutUp({ shape: [count, ...rest], numbers }) {
  const size = rest.reduce((all, one) => all * one, 1);
  return Array.from({ length: count }, (_, i) => ({ shape: rest, numbers: numbers.subarray(i * size, (i + 1) * size) }));
}

/**
 * Converts an answer to a Run of api.js.
 * @param {string} text
 * @param {any} about
 * @param {any} arrays
 * @param {Served} model
 */
function runOf(text, about, arrays, model) {
  const { pattern, resid, logits, ...others } = arrays;
  const offsets = inUnits(text, about.offsets);
  const end = Math.max(0, ...offsets.map(([, last]) => last));
  /** @type {Record<number, any>} */
  const blocks = {};
  for (const [name, array] of Object.entries(others)) {
    const [, number, ...rest] = name.split(".");
    const [layer, part] = [Number(number), rest.join(".")];
    blocks[layer] ??= {};
    blocks[layer][part] = part === "attn_scores" ? cutUp(array).map(({ numbers }) => numbers) : array.numbers;
  }
  return {
    tokens: about.tokens,
    pattern: cutUp(pattern).map((heads) => cutUp(heads).map(({ numbers }) => numbers)),
    resid: cutUp(resid).map(({ numbers }) => numbers),
    logits: logits ? logits.numbers : new Float32Array(0),
    ids: about.ids,
    offsets,
    special: about.special,
    cut: about.tokens.length === model.most && end < text.trimEnd().length,
    causal: model.next,
    blocks,
  };
}

/**
 * Converts offsets in Unicode characters to offsets in a JavaScript string, where some characters have length 2.
 * @param {string} text
 * @param {[number, number][]} offsets
 * @returns {[number, number][]}
 */
function inUnits(text, offsets) {
  const starts = [0];
  for (const mark of text) starts.push(starts.at(-1) + mark.length);
  /** @param {number} position */
  const unit = (position) => starts[Math.min(position, starts.length - 1)];
  return offsets.map(([first, last]) => [unit(first), unit(last)]);
}
