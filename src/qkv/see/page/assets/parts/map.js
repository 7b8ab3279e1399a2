// The map of the model: its layers upward, its heads across, each a small picture of what it does to this text, with
// its measured role and a switch that removes it. Three colourings: its pattern, what removing it changes, and what
// the reader's changes have changed in it.

const COLOURINGS = [
  ["pattern", "pattern"],
  ["effect", "what removing it changes"],
  ["change", "difference from the original"],
];

// ---- a run as what the views of a recorded text read

const IN_SIGHT = new WeakMap(); // run -> what is in sight of it

/**
 * What `reader` makes of a text in a payload; of a run of the model the same is made here.
 * @param {Run} run
 * @param {Edit[]} edits  with which it was run
 */
function sourceOf(run, edits) {
  if (run.source) return run.source;
  const { tokens, special, pattern, blocks, causal } = run;
  const [T, heads] = [tokens.length, pattern[0]?.length ?? 0];
  const masks = new Map(); // by head, where edits say
  const maskOf = (l, h) => {
    const key = l * heads + h;
    if (!masks.has(key)) masks.set(key, hiddenBy(edits, l, h, T));
    return masks.get(key);
  };
  const score = (l, h, i, j) => blocks?.[l]?.attn_scores?.[h]?.[i * T + j] ?? null;
  // a row that is set by hand may have a weight where a mask is: this one is seen
  const changed = (l, h, i, j) => !pattern[l][h][i * T + j] && Boolean(maskOf(l, h)[i * T + j]);
  const own = (l, h, i, j) => !pattern[l][h][i * T + j] && ((causal && j > i) || score(l, h, i, j) === -Infinity); // the model's mask
  const flags = special.map(Number);
  return {
    text: {
      tokens,
      keys: null,
      special: flags,
      words: null,
      name: "",
      layers: pattern.map((_, l) => l),
      heads,
      length: T,
      key_length: T,
      hidden: causal || edits.some(({ op }) => ["hide", "mask", "causal"].includes(op)),
      scale: pattern.map((_, l) => (blocks?.[l]?.q ? scaleOf(edits, 1 / Math.sqrt(blocks[l].q.length / T / heads)) : null)),
      summary: null,
      left_out: [],
    },
    keys: tokens,
    keySpecial: flags,
    keyWords: null,
    row(l, h, i, give) {
      const weights = pattern[l][h];
      for (let j = 0; j < T; j++) give(j, weights[i * T + j]);
    },
    hidden: (l, h, i, j) => changed(l, h, i, j) || own(l, h, i, j),
    changed,
    norm: () => null,
    received: (l, h, j) => tokens.reduce((total, _, i) => total + pattern[l][h][i * T + j], 0),
    score,
  };
}

/** What is in sight of a run, kept as long as the run: all of its tokens. */
function seenIn(run, edits) {
  if (!IN_SIGHT.has(run)) IN_SIGHT.set(run, sight(sourceOf(run, edits), { merge: false, skip: false, mode: "weight", part: "all" }));
  return IN_SIGHT.get(run);
}

/** The differences of two runs of as many tokens, as a thumbnail reads them: the first minus the second. */
function differenceOf(seen, other) {
  const made = (l, h) => {
    const before = other.made(l, h);
    const minus = ({ values }, r) => ({ values: new Map([...values].map(([c, value]) => [c, value - before[r].values.get(c)])) });
    return seen.made(l, h).map(minus);
  };
  return { rows: seen.rows, columns: seen.columns, made };
}

// ---- a head taken out, and put back

function isRemoved(edits, layer, head) {
  return edits.some((edit) => edit.op === "ablate" && edit.layer === layer && (edit.head ?? head) === head);
}

/** Edits with which a head takes part, or does not. */
function withHead(edits, layer, head, heads, on) {
  if (!on) return [...edits, { op: "ablate", layer, head }];
  const others = Array.from({ length: heads }, (_, h) => ({ op: "ablate", layer, head: h })).filter((edit) => edit.head !== head);
  return edits.flatMap((edit) => {
    if (edit.op !== "ablate" || edit.layer !== layer) return [edit];
    if (edit.head === undefined) return others;
    return edit.head === head ? [] : [edit];
  });
}

// ---- what removing each head changes

/** How much of the chance is with other words: half the sum of the differences. */
function movedChance(before, after) {
  let total = 0;
  for (let k = 0; k < before.length; k++) total += Math.abs(before[k] - after[k]);
  return total / 2;
}

/**
 * Asks the model to remove one head after the other, and hears of each: `heard(effects)`, effects by "layer.head" as
 * {moved, word, from, to}: the chance that went to other words, the likeliest word, its chance before and after.
 */
