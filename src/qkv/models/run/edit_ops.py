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
from qkv.models.run.edit import At, Change, Hidden, Step, is_number
from qkv.trace import Recorder
from qkv.trace.activations import Parsed, activation, meant, parse

_LARGEST = float(np.finfo(np.float32).max)


class Source:
    """Activations of another text as it is, from one run of it when the first is asked for.

    Args:
        body: the model that runs.
        ids: the text, (T,).
    """

    def __init__(self, body: Transformer, ids: Array) -> None:
        self.names: set[str] = set()
        self._body, self._ids = body, ids
        self._arrays: dict[str, Array] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, name: str) -> Array:
        """An activation, (T, ...); `names` must have it before the run."""
        if not self._arrays:
            record = Recorder(self.names.__contains__)
            self._body.packed([self._ids], record=record)
            self._arrays = record.arrays
        found: Array = self._arrays[name][0]
        return found


@dataclass
class Plan:
    """What the records of a call come to, while they are read one by one.

    Attributes:
        call: who is named in an error.
        body: the model that runs.
        lengths: how many tokens each text has.
        prefix: what its activations are called by in front of their names.
        first: the number that the first text has for the caller.
        read: the ids of a text, (T,), for a call; None where the model reads none.
        sources: other texts whose activations are asked for.
        hidden: what is not looked at.
        ablated: by layer and head what takes the place of what it gives.
        changes: by full names, what is done in turn to an array.
    """

    call: str
    body: Transformer
    lengths: Sequence[int]
    prefix: str = ""
    first: int = 0
    read: Callable[[str, str], Array] | None = None
    sources: dict[str, Source] = field(default_factory=dict)
    hidden: list[Hidden] = field(default_factory=list)
    ablated: dict[int, dict[int, Any]] = field(default_factory=dict)
    changes: dict[str, list[Step]] = field(default_factory=dict)

    def hide(
        self, query: int | None, key: int | None, layer: int | None = None, head: int | None = None
    ) -> None:
        """Hide a key in each text, as `Hidden` has it."""
        self.hidden += [Hidden(text, query, key, layer, head) for text in range(len(self.lengths))]

    def name(self, short: str, layer: int) -> str:
        """The full name of an activation of a layer, without the prefix."""
        known = self.body.hook_names
        return next(name for name in meant((short, layer), len(self.body.layers)) if name in known)

    def change(self, short: str, layer: int, do: Change, back: Change) -> None:
        """Do this to an activation of a layer, behind what is already done to it.

        `back` does to its gradient what the derivative of `do` does, transposed.
        """
        self.changes.setdefault(self.prefix + self.name(short, layer), []).append(Step(do, back))

    def part(self, record: Record, tokens: int) -> dict[str, tuple[int, Any]]:
        """The axes of the activation that a record changes in a text of so many tokens.

        Of each how long it is, and which of it is changed: a head, a token, or all.
        """
        fields, name = record.fields, self.name(record.fields["at"], record.fields["layer"])
        axes = activation(name).axes[1:]
        found: dict[str, tuple[int, Any]] = {}
        sizes = shape_of(parse(name), self.body, tokens, tokens)
        for axis, size in zip(axes, sizes, strict=True):
            given = fields.get({"kv_head": "head", "query": "token"}.get(axis, axis))
            if given is not None and "head" in axis and given >= size:
                raise wrong(self.call, record, "head", f"0 to {size - 1}, as {fields['at']} has")
            found[axis] = size, slice(None) if given is None else given
        if "head" in fields and not {"head", "kv_head"} & found.keys():
            raise ValueError(
                f"{self.call}: {record.source} has a head, and {fields['at']} is of no head: leave "
                "it out"
            )
        return found

    def source(self, record: Record) -> Callable[[], Array]:
        """What gives the activation that a record names, (T, ...), of the text that it names."""
        text, name = record.fields["from"], self.name(record.fields["at"], record.fields["layer"])
        if self.read is None:
            raise wrong(self.call, record, "from", 'an array with "set": this model reads no texts')
        if not isinstance(text, str) or not text.strip():
            raise wrong(self.call, record, "from", "a text with a word in it")
        if text not in self.sources:
            self.sources[text] = Source(self.body, self.read(text, self.call))
        found = self.sources[text]
        for number, length in enumerate(self.lengths, self.first):
            if length != len(found):
                way = f"a text of {length} tokens, as text {number} has; this one has {len(found)}"
                raise wrong(self.call, record, "from", way)
        found.names.add(name)
        return partial(found.__getitem__, name)

    def put(self, record: Record, value: Callable[[tuple[Any, ...]], Array]) -> None:
        """Put what `value` gives in the place of that part: of the prompt, where one goes on.

        It is asked with the index of the part in an activation of one text.
        """
        at, layer = record.fields["at"], record.fields["layer"]
        index = tuple(chosen for _, chosen in self.part(record, 0).values())

        def change(array: Array, at: At) -> Array:
            if not at.step:
                array[(slice(None), *index)] = value(index)
            return array

        def back(grad: Array, at: At) -> Array:
            grad[(slice(None), *index)] = 0
            return grad

        self.change(at, layer, change, back)


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
        scaled = partial(_times, record.fields["value"] / usual)
        plan.change(short, layer, scaled, scaled)


