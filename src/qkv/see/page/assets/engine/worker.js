// The worker runs the model, while the page stays responsive. It answers the requests of api.js.
// A request is for a run, for the continuation of a text, or for a sweep that removes each head separately.
// The worker splits its work into steps. Between two steps it reads new requests, so that the newest run always goes first.

import { range } from "../base/arrays.js";
import { numbersOf } from "./blocks.js";
import { forward, handedOn, logitsAt } from "./engine.js";
import { Cache, generateTokens } from "./generate.js";
import { bytesIn, readStream } from "./incoming.js";
import { kernels } from "./kernels.js";
import { Memory } from "./memory.js";
import { readModel } from "./model.js";
import { checkedEdits, shown, swapped } from "./checked_edits.js";
import { withSources } from "./sources.js";
import { decode, tokenize } from "./tokenizer.js";

/** @typedef {import("./layers.js").Numbers} Numbers */
/** @typedef {import("./memory.js").Step} Step */
/** @typedef {import("./model.js").Model} Model */

/**
 * @typedef {{id: number, ask: "run" | "sweep" | "parameters", text: string, edits: any, at?: number[], layers?: number[], most?: number, lens?: boolean}} Question
 * @typedef {{id: number, ask: string, steps: Generator<any, any>}} Job
 */

/** @type {Model} */
let model;
/** @type {Job[]} */
let jobs = []; // the newest job is the last
let working = false;
const [memory, cache] = [new Memory(), new Cache()];
const BYTES = 4; // the maximum number of bytes of a character in UTF-8
const LONGEST = 1000; // numbers kept for each number of a layer: a token has 15 to 20
const MOST_PATTERNS = 256; // up to this number of tokens, a run returns all patterns
// the worker sends itself a message before each step, so that it reads messages from the page between two steps
const next = new MessageChannel();
next.port1.onmessage = work;

/** @type {Record<string, (question: any) => Generator<any, any>>} */
const ASKED = { run, sweep, generate, parameters };

/** @type {WritableStreamDefaultWriter<Uint8Array>} */
let deflated; // takes the bytes of a model that arrives in parts
let missing = 0; // how many of these bytes have not arrived

onmessage = ({ data: { read, piece, drop, ...question } }) => {
  if (read) begin(JSON.parse(read));
  else if (piece !== undefined) receive(piece);
  else if (drop) jobs = jobs.filter(({ id }) => id !== drop);
  else {
    jobs.push({ id: question.id, ask: question.ask, steps: ASKED[question.ask](question) });
    start();
  }
};

/** Starts to work on the questions, once there is a model. */
function start() {
  if (!working && model) next.port2.postMessage(0);
  working = Boolean(model);
}

/**
 * Reads a model, or prepares to receive one in parts.
 * @param {any} written  the model in the format of engine.py, or the sizes of its parts
 */
function begin(written) {
  if (!("bytes" in written)) return open(written);
  const { readable, writable } = new DecompressionStream("deflate-raw");
  [deflated, missing] = [writable.getWriter(), written.bytes];
  readStream(readable, written.described).then(open).catch((error) => postMessage({ error }));
}

/**
 * Takes a part of a model: bytes, characters that stand for bytes, or null after the last part.
 * @param {Uint8Array | string | null} piece
 */
function receive(piece) {
  const ignore = () => {}; // the reader reports errors
  if (piece === null) {
    deflated.close().catch(ignore);
    return;
  }
  const bytes = typeof piece === "string" ? bytesIn(piece) : piece;
  const own = bytes.subarray(0, missing); // characters stand for an even number of bytes
  missing -= own.length;
  deflated.write(own).catch(ignore);
}

/** @param {any} written */
function open(written) {
  model = readModel(written, kernels() ?? undefined);
  const { layers, dim } = model.sizes;
  memory.most = Math.max(memory.most, LONGEST * layers * dim); // so a scan of heads does not compute the text again for each head
  const { names } = model.tokenizer;
  const words = Array.from({ length: model.sizes.vocabulary }, (_, id) => names[id] ?? String(id)); // the names that `predict` uses in Python
  postMessage({ ready: { name: model.name, exact: written.exact, ...model.sizes, words } });
  start();
}

/** Does one step of the newest run. If there are no runs, does one step of the newest job, for example a sweep. */
function work() {
  const job = jobs.findLast(({ ask }) => ask === "run") ?? jobs.at(-1);
  working = Boolean(job);
  if (!job) return;
  try {
    const { value, done } = job.steps.next();
    if (done || value) postMessage({ id: job.id, done, value });
    if (done) jobs = jobs.filter((one) => one !== job);
  } catch (error) {
    jobs = jobs.filter((one) => one !== job);
    postMessage({ id: job.id, error });
  }
  next.port2.postMessage(0);
}

