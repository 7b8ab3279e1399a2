// The operations of layers.js in float32, by WebAssembly with vectors of four numbers. `.ci/wasm.py` compiles
// kernels.wasm from native/page.cpp. A call copies its arrays into the memory of the module, and its result out of it.
// Parameters are copied once, when they are first used, and stay. Other arrays and results stay until the space for them
// is full, since the next calls read most results: nothing may change an array after an operation has read or made it.

import { KINDS } from "./blocks.js";
import code from "./kernels.wasm";

/** @typedef {import("./blocks.js").Weight} Weight */
/** @typedef {import("./layers.js").Numbers} Numbers */
/** @typedef {import("./layers.js").Operations} Operations */

const [FLOAT, VECTOR, PAGE] = [4, 16, 65536]; // bytes
const BEHIND = 4 * VECTOR; // the module reads up to four vectors from the last numbers of an array
const SPACE = 8e6; // bytes of arrays that stay
const CODES = ["", "gelu", "gelu_tanh", "silu", "relu", "quick_gelu", "tanh"]; // as in native/activation.h, then tanh

/**
 * Starts the module. Returns null if the browser has no WebAssembly or no vectors, or if the page's policy forbids it.
 * @returns {Operations | null}
 */
export function kernels() {
  /** @type {any} */
  let module;
  try {
    module = new WebAssembly.Instance(new WebAssembly.Module(Uint8Array.from(atob(code), (byte) => byte.charCodeAt(0)))).exports;
  } catch {
    return null;
  }
  const { memory, linear, linear_blocks, normalize, activate, score, soften, weigh } = module;
  /** @type {WeakMap<Weight, number>} */
  const kept = new WeakMap(); // where parameters lie in the memory
  /** @type {Map<Numbers | Uint8Array, number>} */
  const recent = new Map(); // where other arrays lie
  let floats = new Float32Array(memory.buffer);
  let [end, free] = [module.__heap_base.value, 0]; // where the parameters end, and where the free memory begins

  /**
   * Finds space in the memory, with more memory behind it.
   * @param {number} bytes
   */
  function reserve(bytes) {
    const here = free;
    free = Math.ceil((here + bytes) / VECTOR) * VECTOR;
    const missing = free + BEHIND - memory.buffer.byteLength;
    if (missing > 0) memory.grow(Math.ceil(missing / PAGE));
    return here;
  }

  /** @param {Numbers | Uint8Array} array */
  function copied(array) {
    const bytes = array instanceof Uint8Array;
    const here = reserve(array.length * (bytes ? 1 : FLOAT));
    new (bytes ? Uint8Array : Float32Array)(memory.buffer, here, array.length).set(array);
    return here;
  }

  /**
   * Calls an operation: `run` gets the addresses of the parameters, of the other arrays and of the result.
   * @param {(Weight | undefined)[]} parameters
   * @param {(Numbers | Uint8Array | undefined)[]} arrays
   * @param {number} size  of the result; 0 if the operation changes a copy of the first array
   * @param {(parameters: number[], arrays: number[], out: number, scratch: number) => void} run
   * @param {number} [scratch]  the bytes that the operation needs for its own numbers
   */
  function call(parameters, arrays, size, run, scratch = 0) {
    if (free - end > SPACE || parameters.some((array) => array && !kept.has(array))) {
      free = end;
      recent.clear();
    }
    const own = parameters.map((array) => {
      if (!array) return 0;
      if (!kept.has(array)) {
        kept.set(array, copied("bytes" in array ? array.bytes : array));
        end = free;
      }
      return /** @type {number} */ (kept.get(array));
    });
    const given = arrays.map((array) => {
      if (!array) return 0;
      if (!recent.has(array)) recent.set(array, copied(array));
      return /** @type {number} */ (recent.get(array));
    });
    const count = size || /** @type {Numbers} */ (arrays[0]).length;
    const out = reserve(count * FLOAT);
    if (!size) new Uint8Array(memory.buffer).copyWithin(out, given[0], given[0] + count * FLOAT); // changed in place
    run(own, given, out, reserve(scratch));
    if (floats.buffer !== memory.buffer) floats = new Float32Array(memory.buffer); // the memory has grown
    const result = floats.slice(out / FLOAT, out / FLOAT + count);
    recent.set(result, out);
    return result;
  }

  return {
    Numbers: Float32Array,
    linear: (x, weight, bias, I) => {
      const [T, O] = [x.length / I, weight.length / I];
      if (!("bytes" in weight)) return call([weight, bias], [x], T * O, (own, [from], out) => linear(from, ...own, out, T, I, O));
      const kind = Object.keys(KINDS).indexOf(weight.kind);
      /** @type {Parameters<typeof call>[3]} */
      const run = (own, [from], out, scratch) => linear_blocks(from, ...own, out, T, I, O, scratch, kind);
      return call([weight, bias], [x], T * O, run, 3 * T * I);
    },
    normalized: (x, weight, bias, { eps, rms, offset }) => {
      const D = weight.length;
      return call([weight, bias], [x], x.length, (own, [from], out) => normalize(from, ...own, out, x.length / D, D, eps, offset, rms));
    },
    activated: (x, name, by) => call([], [x, by], 0, (_, [, factors], out) => activate(out, factors, x.length, CODES.indexOf(name))),
    scored: (q, k, { heads: H, kv_heads: shared, size: d }, { scale, softcap }, hidden) => {
      const [L, S] = [q.length / (H * d), k.length / (shared * d)];
      return call([], [q, k, hidden], H * L * S, (_, all, out) => score(...all, out, L, S, H, shared, d, scale, softcap ?? 0));
    },
    softmax: (scores, S) => call([], [scores], 0, (_, __, out) => soften(out, scores.length / S, S)),
    weigh: (pattern, v, { heads: H, kv_heads: shared, size: d }) => {
      const S = v.length / (shared * d);
      const L = pattern.length / (H * S);
      return call([], [pattern, v], L * H * d, (_, both, out) => weigh(...both, out, L, S, H, shared, d));
    },
  };
}
