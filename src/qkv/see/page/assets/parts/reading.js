// Runs of further texts, for the parts of the page that show more than the reader's own text.

/** @typedef {import("../store/store.js").Store} Store */
/** @typedef {import("../engine/api.js").Run} Run */

const PAUSE = 150; // milliseconds: a text is read after a pause of this length

/**
 * Runs texts when the reader pauses; applies no edits and does not compute logits. A later request replaces an earlier
 * request.
 * @param {Store} store
 * @param {(runs: Run[] | null[], error: string) => void} heard
 */
export function reading(store, heard) {
  let going = new AbortController();
  /** @param {string[]} texts */
  return (texts) => {
    going.abort(new Error("superseded"));
    const { signal } = (going = new AbortController());
    if (!texts.length) return;
    setTimeout(async () => {
      if (signal.aborted) return;
      const { run } = /** @type {Api} */ (store.engine);
      try {
        const runs = await Promise.all(texts.map((text) => run(text, [], { at: [], layers: [], signal })));
        if (!signal.aborted) heard(runs, "");
      } catch (reason) {
        if (!signal.aborted) heard([null], reason instanceof Error ? reason.message : String(reason));
      }
    }, PAUSE);
  };
}
