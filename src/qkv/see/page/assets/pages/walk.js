// The walk: one head step by step, each with its numbers, and the sum behind any of them.
// The payload is described at the top of page/walk.py, how a number is made in parts/sums.js.

VIEWS.walk = (box, payload, ui) => {
  const { walk } = payload;
  const { steps, tokens } = walk;
  const keys = walk.keys || tokens;
  const opened = new Map();
  const picks = new Map(); // step -> the cell whose sum is shown
  let at = 0;
  let pointed = null; // the cell under the pointer

  // ---- the numbers

  /** An array of the payload, by the tokens' own places. */
  function array(name) {
    if (!opened.has(name)) opened.set(name, open(walk.arrays[name]));
    return opened.get(name);
  }

  function open({ b64, shape, rows, columns }) {
    const places = typeof rows === "string" ? walk[rows] : rows;
    return numbersOf(b64 === null ? null : unpack({ b64 }), shape, { rows: places, columns });
  }

  const sums = sumsOf(array);
  const value = (name, i, j) => array(name).get(i, j);
  const apart = (x) => (Number.isFinite(x) ? x.toExponential(1) : number(x));

  /** What a number of a step is made of, as bars; null where that is no sum. */
  function behind(step, i, j) {
    const { op, name } = step;
    const label = `what ${name} is made of`;
    const of = (matrix, place) => `${matrix}[${place}]`;
    const query = visible(names(step)[i]);
    if (op.kind === "softmax") {
      const at = columnsOf(step);
      const few = (row) => at.map((k) => row[k]);
      const row = array(op.of).row(i);
      const parts = { scores: few(row), raised: few(powers(row)[1]), shares: at.map((k) => value(name, i, k)) };
      return shareBars(label, { ...parts, names: step.columns ? keys : step.shown.names, at: at.indexOf(j), of: op.of, name });
    }
    const sum = sums.products(op, i, j);
    return sum && productBars(label, sum, of(op.left, query), of(op.right, op.flip ? visible(keys[j]) : `:, ${j}`));
  }

  // ---- what is on the page

  const names = (step) => ({ keys, place: [tokens[walk.start[0]]] })[step.side] || tokens;
  const held = (step) => (step.side === "place" ? null : walk[step.side === "keys" ? "key_rows" : "rows"]);
  const rowsOf = (step) => held(step) || names(step).map((_, i) => i);
  const columnsOf = (step) => (step.shown ? step.shown.at : Array.from({ length: array(step.name).shape.at(-1) }, (_, j) => j));
  const isLast = (step) => step === steps.at(-1);
  const isOwn = (step) => step === steps[walk.own_step];
  const first = (step) => (step.side === "place" ? 0 : walk.start[step.side === "keys" && walk.keys ? 1 : 0]);
  const start = (step) => step.cell || [first(step), step.columns ? walk.start[1] : columnsOf(step)[0]];
  const pickOf = (step) => picks.get(step) || start(step);

  const id = ui.id("walk");
  const list = el("div", { class: "walk-steps", role: "tablist", "aria-label": "Steps" });
  const go = (by) => () => by && tabs.go(at + by, false);
  const turn = ({ key, target }) => list.contains(target) || (go({ ArrowLeft: -1, ArrowRight: 1 }[key] || 0)());
  const [back, next] = [["◀ Back", -1], ["Next ▶", 1]].map(([text, by]) => el("button", { type: "button", onclick: go(by) }, text));
  const [title, note, end, mapTitle] = ["h3", "p", "p", "h4"].map((tag) => el(tag, { class: { p: "note" }[tag] }));
  const [formula, code] = [el("dd", { class: "formula" }), el("dd", { class: "code" })];
  const written = toggle(ui, "Numbers in the cells", true, () => draw());
  const stretched = stretcher(ui, payload.stretch, () => draw());
  const bars = sumBars(ui, { writes: false });
  const onpoint = (k, j) => {
    pointed = k === null ? null : [rowsOf(steps[at])[k], columnsOf(steps[at])[j]];
    for (const each of isOwn(steps[at]) ? [map, own] : []) each.point(k, j);
    drawBars();
  };
  const onpick = (k, j) => {
    picks.set(steps[at], [rowsOf(steps[at])[k], columnsOf(steps[at])[j]]);
    for (const each of [map, own]) each.set({ picked: [k, j], home: [k, j] });
    drawBars();
  };
  const [map, own] = ["Result", "The model's own"].map((label) => heatmap(ui, { label, value: () => 0, onpoint, onpick }));
  const ownPanel = el("div", { class: "panel" }, el("h4", {}, `The model's own ${walk.own}`), own.node);
  const boxes = [map, own].map((each) => each.node.querySelector(".map"));
  boxes.forEach((one, k) => one.addEventListener("scroll", () => isOwn(steps[at]) && boxes[1 - k].scrollTo(one.scrollLeft, one.scrollTop)));
  const panels = el("div", {}, el("div", { class: "panel" }, mapTitle, map.node, bars.node), ownPanel);
  const lines = el("dl", { class: "walk-lines" }, el("dt", {}, "Formula"), formula, el("dt", {}, "NumPy"), code);
  const panel = el("div", { id, role: "tabpanel", class: "walk-panel" }, title, lines, note, end, el("div", { class: "bar" }, written.node, stretched.node), panels);

  /** What the heat map is to show of a step: its own result, or the model's. */
  function matrix(step, name) {
    const rows = rowsOf(step);
    const shownColumns = columnsOf(step);
    const get = (i, j) => array(name).get(i, shownColumns[j]);
    const wide = shownColumns.length;
    const columns = step.columns ? keys : step.shown ? step.shown.names : shownColumns.map(String);
    const sizes = rows.flatMap((i) => columns.map((_, j) => get(i, j))).filter(Number.isFinite).sort((a, b) => a - b);
    const [least, most] = sizes.length ? [sizes[0], sizes.at(-1)] : [0, 1];
    const size = Math.max(-least, most);
    // a few numbers of trained vectors are far larger than the rest, and would leave it one grey
    const trim = Math.floor(sizes.length / (wide > 100 ? 200 : Infinity));
    const full = step.weights ? (stretched.input.checked ? most : 1) : Math.max(-sizes[trim], sizes.at(-1 - trim));
    const high = full || 1;
    const hidden = (k, j) => step.weights && step.op.of === "masked" && value("masked", rows[k], j) === -Infinity;
    const text = (x) => (size < 0.01 ? inSum(x) : fixed(x, size < 100 ? 3 : 1));
    const place = (k, j) => `${step.name}[${visible(names(step)[rows[k]])}, ${visible(columns[j])}]`;
    const home = [Math.max(0, rows.indexOf(pickOf(step)[0])), shownColumns.indexOf(pickOf(step)[1])];
    return {
      label: name === "own" ? `The model's own ${walk.own}` : `${step.name}, ${step.title}`,
      rows: rows.map((i) => names(step)[i]),
      columns,
      low: least < 0 ? -high : 0, // 0 in the middle
      high,
      value: (k, j) => (hidden(k, j) || get(rows[k], j) === -Infinity ? NaN : get(rows[k], j)),
      text: written.input.checked ? (k, j) => (hidden(k, j) || get(rows[k], j) === -Infinity ? "" : text(get(rows[k], j))) : null,
      cell: written.input.checked ? { min: 58, max: 96, height: 26 } : {},
      describe(k, j) {
        const x = get(rows[k], j);
        const how = name === "own" ? "" : sums.spell(step.op, rows[k], shownColumns[j]);
        const fields = how ? [["=", how]] : [];
        const same = name === "own" ? value(step.name, rows[k], shownColumns[j]) : x;
        if (name === "own") fields.push(["recomputed", inSum(same)], ["difference", apart(Math.abs(x - same))]);
        const where = place(k, j);
        return { title: `${name === "own" ? where.replace(step.name, walk.own) : where} = ${inSum(x)}`, fields };
      },
      picked: home,
      home,
      bar: name === "own" ? walk.own : size > high ? `${name} (the largest is ${inSum(size)})` : name,
    };
  }

  function drawBars() {
    bars.set(behind(steps[at], ...(pointed || pickOf(steps[at]))));
  }

  function draw() {
    map.set(matrix(steps[at], steps[at].name));
    if (isOwn(steps[at])) own.set(matrix(steps[at], "own"));
    drawBars();
  }

  /** Shows a step. */
  function show(k) {
    const step = steps[k];
    [at, pointed] = [k, null];
    for (const tab of list.children) tab.setAttribute("aria-selected", String(Number(tab.dataset.i) === k));
    list.scrollLeft = list.children[k].offsetLeft - list.offsetLeft - list.clientWidth / 2 + 40;
    panel.setAttribute("aria-labelledby", `${id}-${k}`);
    fill(title, `${k + 1}. ${step.title} `, el("span", { class: "dim" }, step.shape));
    fill(formula, step.formula);
    fill(code, step.code);
    const few = held(step) && `Shown: ${held(step).length} of ${names(step).length} rows, those of the largest weights`;
    fill(note, [step.note, few].filter(Boolean).map((text) => `${text[0].toUpperCase()}${text.slice(1)}. `));
    fill(end, `${walk.said && `${walk.said} `}Recomputed by these lines beside the model's own: the largest difference is ${apart(walk.difference)}.`);
    stretched.node.hidden = !step.weights;
    end.hidden = !isLast(step) && !isOwn(step);
    ownPanel.hidden = !isOwn(step);
    end.className = "lead";
    panels.className = isOwn(step) ? "walk-pair" : "";
    fill(mapTitle, isOwn(step) ? "Recomputed" : step.name);
    back.setAttribute("aria-disabled", String(!k));
    next.setAttribute("aria-disabled", String(isLast(step)));
    written.input.checked = !step.columns || keys.length <= 24;
    draw();
    const [i, j] = pickOf(step); // into sight
    const middle = (place, count, whole, part) => ((place + 0.5) / count) * whole - part / 2;
    const [rows, columns] = [rowsOf(step), columnsOf(step)];
    for (const each of boxes) {
      each.scrollLeft = middle(columns.indexOf(j), columns.length, each.scrollWidth, each.clientWidth);
      each.scrollTop = middle(rows.indexOf(i), rows.length, each.scrollHeight, each.clientHeight);
    }
  }

  fill(
    list,
    steps.map(({ name, title }, k) =>
      el(
        "button",
        { type: "button", role: "tab", id: `${id}-${k}`, "data-i": k, "aria-controls": id, "aria-label": `${k + 1} ${name}: ${title}`, tabindex: -1 },
        el("span", { class: "walk-count" }, String(k + 1)),
        ` ${name}`,
      ),
    ),
  );
  const tabs = roving(list, {
    count: () => steps.length,
    onmove(k) {
      show(k);
      ui.say(`Step ${k + 1} of ${steps.length}: ${steps[k].title}`);
    },
    onpick: (k) => tabs.go(k),
  });
  fill(
    box,
    el("h2", { class: "title" }, payload.title),
    el("p", { class: "sentence" }, `Layer ${walk.layer}, head ${walk.head}, step by step`),
    el("div", { class: "walk-way", onkeydown: turn }, back, list, next),
    panel,
  );
  show(0);
  tabs.refresh();
};
