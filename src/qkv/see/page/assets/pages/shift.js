// The shift: words as arrows from their static vector to where a layer has taken them, in one plane.
// The payload is described at the top of page/shift.py.

VIEWS.shift = (box, payload, ui) => {
  const shift = payload.shift;
  const { stages, tokens, of, before } = shift;
  const several = shift.sentences.length > 1;
  const letter = (k) => (k < 26 ? String.fromCharCode(65 + k) : String(k + 1));
  const colour = (k) => `var(--line-${k % LINES})`;
  const places = new Map(); // word -> the sentences it is in
  tokens.forEach((token, i) => places.set(token, (places.get(token) || new Set()).add(of[i])));
  const named = (i) => cut(visible(tokens[i]), 18) + (several && places.get(tokens[i]).size > 1 ? ` (${letter(of[i])})` : "");
  const picked = new Set();
  let at = stages.length - 1;

  const picture = svg("svg", { class: "shift-plane", role: "img" });
  const frame = el("div", {}, picture);
  const name = el("output", { class: "shift-stage" });
  const id = ui.id("stage");
  const slider = el("input", { id, type: "range", min: 0, max: stages.length - 1, step: 1, oninput: () => show(Number(slider.value), true) });
  const sentence = el("p", { class: "sentence" });
  const held = el("p", { class: "note" });
  const words = el("div", { class: "table scroll", tabindex: 0, role: "region", "aria-label": "Cosine of each word" });
  const pairs = el("div", { class: "table scroll", tabindex: 0, role: "region", "aria-label": "Words that sentences share" });

  // ---- the plane

  /** How the plane lies in the picture: the same at every layer, and as wide as it is tall a unit. */
  function scale() {
    const width = frame.clientWidth;
    const height = Math.round(Math.min(620, Math.max(320, width * 0.62)));
    const points = [before, ...stages.map((stage) => stage.points)].flat();
    const ends = [0, 1].map((axis) => [Math.min(...points.map((p) => p[axis])), Math.max(...points.map((p) => p[axis]))]);
    const room = [width - 160, height - 90];
    const unit = Math.min(...ends.map(([low, high], axis) => (high > low ? room[axis] / (high - low) : Infinity)));
    const size = Number.isFinite(unit) ? unit : 1;
    const [cx, cy] = ends.map(([low, high]) => (low + high) / 2);
    return { width, height, size, ends, x: (p) => width / 2 + 20 + (p[0] - cx) * size, y: (p) => height / 2 - 14 - (p[1] - cy) * size };
  }

  /** Round numbers along an axis. */
  function ticks(low, high) {
    const rough = (high - low) / 4 || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((k) => k * power >= rough) * power;
    const found = [];
    for (let k = Math.ceil(low / step); k * step <= high; k++) found.push(k * step);
    return found;
  }

  function draw() {
    const { width, height, size, ends, x, y } = scale();
    if (!width) return;
    const stage = stages[at];
    const shown = new Set([...shift.labelled, ...picked]);
    const floor = height - 34;
    const label = (text, px, py, more) => svg("text", { x: px, y: py, class: "shift-axis", ...more }, text);
    const parts = [
      svg("rect", { x: 50, y: 4, width: width - 54, height: floor - 4, class: "shift-frame" }),
      ticks(...ends[0]).map((t) => label(number(t, size > 60 ? 2 : 1), x([t, 0]), floor + 14, { "text-anchor": "middle" })),
      ticks(...ends[1]).map((t) => label(number(t, size > 60 ? 2 : 1), 46, y([0, t]) + 4, { "text-anchor": "end" })),
      shift.explained.map((share, k) => {
        const text = `PC ${k + 1} (${number(100 * share, 0)}% of the variance)`;
        return k ? label(text, 0, 0, { transform: `translate(11 ${floor / 2}) rotate(-90)`, "text-anchor": "middle" }) : label(text, width / 2, height - 4, { "text-anchor": "middle" });
      }),
    ];
    const dots = []; // what labels keep off
    const heads = [];
    tokens.forEach((_, i) => {
      const [a, b] = [before[i], stage.points[i]].map((p) => [x(p), y(p)]);
      for (let k = 0; k <= 20; k++) dots.push([a[0] + ((b[0] - a[0]) * k) / 20, a[1] + ((b[1] - a[1]) * k) / 20]);
      const far = Math.hypot(b[0] - a[0], b[1] - a[1]);
      const [u, v] = far ? [(b[0] - a[0]) / far, (b[1] - a[1]) / far] : [0, 0];
      const faint = !shown.has(i);
      const tip = far > 12 ? `M${b[0] - 4 * u} ${b[1] - 4 * v} l${-9 * u - 4 * v} ${-9 * v + 4 * u} l${8 * v} ${-8 * u} z` : "";
      heads.push(
        svg(
          "g",
          { class: `shift-arrow${faint ? " faint" : ""}${picked.has(i) ? " picked" : ""}`, "data-word": i, style: { "--its": colour(of[i]) } },
          svg("title", {}, `${visible(tokens[i])}: cosine ${number(stage.cosine[i], 3)}`),
          svg("line", { x1: a[0], y1: a[1], x2: b[0], y2: b[1] }),
          tip ? svg("path", { d: tip }) : null,
          svg("circle", { cx: a[0], cy: a[1], r: faint ? 2 : 4, class: "from" }),
          svg("circle", { cx: b[0], cy: b[1], r: faint ? 2 : 4, class: "to" }),
        ),
      );
    });
    const boxes = [];
    const texts = [...shown].map((i) => [i, stage.points[i], named(i)]);
    const spots = new Set();
    for (const i of shown) {
      const spot = `${tokens[i]} ${Math.round(x(before[i]))} ${Math.round(y(before[i]))}`;
      if (!spots.has(spot)) texts.push([i, before[i], cut(visible(tokens[i]), 18)]);
      spots.add(spot);
    }
    const pen = canvas2d(el("canvas"), 1, 1);
    pen.font = `600 12px ${ui.color("--font")}`;
    const labels = texts.map(([i, p, text], k) => {
      const wide = pen.measureText(text).width + 6;
      const spot = free(x(p), y(p), wide, 18, boxes, dots, [52, 6, width - 6, floor - 2]);
      if (!spot) return null;
      boxes.push(spot);
      const near = [Math.max(spot[0], Math.min(x(p), spot[2])), Math.max(spot[1], Math.min(y(p), spot[3]))];
      const far = Math.hypot(near[0] - x(p), near[1] - y(p)) > 14;
      return [
        far ? svg("line", { x1: x(p), y1: y(p), x2: near[0], y2: near[1], class: "shift-lead" }) : null,
        svg("text", { x: spot[0] + 3, y: spot[3] - 5, class: `shift-label ${k < shown.size ? "after" : "alone"}`, style: { "--its": colour(of[i]) } }, text),
      ];
    });
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("width", width);
    picture.setAttribute("height", height);
    picture.setAttribute("aria-label", `${tokens.length} words as arrows from their static vectors to ${stage.name}; the table below has the numbers`);
    fill(picture, parts, heads, labels);
  }

  /** The nearest free box [left, top, right, bottom] round a point; null where none is near. */
  function free(x, y, wide, tall, boxes, dots, area) {
    const near = [0, 8, 4, 12, 2, 14, 6, 10, 1, 15, 7, 9, 3, 5, 11, 13]; // sixteenths of a turn
    const all = Array.from({ length: 128 }, (_, k) => k / 8);
    for (let ring = 0; ring < 120; ring++) {
      const radius = 6 + 4 * ring;
      for (const turn of ring < 12 ? near : all) {
        const [u, v] = [Math.cos((Math.PI * turn) / 8), -Math.sin((Math.PI * turn) / 8)];
        const left = x + radius * u + ((u - 1) / 2) * wide;
        const top = y + radius * v + ((v - 1) / 2) * tall;
        const [right, bottom] = [left + wide, top + tall];
        if (left < area[0] || top < area[1] || right > area[2] || bottom > area[3]) continue;
        if (boxes.some((b) => left < b[2] && b[0] < right && top < b[3] && b[1] < bottom)) continue;
        if (ring < 12 && dots.some(([a, b]) => a > left - 3 && a < right + 3 && b > top - 2 && b < bottom + 2)) continue;
        return [left, top, right, bottom];
      }
    }
    return null;
  }

  // ---- the tables

  function table(first, rows, stagesToo) {
    const heads = [...first, ...stagesToo];
    return el(
      "table", {},
      el("thead", {}, el("tr", {}, heads.map((text, k) => el("th", { scope: "col", "data-stage": k - heads.length + stages.length }, text)))),
      el("tbody", {}, rows.map(([head, more, numbers]) =>
        el("tr", {}, el("th", { scope: "row" }, head), more.map((text) => el("td", {}, text)),
          numbers.map((x, k) => el("td", { "data-stage": k - numbers.length + stages.length }, number(x, 3)))))),
    );
  }

  const press = (i) =>
    el("button", { type: "button", class: "shift-word", "aria-pressed": "false", onclick: (event) => {
      if (!picked.delete(i)) picked.add(i);
      event.currentTarget.setAttribute("aria-pressed", String(picked.has(i)));
      draw();
    } }, el("bdi", {}, visible(tokens[i])));

  function show(k, aloud) {
    at = k;
    const stage = stages[k];
    slider.value = String(k);
    slider.setAttribute("aria-valuetext", stage.name);
    fill(name, stage.name);
    const most = stage.cosine.indexOf(Math.min(...stage.cosine));
    const where = stage.name === "embeddings" ? "at the embeddings" : stage.name;
    const far = stage.moved.indexOf(Math.max(...stage.moved));
    fill(
      sentence,
      word(named(most)),
      ` turned furthest: the cosine between its static vector and its vector ${where} is ${number(stage.cosine[most], 3)}. `,
      far === most ? "Its arrow is the longest too" : ["The longest arrow is that of ", word(named(far))],
      `: ${number(stage.moved[far])} in the plane, where each set is centred.`,
    );
    fill(
      held,
      "One plane for all layers: the PCA plane of the static vectors and those of the last layer, each set centred on its own mean. ",
      `It holds ${number(100 * stage.held, 0)}% of how the words differ ${where}.`,
    );
    for (const cell of box.querySelectorAll("[data-stage]")) cell.classList.toggle("shift-now", Number(cell.dataset.stage) === k);
    reveal();
    draw();
    if (aloud) ui.say(`${stage.name}; mean cosine ${number(stage.cosine.reduce((sum, x) => sum + x, 0) / tokens.length, 3)}`);
  }

  /** Scrolls the tables to the column of the layer that is shown. */
  function reveal() {
    for (const each of [words, pairs]) {
      const head = each.querySelector("th.shift-now");
      if (head) each.scrollLeft = head.offsetLeft + head.offsetWidth - each.clientWidth;
    }
  }

  const headings = stages.map((stage) => stage.name);
  fill(words, table(
    several ? ["word", "sentence"] : ["word"],
    tokens.map((_, i) => [press(i), several ? [letter(of[i])] : [], stages.map((stage) => stage.cosine[i])]),
    headings,
  ));
  fill(pairs, table(
    ["word", "sentences"],
    shift.pairs.map((pair) => [el("bdi", {}, visible(pair.word)), [`${letter(of[pair.a])}, ${letter(of[pair.b])}`], pair.cosine]),
    ["static", ...headings],
  ));
  const mark = (filled, k) => svg("svg", { width: 14, height: 14, class: "shift-arrow", "aria-hidden": "true", style: { "--its": colour(k) } }, svg("circle", { cx: 7, cy: 7, r: 4, class: filled ? "to" : "from" }));
  fill(
    box,
    el("h2", { class: "title" }, payload.title),
    sentence,
    el("ul", { class: "shift-legend" },
      el("li", {}, mark(false, 0), "before: the word alone, its static vector"),
      shift.sentences.map((text, k) => el("li", {}, mark(true, k), el("span", {}, several ? `${letter(k)}: ` : "after, in: ", el("bdi", {}, cut(visible(text), 90)))))),
    stages.length > 1
      ? el("div", { class: "bar" }, el("label", { for: id }, "Layer"), slider, name)
      : null,
    tokens.length > shift.labelled.length ? el("p", { class: "note" }, `Named: ${shift.labelled.length} of ${tokens.length} words, those that move furthest.`) : null,
    el("p", { class: "note" }, "Cosine of each word between its static vector and its vector here (1: the same direction). Press a word to mark its arrow."),
    words,
    frame,
    held,
    shift.pairs.length ? [el("p", { class: "note" }, "Cosine between one word in two sentences."), pairs] : null,
  );
  show(at, false);
  ui.redraw(() => (draw(), reveal()));
};
