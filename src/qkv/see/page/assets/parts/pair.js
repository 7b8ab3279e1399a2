// The same head in two texts: what a token of each looks at, and all weights of both on one axis of tokens, with the
// difference. Which tokens stand together is told by what the texts have in common.

/**
 * A place on an axis for both texts: where it is in the first and in the second, null where it is not there.
 * @typedef {[number | null, number | null]} Both
 */

const MOST_PAIRS = 4_000_000; // of two long texts only the beginning and the end are aligned

/**
 * The tokens of two texts on one axis, by their longest common subsequence; what differs between two common tokens
 * stands pair by pair where it is as many tokens in both, else one after the other.
 * @param {string[]} one
 * @param {string[]} other
 * @returns {Both[]}
 */
function alongside(one, other) {
  const [n, m] = [one.length, other.length];
  let [begin, end] = [0, 0];
  while (begin < Math.min(n, m) && one[begin] === other[begin]) begin += 1;
  while (end < Math.min(n, m) - begin && one[n - 1 - end] === other[m - 1 - end]) end += 1;
  const common = commonPlaces(one.slice(begin, n - end), other.slice(begin, m - end)).map(([a, b]) => [a + begin, b + begin]);
  const ends = Array.from({ length: end }, (_, k) => [n - end + k, m - end + k]);
  /** @type {Both[]} */
  const axis = Array.from({ length: begin }, (_, k) => [k, k]);
  let [a, b] = [begin, begin];
  for (const [nextA, nextB] of [...common, ...ends, [n, m]]) {
    if (nextA - a === nextB - b) for (; a < nextA; a++, b++) axis.push([a, b]);
    for (; a < nextA; a++) axis.push([a, null]);
    for (; b < nextB; b++) axis.push([null, b]);
    if (nextA < n) axis.push([a++, b++]);
  }
  return axis;
}

/** The places of a longest common subsequence. */
function commonPlaces(one, other) {
  const wide = other.length + 1;
  if (one.length * wide > MOST_PAIRS) return [];
  const longest = new Uint16Array((one.length + 1) * wide); // of what follows two places
  for (let i = one.length - 1; i >= 0; i--)
    for (let j = other.length - 1; j >= 0; j--)
      longest[i * wide + j] =
        one[i] === other[j] ? 1 + longest[(i + 1) * wide + j + 1] : Math.max(longest[(i + 1) * wide + j], longest[i * wide + j + 1]);
  const found = [];
  for (let [i, j] = [0, 0]; i < one.length && j < other.length; )
    if (one[i] === other[j]) found.push([i++, j++]);
    else if (longest[(i + 1) * wide + j] >= longest[i * wide + j + 1]) i += 1;
    else j += 1;
  return found;
}

/** An axis of both texts with its names: a token of both, else "one / other". */
function axisOf(one, other) {
  const places = alongside(one, other);
  const nameOf = ([a, b]) => (a === null ? other[b] : b === null || one[a] === other[b] ? one[a] : `${visible(one[a])} / ${visible(other[b])}`);
  const inverse = [0, 1].map((k) => new Map(places.map((both, i) => [both[k], i])));
  return { places, names: places.map(nameOf), at: (k, place) => inverse[k].get(place) };
}

// ---- one of the two

/** What tokens of one text look at: a sentence and lines. `heard()` is told when other rows are in view. */
function sideOf(ui, { heard, onpick }) {
  const self = { head: null, held: [], cursor: 0, at: null, where: "", high: 1 };
  let hover = null; // the row under the pointer or the focus
  const heading = el("h4", {});
  const sentence = el("p", { class: "sentence" });
  const list = lines(ui, { onhover: preview, onpick: pick, onfree: free });

  /** The rows in view: those held, else the one under pointer or focus, else the last one there. */
  function active() {
    const rows = self.held.map(self.head.rowAt).filter((r) => r >= 0);
    if (rows.length) return [...new Set(rows)];
    if (hover !== null) return [hover];
    return self.head.rows.length ? [Math.max(0, self.head.rowAt(self.cursor))] : [];
  }

  function preview(r, aloud = false) {
    if (r === hover) return;
    hover = r;
    if (r !== null && aloud && !self.held.length) self.cursor = self.head.rows[r].first;
    refresh(aloud);
  }

  function pick(r, add = false) {
    const same = (i) => self.head.rowAt(i) === r;
    const [others, on] = [self.held.filter((i) => !same(i)), self.held.some(same)];
    self.cursor = self.head.rows[r].first;
    self.held = [...(add ? others : []), ...(on && (add || !others.length) ? [] : [self.cursor])];
    refresh(true);
    onpick(self.cursor);
  }

  function free() {
    self.held = [];
    refresh(true);
  }

  /** After looking, holding or letting go; `fresh`: other tokens than before. */
  function refresh(aloud, fresh = false) {
    if (fresh) hover = null;
    const rows = active();
    /** @type {any[]} */
    const said = rows.slice(0, 3).map((r, k) => [k ? " " : "", lookWords(self.head, r, self.where, self.at.mode === "length")]);
    if (rows.length > 3) said.push(` And ${rows.length - 3} more.`);
    fill(sentence, rows.length ? said : "Nothing is in sight.");
    list.set({ head: self.head, active: rows, held: self.held.length > 0, high: self.high }, fresh);
    heard();
    if (aloud) ui.say(sentence.textContent);
  }
  const node = el("div", { class: "side" }, heading, sentence, list.node);
  return Object.assign(self, { node, heading, sentence, active, preview, pick, free, reveal: list.reveal, refresh });
}