function effects(store, heard) {
  let [key, found, going] = ["", {}, null];
  const stop = () => {
    going?.abort(new Error("superseded"));
    going = null;
  };
  /** @param {Now} now */
  function want(now) {
    const { state, run, model, busy } = now;
    if (busy) stop();
    if (busy || !run || state.place === null) return;
    const next = JSON.stringify([state.text, state.edits, state.place]);
    if (next === key && (going || Object.keys(found).length === model.layers * model.heads)) return;
    stop();
    if (next !== key) found = {};
    [key, going] = [next, new AbortController()];
    const mine = going;
    const before = chancesOf(run.logits);
    const best = before.indexOf(before.reduce((most, x) => Math.max(most, x), 0));
    const part = ({ layer, head, logits }) => {
      if (mine !== going) return;
      const after = chancesOf(logits);
      found[`${layer}.${head}`] = { moved: movedChance(before, after), word: model.words?.[best] ?? "", from: before[best], to: after[best] };
      heard();
    };
    const end = () => {
      if (mine === going) going = null;
      heard();
    };
    store.engine.sweep(state.text, state.edits, part, { at: [state.place], signal: mine.signal }).then(end, end);
  }
  return { want, stop, of: (name) => found[name], all: () => Object.values(found), busy: () => Boolean(going) };
}

// ---- the part

/**
 * The map of the model.
 * @param {any} ui
 * @param {any} store
 */
