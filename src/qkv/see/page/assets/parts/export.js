// What a part shows, to be taken away: its picture as SVG or PNG, its numbers as CSV. Nothing leaves the page but as a
// file that the reader saves, or, in a frame that may forbid that, as text to copy.

const MOST_ROWS = 500_000; // of a CSV

/**
 * @typedef {{columns: string[], rows: any[][]}} Table  numbers and texts; what is null or not finite stays empty
 * @typedef {[string, string, () => Table]} Sheet  what a reader calls them, what their file is called, the table
 */

// ---- CSV

/**
 * A number with all its digits: the shortest text that gives the same float32, or float64 where it is one.
 * @param {number} x
 */
function exactly(x) {
  if (!Number.isFinite(x)) return "";
  if (Math.fround(x) !== x) return String(x);
  let digits = 1;
  while (digits < 9 && Math.fround(Number(x.toPrecision(digits))) !== x) digits += 1;
  return String(Number(x.toPrecision(digits)));
}

/** A cell. A text that a spreadsheet would compute has a ' before it. */
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return exactly(value);
  if (typeof value === "boolean") return String(value);
  const text = /^[\s\p{C}]*[=+\-@＝＋－＠]|^[\t\r\n]/u.test(value) ? `'${value}` : value.toWellFormed();
  return /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** @param {Table} table */
function csvOf({ columns, rows }) {
  return [columns, ...rows].map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");
}

/**
 * The numbers of every heat map in a part, row by row.
 * @param {HTMLElement} node
 * @returns {Sheet[]}
 */
function matricesIn(node) {
  const found = [...node.querySelectorAll(".map-block")].filter((block) => block.checkVisibility() && MATRICES.has(block));
  return found.map((block) => {
    const { label, rows, columns, value, entries } = MATRICES.get(block);
    const at = entries ? (i) => ((known) => (j) => known.get(j))(new Map(entries(i))) : (i) => (j) => value(i, j);
    const table = () => ({
      columns: ["place", "row", ...columns.map((name, j) => `${j} ${name}`)],
      rows: rows.map((name, i) => [i, name, ...columns.map((_, j) => j).map(at(i))]),
    });
    return [label, label, table];
  });
}

// ---- the numbers of the live page's parts

/**
 * Every link of some heads, a row each; scores where they are known, and what the weight was before the changes.
 * @param {Now} now
 * @param {[number, number][]} heads
 * @returns {Table}
 */
function linkNumbers({ state, run, original }, heads) {
  const { tokens } = run;
  const T = tokens.length;
  const changed = run !== original;
  const all = Array.from({ length: T * T }, (_, k) => k);
  const rows = heads.flatMap(([layer, head]) => {
    const [scores, hidden] = [run.blocks?.[layer]?.attn_scores?.[head], hiddenBy(state.edits, layer, head, T)];
    const [weights, before] = [run.pattern[layer][head], original.pattern[layer][head]];
    return all.map((k) => {
      const [query, key] = [Math.floor(k / T), k % T];
      const link = [layer, head, query, tokens[query], key, tokens[key], scores?.[k], Boolean(hidden[k]), weights[k]];
      return changed ? [...link, before[k]] : link;
    });
  });
  return { columns: ["layer", "head", "query_place", "query", "key_place", "key", "score", "hidden", "weight", ...(changed ? ["weight_before"] : [])], rows };
}

/**
 * The chance of every word of the vocabulary, the likeliest first.
 * @param {Now} now
 * @returns {Table}
 */
function wordNumbers({ run, original, model }) {
  const [before, after] = [original, run].map(({ logits }) => chancesOf(logits));
  const order = Array.from(after, (_, id) => id).sort((one, other) => after[other] - after[one] || one - other);
  const changed = run !== original;
  return {
    columns: ["rank", "id", "word", ...(changed ? ["chance_before"] : []), "chance"],
    rows: order.map((id, rank) => [rank + 1, id, model.words[id], ...(changed ? [before[id]] : []), after[id]]),
  };
}