/**
 * The tokens and the edits of a question.
 * @param {Question} question
 */
function asked({ text, edits, most = Infinity }) {
  if (typeof text !== "string") throw new TypeError(`run: text is ${typeof text}; pass a string`);
  const { tokens, cut } = tokenize(model.tokenizer, text, Math.min(most, model.sizes.most ?? Infinity));
  const own = checkedEdits(edits, tokens.length, model);
  return { tokens, cut, read: swapped(tokens, own, model.tokenizer), own: own.filter(({ op }) => op !== "swap") };
}

/**
 * A run (see api.js).
 * @param {Question} question
 */
function* run(question) {
  const { tokens, cut, read, own } = asked(question);
  const positions = listed(question.at, tokens.length, "at", "tokens");
  const layers = listed(question.layers ?? [], model.sizes.layers, "layers", "layers");
  const T = tokens.length;
  if (T > MOST_PATTERNS && !question.layers)
    throw new RangeError(`run: the text has ${T} tokens, but a run returns the patterns of all layers only up to ${MOST_PATTERNS} tokens; pass the layers that you need in the option layers`);
  const ids = read.map(({ id }) => id);
  const steps = yield* forward(model, memory, ids, yield* withSources(model, memory, ids, own));
  const resid = steps.map(handedOn); // layers + 1 arrays (T, D)
  return {
    tokens: read.map(({ token }) => token),
    pattern: steps.slice(1).map(({ pattern }, l) => (T <= MOST_PATTERNS || layers.includes(l) ? rounded(pattern) : [])),
    resid: rounded(resid),
    logits: yield* logits(/** @type {Numbers} */ (resid.at(-1)), positions),
    lens: question.lens ? yield* lensOf(resid, positions) : undefined,
    ids,
    offsets: tokens.map(({ start, end }) => [start, end]),
    special: tokens.map(({ special }) => special),
    cut,
    causal: model.sizes.next,
    blocks: Object.fromEntries(layers.map((l) => [l, inside(steps[l + 1])])),
  };
}

/**
 * A sweep: removes each head separately, in addition to the edits. The sweep goes from the last layer to the first,
 * because later layers take less time: the layers below a removed head are not computed again.
 * @param {Question} question
 */
function* sweep(question) {
  const { tokens, read, own } = asked(question);
  const { layers, heads } = model.sizes;
  const positions = listed(question.at, tokens.length, "at", "tokens");
  const ids = read.map(({ id }) => id);
  const edits = yield* withSources(model, memory, ids, own);
  for (let layer = layers - 1; layer >= 0; layer--)
    for (let head = 0; head < heads; head++) {
      const steps = yield* forward(model, memory, ids, [...edits, { op: "ablate", layer, head }]);
      const resid = handedOn(steps[layers]);
      yield { layer, head, resid: rounded(resid), logits: yield* logits(resid, positions) };
    }
}

/**
 * Continues a text (see api.js): yields each token when it is chosen, and in the end all tokens.
 * @param {Question & {options: any}} question
 */
function* generate(question) {
  const { read, own } = asked(question);
  if (!model.sizes.next) throw new TypeError(`generate: ${model.name} is an encoder and cannot generate; call qkv.run`);
  if (!read.length) throw new RangeError("generate: the text is empty; pass at least one word");
  const choice = choiceOf(question.options);
  const ids = read.map(({ id }) => id);
  const chosen = [];
  const name = (/** @type {number} */ id) => model.tokenizer.names[id] ?? String(id);
  const textOf = (/** @type {number[]} */ new_) => {
    const plain = new_.filter((id) => !model.design.ends.includes(id) && id in model.tokenizer.names);
    return added(ids, decode(model.tokenizer, [...ids, ...plain]));
  };
  for (const one of generateTokens(model, memory, cache, ids, yield* withSources(model, memory, ids, own), choice)) {
    if (one) {
      chosen.push(one);
      const all = [...choice.begun, ...chosen.map(({ id }) => id)];
      yield { ...one, token: name(one.id), text: textOf(all) };
    } else yield;
  }
  const all = [...choice.begun, ...chosen.map(({ id }) => id)];
  return { tokens: all.map(name), ids: all, text: textOf(all), probabilities: chosen.map(({ probability }) => probability) };
}

/**
 * The text that new tokens add to a prompt. It begins with the character that the prompt begins and these tokens complete.
 * @param {number[]} prompt
 * @param {string} whole  the text of the prompt and the new tokens
 */
function added(prompt, whole) {
  const before = decode(model.tokenizer, prompt);
  if (!before.endsWith("\ufffd") || whole.startsWith(before)) return whole.slice(before.length);
  const known = range(0, BYTES).map((cut) => {
    const text = decode(model.tokenizer, prompt.slice(0, prompt.length - cut));
    return range(0, text.length).find((at) => text[at] !== whole[at]) ?? text.length;
  });
  return whole.slice(Math.max(...known));
}

