// The views "show" and "compare": one text or two, their heat maps, the grid of all heads. Goes after lines.js.

// ---- one text: its sentence, its lines, its heat map

/** `state` (layer, head, what is in sight, scale) is shared where two texts are compared. */
function side(ui, state, source, cursor) {
  const self = { source, head: null, held: [], cursor };
  let hover = null; // the row under the pointer or the focus
  const heading = el("h3", {});
  const sentence = el("p", { class: "sentence" });
  const list = lines(ui, { onhover: preview, onpick: pick, onfree: free });
  const map = heatmap(ui, {
    describe: (r, c) => cellNumbers(self.head, state, r, c),
    onpoint(r) {
      preview(r, false);
      if (r !== null && active()[0] === r) list.reveal(r);
    },
    onpick: (r, c, event) => pick(r, event.shiftKey),
    onfree: free,
  });
  const where = () => `layer ${self.source.text.layers[state.l]}, head ${state.h}`;
  const long = () => state.mode === "length";

  /** The rows in view: those held, else the one under pointer or focus, else the last one there. */
  function active() {
    const rows = self.held.map(self.head.rowAt).filter((r) => r >= 0);
    if (rows.length) return [...new Set(rows)];
    if (hover !== null) return [hover];
    return self.head.rows.length ? [Math.max(0, self.head.rowAt(self.cursor))] : [];
  }

  function preview(r, aloud) {
    if (r === hover) return;
    hover = r;
    if (r !== null && aloud && !self.held.length) self.cursor = self.head.rows[r].first;
    refresh(aloud);
  }

  function pick(r, add) {
    const same = (i) => self.head.rowAt(i) === r;
    const [others, on] = [self.held.filter((i) => !same(i)), self.held.some(same)];
    self.cursor = self.head.rows[r].first;
    self.held = [...(add ? others : []), ...(on && (add || !others.length) ? [] : [self.cursor])];
    refresh(true);
  }

  function free() {
    self.held = [];
    refresh(true);
  }

  /** After looking, holding or letting go. */
  function refresh(aloud, fresh = false) {
    const rows = active();
    const said = rows.slice(0, 3).map((r, k) => [k ? " " : "", lookWords(self.head, r, where(), long())]);
    if (rows.length > 3) said.push(` And ${rows.length - 3} more.`);
    fill(sentence, rows.length ? said : "Nothing is in sight.");
    const best = rows.length ? self.head.known(rows[0])[0] : null;
    list.set({ head: self.head, active: rows, held: self.held.length > 0, high: state.high }, fresh);
    map.set({ marked: rows, home: best ? [rows[0], best[0]] : null });
    if (aloud) ui.say(sentence.textContent);
  }

  /** After the head, the text or what is in sight changed. */
  function show() {
    const { head } = self;
    const { text } = self.source;
    hover = null;
    heading.textContent = text.name ? visible(text.name) : "";
    heading.hidden = !text.name;
    map.set({
      label: `${long() ? "contributions" : "weights"} of ${where()}${text.name ? `, ${visible(text.name)}` : ""}`,
      rows: head.rows.map(({ name }) => name),
      columns: head.columns.map(({ name }) => name),
      value: (r, c) => head.at(r, c),
      entries: head.sparse ? head.known : null,
      marked: [],
      home: null,
      extra: head.away ? { name: "out of sight", value: head.gone } : null,
      high: state.high,
      bar: `${long() ? "contribution" : "weight"}${state.stretch ? ", stretched" : ""}`,
    });
    refresh(false, true);
  }
  const panels = [list, map].map(({ node }) => el("section", { class: "panel" }, node));
  return Object.assign(self, { heading, sentence, panels, show });
}

// ---- all heads

const MEASURES = [
  ["entropy", 1, "entropy, most focused first"],
  ["previous", -1, "weight on the previous token"],
  ["next", -1, "weight on the next token"],
  ["first", -1, "weight on the first token"],
  ["separators", -1, "weight on separators"],
  ["distance", -1, "mean distance, farthest first"],
];

