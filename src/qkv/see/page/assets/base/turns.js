// Jobs in tasks so short that the page answers meanwhile.

const SHORT = 8; // milliseconds: a task that was as long leaves the next job to another
let due = 0; // when the task that is running will have been; 0 outside of one

/**
 * Does jobs one after another, in tasks so short that the page answers meanwhile. New ones take the place of those that
 * are left. The promise is kept when none are, and what they promised is.
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
        reportError(reason); // the others go on
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
 * Draws now what would else be left to tasks of its own.
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
