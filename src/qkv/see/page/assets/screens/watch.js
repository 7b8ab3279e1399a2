// One word in two sentences, layer by layer: one point becomes two points. The picture projects the model's vectors on
// two directions. The horizontal direction is the difference of the word's two vectors after the last layer. The
// vertical direction is the change of their mean from the first layer's input to the last layer's output, without the
// component along the horizontal direction.

import { el, fill, svg, word } from "../base/elements.js";
import { fixed, visible } from "../base/format.js";
import { wordsOf } from "../store/positions.js";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("./lab.js").Screen} Screen */
/** @typedef {{name: string, at: [number, number][][], alike: number[]}} Paths  `at`: for each text, the point at each layer */

const SENTENCES = ["The bank of the river was muddy.", "The bank gave us a loan for the house."];
const [WIDEST, MARGIN] = [900, 46];
const SOON = 300; // the milliseconds from the last key press to the computation

/** @param {Ui} ui @param {LiveStore} store @returns {Screen} */
export function watchScreen(ui, store) {
  let later = 0;
  const fields = SENTENCES.map((value, i) => el("input", { type: "text", value, "aria-label": `sentence ${"AB"[i]}`, spellcheck: "false", autocomplete: "off", oninput: () => [clearTimeout(later), (later = setTimeout(() => compute(), SOON))] }));
  const title = el("h2", { tabindex: -1 }, "Watch ", el("em", {}, "bank"), " change its mind");
  const slider = el("input", { type: "range", min: 0, step: 1, value: 0, id: ui.id("layer"), oninput: () => draw() });
  const at = el("output", { for: slider.id });
  const play = el("button", { type: "button", onclick: () => run() }, "▶ Play");
  const say = el("div", { class: "say", role: "status" });
  const picture = svg("svg", { role: "img" });
  const names = ["how they come to differ →", "what they share →"].map((name) => svg("text", { class: "axis-name", "text-anchor": "middle" }, name));
  const marks = ["a", "b"].map((kind) => ({
    trail: svg("path", { class: "trail", stroke: `var(--${kind})` }),
    dot: svg("circle", { class: "dot", r: 11, fill: `var(--${kind})` }),
    name: svg("g", { class: "name" }, svg("text", { x: 16, y: 5 }, kind.toUpperCase())),
  }));
  picture.append(...marks.flatMap(({ trail, dot, name }) => [trail, dot, name]), ...names);
  const node = el("div", { class: "game-on watch", "data-part": "watch" }, title,
    el("div", { class: "fields" }, fields.map((field, i) => el("label", {}, el("span", { style: { color: `var(--${"ab"[i]})` } }, "AB"[i]), field))),
    picture, el("div", { class: "slide" }, play, el("label", { for: slider.id }, "Layer"), slider, at), say);
  /** @type {Paths | null} */
  let paths = null;
  let playing = 0;
  let asked = 0;
  let moves = false; // whether changes of the picture are animated; false for the first picture

  async function compute() {
    const mine = (asked += 1);
    const engine = /** @type {Door} */ (store.engine);
    const model = await engine.model;
    const texts = fields.map(({ value }) => value.trim() || " ");
    const runs = await Promise.all(texts.map((text) => engine.run(text, [], { at: [] })));
    if (mine !== asked) return;
    const words = runs.map((run, i) => wordsOf(texts[i], run, model));
    paths = pathsOf(runs, words);
    if (!paths) fill(say, "Write two sentences that have one word in common, such as ", word("bank"), ".");
    for (const part of [picture, slider.parentNode]) part.toggleAttribute("hidden", !paths);
    if (!paths) return;
    fill(title, "Watch ", el("em", {}, visible(paths.name)), " change its mind");
    slider.max = String(paths.alike.length - 1);
    draw();
  }

  function draw() {
    if (!paths) return;
    const layer = Number(slider.value);
    const wide = Math.min(WIDEST, node.clientWidth);
    const tall = Math.min(380, 0.75 * wide);
    if (!wide) return;
    picture.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
    picture.style.setProperty("max-width", `${wide}px`);
    names[0].setAttribute("transform", `translate(${wide / 2} ${tall - 6})`);
    names[1].setAttribute("transform", `translate(14 ${tall / 2}) rotate(-90)`);
    const all = paths.at.flat();
    const [low, high] = [Math.min, Math.max].map((end) => [0, 1].map((axis) => end(...all.map((p) => p[axis]))));
    const unit = Math.min((wide - 2 * MARGIN) / (high[0] - low[0] || 1), (tall - 2 * MARGIN) / (high[1] - low[1] || 1));
    /** @param {[number, number]} p */
    const pixelsOf = (p) => [wide / 2 + (p[0] - (low[0] + high[0]) / 2) * unit, tall / 2 - (p[1] - (low[1] + high[1]) / 2) * unit];
    paths.at.forEach((points, i) => {
      const [x, y] = pixelsOf(points[layer]);
      const { trail, dot, name } = marks[i];
      trail.setAttribute("d", `M${points.slice(0, layer + 1).map(pixelsOf).join("L")}`);
      picture.classList.toggle("moves", moves);
      dot.style.setProperty("cx", `${x}px`);
      dot.style.setProperty("cy", `${y}px`);
      name.style.setProperty("transform", `translate(${x}px, ${y + (i ? 14 : -14)}px)`);
    });
    moves = true;
    const alike = paths.alike[layer];
    fill(at, layer ? `after ${layer - 1}` : "before the first");
    fill(say, layer ? [`After layer ${layer - 1} the two vectors of `, word(paths.name), ` have the cosine ${fixed(alike, 2)}.`]
      : ["Before the first layer ", word(paths.name), alike > 0.9995 ? " is one and the same vector in both sentences." : ` has the cosine ${fixed(alike, 2)}: the two differ by their position alone.`]);
    picture.setAttribute("aria-label", `${paths.name} in both sentences: cosine ${fixed(alike, 2)}`);
  }

  function run() {
    clearInterval(playing);
    slider.value = "0";
    draw();
    playing = setInterval(() => {
      slider.value = String(Number(slider.value) + 1);
      draw();
      if (slider.value === slider.max || !node.isConnected) clearInterval(playing);
    }, 900);
  }

  ui.redraw(draw);
  return {
    node,
    async update({ model }) {
      if (paths || asked || !model) return;
      await compute();
    },
  };
}

