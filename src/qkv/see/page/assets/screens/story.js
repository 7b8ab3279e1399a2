// The story of the model's guess, in eight steps on the reader's own sentence. The text scrolls, and one picture
// stays in view. The lab uses the same pictures. The buttons below a step open the lesson's cards about this step.

import { drawn, el, fill, word } from "../base/elements.js";
import { count, directionOf, percent, readingTime } from "../base/format.js";
import { guessName } from "../base/tokens.js";
import { likeliestOf, probabilitiesOf } from "../engine/sampling.js";
import { isGap } from "../store/positions.js";
import { usually } from "../store/roles.js";
import { openCard } from "../parts/cards.js";
import { mapPart } from "../parts/map.js";
import { motionPart } from "../parts/motion.js";
import { addedTo } from "../parts/sentence.js";
import { stage } from "../parts/stage.js";
import { strips } from "../parts/strips.js";
import "./story.css";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("./lab.js").Screen} Screen */

/**
 * A step of the story: its title, its text (`say`), its picture (`shows`), the part of the animation that it plays
 * (`moments`), and the names of its questions (`asks`). `say` gets the page's data, the word whose vector the story
 * follows (`here`) and whether it is a gap (`gap`), the model's guess (`best`) and the probability of the guess
 * (`share`), and the roles of the heads.
 * @typedef {object} Step
 * @property {string} title
 * @property {(now: Now, named: {here: any, gap: boolean, best: any, share: string, roles: Record<string, [string, number]>}) => any} say
 * @property {"words" | "vectors" | "motion" | "map" | "layers" | "guess"} shows
 * @property {[number, number]} [moments]
 * @property {string[]} [asks]
 */

const JUMP = 1000; // a jump to a step scrolls for at most this many milliseconds
/** @type {Step[]} */
const STEPS = [
  {
    title: "Words",
    shows: "words",
    say: ({ run, model }) => `The model cuts the sentence into ${run.tokens.length} tokens, and knows each by its number among ${count(model.vocabulary)}. ${addedTo(run)}`,
  },
  {
    title: "Vectors",
    shows: "vectors",
    say: ({ model }, { here, gap }) => ["Each token becomes a vector of ", String(model.dim), " numbers, one stripe each. The vector of ", here, gap ? " says only “some word stands here”." : " tells nothing yet of the other words."],
  },
  {
    title: "A query meets the keys",
    shows: "motion",
    moments: [0, 3],
    asks: ["back", "swap"],
    say: (_, { here }) => ["What does ", here, " need to know? It asks with a query, and every token answers with a key. Query times key is a score."],
  },
  {
    title: "Weights",
    shows: "motion",
    moments: [3, 4],
    asks: ["weight", "temperature", "mask"],
    say: () => "The softmax turns scores into attention weights, which add up to 100%. The highest score takes the most.",
  },
  {
    title: "Mixed values",
    shows: "motion",
    moments: [4, 6],
    asks: ["sum"],
    say: (_, { here }) => ["Every token also has a value. The values, multiplied by their weights, are added up for ", here, "."],
  },
  {
    title: "Heads",
    shows: "map",
    asks: ["position", "heads", "remove", "equal"],
    say: ({ model }, { roles }) => `That was one head. The model has ${model.layers * model.heads}.${rolesSaid(roles, model.layers * model.heads)}`,
  },
  {
    title: "Layers",
    shows: "layers",
    asks: ["worth"],
    say: ({ model }, { here, gap }) => ["Layer after layer adds to the vector of ", here, `. After ${model.layers} of them it says which word ${model.next ? "may come next" : gap ? "is missing" : "fits there"}.`],
  },
  {
    title: "The guess",
    shows: "guess",
    asks: ["hide"],
    say: ({ model }, { best, share }) => [`The last vector is compared with all ${count(model.vocabulary)} words. Closest is `, best, `: ${share}.`],
  },
];

/**
 * @param {Ui} ui
 * @param {LiveStore} store
 * @param {{outcome: Part}} parts
 * @returns {Screen}
 */
