// The page of "show": one head of a text that was run before, and all heads.

function show(box, data, ui) {
  const store = recordedStore(data, update);
  const [bar, head, received, map] = [viewBarPart(ui, store), headPart(ui, store), receivedPart(ui), mapPart(ui, store)];
  const why = el("p", { class: "note" });
  const notes = el("div", {});
  head.said.className = "sentence";
  box.classList.add("recorded");
  const { headline } = data.start;
  box.append(titleNode(data), headline ? el("p", { class: "lead" }, headline) : "", head.said, why, bar.node, notes, el("section", { class: "panel" }, head.node), helpOf(), received.node,
    el("section", { class: "panel" }, map.node));
  let opened = "";

  function update(now) {
    for (const part of [bar, head, received, map]) part.update(now);
    const { layer, head: h, text } = now.state;
    fill(why, whyOf(now, data.start));
    fill(notes, notesOf(now, [now.run]));
    const place = JSON.stringify([text, layer, h]);
    if (opened && opened !== place) ui.say(head.said.textContent);
    opened = place;
  }
  update(store.now);
}

VIEWS.show = show;
