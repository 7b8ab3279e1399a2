// Python code for the current state: a call of the library that gives the same numbers.

import { range } from "../base/arrays.js";
import { editsOf } from "../engine/edits.js";
import { joinedMasks } from "../store/state.js";

/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../store/store.js").Now} Now */

const ON_A_LINE = 8; // how many numbers of a list are written on one line

/**
 * @param {any} data  the payload
 * @param {Now} now
 */
export function pythonOf(data, { state, original }) {
  const { text, edits, layer, head, query, position } = state;
  const size = original.tokens.length;
  const plain = !original.special.every(Boolean);
  const records = [
    ...edits.filter(({ op }) => op !== "mask").map(pythonRecord),
    ...joinedMasks(editsOf(edits, "mask")).map(pythonMasks),
  ];
  const edit = records.length ? [", edit=[", ...records.map((record) => `    ${record},`), "]"] : [""];
  return [
    "import numpy as np",
    "import qkv",
    "",
    `model = qkv.load(${data.stories?.length ? "" : JSON.stringify(data.model)})`, // only the default model has stories, and load() without a name loads the default model
    `text = ${JSON.stringify(text)}`,
    ...(plain ? [] : ["ids = list(model.tokenize(text).ids)"]),
    `trace = model.trace(${plain ? "text" : "ids"}, logits=True${edit.join("\n")})`,
    "",
    `pattern = trace["pattern", ${layer}][0, ${head}]  # ${size} tokens attend to ${size}`,
    ...(query === null ? [] : [`print(pattern[${query}].round(3))`]),
    ...(position === null ? [] : [`logits = trace["logits"][0, ${position}]  # how well each word of the vocabulary fits there`, "probabilities = np.exp(logits - logits.max())", "probabilities /= probabilities.sum()"]),
    "",
  ].join("\n");
}

/**
 * An edit as Python code. The code is the edit's JSON, with long lists of numbers broken into lines.
 * @param {Edit} edit
 */
function pythonRecord(edit) {
  const { vector } = edit;
  if (!vector) return JSON.stringify(edit);
  const lines = range(0, Math.ceil(vector.length / ON_A_LINE)).map((i) => `        ${vector.slice(i * ON_A_LINE, (i + 1) * ON_A_LINE).join(", ")},`);
  const rest = JSON.stringify({ ...edit, vector: undefined }).slice(0, -1);
  return [`${rest},"vector":[`, ...lines, "    ]}"].join("\n");
}

/**
 * Returns Python code for edit records that mask links between tokens. For more than one link, the code is a loop.
 * @param {{rows: number[][], layer?: number, head?: number}} masks
 */
function pythonMasks({ rows, layer, head }) {
  const where = Object.entries({ layer, head }).filter(([, value]) => value !== undefined).map(([name, value]) => `, "${name}": ${value}`).join("");
  /** @type {(query: number | string, key: number | string) => string} */
  const mask = (query, key) => `{"op": "mask", "query": ${query}, "key": ${key}${where}}`;
  if (rows.length === 1 && rows[0][1] === rows[0][2]) return mask(rows[0][0], rows[0][1]);
  const all = rows.map((row) => `(${row.join(", ")})`).join(", ");
  return `*(${mask("q", "k")} for q, first, last in [${all}] for k in range(first, last + 1))`;
}
