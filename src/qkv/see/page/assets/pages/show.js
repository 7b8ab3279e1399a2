// The page that `qkv.show` makes for a recorded text. It shows one head in detail, and a map of all heads.

import { el, fill } from "../base/elements.js";
import { mounter } from "../base/mount.js";
import { recordedStore } from "../store/recorded_store.js";
import { headPart } from "../parts/head.js";
import { mapPart } from "../parts/map.js";
import { helpOf, notesOf, titleNode, whyOf } from "../parts/notes.js";
import { receivedPart } from "../parts/received.js";
import { viewBarPart } from "../parts/view_bar.js";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").Now} Now */

/** @param {any} box @param {any} data @param {Ui} ui */
function show(box, data, ui) {
  const store = recordedStore(data, update);
  const [bar, head, received, map] = [viewBarPart(ui, store), headPart(ui, store), receivedPart(ui), mapPart(ui, store)];
  const why = el("p", { class: "note" });
  const notes = el("div", {});
  head.said.className = "sentence";
  box.classList.add("recorded");
  const { headline } = data.start;
  box.append(titleNode(data), headline ? el("p", { class: "lead" }, headline) : "", head.said, bar.node, el("section", { class: "panel" }, head.node), received.node,
    el("section", { class: "panel" }, map.node), why, notes, helpOf());
  let opened = "";

  /** @param {Now} now */
  function update(now) {
    for (const part of [bar, head, received, map]) part.update(now);
    const { layer, head: h, text } = now.state;
    fill(why, whyOf(now, data.start));
    fill(notes, notesOf(now, [now.run]));
    const key = JSON.stringify([text, layer, h]);
    if (opened && opened !== key) ui.say(head.said.textContent);
    opened = key;
  }
  update(store.now);
}

export const start = mounter(show);