/**
 * How alike the word stays to itself, layer by layer.
 * @param {Now} now
 * @returns {Table}
 */
function layerNumbers({ state, run, original }) {
  const alike = run.resid.map((one, l) => cosineAt(one, original.resid[l], state.place, run.tokens.length));
  return { columns: ["behind", "cosine_with_original"], rows: alike.map((value, l) => [l ? `layer ${l - 1}` : "embeddings", value]) };
}

/**
 * A row for each head: its role, whether it is removed, how far its weights went, and what removing it changes.
 * @param {Now} now
 * @param {any} roles
 * @param {(name: string) => any} effectOf
 * @returns {Table}
 */
function headsNumbers({ state, run, original }, roles, effectOf) {
  const columns = ["layer", "head", "role", "role_measure", "removed", "weight_moved_by_changes", "chance_moved_without_it", "word", "chance_with_it", "chance_without_it"];
  const rows = run.pattern.flatMap((heads, layer) =>
    heads.map((weights, head) => {
      const name = `${layer}.${head}`;
      const [role, measure] = roles[name] ?? [Object.keys(roles).length ? "mixed" : "", null];
      const { moved, word: first, from, to } = effectOf(name) ?? {};
      const far = movedShare(original.pattern[layer][head], weights);
      return [layer, head, role, measure, isRemoved(state.edits, layer, head), far, moved, first, from, to];
    }),
  );
  return { columns, rows };
}

/**
 * What can be saved of each part of the live page as numbers.
 * @param {string} name
 * @param {Now} now
 * @param {any} data  the payload
 * @param {any} part
 * @returns {Sheet[]}
 */
function sheetsOf(name, now, data, part) {
  const { state, run } = now;
  const { layer, head } = state;
  const every = run.pattern.flatMap((heads, l) => heads.map((_, h) => /** @type {[number, number]} */ ([l, h])));
  const fits = (count) => count * run.tokens.length ** 2 <= MOST_ROWS;
  /** @type {Record<string, (Sheet | false)[]>} */
  const known = {
    head: [fits(1) && ["weights", `head-${layer}.${head}-weights`, () => linkNumbers(now, [[layer, head]])]],
    map: [
      ["heads", "heads", () => headsNumbers(now, data.roles ?? {}, part.effects ?? (() => null))],
      fits(every.length) && ["all weights", "all-weights", () => linkNumbers(now, every)],
    ],
    outcome: state.place === null ? [] : [
      run.logits.length > 0 && ["words", `words-at-${state.place}`, () => wordNumbers(now)],
      state.edits.length > 0 && ["layer by layer", `alike-at-${state.place}`, () => layerNumbers(now)],
    ],
  };
  return name in known ? known[name].flatMap((one) => (one ? [one] : [])) : matricesIn(part.node);
}

// ---- the menu

/**
 * A menu that saves what a part shows. `about` says of what, each time that it is asked.
 * @param {any} ui
 * @param {HTMLElement} node  the part
 * @param {HTMLElement} around  what its picture is of: the part, or more
 * @param {() => {name: string, text: string, caption: string, numbers: Sheet[]} | null} about  `name`: of the part, in
 *     a file's name; `text`: what the page is of; `caption`: what stands below the picture; null where there is nothing
 */
