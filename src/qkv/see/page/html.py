"""A view as one piece of HTML that needs nothing else: numbers, script, a static picture."""
# What stands in the payload, which assets/*.js read. Arrays are packed (see packing.py): base64 of
# little-endian float32, or of whole numbers with their "bits" (8, 16, 32), and their "shape". No
# number is rounded: that is for what shows it. Shares show as weights do in up to four digits.
#
# PAYLOAD = {
#   "version": 1, "kind": "show" | "compare" | "walk" | "shift" | "replay",
#   "title": str, "model": str, "theme": "auto" | "light" | "dark",
#   "stretch": whether scales end at the largest weight at first,
#   "texts": [TEXT, ...],       show: 1, or the 3 attentions of an encoder-decoder; compare: 2
#   "start": {"text": place in texts, "layer": number, "head": number,
#             "query": place of a token | null, "chosen": why this head, "sentence": str,
#             "heads": [numbers] | null, "specials": bool,
#             "merge": whether pieces are merged into words} | null,
#   "compare": COMPARE | null, "walk": see walk.py | null, "shift": see shift.py | null,
#   "replay": see training.py | null,
#   "notes": [what a reader should know of the tokens, in sentences] }
#
# TEXT = {
#   "name": str, "tokens": [L strings], "keys": [S strings] | null (they are the tokens),
#   "special": [0 | 1, ...], "key_special": [0 | 1, ...] | null,
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
#            "places": [[places in A], [in B]],
#            "similarity": [a cosine at the embeddings and after each layer],
#            "strongest": [[{"key", "name", "layer", "head", "weight"}, ...], the same of B]}
#        or {"what": "runs", "sentence": str, "of": str,
#            "changes": [[token, distance, cosine, length in A], ...] largest first,
#            "by_layer": [the mean distance at the embeddings and after each layer]}

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis import measures
from qkv.see.analysis.heads import Heads, Summary
from qkv.see.analysis.words import word_spans
from qkv.see.draw import colours
from qkv.see.draw.svg import readable
from qkv.see.page import packing

THEMES = ("auto", "light", "dark")
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)

LONG = 512  # tokens from which a page holds summaries
MOST_CELLS = 4_000_000  # weights that a page holds at most: 16 MB before base64
MOST_SCORES = 1_500_000
MOST_KEPT = 1_000_000  # weights of summaries, more than 4 a query
_SCRIPTS = {"compare": "show"}  # kinds that share a script with another
_WITH_TOKENS = ("walk", "shift", "replay")
# What ends a script or a line of one, and halves of characters, which UTF-8 cannot write.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
_COMMENTS = re.compile(r"^ *(//|/?\*).*\n", re.MULTILINE)  # that have a line of their own