/** Every head as a small picture; `onpick(l, h)` opens one, `asked` are the heads to mark. */
function headGrid(ui, { asked, onpick }) {
  const box = el("div", { class: "heads scroll", role: "listbox", "aria-label": "all heads" });
  const node = el("section", { class: "panel" });
  let now = null; // {source, l, h, seen, high}
  let [order, wide, measure] = [[], 1, "place"];
  const pictures = fewAtATime();
  const move = roving(box, {
    count: () => order.length,
    columns: () => wide,
    onpick: (i) => onpick(order[i].l, order[i].h),
  });
  ui.redraw(() => now && layout());

  function layout() {
    const { text } = now.source;
    const table = text.measures[measure];
    const value = ({ l, h }) => table[l][h];
    const short = (x) => number(x !== null && x < 0.005 ? 0 : x); // a power of ten is too wide here
    order = text.layers.flatMap((_, l) => Array.from({ length: text.heads }, (__, h) => ({ l, h })));
    const sign = (MEASURES.find(([key]) => key === measure) || [])[1];
    if (table) order.sort((a, b) => sign * ((value(a) ?? 1e9 * sign) - (value(b) ?? 1e9 * sign)));
    wide = Math.min(text.heads, 16);
    const size = Math.round(Math.max(40, Math.min(72, (box.clientWidth || 600) / wide - 7)));
    box.style.setProperty("--wide", wide);
    box.style.setProperty("--size", `${size}px`);
    fill(
      box,
      order.map((head, i) => {
        const [layer, number_] = [text.layers[head.l], table ? short(value(head)) : null];
        const name = `layer ${layer}, head ${head.h}${table ? `: ${number_}` : ""}`;
        return el(
          "div",
          {
            class: `head ${asked && asked.includes(head.h) ? "asked" : ""}`,
            role: "option",
            "data-i": i,
            "aria-label": name,
            title: name,
          },
          el("span", { class: "thumb" }),
          el("span", { class: "head-name" }, `${layer} · ${head.h}`),
          table ? el("b", { class: "head-name" }, number_) : null,
        );
      }),
    );
    mark();
    paint(size);
  }

  function paint(size) {
    const pixels = Math.round(size * Math.min(2, window.devicePixelRatio || 1));
    pictures(order.length, (i) => fill(box.children[i].firstChild, thumbnail(ui, now, order[i], pixels)));
  }

  function mark() {
    move.at = Math.max(
      0,
      order.findIndex(({ l, h }) => l === now.l && h === now.h),
    );
    order.forEach((_, i) => box.children[i].setAttribute("aria-selected", String(i === move.at)));
    move.refresh();
  }

  function set(next) {
    const was = now;
    now = next;
    if (was && was.source === next.source) {
      mark();
      if (was.seen !== next.seen || was.high !== next.high) paint(box.firstChild.clientWidth);
      return;
    }
    const { text } = now.source;
    const sorts = MEASURES.filter(([key]) => text.measures[key]).map(([key, , name]) => [key, name]);
    if (!sorts.some(([key]) => key === measure)) measure = "place";
    const menu = choice(ui, "Order", [["place", "layer, then head"], ...sorts], measure, (value) => {
      measure = value;
      layout();
    });
    fill(
      node,
      el(
        "div",
        { class: "bar" },
        el("h3", {}, `All heads: ${text.layers.length} × ${text.heads}`),
        menu.node,
      ),
      el("p", { class: "note" }, "Each picture is a head, named layer · head. Click one to open it."),
      box,
    );
    layout();
  }
  return { node, set };
}

/** The weight that each key of a long text received, as bars. */
function receivedStrip(ui) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const note = el("p", { class: "note" });
  const node = el(
    "section",
    { class: "panel" },
    el("h3", {}, "Weight received by each key (height: logarithm of 1 + weight)"),
    el("div", { class: "strip" }, canvas),
    note,
  );
  let [source, values, best] = [null, [], []];
  function draw() {
    const [width, tall] = [canvas.parentNode.clientWidth, 56];
    if (!values.length || !width) return;
    const pen = canvas2d(canvas, width, tall);
    pen.fillStyle = ui.color("--line-0");
    const each = width / values.length;
    values.forEach((value, j) =>
      pen.fillRect(
        Math.floor(j * each),
        tall,
        Math.max(1, each),
        (-tall * Math.log1p(value)) / Math.log1p(values[best[0]] || 1),
      ),
    );
  }
  const say = (places) =>
    fill(
      note,
      places.map((j, k) => [
        k ? ", " : "",
        word(source.keys[j]),
        ` (place ${count(j)}) received ${number(values[j])}`,
      ]),
      ` of ${count(source.text.length)}.`,
    );
  canvas.addEventListener("pointermove", (event) => {
    const j = Math.floor((event.offsetX * values.length) / canvas.clientWidth);
    if (j in values) say([j]);
  });
  canvas.addEventListener("pointerleave", () => say(best));
  ui.redraw(draw);
  return {
    node,
    set(from, l, h) {
      source = from;
      values = source.keys.map((_, j) => source.received(l, h, j));
      best = values
        .map((_, j) => j)
        .sort((a, b) => values[b] - values[a])
        .slice(0, 3);
      say(best);
      draw();
    },
  };
}

// ---- the whole view

