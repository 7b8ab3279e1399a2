// A memory of a model's results, so that after an edit only affected parts are computed again.

/** @typedef {Record<string, any>} Step  the results of a part of the model: arrays, by their names in a trace */

/** Keeps results. If all results together hold more than `most` numbers, it drops the least recently used results. */
export class Memory {
  constructor(most = 6e6) {
    this.most = most;
    this.size = 0;
    this.count = 0;
    /** @type {Map<string, Step>} */
    this.results = new Map();
  }

  /**
   * Returns the earlier result with this name, or else the result of `compute`. Each result gets a unique `key`. Results that are
   * computed from this result contain the key in their names.
   * @param {string} name
   * @param {() => Step} compute
   */
  keep(name, compute) {
    const known = this.results.get(name);
    const value = known ?? { ...compute(), key: (this.count += 1) };
    this.results.delete(name);
    this.results.set(name, value); // the most recently used result is the last
    if (!known) this.size += sizeOf(value);
    for (const [old, one] of this.results) {
      if (this.size <= this.most || one === value) break;
      this.results.delete(old);
      this.size -= sizeOf(one);
    }
    return value;
  }
}

/**
 * The count of all numbers in the arrays of a step.
 * @param {Step} step
 */
function sizeOf(step) {
  return Object.values(step).flat().reduce((total, one) => total + (one?.length ?? 0), 0);
}