/**
 * Follows one word that both texts contain: "bank", or else the longest common word. Returns the word's points at each
 * layer. If the texts have no long word in common, returns null.
 * @param {import("../engine/door.js").Run[]} runs
 * @param {[number, number, string][][]} words
 * @returns {Paths | null}
 */
function pathsOf(runs, words) {
  const [names, others] = words.map((all) => all.map(([, , name]) => name.toLowerCase()));
  const shared = names.filter((name) => name.length > 3 && others.includes(name));
  const name = shared.find((one) => one === "bank") ?? shared.sort((a, b) => b.length - a.length)[0];
  if (!name) return null;
  const vectors = runs.map(({ resid, tokens }, i) => {
    const [token] = words[i][(i ? others : names).indexOf(name)];
    return resid.map((one) => one.subarray((token * one.length) / tokens.length, ((token + 1) * one.length) / tokens.length));
  });
  const [a, b] = vectors;
  const last = a.length - 1;
  const apart = unit(a[last].map((x, c) => b[last][c] - x));
  const shift = a[last].map((x, c) => x + b[last][c] - a[0][c] - b[0][c]);
  const along = dot(shift, apart);
  const together = unit(shift.map((x, c) => x - along * apart[c]));
  const middle = a[0].map((x, c) => (x + b[0][c]) / 2);
  const at = vectors.map((all) => all.map((one) => {
    const moved = one.map((x, c) => x - middle[c]);
    return /** @type {[number, number]} */ ([dot(moved, apart), dot(moved, together)]);
  }));
  return { name, at, alike: a.map((one, l) => dot(unit(one), unit(b[l]))) };
}

/** @param {Float32Array} one @param {Float32Array} other */
function dot(one, other) {
  return one.reduce((sum, x, c) => sum + x * other[c], 0);
}

/** @param {Float32Array} vector */
function unit(vector) {
  const long = Math.sqrt(dot(vector, vector)) || 1;
  return vector.map((x) => x / long);
}
