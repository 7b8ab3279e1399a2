// One head: its weights as lines and as a heat map on one axis of tokens, with what they are made of around them (the
// keys K above, the queries Q on the left, the values V on the right). The mask can be painted (paint.js).

const STRIP = 64; // how long a vector is drawn, in pixels

/**
 * The queries, keys, values and results of one head; null where the run has none of its layer.
 * @param {Run} run
 * @param {number} layer
 * @param {number} head
 */
function vectorsOf(run, layer, head) {
  const block = run.blocks?.[layer];
  if (!block?.q) return null;
  const [T, heads] = [run.tokens.length, run.pattern[layer].length];
  const d = block.q.length / T / heads;
  const of = (array) => {
    const own = array.length / T / d; // of keys and values there may be fewer heads
    const h = Math.floor((head * own) / heads);
    const at = (t, c) => array[(t * own + h) * d + c];
    let high = 1e-9;
    for (let t = 0; t < T; t++) for (let c = 0; c < d; c++) high = Math.max(high, Math.abs(at(t, c)));
    return { at, high };
  };
  return { d, q: of(block.q), k: of(block.k), v: of(block.v), z: of(block.z) };
}

// ---- one head

/**
 * One head of the text.
 * @param {any} ui
 * @param {any} store
 */
function headPart(ui, store) {
  const title = el("h3", {});
  const said = el("p", { class: "head-words" });
  const paint = paintBar(ui, store, step);
  const list = lines(ui, { onhover: preview, onpick: (r) => choose(r), onfree: () => preview(null) });
  const map = heatmap(ui, {
    describe: (r, c) => withDifference(cellNumbers(shown.head, shown.at, r, c), shown.head, shown.far, r, c),
    changed: paint.changed,
    onpoint: (r) => preview(r),
    onpick: touch,
    onlayout: align,
  });
  const values = el("canvas", { "aria-hidden": "true" });
  const result = el("canvas", { "aria-hidden": "true" });
  const operand = el("div", { class: "operand", role: "img" }, el("b", { class: "operand-name" }, "V"), values,
    el("span", { class: "operand-name" }, "weights × V"), result);
  const around = el("p", { class: "note" });
  const weights = weightHandles(ui, store, list, { onkey: (c) => (key = c), redraw: () => refresh() });
  const table = weightTable();
  const linesBox = el("div", { class: "lines-box" }, said, el("div", { class: "lines-row" }, list.node, operand));
  const mapBox = el("div", { class: "map-box" }, map.node);
  const body = el("div", { class: "head-body" }, mapBox, linesBox);
  const node = el("div", { class: "one-head", "data-part": "head" }, title, body, paint.node, around, table.node);
  let now = null;
  let shown = null; // {run, head, at, vectors}: the head as it is to be seen
  let [hover, key, aligned, as] = [null, 0, false, ""];
  paint.over(map);
  paint.node.append(weights.controls);
  ui.redraw(() => now && refresh(layout()));

  const query = () => Math.min(now.state.query ?? now.state.place ?? 0, Math.max(0, now.run.tokens.length - 1));

  function choose(r) {
    hover = null;
    store.set({ query: r });
    if (now.state.query === r) refresh();
  }

  function preview(r) {
    if (!shown || hover === r) return;
    hover = r;
    refresh();
  }

  /** A cell was picked: its link is painted where the mask is, else its query is chosen. */
  function touch(r, c) {
    key = c;
    if (paint.takes(r, c)) refresh();
    else choose(r);
  }

  function step(which, by) {
    const last = now.run.tokens.length - 1;
    const to = (x) => Math.max(0, Math.min(last, x + by));
    if (which === "query") store.set({ query: to(query()) });
    else {
      key = to(key);
      refresh();
    }
  }

  /** Lines and heat map side by side, rows level with rows, where there is room for it: what the map is to know. */
  function layout() {
    const { state, run } = now;
    const [room, T] = [node.clientWidth, run.tokens.length];
    const around_ = shown.vectors ? STRIP + 8 : 0;
    const cell = Math.min(40, Math.floor((room - 2 * around_ - 300) / Math.max(1, T)));
    aligned = state.inside && T <= LISTED && cell >= 14;
    body.classList.toggle("aligned", aligned);
    body.style.gridTemplateColumns = aligned ? `${around_ + T * cell + 6}px minmax(0, 1fr)` : "";
    mapBox.hidden = !state.inside;
    operand.hidden = !shown.vectors || !state.inside;
    said.style.height = "";
    return { named: !aligned, cell: aligned ? { min: 12, max: cell, height: ROW } : { min: 12, max: 44 } };
  }

  /** The lines begin where the rows of the heat map do; tests read where cells are. */
  function align({ left, top, cell, tall }) {
    mapBox.dataset.cells = `${left} ${top} ${cell} ${tall}`;
    const header = list.node.querySelector(".from").offsetHeight;
    said.style.height = aligned ? `${Math.max(0, top - header)}px` : "";
  }

  function drawValues() {
    if (operand.hidden) return;
    const { vectors } = shown;
    const places = list.listed().map(({ c }) => c);
    strip(values, places.length, (k, c) => (places[k] === undefined ? 0 : vectors.v.at(places[k], c) / vectors.v.high));
    strip(result, 1, (_, c) => vectors.z.at(hover ?? query(), c) / vectors.z.high);
    operand.style.setProperty("--header", `${list.node.querySelector(".from").offsetHeight}px`);
    operand.setAttribute("aria-label", `values: ${vectors.d} numbers of each key; below, what the weights make of them`);
  }

  /** Vectors as rows of colours, as high as the tokens beside them. */
  function strip(canvas, count_, value) {
    const pen = canvas2d(canvas, STRIP, count_ * ROW);
    const wide = STRIP / shown.vectors.d;
    for (let k = 0; k < count_; k++)
      for (let c = 0; c < shown.vectors.d; c++) {
        pen.fillStyle = css(shade(ui, value(k, c)));
        pen.fillRect(c * wide, k * ROW, Math.ceil(wide), ROW - 1);
      }
  }

  /** Shows a row: the one that is looked at, else the query. What else the map is to know comes with it. */
  function refresh(more = {}, fresh = false) {
    const { at, run } = shown;
    const head = weights.over(shown.head, at);
    const [own, best] = [query(), hover ?? query()];
    const some = head.rows.length > 0;
    key = Math.min(key, Math.max(0, head.columns.length - 1));
    fill(said, some ? lookWords(head, best, `layer ${at.l}, head ${at.h}`, false) : "There are no tokens.");
    list.set({ head, active: some ? [best] : [], held: hover === null, high: 1 }, fresh);
    paint.set({ head, at, own, key });
    weights.set({ head, at, run, own, key, held: best === own }, now.state.inside);
    map.set({ ...more, marked: some ? [best] : [], picked: some ? [own, key] : null });
    drawValues();
  }

  function stripOf(name, vector) {
    return { name, count: shown.vectors.d, value: vector.at, high: vector.high, size: STRIP };
  }

  /** @param {Now} next */
  function update(next) {
    now = next.run ? next : null;
    for (const part of [paint, weights]) part.update(next);
    if (!now) return;
    const { state, run, original } = now;
    const seen = seenIn(run, state.edits);
    const at = { l: state.layer, h: state.head, merge: false, mode: "weight" };
    const vectors = state.inside ? vectorsOf(run, at.l, at.h) : null;
    const was = as;
    const texts = JSON.stringify([run.tokens, at.l, at.h]);
    const far = state.colouring === "change" && run !== original ? arrange(seenIn(original, []), at) : null;
    shown = { run, head: arrange(seen, at), far, at, vectors };
    hover = null;
    as = texts;
    const { head } = shown;
    const name = `${at.l}.${at.h}`;
    const role = store.data?.roles?.[name];
    const removed = isRemoved(state.edits, at.l, at.h) ? el("span", { class: "changed" }, " · removed: it adds nothing") : null;
    fill(title, `Head ${name}`, el("span", { class: "dim" }, role ? ` · ${role[0]} ${number(role[1])}` : ""), removed);
    if (was !== texts) key = head.known(query())?.[0]?.[0] ?? 0;
    const difference = (r, c) => head.values(r).get(c) - far.values(r).get(c);
    const about = {
      label: `weights of layer ${at.l}, head ${at.h}`,
      rows: head.rows.map((row) => row.name),
      columns: head.columns.map((column) => column.name),
      value: far ? difference : paint.weight,
      low: far ? -1 : 0,
      high: 1,
      bar: far ? "weight now minus weight in the original" : "weight",
      left: vectors ? stripOf("Q", vectors.q) : null,
      top: vectors ? stripOf("K", vectors.k) : null,
    };
    refresh({ ...about, ...layout() }, was !== texts);
    around.hidden = !vectors;
    if (vectors)
      fill(around, `Each row of cells is a query, each column a key. Q, left of the rows, and K, above the columns, are ${vectors.d} numbers of each token; how well they fit is the score. V is what a key hands over, below it what the weights make of it (blue above 0, red below).`);
    paint.node.hidden = table.node.hidden = !state.inside;
    table.set(head, at);
  }
  return { node, body, update };
}

/** All weights of a head as a table, made when it is opened. */
function weightTable() {
  const box = el("div", { class: "scroll table", tabindex: 0, role: "group", "aria-label": "table of weights" });
  const node = el("details", { class: "as-table", ontoggle: draw }, el("summary", {}, "The same as a table"), box);
  let [head, at] = [null, null];
  function draw() {
    if (!node.open) return fill(box);
    const names = head.columns.map(({ name }) => el("th", { scope: "col" }, visible(name)));
    const rows = head.rows.map(({ name }, r) =>
      el("tr", {}, el("th", { scope: "row" }, visible(name)), head.columns.map((_, c) => el("td", { class: head.changed(r, c) ? "changed" : "" }, head.hidden(r, c) ? "hidden" : fixed(head.at(r, c), 3)))));
    fill(box, el("table", {}, el("caption", { class: "sr" }, `weights of layer ${at.l}, head ${at.h}: queries down, keys across`),
      el("thead", {}, el("tr", {}, el("td", {}), names)), el("tbody", {}, rows)));
  }
  return {
    node,
    set(next, where) {
      [head, at] = [next, where];
      draw();
    },
  };
}
