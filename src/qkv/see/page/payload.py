"""What a page reads: the numbers of a view, ready to be packed into it."""
# What stands in the payload, which assets/ read. Arrays are packed (see packing.py): base64 of
# little-endian float32, or of whole numbers with their "bits" (8, 16, 32), and their "shape". No
# number is rounded: that is for what shows it. Shares show as weights do in up to four digits.
#
# PAYLOAD = {
#   "version": 1, "kind": "show" | "compare" | "walk" | "shift" | "replay" | "play",
#   "title": str, "model": str, "theme": "auto" | "light" | "dark",
#   "stretch": whether scales end at the largest weight at first,
#   "texts": [TEXT, ...],       show: 1, or the 3 attentions of an encoder-decoder; compare: 2
#   "start": {"text": place in texts, "layer": number, "head": number,
#             "query": place of a token | null, "chosen": why this head, "sentence": str,
#             "stands_out": bool | null (it was asked for), "headline": what is said of it | "",
#             "heads": [numbers] | null,
#             "merge": whether pieces are merged into words} | null,
#   "compare": COMPARE | null, "walk": see page/walk.py | null, "shift": see page/shift.py | null,
#   "replay": see page/replay.py | null,
#   of play in their place "start", "stories" and "roles": see page/play.py; "texts" is empty,
#   since the page computes: what with stands beside the payload, see page/engine.py
#   "notes": [what a reader should know of the tokens, in sentences] }
#
# TEXT = {
#   "name": str, "tokens": [L strings], "keys": [S strings] | null (they are the tokens),
#   "special": [places], "key_special": [places] | null,
#   "words": [[first, last + 1, word], ...] | null (no token is a piece), "key_words": the same,
#   "split": where a second sentence begins | null,
#   "layers": [numbers], "heads": H, "length": L, "key_length": S,
#   "weights": packed (layers, H, L, S) | null,
#   "scores": packed (k, H, L, S) of the k "layers", after scaling and mask | null,
#   "scale": [raw score = score / scale, for each layer | null],
#   "hidden": bits, 1 where the mask hides | null,
#   "norms": packed (layers, H, S), |v W_O| | null,
#   "measures": {name: [layers x H] | null},
#   "summary": in place of weights {"top_k": k, "indices": packed (layers, H, L, k), all ones where
#             nothing is, "weights": shares, "received": packed (layers, H, S),
#             "kept": the share of all weight that this holds} | null,
#   "left_out": [sentences that say what this page does not hold] }
# Bits have the shape (1 or layers, 1 or H, L, S): an axis of 1 holds for all.
#
# COMPARE = {"what": "word", "word": str, "why": why it is this one, "sentence": str,
#            "texts": [A, B as they were given],
#            "places": [[places in A], [in B]],
#            "similarity": [a cosine at the embeddings and after each layer],
#            "strongest": [[LINK, ...], the same of B]}, each as `to_dict` has it
#        or {"what": "runs", "sentence": str, "of": str,
#            "changes": [[token, distance, cosine, length in A], ...] largest first,
#            "by_layer": [the mean distance at the embeddings and after each layer]}

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.see.analysis import measures
from qkv.see.analysis.heads import LONG, Axis, Heads, Summary
from qkv.see.analysis.words import word_spans
from qkv.see.page import packing

THEMES = ("auto", "light", "dark")
MOST_CELLS = 4_000_000  # weights that a page holds at most: 16 MB before base64
MOST_SCORES = 1_500_000
MOST_KEPT = 1_000_000  # weights of summaries, more than 4 a query


def text_payload(heads: Heads, layer: int) -> dict[str, Any]:
    """What a page holds of one text; `layer` is the one that is shown first."""
    size, width = len(heads.queries.tokens), len(heads.keys.tokens)
    tokens, special, words = _axis(heads.queries)
    keys, key_special, key_words = _axis(heads.other_keys)
    left_out: list[str] = []
    long = not heads.weights or max(size, width) >= LONG or heads.cells > MOST_CELLS
    return {
        "name": heads.name,
        "tokens": tokens,
        "keys": keys,
        "special": special,
        "key_special": key_special,
        "words": words,
        "key_words": key_words,
        "split": heads.split,
        "layers": heads.layers,
        "heads": heads.count,
        "length": size,
        "key_length": width,
        "weights": None if long else packing.pack_numbers(heads.weights),
        "scores": None if long else _scores(heads, layer, left_out),
        "scale": [heads.scale.get(number) for number in heads.layers],
        "hidden": None if long else _hidden(heads),
        "norms": packing.pack_numbers(heads.norms) if heads.norms else None,
        "measures": measures.measures_of(heads),
        "summary": _summary(heads, left_out) if long else None,
        "left_out": left_out,
    }