def row(plan: Plan, record: Record) -> None:
    """These weights take the place of the softmax's."""
    fields = record.fields
    head, query, weights = fields["head"], fields["query"], np.asarray(fields["weights"])

    def put(pattern: Array, at: At) -> Array:  # (B, Hq, Q, K)
        pattern = clear(pattern, at)
        texts, rows = np.nonzero(at.positions == query)
        pattern[texts, head, rows, : len(weights)] = weights
        return pattern

    def clear(pattern: Array, at: At) -> Array:
        texts, rows = np.nonzero(at.positions == query)
        pattern[texts, head, rows] = 0
        return pattern

    plan.change("pattern", fields["layer"], put, clear)


def add(plan: Plan, record: Record) -> None:
    """A vector is added to what passes between the parts of a layer."""
    fields, dim = record.fields, plan.body.dim
    if not are_numbers(fields["vector"], (dim,)):
        raise wrong(plan.call, record, "vector", f"{dim} finite numbers, as vectors have")
    vector, token = np.asarray(fields["vector"]), fields.get("token")

    def steer(array: Array, at: At) -> Array:  # (B, T, D)
        array[at.positions >= 0 if token is None else at.positions == token] += vector
        return array

    plan.change(fields["at"], fields["layer"], steer, lambda grad, at: grad)


def patch(plan: Plan, record: Record) -> None:
    """An activation, or its part of a head or a token, is as it is in another text."""
    source = plan.source(record)
    plan.put(record, lambda index: source()[index])


def set_(plan: Plan, record: Record) -> None:
    """An array takes the place of an activation, or of its part of a head or a token."""
    for number, length in enumerate(plan.lengths, plan.first):
        axes = plan.part(record, length).values()
        shape = tuple(size for size, chosen in axes if isinstance(chosen, slice))
        if not are_numbers(record.fields["value"], shape):
            way = f"finite numbers {shape}, as text {number} has {length} tokens"
            raise wrong(plan.call, record, "value", way)
    value = np.asarray(record.fields["value"])
    plan.put(record, lambda _: value)


OPS: dict[str, Callable[[Plan, Record], None]] = {
    "hide": hide,
    "mask": mask,
    "causal": causal,
    "ablate": ablate,
    "row": row,
    "add": add,
    "patch": patch,
    "set": set_,
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


def shape_of(
    at: Parsed, body: Transformer, queries: int, keys: int, features: int = 0
) -> tuple[int, ...]:
    """The shape of an activation, without the axis of texts; of a spliced layer with `features`."""
    one = activation(at.local)
    sizes = {"query": queries, "key": keys, "token": keys if one.of_keys else queries}
    sizes |= {"one": 1, "D": body.dim, "feature": features}
    part = at.local.rpartition(".")[0]
    block: Any = None if at.layer is None else body.layers[at.layer]
    if part == "mlp":
        sizes["F"] = block.mlp.hidden
    elif part in ("attn", "cross_attn"):
        attn = block.attn if part == "attn" else block.cross_attn.attn
        sizes |= {"head": attn.num_heads, "kv_head": attn.num_kv_heads}
        sizes |= {"d": attn.d_query, "dv": attn.d_value}
    return tuple(sizes[axis] for axis in one.axes[1:])


def scale_in(body: Transformer, layer: int) -> tuple[str, float]:
    """Which activation of a layer is multiplied to scale its scores, and the model's own scale.

    >>> import qkv
    >>> scale_in(qkv.load("random").network, 0)
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