function mapPart(ui, store) {
  const grid = el("div", { class: "model-map scroll", role: "group", "aria-label": "heads of the model, the last layer first" });
  const key = el("div", { class: "map-key" });
  const measure = el("p", { class: "note" });
  const chosen = el("p", { class: "chosen" });
  const colouring = choice(ui, "Colour", COLOURINGS, "pattern", (value) => store.set({ colouring: value }));
  const node = el("div", { class: "model", "data-part": "map" },
    el("div", { class: "bar" }, el("h3", {}, "The map of the model"), colouring.node), measure, grid, key, chosen);
  const pictures = fewAtATime();
  const sweep = effects(store, () => now && show());
  const roles = store.data?.roles ?? {};
  let [now, cells, shape, painted, scale] = [null, [], "", "", ""];
  const move = roving(grid, {
    count: () => cells.length,
    columns: () => now.model.heads,
    onmove: tabStop,
    onpick: (i) => store.set({ layer: cells[i].layer, head: cells[i].head }),
  });
  ui.redraw(() => {
    painted = scale = "";
    if (now) show();
  });

  /** The switch of the head that the keyboard is at is a stop too. */
  function tabStop() {
    cells.forEach((cell, i) => (cell.power.tabIndex = i === move.at ? 0 : -1));
  }

  /** The cells of a model, the last layer on top. */
  function build({ layers, heads }) {
    grid.style.setProperty("--wide", heads);
    const order = Array.from({ length: layers * heads }, (_, i) => ({ layer: layers - 1 - Math.floor(i / heads), head: i % heads }));
    cells = order.map(({ layer, head }, i) => cellOf(layer, head, i));
    const rows = Array.from({ length: layers }, (_, r) => [
      el("span", { class: "layer-name", "aria-hidden": "true" }, el("span", { class: "layer-word" }, "layer "), String(layers - 1 - r)),
      cells.slice(r * heads, (r + 1) * heads).map((cell) => cell.node),
    ]);
    fill(grid, rows);
    move.at = 0;
  }

  function cellOf(layer, head, i) {
    const name = `${layer}.${head}`;
    const thumb = el("span", { class: "thumb" });
    const figure = el("b", { class: "figure" });
    const [role, value] = roles[name] ?? ["mixed", null];
    const said = value === null ? role : `${role} ${number(value)}`;
    const button = el("button", { type: "button", class: "cell-head", "data-i": i, "data-head": name, title: `head ${name}: ${said}` },
      thumb, el("span", { class: "cell-words" }, el("span", { class: "cell-name" }, name), el("span", { class: value === null ? "role dim" : "role" }, said), figure));
    const power = el("button", { type: "button", class: "power", role: "switch", "aria-label": `head ${name} takes part`, onclick: () => flip(layer, head) },
      el("span", { class: "power-word" }));
    return { layer, head, name, said, thumb, figure, button, power, node: el("div", { class: "cell" }, button, power) };
  }

  function flip(layer, head) {
    const { state, model } = now;
    store.set({ edits: withHead(state.edits, layer, head, model.heads, isRemoved(state.edits, layer, head)) });
  }

  /** The number that a colouring gives a head, and what is said of it. */
  function valueOf(cell) {
    const { state, run, original } = now;
    const removed = isRemoved(state.edits, cell.layer, cell.head);
    if (state.colouring === "change") {
      const far = movedShare(original.pattern[cell.layer][cell.head], run.pattern[cell.layer][cell.head]);
      return { value: far, text: chance(far), said: `its weights differ by ${chance(far)}` };
    }
    const effect = state.colouring === "effect" && !removed ? sweep.of(cell.name) : null;
    if (!effect) return { value: null, text: "", said: "" };
    const { moved, word: first, from, to } = effect;
    return { value: moved, text: chance(moved), said: `removing it moves ${chance(moved)} of the chance; ${visible(first)} ${chance(from)} → ${chance(to)}` };
  }

  /** What a colouring shows, and in what measure. */
  function explained() {
    const { state, run } = now;
    if (state.colouring === "pattern") return "Each square is a head: down the tokens that look, across those that are looked at. Choose one to open it; its switch takes it out.";
    if (state.colouring === "change")
      return state.edits.length
        ? "Weights now minus weights in the original, blue for more and red for less. The number is the share of a row's weight that went elsewhere, on average (half the sum of the differences)."
        : "Nothing is changed yet, so nothing differs.";
    if (state.place === null) return "There is no word to look at: choose one in the sentence.";
    const done = sweep.all().length;
    const wait = sweep.busy() ? ` ${done} of ${now.model.layers * now.model.heads} measured.` : "";
    return `Without this head, so much of the chance at ${visible(run.tokens[state.place])} would be with other words (total variation: half the sum of the differences; 0 nothing, 1 all).${wait}`;
  }

  function show() {
    const { state, model } = now;
    const values = cells.map(valueOf);
    const high = state.colouring === "pattern" ? 1 : Math.max(1e-9, ...values.map(({ value }) => value ?? 0));
    cells.forEach((cell, i) => {
      const { said, text } = values[i];
      const removed = isRemoved(state.edits, cell.layer, cell.head);
      const own = state.edits.some((edit) => edit.op !== "ablate" && edit.layer === cell.layer && (edit.head ?? cell.head) === cell.head);
      const now_ = state.layer === cell.layer && state.head === cell.head;
      cell.node.classList.toggle("removed", removed);
      cell.node.classList.toggle("edited", own);
      cell.button.setAttribute("aria-pressed", String(now_));
      cell.button.setAttribute("aria-label", [`layer ${cell.layer}, head ${cell.head}`, cell.said, said, removed && "removed", own && "changed"].filter(Boolean).join(", "));
      cell.power.setAttribute("aria-checked", String(!removed));
      fill(cell.power.firstChild, removed ? "off" : "on");
      fill(cell.figure, text);
      cell.figure.hidden = !text;
      if (now_ && !grid.contains(ui.focused())) move.at = i;
      if (now_) fill(chosen, el("b", {}, `Head ${cell.name}`), `: ${[cell.said, said].filter(Boolean).join("; ")}${removed ? " (removed)" : ""}.`);
    });
    move.refresh();
    tabStop();
    colouring.set(state.colouring);
    fill(measure, explained());
    paint(values, high);
    const names = { pattern: "weight", effect: "chance that moves", change: "difference of weights" };
    const ends = state.colouring === "change" ? [-1, 1] : [0, high];
    const said = JSON.stringify([ends, state.colouring, model.name]);
    if (said !== scale) fill(key, scaleBar(ui, ...ends, names[state.colouring]));
    scale = said;
  }

  /** The small pictures, where they are not those already. */
  function paint(values, high) {
    const { state, run, original } = now;
    const size = Math.round((cells[0]?.thumb.clientWidth || 64) * Math.min(2, window.devicePixelRatio || 1));
    const plain = state.colouring === "effect";
    const which = plain ? "effect" : `${state.colouring} ${numberOf(run)} ${numberOf(original)} ${size}`;
    if (plain)
      cells.forEach(({ thumb, figure }, i) => {
        const colour = shade(ui, (values[i].value ?? 0) / high);
        fill(thumb);
        thumb.style.background = css(colour);
        thumb.dataset.value = figure.textContent;
      });
    else if (which !== painted) {
      const seen = seenIn(run, state.edits);
      const from = state.colouring === "change" ? differenceOf(seen, seenIn(original, [])) : seen;
      pictures(cells.length, (i) => {
        const { thumb, layer, head } = cells[i];
        thumb.style.background = "";
        fill(thumb, thumbnail(ui, { seen: from, high: 1 }, { l: layer, h: head }, size));
      });
    }
    if (plain && painted !== which) pictures(0, () => {});
    painted = which;
  }

  /** @param {Now} next */
  function update(next) {
    now = next.run ? next : null;
    if (!now) return;
    const { state, model } = now;
    if (`${model.layers} ${model.heads}` !== shape) {
      build(model);
      shape = `${model.layers} ${model.heads}`;
      painted = "";
    }
    if (!state.inside || state.colouring !== "effect") sweep.stop();
    if (!state.inside) return;
    if (state.colouring === "effect") sweep.want(now);
    show();
  }
  return { node, update };
}