export function storyScreen(ui, store, { outcome }) {
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");
  const [sentence, motion, map, vectors, layers] = [stage(ui), motionPart(ui), mapPart(ui, store), strips(ui), strips(ui)];
  const chips = el("ol", { class: "ids", "aria-label": "tokens and their numbers" });
  const guess = el("div", {});
  /** @type {Record<Step["shows"], HTMLElement>} */
  const pictures = { words: chips, vectors: vectors.node, motion: motion.node, map: map.node, layers: layers.node, guess };
  const picture = el("div", { class: "picture", tabindex: 0, role: "group", "aria-label": "the picture of this step" });
  const dots = STEPS.map(({ title }, k) => el("button", { type: "button", class: "dot", "aria-label": `Step ${k + 1}: ${title}`, onclick: () => goTo(k) }));
  const play = el("button", { type: "button", class: "play-story", onclick: () => (playing ? halt() : run()) }, "▶ Play");
  const figure = el("figure", {}, sentence.node, picture, el("div", { class: "dots", role: "group", "aria-label": "steps" }, play, dots));
  const says = STEPS.map(() => el("p", {}));
  const asked = STEPS.map(({ asks = [] }) => asks.map(cardNamed).filter((k) => k >= 0));
  const texts = STEPS.map(({ title }, k) =>
    el("section", { class: "step", "data-step": k }, el("h3", {}, `${k + 1}. ${title}`), says[k],
      asked[k].length ? el("p", { class: "asks" }, asked[k].map((card) => el("button", { type: "button", onclick: () => openCard(store, card) }, `Card ${card + 1}`))) : null));
  const end = el("section", { class: "step end" }, el("h3", {}, "Now you"),
    el("div", { class: "acts" },
      el("button", { type: "button", onclick: () => store.set({ view: "front" }) }, "Hide another word"),
      el("button", { type: "button", onclick: () => store.set({ view: "games" }) }, "Play a game"),
      el("button", { type: "button", onclick: () => store.set({ view: "lab" }) }, "Open the lab")));
  const none = el("p", { class: "say", hidden: true }, "There is no guess to explain: write a sentence first.");
  const telling = el("div", { class: "telling" }, el("div", { class: "steps-told" }, texts, end), figure);
  const node = el("div", { class: "story", "data-part": "story" }, el("h2", { tabindex: -1 }, "How does it do that?"), none, telling);
  /** @type {[number, any, number]} */
  let [at, playing, landed] = [-1, null, 0]; // the current step; the timer of the next step; the time when the last jump ends
  let moves = 0; // the milliseconds that the animation of the current step takes
  /** @type {Now} */
  let last;

  const observer = new IntersectionObserver((entries) => {
    if (performance.now() < landed) return;
    for (const { isIntersecting, target } of entries) if (isIntersecting) turnTo(Number(/** @type {HTMLElement} */ (target).dataset.step));
  }, { rootMargin: "-62% 0px -37% 0px" });
  for (const text of texts) observer.observe(text);

  /** @param {string} name */
  function cardNamed(name) {
    return (store.data.cards ?? []).findIndex((/** @type {any} */ card) => card.name === name);
  }

  /**
   * Keys lead from step to step, except in the picture, which uses them itself.
   * @param {any} event
   */
  function turn(event) {
    const { key, defaultPrevented, ctrlKey, metaKey, altKey, shiftKey } = event;
    const by = { PageDown: 1, ArrowDown: 1, ArrowRight: 1, PageUp: -1, ArrowUp: -1, ArrowLeft: -1 }[/** @type {string} */ (key)] ?? 0;
    if (!by || defaultPrevented || ctrlKey || metaKey || altKey || shiftKey || !node.isConnected || !texts[at + by]) return;
    if (event.composedPath()[0].closest?.("input, .picture")) return;
    event.preventDefault();
    goTo(at + by);
  }
  for (const one of [node, document]) one.addEventListener("keydown", turn); // the view stops the keys that are pressed in it

  /** @param {number} k */
  function goTo(k) {
    landed = performance.now() + JUMP; // until this time, `observer` ignores the steps that scroll past
    texts[k].scrollIntoView({ block: "center", behavior: still.matches ? "auto" : "smooth" });
    turnTo(k);
  }

  function run() {
    const begin = at >= STEPS.length - 1 || at < 0 ? 0 : at;
    fill(play, "❚❚ Pause");
    goTo(begin);
    const wait = () => (playing = setTimeout(next, readingTime(says[at].textContent) + moves));
    const next = () => {
      if (at + 1 >= STEPS.length || !node.isConnected) return halt();
      goTo(at + 1);
      wait();
    };
    wait();
  }

  function halt() {
    clearTimeout(playing);
    playing = null;
    fill(play, "▶ Play");
  }

  /** @param {number} k */
  function turnTo(k) {
    if (k === at) return;
    at = k;
    texts.forEach((text, i) => text.classList.toggle("on", i === k));
    dots.forEach((dot, i) => dot.setAttribute("aria-current", String(i === k)));
    if (last && node.isConnected) show(); // other screens show the same outcome part
  }

  /** Shows the picture of the current step, and updates the texts of all steps. */
  function show() {
    const { shows, moments } = STEPS[at];
    if (picture.firstChild !== pictures[shows]) fill(picture, pictures[shows]);
    node.dataset.step = String(at);
    moves = 0;
    const { run, state } = last;
    const [T, position] = [run.tokens.length, state.position ?? 0];
    const told = { ...last, state: Object.freeze({ ...state, inside: true, query: position }) };
    /** @param {Float32Array} resid @param {number} t */
    const vector = (resid, t) => resid.subarray((t * resid.length) / T, ((t + 1) * resid.length) / T);
    sentence.update(last, !["motion", "map"].includes(shows));
    if (shows === "words") fill(Object.assign(chips, { dir: directionOf(last.sentence) }), run.tokens.map((token, t) => el("li", {}, drawn(token), el("small", {}, String(run.ids[t])))));
    if (shows === "vectors") {
      const own = vectors.update(run.tokens.map((token, t) => [token, vector(run.resid[0], t)]), position);
      const [top = 0, from] = [own, picture].map((one) => one?.getBoundingClientRect().top);
      picture.scrollTop += top - from - picture.clientHeight / 2; // a small window shows only some of the strips
    }
    if (shows === "layers") layers.update(run.resid.map((resid, l) => [l ? `after layer ${l - 1}` : "at first", vector(resid, position)]), run.resid.length);
    if (shows === "motion") {
      motion.update(told);
      moves = motion.play(.../** @type {[number, number]} */ (moments));
    }
    if (shows === "map") map.update(told);
    if (shows === "guess") {
      outcome.update(told);
      if (outcome.node.parentNode !== guess) guess.append(outcome.node);
    }
    says.forEach((node, k) => fill(node, STEPS[k].say(last, { ...namedIn(last), roles: store.data.roles ?? {} })));
  }

  /** @param {Told} now */
  async function update(now) {
    if (!now.run) return;
    none.hidden = now.run.logits.length > 0;
    telling.hidden = !none.hidden;
    if (telling.hidden) return;
    last = /** @type {Now} */ (now);
    if (at < 0) turnTo(0);
    else show();
  }
  return { node, update, shown: () => at > 0 && store.state.text === last.state.text && goTo(at) };
}