def text_payload(heads: Heads, layer: int) -> dict[str, Any]:
    """What a page holds of one text; `layer` is the one that is shown first."""
    size, width = len(heads.tokens), len(heads.all_keys)
    left_out: list[str] = []
    long = not heads.weights or max(size, width) >= LONG or heads.cells > MOST_CELLS
    return {
        "name": heads.name,
        "tokens": heads.query_names,
        "keys": None if heads.keys is None else heads.key_names,
        "special": [int(flag) for flag in heads.special],
        "key_special": None
        if heads.key_special is None
        else [int(flag) for flag in heads.key_special],
        "words": _words(heads.tokens, heads.special),
        "key_words": None if heads.keys is None else _words(heads.keys, heads.all_key_special),
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


def _words(tokens: Sequence[str], special: Sequence[bool]) -> list[list[Any]] | None:
    spans = word_spans(tokens, special)
    return None if spans is None else [list(span) for span in spans]


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
    return packed_flags(np.isneginf(np.array([heads.scores[number] for number in heads.layers])))


def packed_flags(flags: Array) -> dict[str, Any] | None:
    """Flags `(layers, heads, L, S)`, an axis along which they are all the same cut to 1."""
    if not flags.any():
        return None
    for axis in (1, 0):
        first = flags.take([0], axis=axis)
        if (flags == first).all():
            flags = first
    return packing.pack_bits(flags)


def _summary(heads: Heads, left_out: list[str]) -> dict[str, Any]:
    """The largest weights of each query and what each key received, as many as a page can hold."""
    size, width = len(heads.tokens), len(heads.all_keys)
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
    model: str = "",
    theme: str = "auto",
    stretch: bool = False,
    start: dict[str, Any] | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """Everything that a page shows; `parts` are "compare", "walk" and so on."""
    own = {name: parts.get(name) for name in ("compare", "walk", "shift", "replay")}
    return {
        "version": 1,
        "kind": kind,
        "title": title,
        "model": model,
        "theme": check_theme(theme, kind),
        "stretch": bool(stretch),
        "texts": list(texts),
        "start": start,
        **own,
    }


def start_at(
    layer: int,
    head: int,
    query: int | None,
    *,
    chosen: str,
    sentence: str,
    text: int = 0,
    heads: Sequence[int] | None = None,
    specials: bool = True,
    merge: bool = True,
) -> dict[str, Any]:
    """What a page shows first."""
    return {
        "text": text,
        "layer": layer,
        "head": head,
        "query": query,
        "chosen": chosen,
        "sentence": sentence,
        "heads": None if heads is None else list(heads),
        "specials": specials,
        "merge": merge,
    }


def check_theme(theme: str, call: str) -> str:
    """The theme, or an error that names the themes there are."""
    if theme not in THEMES:
        raise ValueError(f"{call}: theme is {theme!r}: choose {', '.join(THEMES)}")
    return theme


def fragment(payload: dict[str, Any], static: str) -> str:
    """A view as a part of a page: a div with the static picture, and the script that replaces it.

    The same view has the same text, and stands as often as one likes on one page: a script looks
    for every place of its own that has no view yet.

    Args:
        payload: the numbers.
        static: what shows where scripts are off, as SVG.
    """
    data = script_json(payload)
    mark = hashlib.sha256(data.encode()).hexdigest()[:16]
    names = ["view", _SCRIPTS.get(payload["kind"], payload["kind"])]
    code = "\n".join(filter(None, (asset(f"{name}.js") for name in names)))
    styles = [colours.css(), *filter(None, (asset(f"{name}.css") for name in names))]
    css = script_json("\n".join(styles))
    return (
        f'<div class="qkv-view" data-qkv="{mark}">{static}{_tokens(payload)}</div>\n'
        f'<script>(() => {{ "use strict";\n{code}\nstart("{mark}", {data}, {css});\n'
        "})();</script>"
    )


def whole_page(payload: dict[str, Any], static: str) -> str:
    """A view as a page of its own, whose policy forbids it the network."""
    scheme = {"auto": "light dark"}.get(payload["theme"], payload["theme"])
    title = escape(readable(payload["title"]), quote=True)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="{scheme}">\n<title>{title}</title>\n'
        '<link rel="icon" href="data:,">\n'
        "<style>body{margin:0 auto;padding:12px;max-width:1400px;"
        "font-family:system-ui,sans-serif}"
        "h1{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}</style>\n"
        f"</head>\n<body>\n<main>\n<h1>{title}</h1>\n{fragment(payload, static)}\n</main>\n"
        "</body>\n</html>\n"
    )


def finite(data: Any) -> Any:
    """Numbers as JSON can hold them: lists for arrays, None for what is not finite.

    >>> finite({"a": np.array([0.5, np.inf]), "b": (1, float("nan"))})
    {'a': [0.5, None], 'b': [1, None]}
    """
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    if isinstance(data, np.ndarray):
        return data.tolist() if np.isfinite(data).all() else finite(data.tolist())
    data = data.item() if isinstance(data, np.generic) else data
    return None if isinstance(data, float) and not math.isfinite(data) else data


def script_json(data: Any) -> str:
    r"""JSON that may stand in a script of a page, whatever its strings hold.

    >>> script_json({"a": "</script>\u2028&"})
    '{"a":"\\u003c/script\\u003e\\u2028\\u0026"}'
    """
    text = json.dumps(finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


@lru_cache(maxsize=16)
def asset(name: str) -> str:
    """The text of a file in assets/; empty if there is none of this name. Scripts lose comments."""
    file = files("qkv.see").joinpath("page", "assets", name)
    text = file.read_text("utf-8") if file.is_file() else ""
    return _COMMENTS.sub("", text) if name.endswith(".js") else text


def _tokens(payload: dict[str, Any]) -> str:
    """The tokens as text, for those who search, copy or listen where scripts are off."""
    lines = []
    for part in filter(None, (*payload["texts"], *(payload[name] for name in _WITH_TOKENS))):
        for which in ("tokens", "keys"):
            if part.get(which):
                called = " ".join(filter(None, (part.get("name"), which)))
                lines.append(f"{called}: {' '.join(part[which])}")
    return "".join(f"<p>{escape(readable(line), quote=True)}</p>" for line in lines)
