// Sends changes during a drag, no faster than the model computes them.

/** @typedef {import("../engine/edits.js").Edit} Edit */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/state.js").PlayState} PlayState */
/** @typedef {import("../store/store.js").Store} Store */

/**
 * Sends changes to the store one after the other. While the page computes a change, a new change must wait, and
 * replaces a change that is already waiting.
 * @param {Store} store
 */
export function oneAtATime(store) {
  /** @type {[boolean, {patch: Partial<PlayState>, undo: boolean} | null]} */
  let [going, waiting] = [false, null];
  /** @param {Partial<PlayState>} patch @param {boolean} undo */
  const send = (patch, undo) => {
    const before = store.state;
    store.set(patch, { undo });
    going = store.state !== before; // if the state stays the same, the page computes nothing
  };
  return {
    /** @param {{edits: Edit[]}} patch @param {boolean} undo  whether the change can be undone */
    send(patch, undo) {
      if (going) waiting = { patch, undo: undo || Boolean(waiting?.undo) };
      else send(patch, undo);
    },
    /**
     * Sends the waiting change when the page is no longer busy.
     * @param {Told} now
     */
    update({ busy }) {
      if (busy) return;
      const next = waiting;
      [going, waiting] = [false, null];
      if (next) send(next.patch, next.undo);
    },
    idle: () => !going,
  };
}
