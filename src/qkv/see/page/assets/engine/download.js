// Fetches the weights of a model from a file beside the page. The model's worker gets the bytes as they arrive.

/**
 * The download of a model's weights.
 * @typedef {object} Download
 * @property {number} size  the bytes of the file
 * @property {number} received  how many of them have arrived
 * @property {"idle" | "going" | "failed" | "done"} stage  idle: before `start`, and after `stop`; done: the worker has read the model
 * @property {string} why  the reason for a failure
 * @property {() => Promise<void>} start  starts the download, or continues it after a failure
 * @property {() => void} stop
 * @property {() => void} onchange  is called at every change
 */

/** The remainders of CRC-32 (the polynomial of zlib) for each byte. */
const REMAINDERS = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1;
  return byte;
});

/**
 * @param {string} address  the file; its name ends with the CRC-32 of its bytes, for example "big-0123abcd.bin"
 * @param {number} size
 * @param {() => {model: Promise<any>, send: (piece: Uint8Array | null) => void}} open  returns the model's worker
 */
export function downloadOf(address, size, open) {
  /** @type {Download} */
  const self = { size, received: 0, stage: "idle", why: "", start, stop: () => going?.abort(), onchange() {} };
  /** @type {AbortController | null} */
  let going = null;
  let check = ~0; // the CRC-32 of the bytes that have arrived

  /** @param {Download["stage"]} stage @param {string} why */
  function become(stage, why = "") {
    Object.assign(self, { stage, why });
    self.onchange();
  }

  async function start() {
    if (going || self.received >= size) return;
    if (location.protocol === "file:") return become("failed", "a page opened from a disk cannot fetch files");
    const { signal } = (going = new AbortController());
    const { model, send } = open();
    become("going");
    try {
      const headers = self.received ? { Range: `bytes=${self.received}-` } : undefined;
      const response = await fetch(address, { signal, headers });
      if (!response.ok || !response.body) throw new Error(`the server answered with status ${response.status}`);
      if (response.headers.get("Content-Type")?.includes("html")) throw new Error("the server sent a page instead of the file");
      let known = response.status === 206 ? 0 : self.received; // the bytes of this answer that an earlier answer contained
      for (const reader = response.body.getReader(); ; ) {
        const { done, value } = await reader.read();
        if (done) break;
        const fresh = value.subarray(known);
        known -= value.length - fresh.length;
        self.received += fresh.length;
        for (const byte of fresh) check = (check >>> 8) ^ REMAINDERS[(check ^ byte) & 255];
        if (fresh.length) send(fresh);
        self.onchange();
      }
      if (self.received < size) throw new Error("the file is incomplete");
      if (!address.endsWith(`-${(~check >>> 0).toString(16).padStart(8, "0")}.bin`))
        throw new Error("the file has other bytes than the model of this page");
      send(null);
      await model;
      become("done");
    } catch (/** @type {any} */ error) {
      become(signal.aborted ? "idle" : "failed", error.message);
    } finally {
      going = null;
    }
  }
  window.addEventListener("pagehide", self.stop);
  return self;
}
