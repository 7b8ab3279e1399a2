// The story of the model's guess, in eight steps on the reader's own sentence. All steps have the same frame: what to see
// and to do, the sentence, one picture, one control. Nothing moves from step to step but the picture's content.

import { drawn, el, fill, word } from "../base/elements.js";
import { count, directionOf, percent, readingTime } from "../base/format.js";
import { range } from "../base/arrays.js";
import { guessName } from "../base/tokens.js";
import { likeliestOf, probabilitiesOf } from "../engine/sampling.js";
import { usually } from "../store/roles.js";
import { openCard } from "../parts/cards.js";
import { motionPart } from "../parts/motion.js";
import { hiding } from "../parts/sentence.js";
import { stage } from "../parts/stage.js";
import "./story.css";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("../store/store.js").Now} Now */
/** @typedef {import("../store/store.js").Told} Told */
/** @typedef {import("../store/store.js").Part} Part */
/** @typedef {import("../store/store.js").LiveStore} LiveStore */
/** @typedef {import("../engine/edits.js").ByOp} ByOp */
/** @typedef {import("./lab.js").Screen} Screen */

/**
 * A step of the story: its title, its text (`say`, at most 20 words), its picture (`shows`), and the moments of the
 * animation that it plays. `say` gets the page's data, and the word that the story follows (`here`), the model's guess
 * (`best`) with its probability (`share`), and the head (`head`).
 * @typedef {object} Step
 * @property {string} title
 * @property {(now: Now, named: {here: any, best: any, share: string, head: string, top: any}) => any} say
 * @property {"tokens" | "motion" | "heads" | "layers" | "guess"} shows
 * @property {[number, number]} [moments]
 */

/** @type {Step[]} */
const STEPS = [
  {
    title: "Tokens",
    shows: "tokens",
    say: ({ run, model }) => `The model cuts your sentence into ${run.tokens.length} tokens, and turns each into ${count(model.dim)} numbers. Press a word to follow it.`,
  },
  {
    title: "A query and its keys",
    shows: "motion",
    moments: [0, 1],
    say: (_, { here }) => [here, " has a query: what it seeks. Each visible token has a key: what it offers. Drag the query."],
  },
  {
    title: "Scores",
    shows: "motion",
    moments: [1, 3],
    say: (_, { top }) => ["Multiply matching numbers of query and key; the sum is the score. ", ...(top ? ["Watch ", top, ", the best match."] : [])],
  },
  {
    title: "Weights",
    shows: "motion",
    moments: [3, 4],
    say: () => "Softmax turns scores into weights, which sum to 100%. Hide a word, and the other words get its weight.",
  },
  {
    title: "Values",
    shows: "motion",
    moments: [4, 6],
    say: () => "Each token also has a value. The values, each multiplied by its weight, sum to the head's output.",
  },
  {
    title: "Heads",
    shows: "heads",
    say: ({ model }, { head }) => `This is head ${head}, one of ${count(model.layers * model.heads)}. Move the slider, and watch what each head attends to.`,
  },
  {
    title: "Layers",
    shows: "layers",
    say: () => "In each layer, heads and an MLP add to the vector. Move the slider to see the guess so far.",
  },
  {
    title: "The guess",
    shows: "guess",
    say: ({ model }, { best, share }) => [`The last vector is compared with the vocabulary's ${count(model.vocabulary)} tokens. Best match: `, best, `, ${share}. Press a word to hide it.`],
  },
];
const [QUERY, WEIGHTS, VALUES, HEADS, LAYERS, GUESS] = [1, 3, 4, 5, 6, 7];
const MANY = 16; // more guesses than this stand in narrower rows
const [LARGEST, NARROWEST] = [2.4, 330]; // the largest scale of a picture, and its smallest width before scaling

/**
 * @param {Ui} ui
 * @param {LiveStore} store
 * @param {{outcome: Part}} parts
 * @returns {Screen}
 */
