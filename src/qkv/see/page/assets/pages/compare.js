// The page of "compare": two texts, or two runs of one text, on one axis of tokens.

import { el, fill, word } from "../base/elements.js";
import { mounter } from "../base/mount.js";
import { count, number, roundEnds, visible } from "../base/format.js";
import { recordedStore } from "../store/recorded_store.js";
import { lineChart } from "../parts/chart.js";
import { helpOf, notesOf, titleNode, whyOf } from "../parts/notes.js";
import { pairPart } from "../parts/pair.js";
import { viewBarPart } from "../parts/view_bar.js";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../engine/recorded.js").Source} Source */
/** @typedef {import("../engine/recorded.js").Text} Text */
/** @typedef {import("../store/store.js").Now} Now */

/**
 * The data that page/payload.py writes for two texts, or for two runs of one text.
 * @typedef {object} Compared
 * @property {"word" | "runs"} what
 * @property {string} sentence
 * @property {string} [word]  the shared word; this field and the following fields exist only for two texts
 * @property {string} [why]  the reason for this word
 * @property {string[]} [texts]
 * @property {[number[], number[]]} [positions]
 * @property {number[]} [similarity]  the cosines of the shared word, at the embeddings and after each layer
 * @property {{to_token: string, layer: number, head: number, weight: number}[][]} [strongest]  the strongest links of each text
 * @property {string} [of]  the vectors whose changes are measured; this field and the following fields exist only for
 *     two runs
 * @property {[number, number, number, number][]} [changes]  token, distance, cosine, length before
 * @property {number[]} [by_layer]  the mean distance
 */

/** @param {any} box @param {any} data @param {Ui} ui */
function compare(box, data, ui) {
  /** @type {{compare: Compared}} */
  const { compare: compared } = data;
  const store = recordedStore(data, update);
  const { runs } = store.engine;
  const [bar, pair] = [viewBarPart(ui, store), pairPart(ui)];
  const first = compared.positions ? compared.positions.map(([position]) => position) : runs.map(() => compared.changes?.[0]?.[0] || 0);
  const [why, notes] = [el("p", { class: "note" }), el("div", {})];
  box.classList.add("recorded");
  box.append(
    titleNode(data),
    el("p", { class: "lead" }, compared.sentence),
    ...(compared.texts ?? []).map((text, k) => el("p", { class: "compared" }, el("b", {}, data.texts[k].name), " ", el("bdi", {}, visible(text)))),
    el("div", { class: "panels" }, compared.what === "runs" ? changes(/** @type {Required<Compared>} */ (compared), data.texts[0]) : shared(/** @type {Required<Compared>} */ (compared), data, open)),
    bar.node, pair.node, why, ...(compared.why ? [el("p", { class: "note" }, compared.why)] : []), notes, helpOf(),
  );

  /** @param {number} layer @param {number} head */
  function open(layer, head) {
    store.set({ layer, head });
    ui.say(pair.sides.map(({ sentence }) => sentence.textContent).join(" "));
  }

  /** @param {Now} now */
  function update(now) {
    bar.update(now);
    const cursors = pair.sides.map((side, k) => (side.head ? side.cursor : first[k]));
    const names = runs.map(({ source }) => /** @type {Source} */ (source).text.name);
    pair.set({ state: now.state, runs, edits: [[], []], names, cursors });
    fill(why, whyOf(now, data.start));
    fill(notes, notesOf(now, runs));
  }
  update(store.now);
}

export const start = mounter(compare);

// ---- parts that only a comparison has

/** @param {any} title @param {...any} children */
function panel(title, ...children) {
  return el("section", { class: "panel" }, el("h3", {}, title), children);
}

/**
 * A chart with one point for each layer; beside each point stands its value.
 * @param {number[]} values
 * @param {number[]} layers
 * @param {string} label
 */
function layerChart(values, layers, label) {
  /** @param {number} i */
  const name = (i) => (i ? `layer ${layers[i - 1]}` : "emb.");
  const chart = lineChart(Math.max(280, 64 * values.length + 44), values, { ...roundEnds([0, 1e-9, ...values]), name, say: number, label });
  return el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, chart);
}

/**
 * The change of each token between the runs, the largest change first.
 * @param {Required<Compared>} compare
 * @param {Text} text
 */
function changes(compare, text) {
  const all = compare.changes;
  const rows = all.slice(0, 200).map(([i, distance, cosine, length]) =>
    el("tr", {}, el("th", { scope: "row" }, word(text.tokens[i])), el("td", {}, number(distance, 3)),
      el("td", { class: "meter" }, el("span", { style: { width: `${(100 * distance) / (all[0][1] || 1)}%` } })),
      el("td", {}, number(cosine, 3)), el("td", {}, number(length))));
  const head = ["token", "distance", "", "cosine", "length before"].map((name) => (name ? el("th", { scope: "col" }, name) : el("td")));
  return [
    panel(`What changed in ${compare.of}, largest first`,
      el("div", { class: "scroll table", tabindex: 0, role: "group", "aria-label": "changes" },
        el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows))),
      rows.length < all.length ? el("p", { class: "note" }, `Shown: the ${rows.length} of ${count(all.length)} tokens that changed most.`) : null),
    compare.by_layer.length ? panel("Mean distance between the runs, by layer", layerChart(compare.by_layer, text.layers, "mean distance")) : null,
  ];
}

/**
 * The similarity of the shared word by layer, and the words to which it attends most in each text.
 * @param {Required<Compared>} compare
 * @param {any} data
 * @param {(layer: number, head: number) => void} open
 */
function shared(compare, data, open) {
  const name = word(compare.word);
  const most = compare.strongest.map((links, k) => {
    const { layers, name: side_ } = data.texts[k];
    return el(
      "div",
      {},
      el("h4", {}, `In ${visible(side_)}`),
      links.map(({ to_token, layer, head, weight }) =>
        el(
          "button",
          { type: "button", onclick: () => open(layers.indexOf(layer), head) },
          word(to_token),
          ` ${number(weight)} `,
          el("span", { class: "dim" }, `layer ${layer}, head ${head}`),
        ),
      ),
    );
  });
  return [
    compare.similarity.length
      ? panel(
          ["How similar ", name, " is in both, by layer (cosine)"],
          layerChart(compare.similarity, data.texts[0].layers, "cosine"),
        )
      : null,
    panel(
      ["The content words that ", name.cloneNode(true), " attends to most, each in its strongest head"],
      el("div", { class: "pair" }, most),
    ),
  ];
}
