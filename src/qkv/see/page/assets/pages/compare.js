// The page of "compare": two texts, or two runs of one, on one axis of tokens.

function compare(box, data, ui) {
  const { compare: found } = data;
  const store = recordedStore(data, update);
  const { runs } = store.engine;
  const [bar, pair] = [viewBarPart(ui, store), pairPart(ui)];
  const first = found.places ? found.places.map(([place]) => place) : runs.map(() => found.changes[0]?.[0] || 0);
  const [why, notes] = [el("p", { class: "note" }), el("div", {})];
  box.classList.add("recorded");
  box.append(
    titleNode(data),
    el("p", { class: "lead" }, found.sentence),
    ...(found.why ? [el("p", { class: "note" }, found.why)] : []),
    el("div", { class: "panels" }, found.what === "runs" ? changes(found, data.texts[0]) : shared(found, data, open)),
    bar.node, why, notes, helpOf(), pair.node,
  );

  function open(layer, head) {
    store.set({ layer, head });
    ui.say(pair.sides.map(({ sentence }) => sentence.textContent).join(" "));
  }

  function update(now) {
    bar.update(now);
    const cursors = pair.sides.map((side, k) => (side.head ? side.cursor : first[k]));
    pair.set({ state: now.state, runs, edits: [[], []], names: runs.map(({ source }) => source.text.name), cursors });
    fill(why, whyOf(now, data.start));
    fill(notes, notesOf(now, runs));
  }
  update(store.now);
}

VIEWS.compare = compare;

// ---- what only a comparison has

function panel(title, ...children) {
  return el("section", { class: "panel" }, el("h3", {}, title), children);
}

/** One number per layer, written beside its point. */
function layerChart(values, layers, label) {
  const [wide, tall] = [Math.max(280, 44 * values.length), 150];
  const [low, high] = [Math.min(0, ...values), Math.max(...values, 1e-9)];
  const x = (i) => 24 + (i * (wide - 48)) / Math.max(1, values.length - 1);
  const y = (value) => tall - 34 - ((value - low) / (high - low)) * (tall - 64);
  const said = values.map(
    (value, i) => `${i ? `after layer ${layers[i - 1]}` : "embeddings"} ${number(value)}`,
  );
  const text = (i, height, words, name) => svg("text", { x: x(i), y: height, class: name }, words);
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": label },
    svg(
      "svg",
      {
        class: "chart",
        width: wide,
        height: tall,
        role: "img",
        "aria-label": `${label}: ${said.join(", ")}`,
      },
      svg("line", { x1: 10, x2: wide - 10, y1: y(low), y2: y(low), class: "axis" }),
      svg("polyline", { points: values.map((value, i) => `${x(i)},${y(value)}`).join(" ") }),
      values.map((value, i) => [
        svg("circle", { cx: x(i), cy: y(value), r: 4 }),
        text(i, y(value) - 9, number(value), ""),
        text(i, tall - 8, i ? String(layers[i - 1]) : "emb.", "dim"),
      ]),
    ),
  );
}

/** What a change of the run changed in each token, largest first. */
function changes(compare, text) {
  const all = compare.changes;
  const rows = all
    .slice(0, 200)
    .map(([i, distance, cosine, length]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, word(text.tokens[i])),
        el("td", {}, number(distance, 3)),
        el(
          "td",
          { class: "meter" },
          el("span", { style: { width: `${(100 * distance) / (all[0][1] || 1)}%` } }),
        ),
        el("td", {}, number(cosine, 3)),
        el("td", {}, number(length)),
      ),
    );
  const head = ["token", "distance", "", "cosine", "length before"].map((name) =>
    name ? el("th", { scope: "col" }, name) : el("td"),
  );
  return [
    panel(
      `What changed in ${compare.of}, largest first`,
      el(
        "div",
        { class: "scroll table", tabindex: 0, role: "group", "aria-label": "changes" },
        el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)),
      ),
      rows.length < all.length
        ? el("p", { class: "note" }, `The first ${rows.length} of ${count(all.length)}.`)
        : null,
    ),
    compare.by_layer.length
      ? panel(
          "Mean distance between the runs, by layer",
          layerChart(compare.by_layer, text.layers, "mean distance"),
        )
      : null,
  ];
}

/** How alike the shared word is layer by layer, and what it looks at most on each side. */
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
          ["How alike ", name, " is in both, by layer (cosine)"],
          layerChart(compare.similarity, data.texts[0].layers, "cosine"),
        )
      : null,
    panel(
      ["What ", name.cloneNode(true), " looks at most, in whichever head that is"],
      el("div", { class: "pair" }, most),
    ),
  ];
}
