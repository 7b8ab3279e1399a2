// What a model has computed, kept so that a change computes again only what it touches.

/** @typedef {Record<string, any>} Step  what a part of the model has computed: arrays, by the names of a trace */

/** What has been computed, up to so many numbers; what nobody asked for the longest goes first. */
export class Memory {
  constructor(most = 6e6) {
    this.most = most;
    this.size = 0;
    this.count = 0;
    /** @type {Map<string, Step>} */
    this.found = new Map();
  }

  /**
   * What `compute` gives, or gave under this name; with a key, to name by what is computed from it.
   * @param {string} name
   * @param {() => Step} compute
   */
  keep(name, compute) {
    const known = this.found.get(name);
    const value = known ?? { ...compute(), key: (this.count += 1) };
    this.found.delete(name);
    this.found.set(name, value); // the newest is the last
    if (!known) this.size += sizeOf(value);
    for (const [old, one] of this.found) {
      if (this.size <= this.most || one === value) break;
      this.found.delete(old);
      this.size -= sizeOf(one);
    }
    return value;
  }
}

/**
 * How many numbers the arrays of a step have.
 * @param {Step} step
 */
function sizeOf(step) {
  return Object.values(step).flat().reduce((total, one) => total + (one?.length ?? 0), 0);
}
