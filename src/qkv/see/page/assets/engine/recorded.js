// The door to texts that were run when the page was written: it gives what the payload holds, and computes nothing.
// Goes after sight.js.

/**
 * A text of the payload as a run. A long one holds the largest of its weights, and has no pattern.
 * @param {any} text  TEXT of payload.py
 * @returns {Run}
 */
function recordedRun(text) {
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