function saveMenu(ui, node, around, about) {
  const done = el("span", { class: "note", role: "status" });
  const paper = toTakeAway(ui);
  const bar = el("div", { class: "bar" });
  const box = el("details", { class: "save", ontoggle: () => list() }, el("summary", {}, "Save"), bar, paper.node);
  const button = (label, make) => el("button", { type: "button", onclick: () => save(make) }, label);
  const picture = () => pictureOf(ui, around, about().caption);

  function list() {
    box.hidden = node.hidden || !about();
    if (!box.open || box.hidden) return;
    fill(bar, button("SVG", svgFile), button("PNG", pngFile), about().numbers.map(([what, called, table]) =>
      button(`CSV: ${what}`, () => ({ name: called, kind: "csv", text: csvOf(table()) }))), done);
  }

  function svgFile() {
    return { name: about().name, kind: "svg", text: svgText(picture()) };
  }

  async function pngFile() {
    return { name: about().name, kind: "png", blob: await pngOf(picture()) };
  }

  async function save(make) {
    try {
      const { name, kind, text, blob } = await make();
      const called = `${fileName(name, about().text)}.${kind}`;
      const free = letsFilesOut();
      handOver(called, blob ?? new Blob([text], { type: { svg: "image/svg+xml", csv: "text/csv" }[kind] }));
      fill(done, free ? `Saved: ${called}` : `The frame around this page may forbid to save ${called}.${text ? " Here it is to copy." : " Open the page in a window of its own for that."}`);
      if (!free && text) paper.show(called, text);
    } catch (/** @type {any} */ reason) {
      fill(done, `It cannot be saved: ${reason.message}`);
    }
  }
  return { node: box, update: list };
}

/**
 * What the live page says of a part that is saved.
 * @param {string} name
 * @param {Now} now
 * @param {any} store
 * @param {any} part
 */
function aboutPart(name, now, store, part) {
  const { state, model, run, second } = now;
  if (!run || (name === "second" && !second)) return null;
  const changes = inWords(now).map(({ said }) => el("span", {}, said).textContent.replace(/×$/, ""));
  const texts = name === "second" ? [state.text, second.text] : [state.text];
  const caption = [texts.map((text) => `“${visible(text)}”`).join(" beside "), ...changes, store.engine.name || model.name].join(" · ");
  const called = name === "head" ? `head-${state.layer}.${state.head}` : name;
  return { name: called, text: state.text, caption, numbers: sheetsOf(name, now, store.data, part) };
}

/** A name that every system takes: what it is, and the first words of what it is of. */
function fileName(name, text) {
  const plain = (x) => x.replace(/[^\p{L}\p{N}.]+/gu, "-").replace(/^[-.]+|[-.]+$/g, "");
  return [plain(name), plain(cut(text, 40).replace("[MASK]", "mask"))].filter(Boolean).join("_");
}

/** Gives the reader a file. */
function handOver(name, blob) {
  const href = URL.createObjectURL(blob);
  el("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

/** Whether nothing around the page can forbid it to save files; a frame of another origin does not say. */
function letsFilesOut() {
  const own = self.origin !== "null" || location.protocol === "file:";
  if (window === window.parent) return own;
  try {
    const frame = /** @type {any} */ (window.frameElement);
    return frame !== null && (!frame.hasAttribute("sandbox") || frame.sandbox.contains("allow-downloads"));
  } catch {
    return false;
  }
}

// ---- text to be copied

/** A text to be copied: it goes to the clipboard where that is allowed, and stands there to be read and marked. */
function toTakeAway(ui) {
  const id = ui.id("take");
  const label = el("label", { for: id });
  const text = el("textarea", { id, readonly: true, rows: 8, spellcheck: "false", wrap: "off" });
  const done = el("span", { class: "dim", role: "status" });
  const copy = el("button", { type: "button", onclick: () => take() }, "Copy");
  const close = el("button", { type: "button", onclick: () => (node.hidden = true) }, "Close");
  const node = el("div", { class: "take", hidden: true }, el("div", { class: "bar" }, label, copy, close, done), text);

  async function take() {
    text.select();
    try {
      await navigator.clipboard.writeText(text.value);
      fill(done, "Copied.");
    } catch {
      fill(done, "Marked: copy it with the keys of your system.");
    }
  }

  function show(name, value) {
    fill(label, name);
    text.value = value;
    text.rows = Math.min(18, value.split("\n").length + 1);
    node.hidden = false;
    return take();
  }
  return { node, show };
}