def _axis(axis: Axis | None) -> tuple[Any, Any, Any]:
    """Names, places of special tokens and words of queries or of keys; None for what is not."""
    if axis is None:
        return None, None, None
    places = [place for place, special in enumerate(axis.special) if special]
    return axis.names, places, word_spans(axis.tokens, axis.special)


def _scores(heads: Heads, layer: int, left_out: list[str]) -> dict[str, Any] | None:
    layers = [number for number in heads.layers if number in heads.scores]
    cells = heads.cells // len(heads.layers) * len(layers)
    if cells > MOST_SCORES:
        layers = [number for number in layers if number == layer]
        if layers:
            left_out.append(f"Scores are here for layer {layer} only; weights for all layers.")
    if not layers:
        return None
    arrays = np.array([heads.scores[number] for number in layers])
    return packing.pack_numbers(arrays) | {"layers": layers}


def _hidden(heads: Heads) -> dict[str, Any] | None:
    if set(heads.layers) - set(heads.scores):
        return None
    scores = np.array([heads.scores[number] for number in heads.layers])
    return packing.pack_flags(np.isneginf(scores))


def _summary(heads: Heads, left_out: list[str]) -> dict[str, Any]:
    """The largest weights of each query and what each key received, as many as a page can hold."""
    size, width = len(heads.queries.tokens), len(heads.keys.tokens)
    most = max(4, min(8, MOST_KEPT // max(1, len(heads.layers) * heads.count * size)))
    parts = heads.summary or [measures.summarize(layer, most) for layer in heads.weights]
    parts = [Summary(p.indices[..., :most], p.weights[..., :most], p.received) for p in parts]
    indices = np.array([part.indices for part in parts])  # (layers, H, L, k)
    weights = np.array([part.weights for part in parts])
    received = np.array([part.received for part in parts])  # (layers, H, S)
    whole = float(np.nansum(received, dtype=np.float64))
    kept = float(np.nansum(weights, dtype=np.float64)) / whole if whole else 0.0
    top_k = indices.shape[-1]
    left_out.append(
        f"A text of {size:,} tokens: of each query's {width:,} weights the {top_k} largest are "
        f"here ({kept:.1%} of all weight), and what each key received from all queries; the other "
        "weights and the scores are left out."
    )
    return {
        "top_k": top_k,
        "indices": packing.pack_indices(indices, width),
        "weights": packing.pack_shares(weights),
        "received": packing.pack_numbers(received),
        "kept": kept,
    }


def payload_of(
    kind: str,
    title: str,
    texts: Sequence[dict[str, Any]],
    *,
    theme: str = "auto",
    **others: Any,
) -> dict[str, Any]:
    """Everything that a page shows, PAYLOAD above: `others` are what else it has."""
    first = {"version": 1, "kind": kind, "title": title, "theme": check_theme(theme, kind)}
    nothing = dict.fromkeys(("start", "compare", "walk", "shift", "replay"))
    return first | {"model": "", "stretch": False, "texts": list(texts)} | nothing | others


def start_at(layer: int, head: int, query: int | None, **others: Any) -> dict[str, Any]:
    """What a page shows first, "start" of PAYLOAD: `others` are what else it has."""
    place = {"text": 0, "layer": layer, "head": head, "query": query}
    return place | {"heads": None, "merge": True} | others


def check_theme(theme: str, call: str) -> str:
    """The theme, or an error that names the themes there are."""
    if theme not in THEMES:
        raise ValueError(f"{call}: theme is {theme!r}: choose {', '.join(THEMES)}")
    return theme
