// A line about a model whose weights are in a file beside the page: a progress bar, and what the reader can do.

import { el, fill } from "../base/elements.js";
import { visible } from "../base/format.js";
import "./download.css";

/** @typedef {import("../engine/download.js").Download} Download */

const PHONE = 600; // pixels: a screen that is narrower belongs to a phone
const MEMORY = 5.7; // bytes of memory for each byte of the file, as measured with SmolLM2

/**
 * A number of bytes in megabytes; those of a large file as a whole number.
 * @param {number} bytes
 * @param {number} size  of the file
 */
export const megabytes = (bytes, size) => (bytes / 1e6).toFixed(size < 1e7 ? 1 : 0);

/**
 * The line. It starts the download, unless the reader saves data, or has a phone, or sees the page in a frame.
 * @param {{called: string, model: string}} data  the model's payload
 * @param {Download} download
 * @param {{wished: () => boolean, arrived: () => void, answer: () => void}} [others]  if other models answer until this
 *     one arrives: `wished` says whether the reader wants it to answer then; `arrived` is called when it arrives, and
 *     `answer` when the reader presses the button
 */
export function downloadPart({ called, model }, download, others) {
  const { size } = download;
  const name = visible(called);
  const said = el("span", { role: "status" });
  const [count, bar] = [el("span"), el("progress", { max: size, "aria-label": `the download of ${name}` })];
  const button = el("button", { type: "button", onclick: () => act() });
  const node = el("p", { class: "download" }, said, bar, count, button);
  const whole = `${megabytes(size, size)} MB`;
  let act = () => {};
  let [told, shown] = ["", ""];

  function update() {
    const { stage, received, why } = download;
    const disk = location.protocol === "file:";
    const part = `${megabytes(received, size)} of ${whole}`;
    const reading = received >= size;
    const soon = others ? `; ${others.wished() ? "it answers as soon as it is ready" : "meanwhile, a small model answers"}` : "";
    const needs = `needs ${Math.max(1, Math.round((size * MEMORY) / 1e8)) * 100} MB of memory${others ? "; a small model answers without a download" : ""}.`;
    /** @type {[string, string, () => void]} */
    const [text, label, pressed] = disk
      ? [`The weights of ${name} are in a file beside this page. A page opened from a disk cannot read this file: serve both files over HTTP, or run qkv play --model ${visible(model)}.`, "", act]
      : stage === "idle" ? [`${name} is a download of ${whole} and ${needs}`, received ? "Continue the download" : `Download ${whole}`, download.start]
      : stage === "going" ? [`${name} is ${reading ? "being read" : "being downloaded"}${soon}.`, reading ? "" : "Stop", download.stop]
      : stage === "done" ? [`${name} has arrived.`, others ? "Let it answer" : "", others?.answer ?? act]
      : reading ? [`${name} cannot be read: ${why}.`, "Load the page again", () => location.reload()]
      : [`The download of ${name} stopped at ${part}: ${why}.`, "Try again", download.start];
    if (text !== told) fill(said, (told = text));
    bar.hidden = count.hidden = disk || stage !== "going";
    bar.value = received;
    if (part !== shown) fill(count, (shown = part));
    [button.hidden, act] = [!label, pressed];
    if (button.textContent !== label) fill(button, label);
    if (stage === "done" && !disk) others ? others.arrived() : node.remove();
  }
  const small = Math.min(screen.width, screen.height) < PHONE;
  const frugal = /** @type {any} */ (navigator).connection?.saveData || small || window.parent !== window;
  download.onchange = update;
  if (frugal) update();
  else download.start();
  return node;
}