export function storyScreen(ui, store, { outcome }) {
  const [sentence, motion] = [stage(ui, ([first, end]) => press(first, end)), motionPart(ui)];
  const [tokens, heads, lens] = [el("ol", { class: "ids", "aria-label": "tokens and their numbers" }), el("div", { class: "heads" }), el("ol", { class: "lens", "aria-label": "the guess after each layer" })];
  const guess = el("div", {});
  /** @type {Record<Step["shows"], HTMLElement>} */
  const pictures = { tokens, motion: motion.node, heads, layers: lens, guess };
  const picture = el("div", { class: "picture", tabindex: 0, role: "group", "aria-label": "the picture of this step" });
  const [title, says] = [el("h2", { tabindex: -1 }), el("p", { class: "telling" })];
  const slider = el("input", { type: "range", min: 0, step: 1, oninput: () => slide(Number(slider.value)) });
  /** @param {string} label @param {() => void} act */
  const button = (label, act) => el("button", { type: "button", onclick: act }, label);
  const cards = (store.data.cards ?? []).length;
  const ends = el("div", { class: "ends" }, cards ? button(`${cards} questions`, () => openCard(store, 0)) : null, button("Play a game", () => store.set({ view: "games" })), button("Open the lab", () => store.set({ view: "lab" })));
  const dots = STEPS.map((step, k) => el("button", { type: "button", class: "dot", "aria-label": `Step ${k + 1}: ${step.title}`, onclick: () => turnTo(k) }));
  const [back, next, play] = [button("Back", () => turnTo(at - 1)), button("Next", () => turnTo(at + 1)), button("▶ Play", () => (playing ? halt() : run()))];
  next.classList.add("primary");
  play.classList.add("play-story");
  const none = el("p", { class: "say", hidden: true }, "There is no guess to explain: write a sentence first.");
  const frame = el("div", { class: "frame" }, title, says, sentence.node, picture, el("div", { class: "control" }, slider, ends),
    el("div", { class: "steps", role: "group", "aria-label": "steps" }, back, el("div", { class: "dots" }, dots), play, next));
  const node = el("div", { class: "story", "data-part": "story" }, none, frame);
  /** @type {[number, number | null, any, string]} */
  let [at, query, playing, shown] = [0, null, null, ""]; // the step; the token that the story follows; the timer of the next step; what the animation has shown
  /** @type {[number, number]} */
  let [moves, depth] = [0, Infinity]; // the milliseconds that the animation of the step takes; the layer whose guess is shown
  /** @type {{key: string, rows: {id: number, share: number, logits: Float32Array}[] | null}} */
  let told = { key: "", rows: null }; // the guesses after each layer
  /** @type {Now} */
  let last;

  // ---- from step to step

  /**
   * A clicker sends PageDown and PageUp. The arrow keys belong to the slider and the picture while they have the focus.
   * @param {any} event
   */
  function turn(event) {
    const { key, defaultPrevented, ctrlKey, metaKey, altKey, shiftKey } = event;
    const by = { PageDown: 1, ArrowDown: 1, ArrowRight: 1, PageUp: -1, ArrowUp: -1, ArrowLeft: -1 }[/** @type {string} */ (key)] ?? 0;
    if (!by || defaultPrevented || ctrlKey || metaKey || altKey || shiftKey || !node.isConnected || frame.hidden || !STEPS[at + by]) return;
    if (key.startsWith("Arrow") && event.composedPath()[0].closest?.("input, .picture")) return;
    event.preventDefault();
    turnTo(at + by);
  }
  for (const one of [node, document]) one.addEventListener("keydown", turn); // the view stops the keys that are pressed in it

  function run() {
    fill(play, "❚❚ Pause");
    turnTo(at + 1 < STEPS.length ? at : 0);
    const wait = () => (playing = setTimeout(onwards, readingTime(says.textContent) + moves));
    const onwards = () => {
      if (at + 1 >= STEPS.length || !node.isConnected) return halt();
      turnTo(at + 1);
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
    if (at === WEIGHTS && k !== at) giveBack();
    [at, shown] = [k, ""];
    if (!last) return;
    show();
    ui.say(`${title.textContent}. ${says.textContent}`);
  }

  // ---- what the reader does

  /**
   * The reader pressed a word: the story follows it, or takes it away from the head, or hides it from all heads.
   * @param {number} first @param {number} end
   */
  function press(first, end) {
    if (at === GUESS) store.set({ edits: hiding(store.state.edits, range(first, end)) });
    else if (at === WEIGHTS) takeAway(range(first, end));
    else follow(first, end);
  }

  /** @param {number} first @param {number} end */
  function follow(first, end) {
    const { position } = last.state;
    query = position !== null && first <= position && position < end ? position : last.model.next ? end - 1 : first;
    show();
  }

  /**
   * The masks of this step: the query does not see these keys in the head.
   * @param {number} [key]
   */
  const taken = (key) => /** @type {ByOp["mask"][]} */ (store.state.edits.filter((edit) =>
    edit.op === "mask" && edit.query === asks() && edit.layer === store.state.layer && edit.head === store.state.head && (key ?? edit.key) === edit.key));

  /** @param {number[]} keys */
  function takeAway(keys) {
    const { edits, layer, head } = store.state;
    const gone = taken().filter(({ key }) => keys.includes(key));
    const more = keys.map((key) => ({ op: "mask", query: asks(), key, layer, head }));
    if (gone.length) giveBack(gone);
    else store.set({ edits: [...edits, ...more] }, { undo: false });
  }

  function giveBack(/** @type {any[]} */ all = last ? taken() : []) {
    if (all.length) store.set({ edits: store.state.edits.filter((edit) => !all.includes(edit)) }, { undo: false });
  }

  /** @param {number} value */
  function slide(value) {
    const { words, model } = last;
    if (at === QUERY) follow(words[value][0], words[value][1]);
    else if (at === HEADS) store.set({ layer: Math.floor(value / model.heads), head: value % model.heads }, { undo: false });
    else {
      depth = value;
      show();
    }
  }

  // the query moves with the pointer, from word to word
  let dragged = false;
  sentence.words.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    dragged = at === QUERY && !event.button;
    if (dragged) /** @type {Element} */ (event.target).releasePointerCapture?.(event.pointerId);
  });
  window.addEventListener("pointerup", () => (dragged = false));
  sentence.words.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    const over = dragged && /** @type {ShadowRoot} */ (node.getRootNode()).elementFromPoint(event.clientX, event.clientY)?.closest("[data-token]");
    const found = over && last.words.find(([first]) => first === Number(/** @type {HTMLElement} */ (over).dataset.token));
    if (found && !(found[0] <= asks() && asks() < found[1])) follow(found[0], found[1]);
  });
  heads.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => event.buttons && pickHead(event));
  heads.addEventListener("pointerdown", pickHead);

  /** @param {PointerEvent} event */
  function pickHead(event) {
    const cell = /** @type {HTMLElement} */ (event.target).dataset.head;
    if (cell) slide(Number(cell));
  }

  // ---- what the reader sees

  const asks = () => Math.min(query ?? store.state.position ?? 0, last.run.tokens.length - 1);

  /** Shows the current step. */
  function show() {
    const { title: name, say, shows } = STEPS[at];
    const { run, state, model, words } = last;
    const own = asks();
    node.dataset.step = String(at);
    if (picture.firstChild !== pictures[shows]) fill(picture, pictures[shows]);
    fill(title, `${at + 1}. ${name}`);
    fill(says, say(last, named()));
    dots.forEach((dot, k) => dot.setAttribute("aria-current", String(k === at)));
    [back.disabled, next.disabled] = [!at, !STEPS[at + 1]];
    [slider.hidden, ends.hidden] = [![QUERY, HEADS, LAYERS].includes(at), at !== GUESS];
    /** @type {[string, number, number, string]} */
    const [label, value, most, text] = at === HEADS ? ["head", state.layer * model.heads + state.head, model.layers * model.heads - 1, `head ${state.layer}.${state.head}`]
      : at === LAYERS ? ["layer", Math.min(depth, model.layers), model.layers, nameOf(Math.min(depth, model.layers))]
      : ["query", words.findIndex(([first, end]) => first <= own && own < end), words.length - 1, run.tokens[own]];
    for (const [key, put] of Object.entries({ max: most, "aria-label": label, "aria-valuetext": text })) slider.setAttribute(key, String(put));
    slider.value = String(value);
    /** @type {{heads?: [number, number][], query?: number}} */
    const looks = at < LAYERS && at ? { heads: [[state.layer, state.head]], query: own } : {};
    sentence.update(at === LAYERS ? asSoFar() : last, at < QUERY || at === LAYERS, looks);
    if (at === LAYERS) sentence.words.querySelector(".gap")?.setAttribute("aria-label", `the guess ${text}`);
    for (const one of /** @type {HTMLElement[]} */ ([...sentence.words.children])) {
      const first = Number(one.dataset.token);
      const span = words.find(([begin]) => begin === first) ?? [first, first];
      one.classList.toggle("asks", span[0] <= own && own < span[1]);
      if (at === WEIGHTS && taken(first).length) one.classList.add("off");
    }
    draw();
    fit();
  }

  function draw() {
    const { run, state } = last;
    const { shows, moments } = STEPS[at];
    const own = { ...last, state: Object.freeze({ ...state, inside: true, query: asks() }) };
    const made = JSON.stringify([at, asks(), state.layer, state.head, state.text, state.edits]);
    if (shows === "tokens") fill(Object.assign(tokens, { dir: directionOf(last.sentence) }), run.tokens.map((token, t) => el("li", { class: t === asks() ? "on" : "" }, drawn(token), el("small", {}, String(run.ids[t])))));
    if (shows === "motion") {
      motion.update(own);
      if (made !== shown) moves = motion.play(.../** @type {[number, number]} */ (moments), false);
    } else moves = 0;
    shown = made;
    if (shows === "heads") drawHeads();
    if (shows === "layers") drawLens();
    if (shows === "guess") {
      outcome.update(own);
      if (outcome.node.parentNode !== guess) guess.append(outcome.node);
    }
  }

  /** A square for each head, with more colour if the head gives more weight to the word to which the chosen head attends most. */
  function drawHeads() {
    const { run, state, model } = last;
    const [top, T] = [mostOf(), run.tokens.length];
    const squares = el("div", { class: "squares", style: { "--columns": model.layers } }, range(0, model.heads).flatMap((head) => range(0, model.layers).map((layer) =>
      el("i", { "data-head": layer * model.heads + head, class: layer === state.layer && head === state.head ? "on" : "", style: { "--share": top === null ? 0 : run.pattern[layer][head][asks() * T + top] } }))));
    const [role] = store.data.roles?.[`${state.layer}.${state.head}`] ?? [];
    fill(heads, squares, el("p", {}, `Head ${state.layer}.${state.head}${role ? `: ${usually(role)}` : ""}.`, top === null ? null : [" More colour: more weight on ", word(run.tokens[top]), "."]));
  }

  /** The key with the largest weight of the query in the chosen head. */
  function mostOf() {
    const { run, state } = last;
    const T = run.tokens.length;
    const row = run.pattern[state.layer]?.[state.head]?.subarray(asks() * T, (asks() + 1) * T) ?? [];
    return row.length ? row.indexOf(Math.max(...row)) : null;
  }

  /** Runs the model for the guesses after each layer, and shows them. */
  async function drawLens() {
    const { state, model } = last;
    const key = JSON.stringify([state.text, state.edits, asks()]);
    if (told.key !== key) {
      told = { key, rows: null };
      const engine = /** @type {Api} */ (store.engine);
      const { lens: all = [] } = await engine.run(state.text, state.edits, { at: [asks()], layers: [], lens: true });
      if (told.key !== key) return;
      told.rows = all.map((logits) => {
        const probabilities = probabilitiesOf(logits);
        const [id] = likeliestOf(probabilities, 1);
        return { id, share: probabilities[id], logits };
      });
      if (at === LAYERS && node.isConnected) show();
      return;
    }
    const here = Math.min(depth, model.layers);
    if (!told.rows) return;
    slider.hidden = !told.rows.length;
    fill(lens, told.rows.length ? told.rows.map(({ id, share }, l) => el("li", { class: l === here ? "on" : "" }, el("span", {}, nameOf(l)), el("b", {}, drawn(guessName(model.words, id))), el("i", { style: { "--share": share } }), el("small", {}, percent(share))))
      : el("li", {}, "The server does not send the guesses after each layer."));
    lens.classList.toggle("many", told.rows.length > MANY);
    const [row, box] = [lens.querySelector(".on"), picture].map((one) => one?.getBoundingClientRect());
    if (row && box) picture.scrollTop += Math.max(0, row.bottom - box.bottom) + Math.min(0, row.top - box.top);
  }

  /** @param {number} l  0 for the input of the first layer */
  const nameOf = (l) => (l ? `after layer ${l - 1}` : "at first");

  /** The page's data with the guess after the layer of the slider. */
  function asSoFar() {
    const row = asks() === last.state.position ? told.rows?.[Math.min(depth, last.model.layers)] : undefined;
    return row ? { ...last, run: { ...last.run, logits: row.logits } } : last;
  }

  function named() {
    const { run, state, model } = last;
    const probabilities = probabilitiesOf(run.logits);
    const [id] = likeliestOf(probabilities, 1);
    const top = bestMatch();
    return { here: word(run.tokens[asks()], "The"), best: word(guessName(model.words, id)), share: percent(probabilities[id]), head: `${state.layer}.${state.head}`, top: top === null ? null : word(run.tokens[top]) };
  }

  /** The key with the highest score. */
  function bestMatch() {
    const { run, state } = last;
    const T = run.tokens.length;
    const scores = run.blocks[state.layer]?.attn_scores?.[state.head]?.subarray(asks() * T, (asks() + 1) * T) ?? [];
    const best = scores.length ? scores.indexOf(Math.max(...scores)) : -1;
    return best >= 0 && scores[best] > -Infinity ? best : null;
  }

  /** Gives the frame the height of the window, and the picture the largest scale that fits. */
  function fit() {
    if (!node.isConnected || frame.hidden) return;
    frame.style.setProperty("--above", `${Math.ceil(frame.getBoundingClientRect().top + window.scrollY)}px`);
    const child = /** @type {HTMLElement} */ (picture.firstChild);
    const widest = Math.min(LARGEST, picture.clientWidth / NARROWEST);
    const scale = Math.max(1, Math.min(widest, picture.clientHeight / Math.max(1, child.offsetHeight)));
    const before = picture.style.getPropertyValue("--scale");
    picture.style.setProperty("--scale", scale.toFixed(2));
    if (before !== scale.toFixed(2)) draw();
    if (at === VALUES) picture.scrollTop = picture.scrollHeight; // the sum is the last row
  }
  ui.redraw(() => last && node.isConnected && show());

  /** @param {Told} now */
  async function update(now) {
    if (!now.run) return;
    none.hidden = now.run.logits.length > 0;
    frame.hidden = !none.hidden;
    if (frame.hidden) return;
    if (last?.state.text !== now.state.text || last.state.position !== now.state.position) [query, depth] = [null, Infinity];
    last = /** @type {Now} */ (now);
    show();
  }
  return { node, update, shown: () => last && show() };
}