// ---- both

/**
 * What the two are to show; both of one head.
 * @typedef {object} Paired
 * @property {any[]} seen  what is in sight of each, as `sight` gives it
 * @property {any} at  {l, h, merge, mode}
 * @property {string[]} names  of the texts
 * @property {number[]} cursors  the token of each that is looked at
 * @property {number} [high]  the end of the scale of weights
 */

/**
 * Two texts beside each other; `onpick(which, token)` hears of the choice of a token.
 * @param {any} ui
 * @param {{onpick?: (which: number, token: number) => void}} options
 */
function pairPart(ui, { onpick = () => {} } = {}) {
  const sides = [0, 1].map((k) => sideOf(ui, { heard: mark, onpick: (token) => onpick(k, token) }));
  const maps = [0, 1, 2].map((which) =>
    heatmap(ui, {
      describe: (i, j) => numbersOf(which, i, j),
      onpoint: (i, j = null) => look(which, i, j),
      onpick: (i, _, event) => choose(i, event.shiftKey),
      onfree: () => sides.forEach((side) => side.free()),
      cell: { min: 12, max: 26 },
    }),
  );
  const titles = maps.map(() => el("h4", {}));
  const table = pairTable();
  const node = el("div", { class: "both" },
    el("div", { class: "both-sides" }, sides.map((side) => side.node)),
    el("div", { class: "both-maps" }, maps.map((map, k) => el("div", {}, titles[k], map.node))),
    table.node);
  /** @type {{rows: any, columns: any, names: string[]}} */
  let now = null;
  let pointing = false;

  /** One cell is pointed at in all three, and its row in both texts. */
  function look(which, i, j) {
    if (pointing || !now) return;
    pointing = true;
    maps.forEach((map, k) => k !== which && map.point(i, j));
    sides.forEach((side, k) => {
      const r = i === null ? null : now.rows.places[i][k];
      side.preview(r);
      if (r !== null && side.active()[0] === r) side.reveal(r);
    });
    pointing = false;
  }

  function choose(i, add) {
    sides.forEach((side, k) => now.rows.places[i][k] !== null && side.pick(now.rows.places[i][k], add));
  }

  /** The rows in view are outlined: those of its text in each map, those of both in the difference. */
  function mark() {
    if (!now || !sides[1].head) return;
    const rows = sides.map((side, k) => side.active().map((r) => now.rows.at(k, r)));
    const both = [...new Set(rows.flat())];
    [rows[0], rows[1], both].forEach((marked, k) => maps[k].set({ marked }));
    table.set(now, sides, rows);
  }

  /** A weight of one text; null where the text has no such cell. */
  function weightAt(k, i, j) {
    const [r, c] = [now.rows.places[i][k], now.columns.places[j][k]];
    return r === null || c === null ? null : sides[k].head.at(r, c);
  }

  function difference(i, j) {
    const [one, other] = [weightAt(0, i, j), weightAt(1, i, j)];
    return one === null || other === null ? null : (other || 0) - (one || 0);
  }

  function numbersOf(which, i, j) {
    const here = [0, 1].map((k) => weightAt(k, i, j));
    const title = `${visible(now.rows.names[i])} → ${visible(now.columns.names[j])}`;
    if (which < 2) {
      const [r, c] = [now.rows.places[i][which], now.columns.places[j][which]];
      if (here[which] === null) return `${title}: not in ${now.names[which]}`;
      return cellNumbers(sides[which].head, sides[which].at, r, c);
    }
    const fields = here.map((x, k) => [now.names[k], x === null ? "not there" : number(x || 0, 5)]);
    return { title, fields: [...fields, ["difference", here.includes(null) ? "–" : number(difference(i, j), 5)]] };
  }

  /**
   * Shows two heads.
   * @param {Paired} next
   */
  function set({ seen, at, names, cursors, high = 1 }) {
    const heads = seen.map((one) => arrange(one, at));
    const [rows, columns] = ["rows", "columns"].map((which) => axisOf(...heads.map((head) => head[which].map(({ name }) => name))));
    now = null;
    const fresh = sides.map(({ head }, k) => JSON.stringify(head?.rows) !== JSON.stringify(heads[k].rows));
    sides.forEach((side, k) => {
      const { text } = heads[k].source;
      if (fresh[k] || cursors[k] !== side.cursor) side.held = [];
      Object.assign(side, { head: heads[k], at, cursor: cursors[k], high, where: `layer ${text.layers[at.l]}, head ${at.h}` });
      fill(side.heading, `In ${names[k]}`);
    });
    now = { rows, columns, names };
    const word_ = at.mode === "length" ? "contribution" : "weight";
    const axes = { rows: rows.names, columns: columns.names, high, marked: [], home: homeOf() };
    const known = (k) => (heads[k].sparse ? (i) => knownOf(k, i) : null);
    [0, 1].forEach((k) => {
      fill(titles[k], `In ${names[k]}`);
      maps[k].set({ ...axes, label: `${word_}s in ${names[k]}`, value: (i, j) => weightAt(k, i, j), entries: known(k), bar: word_ });
    });
    fill(titles[2], "The difference");
    maps[2].set({ ...axes, label: `${word_}s in ${names[1]} minus those in ${names[0]}`, value: difference, low: -high,
      entries: heads.some(({ sparse }) => sparse) ? (i) => differencesOf(i) : null, bar: `${names[1]} minus ${names[0]}` });
    sides.forEach((side, k) => side.refresh(false, fresh[k]));
  }

  /** The cell that is described at rest: what the first text's token looks at most. */
  function homeOf() {
    const side = sides[0];
    const r = side.head.rows.length ? Math.max(0, side.head.rowAt(side.cursor)) : -1;
    const best = r < 0 ? null : side.head.known(r)[0];
    return best ? [now.rows.at(0, r), now.columns.at(0, best[0])] : null;
  }

  /** Of a long text: the weights of a row that the page holds. */
  function knownOf(k, i) {
    const r = now.rows.places[i][k];
    return r === null ? [] : sides[k].head.known(r).map(([c, value]) => [now.columns.at(k, c), value]);
  }

  function differencesOf(i) {
    const [one, other] = [0, 1].map((k) => new Map(knownOf(k, i)));
    if (now.rows.places[i].includes(null)) return [];
    const either = [...new Set([...one.keys(), ...other.keys()])].filter((j) => !now.columns.places[j].includes(null));
    return either.map((j) => [j, (other.get(j) ?? 0) - (one.get(j) ?? 0)]);
  }
  return { node, set, sides };
}

