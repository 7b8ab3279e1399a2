"""Edits of a run as the page of `play` has them, and what `trace` calls each."""
# An edit is an object {"op": ...}; places are tokens', counted from 0, and so are layers and heads:
#
#   {"op": "hide", "token"}                          no query sees this token
#   {"op": "mask", "query", "key", "layer"?, "head"?} this query does not see this key
#   {"op": "causal"}                                 no query sees what follows it
#   {"op": "ablate", "layer", "head"?}               z of the head, or of all of the layer, is 0
#   {"op": "scale", "value"}                         scores times this, and not the usual; the last
#   {"op": "row", "layer", "head", "query", "weights"}   these weights in place of the softmax's
#   {"op": "swap", "token", "with"}                  one entry of the vocabulary in place of a token

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.models import Model
from qkv.models.tasks.hide_arguments import FOLLOWING
from qkv.serve.bodies import shown
from qkv.text import Tokenized
from qkv.trace.activations import activation

# What each takes: True what it needs, False what it may have.
TAKES: dict[str, dict[str, bool]] = {
    "hide": {"token": True},
    "mask": {"query": True, "key": True, "layer": False, "head": False},
    "causal": {},
    "ablate": {"layer": True, "head": False},
    "scale": {"value": True},
    "row": {"layer": True, "head": True, "query": True, "weights": True},
    "swap": {"token": True, "with": True},
}
_LARGEST = float(np.finfo(np.float32).max)
COPIES = 6  # of an array of all weights of a layer, while a function changes it


@dataclass(frozen=True)
class Changes:
    """A text, and the arguments of `trace` that run it as edits say.

    Attributes:
        text: the tokens, once some are swapped.
        ablate: heads that add nothing.
        hide: masked positions and edges, and `FOLLOWING` for a causal mask, each once.
        edit: activations, each with the function that changes it.
    """

    text: Tokenized
    ablate: list[tuple[int, int | None]] = field(default_factory=list)
    hide: list[Any] = field(default_factory=list)
    edit: dict[Any, Callable[[Array], Array]] = field(default_factory=dict)

    @property
    def sets_weights(self) -> bool:
        """Whether scores or weights of a layer are changed as a whole."""
        return any(activation(name).is_weights for name, _ in self.edit)

    def size(self, model: Model) -> int:
        """About how many bytes the masks take, and the arrays that functions change at once."""
        tokens = len(self.text)
        edges = [one for one in self.hide if isinstance(one, tuple)]
        heads = [layer.attn.num_heads for layer in model.layers]
        of_layers = {one[2]: 1 for one in edges if len(one) > 2}
        of_layers |= {one[2]: heads[one[2]] for one in edges if len(one) > 3}
        masks = tokens * (tokens if edges else 1) * bool(self.hide)  # of all other layers
        masks += sum(tokens**2 * count for count in of_layers.values())
        weights = [layer for name, layer in self.edit if activation(name).is_weights]
        changed = [heads[layer] * tokens**2 for layer in weights]
        return masks + max(changed, default=0) * COPIES * model._body.dtype.itemsize


def changes_of(model: Model, text: Tokenized, edits: Sequence[Any]) -> Changes:
    """What edits of a text are to `trace`; nothing is changed in what is given.

    Raises:
        ValueError: an edit is none, or its place, layer, head, number or word is not there; the
            message says which edit and what would fit.

    >>> import qkv
    >>> model = qkv.load("random")
    >>> text = model.tokenize("the cat")
    >>> changes_of(model, text, [{"op": "ablate", "layer": 0, "head": 1}]).ablate
    [(0, 1)]
    """
    swaps = any(isinstance(edit, dict) and edit.get("op") == "swap" for edit in edits)
    words = model.tokenizer.vocabulary if swaps and model.tokenizer is not None else {}
    own = [_checked(model, text, words, edit, place) for place, edit in enumerate(edits)]
    found = Changes(_swapped(text, words, own))
    rows: dict[int, list[Mapping[str, Any]]] = {}
    scale: float | None = None
    for edit in own:
        match edit["op"]:
            case "hide":
                found.hide.append(edit["token"])
            case "mask":
                names = ("query", "key", "layer", "head")
                found.hide.append(tuple(edit[name] for name in names if name in edit))
            case "causal":
                found.hide.append(FOLLOWING)
            case "ablate":
                found.ablate.append((edit["layer"], edit.get("head")))
            case "scale":
                scale = edit["value"]
            case "row":
                rows.setdefault(edit["layer"], []).append(edit)
    if scale is not None:
        found.edit.update(_scaled(model, scale))
    for layer, some in rows.items():
        found.edit["pattern", layer] = partial(_with_rows, some)
    ablate, hide = list(dict.fromkeys(found.ablate)), list(dict.fromkeys(found.hide))
    return replace(found, ablate=ablate, hide=hide)


