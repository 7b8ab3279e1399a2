// The shift: an arrow for each word, from its static vector to its vector after a layer, in one plane. The top of
// page/payload.py describes the payload.

import { drawn, el, fill, svg, word } from "../base/elements.js";
import { mounter } from "../base/mount.js";
import { cut, number, visible } from "../base/format.js";
import { lineColour, planePart, whereOf } from "../parts/plane.js";
import { saveMenu } from "../parts/save.js";
import "./shift.css";

/** @typedef {import("../parts/plane.js").Point} Point */
/** @typedef {import("../parts/plane.js").Shift} Shift */

export const start = mounter((box, payload, ui) => {
  /** @type {Shift} */
  const shift = payload.shift;
  const { stages, tokens, of, before } = shift;
  const several = shift.sentences.length > 1;
  /** @param {number} k */
  const letter = (k) => (k < 26 ? String.fromCharCode(65 + k) : String(k + 1));
  /** @type {Map<string, Set<number>>} */
  const sentencesOf = new Map(); // maps each word to the sentences that contain it
  tokens.forEach((token, i) => sentencesOf.set(token, (sentencesOf.get(token) || new Set()).add(of[i])));
  /** @param {number} i */
  const named = (i) => cut(visible(tokens[i]), 18) + (several && /** @type {Set<number>} */ (sentencesOf.get(tokens[i])).size > 1 ? ` (${letter(of[i])})` : "");
  const plane = planePart(ui, shift, named);
  let at = stages.length - 1;

  const name = el("output", { class: "shift-stage" });
  const id = ui.id("stage");
  const slider = el("input", { id, type: "range", min: 0, max: stages.length - 1, step: 1, oninput: () => show(Number(slider.value), true) });
  const sentence = el("p", { class: "sentence" });
  const held = el("p", { class: "note" });
  const words = el("div", { class: "table scroll", tabindex: 0, role: "region", "aria-label": "Cosine of each word" });
  const pairs = el("div", { class: "table scroll", tabindex: 0, role: "region", "aria-label": "Words that sentences share" });

  // ---- the tables

  /**
   * @param {string[]} first
   * @param {[any, string[], number[]][]} rows  each row: its heading, texts, and numbers
   * @param {string[]} stagesToo
   */
  function table(first, rows, stagesToo) {
    const heads = [...first, ...stagesToo];
    return el("table", {},
      el("thead", {}, el("tr", {}, heads.map((text, k) => el("th", { scope: "col", "data-stage": k - heads.length + stages.length }, text)))),
      el("tbody", {}, rows.map(([head, more, numbers]) =>
        el("tr", {}, el("th", { scope: "row" }, head), more.map((text) => el("td", {}, text)),
          numbers.map((x, k) => el("td", { "data-stage": k - numbers.length + stages.length }, number(x, 3)))))));
  }

  /** @param {number} i */
  const press = (i) =>
    el("button", { type: "button", class: "shift-word", "aria-pressed": "false", onclick: (/** @type {any} */ event) => {
      event.currentTarget.setAttribute("aria-pressed", String(plane.press(i)));
    } }, drawn(tokens[i]));

  /** A table of each word's position before and after each layer, and of its cosine with the static vector. */
  function pointNumbers() {
    /** @param {number} i @param {string} name @param {Point} point @param {number} cosine */
    const row = (i, name, point, cosine) => [i, tokens[i], of[i], name, ...point, cosine];
    const rows = tokens.flatMap((_, i) => [row(i, "static", before[i], 1), ...stages.map((stage) => row(i, stage.name, stage.points[i], stage.cosine[i]))]);
    return { columns: ["position", "word", "sentence", "at", "x", "y", "cosine_with_static"], rows };
  }

  /** @param {number} k @param {boolean} aloud */
  function show(k, aloud) {
    at = k;
    const stage = stages[k];
    slider.value = String(k);
    slider.setAttribute("aria-valuetext", stage.name);
    fill(name, stage.name);
    const where = whereOf(stage);
    const far = stage.moved.indexOf(Math.max(...stage.moved));
    fill(sentence, word(named(far)), ` has the longest arrow: ${number(stage.moved[far])} in the plane. `,
      "Before the projection onto the plane, all vectors are scaled to length 1, and then each set of vectors is centred. ",
      `The cosine between the word's static vector and its vector ${where} is ${number(stage.cosine[far], 3)}`,
      stage.cosine[far] === Math.min(...stage.cosine) ? ", the lowest of all." : ".");
    fill(held,
      "One plane for all layers: the PCA plane of the static vectors and the vectors of the last layer. All vectors are scaled to length 1, and each set is centred. ",
      `The plane shows ${number(100 * stage.held, 0)}% of the variance of the words' vectors ${where}.`);
    for (const cell of box.querySelectorAll("[data-stage]")) cell.classList.toggle("shift-now", Number(cell.dataset.stage) === k);
    reveal();
    plane.draw(k);
    if (aloud) ui.say(`${stage.name}; mean cosine ${number(stage.cosine.reduce((sum, x) => sum + x, 0) / tokens.length, 3)}`);
  }

  /** Scrolls the tables to the column of the layer that is shown. */
  function reveal() {
    for (const each of [words, pairs]) {
      const head = each.querySelector("th.shift-now");
      if (head) each.scrollLeft = head.offsetLeft + head.offsetWidth - each.clientWidth;
    }
  }

  const picture = el("div", {}, plane.node);
  const menu = saveMenu(ui, picture, () => ({
    name: "shift",
    text: shift.sentences.join(" "),
    caption: `${shift.sentences.map((text, k) => `${several ? `${letter(k)}: ` : ""}“${visible(text)}”`).join(" · ")} · from static vectors to vectors ${whereOf(stages[at])}`,
    numbers: [["words", "shift", pointNumbers]],
  }));
  const headings = stages.map((stage) => stage.name);
  fill(words, table(
    several ? ["word", "sentence"] : ["word"],
    tokens.map((_, i) => [press(i), several ? [letter(of[i])] : [], stages.map((stage) => stage.cosine[i])]),
    headings,
  ));
  fill(pairs, table(
    ["word", "sentences"],
    shift.pairs.map((pair) => [el("bdi", {}, visible(pair.word)), [`${letter(of[pair.a])}, ${letter(of[pair.b])}`], pair.cosine]),
    ["static", ...headings],
  ));
  /** @param {boolean} filled @param {number} k */
  const mark = (filled, k) => svg("svg", { width: 14, height: 14, class: "shift-arrow", "aria-hidden": "true", style: { "--its": lineColour(k) } }, svg("circle", { cx: 7, cy: 7, r: 4, class: filled ? "to" : "from" }));
  fill(box, el("h2", { class: "title" }, payload.title), sentence,
    el("ul", { class: "shift-legend" },
      el("li", {}, mark(false, 0), "before: the word alone, its static vector"),
      shift.sentences.map((text, k) => el("li", {}, mark(true, k), el("span", {}, several ? `${letter(k)}: ` : "after, in: ", el("bdi", {}, cut(visible(text), 90)))))),
    stages.length > 1 ? el("div", { class: "bar" }, el("label", { for: id }, "Layer"), slider, name) : null,
    picture,
    tokens.length > shift.labelled.length ? el("p", { class: "note" }, `Labelled: the ${shift.labelled.length} of ${tokens.length} words that move furthest.`) : null,
    el("p", { class: "note" }, "The cosine between each word's static vector and its vector at each layer (1: the same direction). Press a word to mark its arrow."),
    words, held, menu.node, shift.pairs.length ? [el("p", { class: "note" }, "The cosine between a word's vectors in two sentences."), pairs] : null);
  show(at, false);
  ui.redraw(reveal);
});