/**
 * Returns the values that the texts of the steps mention: the word at the position (or "the gap"), the likeliest word,
 * and the probability of the likeliest word.
 * @param {Now} now
 */
function namedIn(now) {
  const { run, state, model } = now;
  const probabilities = probabilitiesOf(run.logits);
  const [id] = likeliestOf(probabilities, 1);
  const [here, best] = [word(run.tokens[state.position ?? 0]), word(guessName(model.words, id))];
  return { here, gap: isGap(now), best, share: percent(probabilities[id]) };
}

const ROLES_SAID = 3; // the number of roles in the sentence about the heads

/**
 * A sentence about the roles that most heads share; empty if the model's heads were not measured.
 * @param {Record<string, [string, number]>} roles
 * @param {number} heads
 */
function rolesSaid(roles, heads) {
  const known = Object.values(roles).map(([role]) => usually(role));
  if (!known.length) return "";
  /** @type {[number, string][]} */
  const counted = [...new Set(known)].map((said) => [known.filter((one) => one === said).length, said]);
  const most = counted.sort(([one], [other]) => other - one).slice(0, ROLES_SAID);
  const listed = most.map(([n, said]) => `in ${n}, ${said.replace(/^usually/, "a word usually")}`).join("; ");
  return ` I${listed.slice(1)}. ${heads - known.length} have no measured role.`;
}
