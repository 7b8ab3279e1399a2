"""The page of `play` for a model that a server computes with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qkv.see.page.about import about_model
from qkv.see.page.html import POLICY, bundle, document, fragment, script, script_json
from qkv.see.page.payload import payload_of
from qkv.see.page.play import HIDDEN, TEXT, known_of

if TYPE_CHECKING:
    from qkv.models import Model

SERVED = f"{POLICY}; connect-src 'self'"  # of a page that asks the server it comes from
_FORM = (
    '<form id="qkv-key" hidden><p role="status"></p><label>Key '
    '<input type="password" autocomplete="off" required></label> <button>Use it</button></form>'
)


def served_page(model: Model, scales: Sequence[tuple[str, float]], *, plain: bool) -> str:
    """The page, as a whole document.

    Args:
        model: what the server computes with.
        scales: of each layer what is multiplied to scale its scores, and the model's own scale.
        plain: whether scores are products of queries and keys, and nothing else, in every layer.
    """
    about = about_of(model, scales, plain)
    known = known_of(model)
    start = _start(model, about["mask"])
    if known["guesses"] or known["next"]:
        start["view"] = "front"
    payload = payload_of("play", model.name, [], model=model.name, start=start, **known)
    call = (
        'page.openServer(JSON.parse(document.getElementById("qkv-served").textContent), '
        'document.getElementById("qkv-key"));'
    )
    body = (
        f"{_FORM}\n{fragment(payload, '', about_model(model))}\n"
        f'<script type="application/json" id="qkv-served">{script_json(about)}</script>\n'
        f"{script(bundle('server.js'), call)}\n"
    )
    return document(model.name, body, "auto", SERVED, wide=True)


def about_of(model: Model, scales: Sequence[tuple[str, float]], plain: bool) -> dict[str, Any]:
    """What a page is told of a model: `Served` of assets/engine/server.js."""
    gives = model.network.predicts and model.continues
    tokenizer = model.tokenizer
    names: list[str] = []
    if gives:
        known = {} if tokenizer is None else {id: name for name, id in tokenizer.vocabulary.items()}
        names = [known.get(id, str(id)) for id in range(len(model.embedding.table))]
    return {
        "name": model.name,
        "layers": model.num_layers,
        "heads": min(layer.attn.num_heads for layer in model.layers),
        "kv_heads": min(layer.attn.num_kv_heads for layer in model.layers),
        "dim": model.dim,
        "vocabulary": len(names),
        "most": model.max_seq_length,
        "words": names,
        "next": model.generates,
        "mask": model.mask,
        "ends": sorted(model._eos_ids) if model.generates else [],
        "plain": plain,
        "scales": scales,
    }


def _start(model: Model, mask: str | None) -> dict[str, Any]:
    """What the page begins with: a text, a place in it, and the word that the button hides."""
    text = TEXT.format(mask or "head")
    tokens = model.tokenize(text)
    first = model.prepared(text).find(HIDDEN)
    hide = [
        place
        for place, (begin, end) in enumerate(tokens.offsets)
        if begin < first + len(HIDDEN) and end > first and not tokens.special[place]
    ]
    place = tokens.tokens.index(mask) if mask in tokens.tokens else None
    return {
        "text": text,
        "edits": [],
        "place": place,
        "query": place,
        "hide": hide,
    }
