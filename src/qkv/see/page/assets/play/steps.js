// What one head computed for the chosen token, in numbers: scores, mask, softmax.

/** @returns {Part} */
function stepsPart(ui) {
  const title = el("h3", {});
  const note = el("p", { class: "note" });
  const body = el("tbody");
  const head = el("tr", {}, ["token", "q · k / √d", "sees it", "weight"].map((name) => el("th", { scope: "col" }, name)));
  const table = el("div", { class: "scroll table", tabindex: 0, role: "group", "aria-label": "steps of one row" }, el("table", {}, el("thead", {}, head), body));
  const node = el("div", { "data-part": "steps" }, title, note, table);

  /** @param {Now} now */
  function update({ state, run }) {
    if (!run || !state.inside || state.query === null) return;
    const { layer, head: h, query } = state;
    const size = run.tokens.length;
    const at = (flat) => flat.subarray(query * size, (query + 1) * size);
    const [scores, weights] = [at(run.blocks[layer].attn_scores[h]), at(run.pattern[layer][h])];
    const d = run.resid[0].length / size / run.pattern[layer].length;
    fill(title, "What ", word(run.tokens[query]), ` looks at in head ${layer}.${h}, in numbers`);
    fill(note, `Each key's score is its vector's product with the query's, over √${d}. A weight is the power of e to the score, over the sum of all of them.`);
    fill(body, run.tokens.map((token, key) => row(token, scores[key], weights[key], key === query)));
  }

  function row(token, score, weight, own) {
    const seen = score !== -Infinity;
    return el(
      "tr",
      { class: own ? "own" : "" },
      el("th", { scope: "row" }, word(token)),
      el("td", {}, seen ? number(score) : "–"),
      el("td", {}, seen ? "yes" : "hidden"),
      el("td", {}, number(weight, 3)),
    );
  }
  return { node, update };
}