def _checked(
    model: Model, text: Tokenized, words: Mapping[str, int], edit: Any, place: int
) -> dict[str, Any]:
    """An edit with nothing else in it than it takes."""
    op = edit.get("op") if isinstance(edit, dict) else None
    if not isinstance(op, str) or op not in TAKES:
        what = f"op {shown(op)}" if isinstance(edit, dict) else shown(edit)
        raise ValueError(f"edits[{place}] has {what}: it must be one of {', '.join(TAKES)}")
    found: dict[str, Any] = {"op": op}
    for name, needed in TAKES[op].items():
        value = edit.get(name)
        if value is None and not needed:
            continue
        if name == "with":
            fits = isinstance(value, str) and value in words
            way = None if fits else "one entry of the vocabulary"
        else:
            way = _way(model, text, name, value, found)
        if way:
            raise ValueError(f"edits[{place}] ({op}) has {name} {shown(value)}: give {way}")
        found[name] = value
    if op == "mask" and "head" in found and "layer" not in found:
        head = found["head"]
        raise ValueError(f"edits[{place}] (mask) has head {head} and no layer: give the layer too")
    return found


def _way(
    model: Model, text: Tokenized, name: str, value: Any, found: Mapping[str, Any]
) -> str | None:
    """What would fit in the place of a value; None where it does."""
    if name == "value":
        return None if _is_number(value) else "a finite number"
    if name == "weights":
        fits = isinstance(value, list) and len(value) == len(text) and all(map(_is_number, value))
        return None if fits else f"{len(text)} finite numbers, one for each token"
    counts = {"layer": model.num_layers, "head": _heads(model, found.get("layer"))}
    count = counts.get(name, len(text))
    if type(value) is int and 0 <= value < count:
        return None
    what = {"layer": "as the model has layers", "head": "as a layer has heads"}
    return f"0 to {count - 1}, {what.get(name, 'as the text has tokens')}"


def _heads(model: Model, layer: int | None) -> int:
    """How many heads a layer has; without one, how many all have."""
    layers = model.layers if layer is None else [model.layers[layer]]
    return min(one.attn.num_heads for one in layers)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST


def _swapped(
    text: Tokenized, words: Mapping[str, int], edits: Sequence[Mapping[str, Any]]
) -> Tokenized:
    """A text with other tokens in the place of some."""
    ids, tokens = text.ids.copy(), list(text.tokens)
    for edit in (edit for edit in edits if edit["op"] == "swap"):
        ids[edit["token"]] = words[edit["with"]]
        tokens[edit["token"]] = edit["with"]
    return replace(text, ids=ids, tokens=tokens)


def _scaled(model: Model, value: float) -> dict[Any, Callable[[Array], Array]]:
    """Scores that are products times `value`, and not times the usual.

    Where something is added to products, or caps them, the queries are scaled in their place.
    """
    found: dict[Any, Callable[[Array], Array]] = {}
    for number in range(model.num_layers):
        name, usual = scale_in(model, number)
        times = _times if name == "attn_scores" else np.multiply
        found[name, number] = partial(times, value / usual)
    return found


def scale_in(model: Model, layer: int) -> tuple[str, float]:
    """Which activation of a layer is multiplied to scale its scores, and the model's own scale.

    >>> import qkv
    >>> scale_in(qkv.load("random"), 0)
    ('attn_scores', 0.5)
    """
    attn, options = model.layers[layer].attn, model._body.options[layer]
    usual = options.get("scale") or 1 / math.sqrt(attn.d_query)
    if is_plain(model, layer):
        return "attn_scores", usual
    return "rot_q" if attn.rotary or attn.q_norm or attn.k_norm else "q", usual


def is_plain(model: Model, layer: int) -> bool:
    """Whether scores of a layer are products of its queries and keys, scaled, and nothing else."""
    attn, options = model.layers[layer].attn, model._body.options[layer]
    others = attn.rotary or attn.q_norm or attn.k_norm or model._body.bias
    return others is None and not {"softcap", "alibi_slopes", "sinks"} & options.keys()


def _times(factor: float, scores: Array) -> Array:
    """Scores times a factor; what is hidden stays so."""
    hidden = np.isneginf(scores)
    return np.where(hidden, scores, np.where(hidden, 0, scores) * factor)


def _with_rows(rows: Sequence[Mapping[str, Any]], pattern: Array) -> Array:
    """The pattern (B, H, T, T) of a layer with rows in the place of the softmax's."""
    for row in rows:
        pattern[:, row["head"], row["query"]] = row["weights"]
    return pattern
