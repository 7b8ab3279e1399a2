// Jobs that run in short tasks, so that the page stays responsive.

const SHORT = 8; // milliseconds; after this time, no more jobs begin in the running task
let due = 0; // the time at which the running task ends; 0 if no task is running

/**
 * Runs jobs one after another in short tasks, so that the page stays responsive. New jobs replace the jobs that have
 * not run. The promise resolves when no jobs are left and all promises of the jobs are resolved.
 */
export function inTurn() {
  const { port1, port2 } = new MessageChannel();
  /** @type {[(() => any)[], any[], {promise: Promise<void>, keep: () => void} | null, boolean]} */
  let [left, promised, waiting, asked] = [[], [], null, false];
  function some() {
    const outer = due;
    due ||= performance.now() + SHORT;
    while (left.length && performance.now() < due) {
      try {
        promised.push(/** @type {() => any} */ (left.shift())());
      } catch (reason) {
        reportError(reason); // the other jobs continue
      }
    }
    due = outer;
    if (left.length) next();
    else if (waiting) {
      Promise.all(promised).then(waiting.keep);
      [promised, waiting] = [[], null];
    }
  }
  function next() {
    if (!asked) port2.postMessage(null);
    asked = true;
  }
  port1.onmessage = () => {
    asked = false;
    some();
  };
  /** @param {(() => void | Promise<void>)[]} jobs @returns {Promise<void>} */
  return (jobs) => {
    left = [...jobs];
    if (!waiting) {
      /** @type {() => void} */
      let keep = () => {};
      /** @type {Promise<void>} */
      const promise = new Promise((resolve) => (keep = () => resolve()));
      waiting = { promise, keep };
    }
    const { promise } = waiting;
    some();
    return promise;
  };
}

/**
 * Runs `draw` and the jobs started by it. They all run in one task of the browser, without a pause.
 * @param {() => void} draw
 */
export function atOnce(draw) {
  const outer = due;
  due = Infinity;
  try {
    draw();
  } finally {
    due = outer;
  }
}