/**
 * Checks the options of `generate`, such as the temperature; an error says what is wrong and how to correct it.
 * @param {any} options
 */
function choiceOf({ max = 32, temperature = 0, top_k = null, seed = 0, begun = [] } = {}) {
  /** @type {(name: string, value: any, right: boolean, way: string) => void} */
  const need = (name, value, right, way) => {
    if (!right) throw new RangeError(`generate: ${name} is ${shown(value)}; pass ${way}`);
  };
  const whole = (/** @type {any} */ value, /** @type {number} */ least) => Number.isSafeInteger(value) && value >= least;
  need("max", max, whole(max, 1), "a whole number of at least 1");
  need("temperature", temperature, Number.isFinite(temperature) && temperature >= 0, "a number of at least 0");
  need("top_k", top_k, top_k === null || whole(top_k, 1), "a whole number of at least 1, or null");
  need("seed", seed, whole(seed, 0), "a whole number of at least 0");
  const count = model.sizes.vocabulary;
  need("begun", begun, Array.isArray(begun) && begun.every((id) => whole(id, 0) && id < count), `token ids from 0 to ${count - 1}`);
  return { max, temperature, top_k, seed, begun };
}

/**
 * Returns parameters by name; from tables, only the requested rows.
 * @param {{names: string[], rows?: Record<string, number[]>}} question
 */
function* parameters({ names, rows = {} }) {
  const { parameters: all, sizes: { dim: D } } = model;
  const unknown = names.find((name) => !Object.hasOwn(all, name));
  if (unknown !== undefined) throw new RangeError(`parameters: the model has no ${shown(unknown)}`);
  /** @type {(name: string) => Float32Array} */
  const chosen = (name) => {
    const part = new Float32Array(rows[name].length * D);
    rows[name].forEach((row, n) => part.set(numbersOf(all[name], row * D, (row + 1) * D), n * D));
    return part;
  };
  return Object.fromEntries(names.map((name) => [name, rows[name] ? chosen(name) : numbersOf(all[name])]));
}

/**
 * Computes the logits (n, V) at n of the T positions, from the vectors x (T, D); each step does a few positions.
 * @param {Numbers} x
 * @param {number[]} positions
 * @returns {Generator<void, Float32Array>}
 */
function* logits(x, positions) {
  const V = model.sizes.vocabulary;
  const result = new Float32Array(positions.length * V);
  for (let n = 0; n < positions.length; n += 8) {
    yield;
    result.set(logitsAt(model, x, positions.slice(n, n + 8)), n * V);
  }
  return result;
}

/**
 * The logits that the model would give if it ended at the first layer, after layer 0, and so on.
 * @param {Numbers[]} resid  layers + 1 arrays (T, D)
 * @param {number[]} positions
 * @returns {Generator<void, Float32Array[]>}
 */
function* lensOf(resid, positions) {
  const { dim: D, vocabulary: V } = model.sizes;
  const n = positions.length;
  const rows = new model.ops.Numbers(resid.length * n * D); // together, since reading the vocabulary's rows takes most of the time
  resid.forEach((x, l) => positions.forEach((at, i) => rows.set(x.subarray(at * D, (at + 1) * D), (l * n + i) * D)));
  const all = yield* logits(rows, range(0, resid.length * n));
  return resid.map((_, l) => all.slice(l * n * V, (l + 1) * n * V));
}

/**
 * Converts numbers for the page: an array, or each array in a list, becomes float32.
 * @param {any} x
 * @returns {any}
 */
function rounded(x) {
  if (x === null || typeof x === "number") return x;
  return Array.isArray(x) ? x.map(rounded) : new Float32Array(x);
}

/**
 * All results of a layer, keyed by their names in a trace.
 * @param {Step} step
 */
function inside(step) {
  const arrays = Object.entries(step).filter(([name]) => name !== "key");
  return Object.fromEntries(arrays.map(([name, x]) => [name, rounded(x)]));
}

/**
 * Returns the positions or layers that a request asks for, as whole numbers below `count`; by default all numbers
 * below `count`.
 * @param {number[] | undefined} numbers
 * @param {number} count
 * @param {string} name
 * @param {string} what
 */
function listed(numbers, count, name, what) {
  const chosen = numbers ?? Array.from({ length: count }, (_, number) => number);
  const wrong = chosen.find((number) => !(Number.isInteger(number) && number >= 0 && number < count));
  if (wrong !== undefined) throw new RangeError(`run: ${name} has ${shown(wrong)}, but there are ${count} ${what}; pass 0 to ${count - 1}`);
  return chosen;
}
