// What of one head is in sight, whichever page shows it and wherever its numbers come from; and its small picture.
// Goes after view.js.

// ---- one head of one text

/** What a text's packed numbers say; l and h count from 0 within what is held. */
function reader(text) {
  const { heads: H, length: L, key_length: S, summary } = text;
  const data = {};
  const once = (name, packed) => (data[name] ??= unpack(packed));
  const bit = (name, l, h, i, j) => {
    const packed = text[name];
    if (!packed) return false;
    const [layers, heads] = packed.shape; // an axis of 1 holds for all
    const place = (((layers > 1 ? l : 0) * heads + (heads > 1 ? h : 0)) * L + i) * S + j;
    return Boolean((once(name, { ...packed, bits: 8 })[place >> 3] >> (7 - (place & 7))) & 1);
  };
  const ofKey = (name, packed, l, h, j) => once(name, packed)[(l * H + h) * S + j];
  return {
    text,
    keys: text.keys || text.tokens,
    keySpecial: text.key_special || text.special,
    keyWords: text.key_words || (text.keys ? null : text.words),
    /** Calls give(j, weight) for each weight of a query that the page holds. */
    row(l, h, i, give) {
      const base = (l * H + h) * L + i;
      if (summary) {
        const [places, weights] = [once("places", summary.indices), once("top", summary.weights)];
        const none = summary.indices.bits === 32 ? 4294967295 : 65535;
        for (let t = base * summary.top_k; t < (base + 1) * summary.top_k; t++) {
          if (places[t] !== none && weights[t]) give(places[t], weights[t] / summary.weights.per);
        }
        return;
      }
      const weights = once("weights", text.weights);
      for (let j = 0; j < S; j++) give(j, weights[base * S + j]);
    },
    hidden: (l, h, i, j) => bit("hidden", l, h, i, j),
    norm: (l, h, j) => ofKey("norms", text.norms, l, h, j),
    received: (l, h, j) => ofKey("received", summary.received, l, h, j),
    /** The scaled score; -Infinity where hidden, null where the page has none. */
    score(l, h, i, j) {
      const packed = text.scores;
      const k = packed ? packed.layers.indexOf(text.layers[l]) : -1;
      if (k < 0) return null;
      return once("scores", packed)[((k * H + h) * L + i) * S + j];
    },
  };
}

/**
 * What is in sight of a text: subwords merged or not, special tokens left out or not, weights or
 * contributions. Nothing is renormalised: `gone` is what went out of sight.
 */
function sight(source, state) {
  const { text, keys, keySpecial, keyWords } = source;
  const { part } = state;
  const spans = (names, words, special, wanted) =>
    (state.merge && words ? words : names.map((name, i) => [i, i + 1, name]))
      .filter(
        ([first]) =>
          !(state.skip && special[first]) && (part === "all" || first < text.split === (wanted === "A")),
      )
      .map(([first, last, name]) => ({ first, last, name }));
  const rows = spans(text.tokens, text.words, text.special, part[0]);
  const columns = spans(keys, keyWords, keySpecial, part[1]);
  const inverse = (parts, length) => {
    const at = new Int32Array(length).fill(-1);
    parts.forEach(({ first, last }, k) => at.fill(k, first, last));
    return at;
  };
  const [rowAt, columnAt] = [inverse(rows, text.length), inverse(columns, text.key_length)];
  const long = state.mode === "length";
  /** All rows of a head: column -> value of what the page holds, and what it does not show. */
  function made(l, h) {
    const norms = long ? keys.map((_, j) => source.norm(l, h, j)) : null;
    return rows.map(({ first, last }) => {
      const values = new Map();
      let [gone, held] = [0, 0];
      for (let i = first; i < last; i++) {
        source.row(l, h, i, (j, weight) => {
          const value = (weight * (norms ? norms[j] : 1)) / (last - first);
          held += weight / (last - first);
          if (columnAt[j] < 0) gone += value;
          else values.set(columnAt[j], (values.get(columnAt[j]) || 0) + value);
        });
      }
      return { values, gone, rest: text.summary && !norms ? Math.max(0, 1 - held) : 0 };
    });
  }
  let highest = null;
  return {
    source,
    rows,
    columns,
    rowAt: (i) => rowAt[i],
    away: columnAt.includes(-1),
    made,
    /** The largest value of all heads. */
    highest() {
      if (highest === null)
        for (let k = 0; k < text.layers.length * text.heads; k++)
          highest = Math.max(highest, largest(made(Math.floor(k / text.heads), k % text.heads)));
      return highest;
    },
  };
}

/** The largest value among the rows of a head. */
function largest(made) {
  let most = 0;
  for (const { values } of made) for (const value of values.values()) if (value > most) most = value;
  return most;
}