/** The weights of the rows in view as a table, made when it is opened. */
function pairTable() {
  const box = el("div", { class: "scroll table", tabindex: 0, role: "group", "aria-label": "table of both" });
  const node = el("details", { class: "as-table", ontoggle: () => draw() }, el("summary", {}, "The chosen row as a table"), box);
  let shown = null; // {now, sides, rows}
  function draw() {
    if (!node.open || !shown) return fill(box);
    const { now, sides, rows } = shown;
    const values = sides.map((side, k) => (rows[k].length ? side.head.values(now.rows.places[rows[k][0]][k]) : new Map()));
    const cells = now.columns.places.map((both, j) => {
      const here = both.map((c, k) => (c === null ? null : (values[k].get(c) ?? 0)));
      const all = [...here, here.includes(null) ? null : here[1] - here[0]];
      return el("tr", {}, el("th", { scope: "row" }, visible(now.columns.names[j])), all.map((x) => el("td", {}, x === null ? "–" : fixed(x, 3))));
    });
    const names = rows.map((own) => (own.length ? visible(now.rows.names[own[0]]) : "nothing"));
    fill(box, el("table", {}, el("caption", { class: "sr" }, `What ${names[0]} looks at in ${now.names[0]}, and ${names[1]} in ${now.names[1]}`),
      el("thead", {}, el("tr", {}, el("td", {}), [...now.names, "difference"].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, cells)));
  }
  return {
    node,
    set(now, sides, rows) {
      shown = { now, sides, rows };
      draw();
    },
  };
}