function look(box, data, ui) {
  const { start: at, compare } = data;
  const both = data.kind === "compare";
  const readers = openRecorded(data).runs.map(({ source }) => source);
  const first = readers[at.text || 0];
  const state = {
    both,
    l: Math.max(0, first.text.layers.indexOf(at.layer)),
    h: at.head || 0,
    merge: at.merge,
    skip: false,
    mode: "weight",
    part: "all",
    stretch: data.stretch,
    high: 1, // the end of the scale
  };
  const places = (k) =>
    compare ? (compare.places ? compare.places[k] : [compare.changes[0]?.[0] || 0]) : [at.query || 0];
  const sides = (both ? readers : [first]).map((source, k) => side(ui, state, source, places(k)[0]));
  const grid = both ? null : headGrid(ui, { asked: at.heads, onpick: open });
  const strip = both ? null : receivedStrip(ui);
  const why = el("p", { class: "note" });
  const notes = el("div", {});

  const layers = choice(ui, "Layer", [], 0, (l) => open(Number(l), state.h));
  const heads = choice(ui, "Head", [], 0, (h) => open(state.l, Number(h)));
  const menus = ({ text }) => {
    layers.put(text.layers.map((layer, l) => [l, String(layer)]));
    heads.put(Array.from({ length: text.heads }, (_, h) => [h, String(h)]));
  };
  const change = (name) => (value) => {
    state[name] = value;
    update();
  };
  const any = (has) => data.texts.some(has);
  const texts = choice(
    ui,
    "Attention",
    data.texts.map((text, k) => [k, visible(text.name)]),
    at.text || 0,
    (k) => {
      const { text } = (sides[0].source = readers[k]);
      sides[0].held = [];
      menus(readers[k]);
      open(Math.min(state.l, text.layers.length - 1), Math.min(state.h, text.heads - 1));
    },
  );
  const bar = el(
    "div",
    { class: "bar", role: "group", "aria-label": "what to show" },
    !both && data.texts.length > 1 ? texts.node : null,
    layers.node,
    heads.node,
    any((text) => text.norms)
      ? choice(
          ui,
          "Show",
          [
            ["weight", "weight"],
            ["length", "contribution |weight × v W_O|"],
          ],
          "weight",
          change("mode"),
        ).node
      : null,
    any((text) => text.split)
      ? choice(
          ui,
          "Sentences",
          [["all", "all"], ...["AA", "AB", "BA", "BB"].map((part) => [part, part.split("").join(" → ")])],
          "all",
          change("part"),
        ).node
      : null,
    any((text) => [...text.special, ...(text.key_special || [])].includes(1))
      ? toggle(ui, "leave out special tokens", state.skip, change("skip")).node
      : null,
    any((text) => text.words || text.key_words)
      ? toggle(ui, "merge subwords into words", state.merge, change("merge")).node
      : null,
    stretcher(ui, state.stretch, change("stretch")).node,
  );

  function open(l, h) {
    Object.assign(state, { l, h });
    update();
    ui.say(sides.map((each) => each.sentence.textContent).join(" "));
  }

  function update() {
    const long = state.mode === "length";
    const way = [state.merge, state.skip, state.mode, state.part].join();
    for (const each of sides) {
      if (each.way !== way || each.seen.source !== each.source)
        Object.assign(each, { way, seen: sight(each.source, state) });
      each.head = arrange(each.seen, state);
    }
    const ends = sides.map(({ head }) => (state.stretch ? head.own : long ? head.highest() : 1));
    state.high = Math.max(...ends) || 1;
    for (const each of sides) each.show();
    const { source } = sides[0];
    const { text } = source;
    layers.set(state.l);
    heads.set(state.h);
    const [layer, was] = [text.layers[state.l], `layer ${at.layer}, head ${at.head}`];
    fill(
      why,
      layer === at.layer && state.h === at.head
        ? `L${was.slice(1)} is shown because ${at.chosen}.`
        : `You chose layer ${layer}, head ${state.h}. The page opened on ${was} because ${at.chosen}.`,
    );
    const said = [
      long &&
        "A contribution is the length of what a key sends to a query, |weight × v W_O| (Kobayashi et al. 2020): much weight on a short vector moves little.",
      sides.some((each) => each.head.away) &&
        "Nothing was renormalised: what went to tokens that are left out is shown as “out of sight”.",
      state.merge &&
        any((each) => each.words || each.key_words) &&
        `Merged: what a word's pieces receive is summed, what they look at is averaged${long ? "; summed lengths are an upper bound of the length of the sum" : ""}.`,
      ...text.left_out,
    ];
    fill(
      notes,
      said.filter(Boolean).map((line) => el("p", { class: "note" }, line)),
    );
    if (both) return;
    grid.set({ source, l: state.l, h: state.h, seen: sides[0].seen, high: state.high });
    strip.node.hidden = !text.summary;
    if (text.summary) strip.set(source, state.l, state.h);
  }

  const help = el(
    "p",
    { class: "note" },
    "Hover or use the arrow keys to look. Click or press Enter to hold a token, with Shift to add one; Esc lets go.",
  );
  const title = el("h2", { class: "title" }, el("bdi", {}, visible(data.title)));
  if (both) {
    const parts = compare.what === "runs" ? changes(compare, first.text) : shared(compare, data, open);
    box.append(
      title,
      el("p", { class: "lead" }, compare.sentence),
      ...(compare.why ? [el("p", { class: "note" }, compare.why)] : []),
      el("div", { class: "panels" }, parts),
      bar,
      why,
      notes,
      help,
    );
    box.append(
      el(
        "div",
        { class: "sides" },
        sides.map((each) => el("div", { class: "side" }, each.heading, each.sentence, each.panels)),
      ),
    );
  } else
    box.append(
      title,
      sides[0].sentence,
      why,
      bar,
      notes,
      el("div", { class: "panels" }, sides[0].panels),
      help,
      strip.node,
      grid.node,
    );
  menus(first);
  update();
}

VIEWS.show = look;
VIEWS.compare = look;

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
