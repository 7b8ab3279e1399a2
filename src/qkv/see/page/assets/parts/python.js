// What the reader sees, as a call of the library that gives the same numbers.

import { editsOf } from "../engine/edits.js";
import { joinedMasks } from "../store/state.js";
import { usualScale } from "./words.js";

/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../engine/edits.js").Edit} Edit */

/**
 * @param {any} data  the payload
 * @param {Now} now
 */
export function pythonOf(data, { state, model, original }) {
  const { text, edits, layer, head, query, place } = state;
  const size = original.tokens.length;
  /** @param {string} op */
  const of = (op) => editsOf(edits, op);
  const swaps = of("swap");
  const plain = !swaps.length && !original.special.every(Boolean);
  const hide = [
    ...of("hide").map(({ token }) => String(token)),
    ...(of("causal").length ? [`*((q, k) for q in range(${size}) for k in range(q + 1, ${size}))`] : []),
    ...joinedMasks(of("mask")).map(pythonMasks),
  ];
  const ablate = of("ablate").map((edit) => `(${edit.layer}, ${edit.head ?? "None"})`);
  const [written, changes] = pythonChanges(of("scale").at(-1), of("row"), model);
  /** @type {[string, string[], string, string][]} */
  const every = [
    ["hide", hide, "[", "]"],
    ["ablate", ablate, "[", "]"],
    ["edit", changes, "{", "}"],
  ];
  const options = every.filter(([, all]) => all.length);
  return [
    "import numpy as np",
    "import qkv",
    "",
    `model = qkv.load(${data.stories?.length ? "" : JSON.stringify(data.model)})`, // stories are those of the default model
    `text = ${JSON.stringify(text)}`,
    ...(plain ? [] : ["ids = list(model.tokenize(text).ids)"]),
    ...swaps.map((edit) => `ids[${edit.token}] = model.tokenizer.vocabulary[${JSON.stringify(edit.with)}]`),
    ...written,
    `trace = model.trace(${[plain ? "text" : "ids", "logits=True", ...options.map(([name, all, open, close]) => `${name}=${open}${all.join(", ")}${close}`)].join(", ")})`,
    "",
    `pattern = trace["pattern", ${layer}][0, ${head}]  # ${size} tokens look at ${size}`,
    ...(query === null ? [] : [`print(pattern[${query}].round(3))`]),
    ...(place === null ? [] : [`logits = trace["logits"][0, ${place}]  # how well each word of the vocabulary fits there`, "chances = np.exp(logits - logits.max())", "chances /= chances.sum()"]),
    "",
  ].filter((line, i) => line || i).join("\n");
}

/**
 * Pairs that do not see each other, as entries of `hide`; many at once as a loop.
 * @param {{rows: number[][], layer?: number, head?: number}} given
 */
function pythonMasks({ rows, layer, head }) {
  const where = [layer, head].filter((place) => place !== undefined).map((place) => `, ${place}`).join("");
  if (rows.length === 1 && rows[0][1] === rows[0][2]) return `(${rows[0][0]}, ${rows[0][1]}${where})`;
  const all = rows.map((row) => `(${row.join(", ")})`).join(", ");
  return `*((q, k${where}) for q, first, last in [${all}] for k in range(first, last + 1))`;
}

/**
 * What is put in the place of scores and weights: functions, and the entries of `edit` that name them.
 * @param {Edit} scale
 * @param {Edit[]} rows
 * @param {any} model
 */
function pythonChanges(scale, rows, model) {
  /** @type {[string[], string[]]} */
  const [written, changes] = [[], []];
  if (scale) {
    const each = Array.from({ length: model.layers }, (_, l) => [model.scales?.[l][0] ?? "attn_scores", scale.value / usualScale(model, l)]);
    const [[name, times]] = each;
    written.push("", "", "def times(x, factor):", "    return np.multiply(x, factor, out=x.copy(), where=np.isfinite(x))");
    if (each.every((one) => String(one) === String(each[0]))) changes.push(`**{("${name}", layer): lambda x: times(x, ${times}) for layer in range(${model.layers})}`);
    else changes.push(...each.map(([one, factor], l) => `("${one}", ${l}): lambda x: times(x, ${factor})`));
  }
  for (const layer of [...new Set(rows.map((row) => row.layer))]) {
    written.push("", "", `def rows_${layer}(pattern):`);
    for (const { head, query, weights } of rows.filter((row) => row.layer === layer)) written.push(`    pattern[:, ${head}, ${query}] = [${weights.join(", ")}]`);
    written.push("    return pattern");
    changes.push(`("pattern", ${layer}): rows_${layer}`);
  }
  if (written.length) written.push("", "");
  return [written, changes];
}
