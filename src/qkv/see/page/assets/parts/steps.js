// How one row of a head's weights arises, in numbers: the table behind the lines.

/**
 * How the weights of the chosen query arise, key by key: score, scale, mask, softmax.
 */
function stepsPart() {
  const title = el("h3", {});
  const lead = el("p", { class: "note" });
  const box = el("div", { class: "scroll table", tabindex: 0, role: "group", "aria-label": "steps" });
  const node = el("div", { class: "steps", "data-part": "steps" }, title, lead, box);

  /** @param {Now} now */
  function update(now) {
    const { state, run } = now;
    const vectors = run && vectorsOf(run, state.layer, state.head);
    node.hidden = !vectors;
    if (!vectors || !state.inside) return;
    const [query, T] = [Math.min(state.query ?? state.place ?? 0, run.tokens.length - 1), run.tokens.length];
    const { layer, head, edits } = state;
    const usual = 1 / Math.sqrt(vectors.d);
    const scale = scaleOf(edits, usual);
    const hidden = hiddenBy(edits, layer, head, T);
    const given = edits.some((edit) => edit.op === "row" && edit.query === query && isFor(edit, layer, head));
    const weights = run.pattern[layer][head].subarray(query * T, (query + 1) * T);
    const name = word(run.tokens[query]);
    fill(title, "From ", name, ` to its weights, in head ${layer}.${head}`);
    fill(lead, given ? "You gave this row its weights; the softmax of the scores is not used." : "Each key's score says how well it fits the query; what the mask leaves goes through softmax, and the weights sum to 1.");
    const rows = Array.from({ length: T }, (_, key) => {
      let score = 0;
      for (let c = 0; c < vectors.d; c++) score += vectors.q.at(query, c) * vectors.k.at(key, c);
      const away = hidden[query * T + key];
      return el("tr", {}, el("th", { scope: "row" }, word(run.tokens[key])), el("td", {}, number(score)), el("td", {}, number(score * scale)),
        el("td", { class: away ? "changed" : "" }, away ? "hidden" : "open"), el("td", { class: given ? "changed" : "" }, fixed(weights[key], 3)),
        el("td", { class: "meter" }, el("span", { style: { width: `${100 * Math.min(1, weights[key])}%` } })));
    });
    const by = scale === usual ? `÷ √${vectors.d}` : `× ${number(scale, 3)}`;
    const heads = ["key", "raw score", by, "mask", given ? "yours" : "softmax"].map((text, i) => el("th", { scope: "col", class: i === 2 && scale !== usual ? "changed" : "" }, text));
    fill(box, el("table", {}, el("caption", { class: "sr" }, title.textContent), el("thead", {}, el("tr", {}, heads, el("td", {}))), el("tbody", {}, rows)));
  }
  return { node, update };
}
