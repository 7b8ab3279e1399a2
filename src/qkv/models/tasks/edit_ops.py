"""What each kind of record does to a run: tokens that are hidden, heads, scores, weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from qkv.arrays import Array, shown
from qkv.edits import Record
from qkv.models.network.transformer import Transformer
from qkv.models.tasks.edit import At, Change, Hidden, is_number
from qkv.trace.names import meant

_LARGEST = float(np.finfo(np.float32).max)


@dataclass
class Plan:
    """What the records of a call come to, while they are read one by one.

    Attributes:
        call: who is named in an error.
        body: the model that runs.
        lengths: how many tokens each text has.
        prefix: what its activations are called by in front of their names.
        hidden: what is not looked at.
        ablated: by layer and head what takes the place of what it gives.
        changes: by full names, what is done in turn to an array.
    """

    call: str
    body: Transformer
    lengths: Sequence[int]
    prefix: str = ""
    hidden: list[Hidden] = field(default_factory=list)
    ablated: dict[int, dict[int, Any]] = field(default_factory=dict)
    changes: dict[str, list[Change]] = field(default_factory=dict)

    def hide(
        self, query: int | None, key: int | None, layer: int | None = None, head: int | None = None
    ) -> None:
        """Hide a key in each text, as `Hidden` has it."""
        self.hidden += [Hidden(text, query, key, layer, head) for text in range(len(self.lengths))]

    def change(self, short: str, layer: int, change: Change) -> None:
        """Do this to an activation of a layer, behind what is already done to it."""
        known = self.body.hook_names
        name = next(name for name in meant((short, layer), len(self.body.layers)) if name in known)
        self.changes.setdefault(self.prefix + name, []).append(change)


def hide(plan: Plan, record: Record) -> None:
    """No query sees this token."""
    plan.hide(None, record.fields["token"])


def mask(plan: Plan, record: Record) -> None:
    """This query does not see this key."""
    fields = record.fields
    plan.hide(fields["query"], fields["key"], fields.get("layer"), fields.get("head"))


def causal(plan: Plan, record: Record) -> None:
    """No query sees what follows it."""
    plan.hide(None, None)


def ablate(plan: Plan, record: Record) -> None:
    """What the head gives is 0, or something else."""
    layer, head = record.fields["layer"], record.fields.get("head")
    heads = range(plan.body.layers[layer].attn.num_heads) if head is None else [head]
    output = record.fields.get("with", 0)
    plan.ablated.setdefault(layer, {}).update(dict.fromkeys(heads, output))


def scale(plan: Plan, record: Record) -> None:
    """Scores are products times `value`, and not times the usual.

    Where something is added to products, or caps them, the queries are scaled in their place.
    """
    for layer in range(len(plan.body.layers)):
        short, usual = scale_in(plan.body, layer)
        plan.change(short, layer, partial(_times, record.fields["value"] / usual))


def row(plan: Plan, record: Record) -> None:
    """These weights take the place of the softmax's."""
    fields = record.fields
    head, query, weights = fields["head"], fields["query"], np.asarray(fields["weights"])

    def put(pattern: Array, at: At) -> Array:  # (B, Hq, Q, K)
        texts, rows = np.nonzero(at.positions == query)
        pattern[texts, head, rows] = 0
        pattern[texts, head, rows, : len(weights)] = weights
        return pattern

    plan.change("pattern", fields["layer"], put)


def add(plan: Plan, record: Record) -> None:
    """A vector is added to what passes between the parts of a layer."""
    fields, dim = record.fields, plan.body.dim
    if not are_numbers(fields["vector"], (dim,)):
        raise wrong(plan.call, record, "vector", f"{dim} finite numbers, as vectors have")
    vector, token = np.asarray(fields["vector"]), fields.get("token")

    def steer(array: Array, at: At) -> Array:  # (B, T, D)
        array[at.positions >= 0 if token is None else at.positions == token] += vector
        return array

    plan.change(fields["at"], fields["layer"], steer)


OPS: dict[str, Callable[[Plan, Record], None]] = {
    "hide": hide,
    "mask": mask,
    "causal": causal,
    "ablate": ablate,
    "row": row,
    "add": add,
    "scale": scale,
}


def wrong(call: str, record: Record, name: str, way: str) -> ValueError:
    """The error of a field that does not fit."""
    value = record.fields[name]
    has = f"an array {value.shape}" if isinstance(value, np.ndarray) else shown(value)
    return ValueError(f"{call}: {record.source} has {name} {has}: give {way}")


def are_numbers(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether it is numbers of this shape that float32 can hold."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # lists of unlike lengths
        return False
    return is_number(array) and array.shape == shape and bool((np.abs(array) <= _LARGEST).all())


def scale_in(body: Transformer, layer: int) -> tuple[str, float]:
    """Which activation of a layer is multiplied to scale its scores, and the model's own scale.

    >>> import qkv
    >>> scale_in(qkv.load("random")._body, 0)
    ('attn_scores', 0.5)
    """
    attn, options = body.layers[layer].attn, body.options[layer]
    usual = options.get("scale") or 1 / math.sqrt(attn.d_query)
    if is_plain(body, layer):
        return "attn_scores", usual
    return "rot_q" if attn.rotary or attn.q_norm or attn.k_norm else "q", usual


def is_plain(body: Transformer, layer: int) -> bool:
    """Whether scores of a layer are products of its queries and keys, scaled, and nothing else."""
    attn, options = body.layers[layer].attn, body.options[layer]
    others = attn.rotary or attn.q_norm or attn.k_norm or body.bias
    return others is None and not {"softcap", "alibi_slopes", "sinks"} & options.keys()


def _times(factor: float, array: Array, at: At) -> Array:
    """An array times a factor; what is masked of scores stays so."""
    hidden = np.isneginf(array)
    return np.where(hidden, array, np.where(hidden, 0, array) * factor)