/** A head as it is to be seen; `seen` is what sight() gives. */
function arrange(seen, { l, h }) {
  const { source, rows, columns } = seen;
  const { text } = source;
  const everywhere = (r, c, test) => {
    for (let i = rows[r].first; i < rows[r].last; i++)
      for (let j = columns[c].first; j < columns[c].last; j++) if (!test(l, h, i, j)) return false;
    return true;
  };
  const made = seen.made(l, h).map((row) => {
    const known = [...row.values].sort((a, b) => (b[1] || 0) - (a[1] || 0) || a[0] - b[0]);
    return { ...row, known };
  });
  return {
    ...seen,
    sparse: Boolean(text.summary),
    own: largest(made),
    known: (r) => made[r].known, // [[column, value], ...], largest first
    values: (r) => made[r].values,
    gone: (r) => made[r].gone,
    rest: (r) => made[r].rest, // of a summary: what the page does not hold
    /** A cell; NaN where hidden, undefined where the page does not hold it. */
    at(r, c) {
      return this.hidden(r, c) ? NaN : made[r].values.get(c);
    },
    hidden: (r, c) => Boolean(text.hidden) && everywhere(r, c, source.hidden),
    /** Whether it is a reader's changes that hide it. */
    changed: (r, c) => Boolean(text.hidden && source.changed) && everywhere(r, c, source.changed),
  };
}

// ---- a head in words and numbers

/** Which one it is, where a token occurs more than once. */
function which(spans, k) {
  return spans.filter(({ name }) => name === spans[k].name).length > 1 ? ` (${spans[k].first})` : "";
}

/** What a query does, in words and tokens: `where` names the head, `long` says that values are lengths. */
function lookWords(head, r, where, long) {
  const { rows, columns, known, gone, source } = head;
  const said = [word(rows[r].name), which(rows, r)];
  const [c, value] = known(r)[0] || [0, 0];
  if (!(value > 0)) said.push(` looks at nothing in sight (${where})`);
  else {
    const itself = !source.text.keys && columns[c].first === rows[r].first;
    said.push(long ? ` takes most in ${where} from ` : " looks at ");
    said.push(itself ? "itself" : word(columns[c].name), itself ? "" : which(columns, c));
    said.push(long ? `: a vector of length ${number(value)}` : `: ${number(value)} (${where})`);
  }
  if (head.away)
    said.push(`; ${gone(r) > 0 && gone(r) < 0.005 ? "less than 0.01" : number(gone(r))} is out of sight`);
  return [...said, "."];
}

/** A cell's numbers, as a heat map describes it; `state` has the head and what is in sight of it. */
function cellNumbers(head, state, r, c) {
  const { source, rows, columns } = head;
  const { text, row, score, norm } = source;
  const long = state.mode === "length";
  /** A weight with as many digits as the page knows: of a long text it holds fewer. */
  const exact = (x) => {
    if (!text.summary) return number(x, 5);
    const digits = state.merge ? 3 : 4;
    return number(x < 0.5 * 10 ** -digits ? 0 : x, digits);
  };
  const [from, to] = [rows[r], columns[c]];
  const last = long ? "contribution" : "weight";
  if (!to)
    return {
      title: `${visible(from.name)} → out of sight`,
      fields: [[last, exact(head.gone(r))]],
    };
  const [i, j] = [from.first, to.first];
  const pieces = [from.last - i, to.last - j];
  const fields = [];
  const scaled = score(state.l, state.h, i, j);
  const hidden = head.hidden(r, c) || scaled === -Infinity;
  const value = head.at(r, c);
  if (pieces[0] * pieces[1] > 1)
    fields.push(["pieces", `${pieces.join(" × ")}, keys summed, queries averaged`]);
  else {
    const scale = text.scale[state.l];
    if (scaled !== null)
      fields.push(
        ["raw score", hidden || !scale ? "–" : number(scaled / scale, 3)],
        ["scaled score", number(scaled, 3)],
      );
    if (scaled !== null || text.hidden) fields.push(["mask", hidden ? "hidden" : "open"]);
    if (long)
      row(
        state.l,
        state.h,
        i,
        (key, weight) =>
          key === j &&
          fields.push(
            ["weight", exact(weight)],
            ["length of v W_O", number(norm(state.l, state.h, j), 4)],
          ),
      );
  }
  fields.push([last, hidden ? "0" : value === undefined ? "not among the largest" : exact(value)]);
  if (text.summary) fields.push(["places", `${count(i)} → ${count(j)}`]);
  return { title: `${visible(from.name)} → ${visible(to.name)}`, fields };
}

// ---- its small picture

/** One head, as the map shows it, as a picture of at most so many pixels a side. */
function thumbnail(ui, { seen, high }, { l, h }, pixels) {
  const [down, across] = [seen.rows.length, seen.columns.length];
  const [wide, tall] = [across, down].map((length) => Math.max(1, Math.min(length, pixels)));
  const most = new Float32Array(wide * tall);
  seen.made(l, h).forEach(({ values }, r) => {
    const base = Math.floor((r * tall) / down) * wide;
    for (const [c, value] of values) {
      const k = base + Math.floor((c * wide) / across);
      if (Math.abs(value) > Math.abs(most[k])) most[k] = value;
    }
  });
  return raster(ui, most, wide, tall, (value) => value / high);
}
