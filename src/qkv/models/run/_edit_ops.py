"""The effects of edit records on a run: for each `op`, a function and its derivative."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import value_error
from qkv.arrays import Array, Shape, quote
from qkv.edits import Record
from qkv.models.network.batch import PackedIds
from qkv.models.network.transformer import Transformer
from qkv.models.run.edited_run import At, Change, EditStep, MaskedKey, is_number
from qkv.trace import Recorder
from qkv.trace.activations import Parsed, activation, parse
from qkv.trace.names import NameIndex

_LARGEST = float(np.finfo(np.float32).max)


class Origin:
    """The activations of another text.

    The first access to an activation runs the network, without edits.

    Args:
        network: the network.
        ids: the ids of the text, (T,).
    """

    def __init__(self, network: Transformer, ids: Array) -> None:
        self.names: set[str] = set()
        self._network, self._ids = network, ids
        self._arrays: dict[str, Array] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, name: str) -> Array:
        """Return an activation (T, ...); the first access computes all activations in `names`."""
        if not self._arrays:
            record = Recorder(self.names.__contains__)
            self._network.run(PackedIds.of([self._ids]), record=record)
            self._arrays = record.arrays
        array: Array = self._arrays[name][0]
        return array


@dataclass
class Plan:
    """The effects of all edit records of a call; each row of `OPS` adds one record's effect.

    Attributes:
        network: the network that runs.
        lengths: the number of tokens in each text.
        prefix: the prefix of the names of the network's activations.
        first: the index of the first text among all texts of the call.
        read: a function that takes a text and returns its ids (T,). If the model does not read
            texts, `read` is None.
        sources: maps each text in the field "from" of an edit record to the activations of this
            text.
        masked: the masked keys.
        ablated: the replacement of each ablated head's output: `ablated[layer][head]`.
        changes: a list of steps for each changed activation, keyed by the activation's full name.
            The steps change the activation in the order of the list.
    """

    network: Transformer
    lengths: Sequence[int]
    prefix: str = ""
    first: int = 0
    read: Callable[[str], Array] | None = None
    sources: dict[str, Origin] = field(default_factory=dict)
    masked: list[MaskedKey] = field(default_factory=list)
    ablated: dict[int, dict[int, Any]] = field(default_factory=dict)
    changes: dict[str, list[EditStep]] = field(default_factory=dict)

    def hide(
        self, query: int | None, key: int | None, layer: int | None = None, head: int | None = None
    ) -> None:
        """Mask a key in each text; see `MaskedKey`."""
        self.masked += [
            MaskedKey(text, query, key, layer, head) for text in range(len(self.lengths))
        ]

    def name(self, short: str, layer: int | None) -> str:
        """Return an activation's full name without the prefix, or "" if it does not exist."""
        name = self._known.one((short, layer))
        return name if name is not None and parse(name).layer == layer else ""

    @cached_property
    def _known(self) -> NameIndex:
        return NameIndex(name for name in self.network.hook_names if activation(name).editable)

    def site(self, record: Record) -> str:
        """Return the full name of the activation that a record changes, without the prefix."""
        name = self.name(record.fields["at"], record.fields.get("layer"))
        if not name:
            way = "an activation of the layer" if "layer" in record.fields else "the layer too"
            raise wrong(record, "at", f"{way}, or one outside the layers, such as 'embed'")
        return name

    def change(self, short: str, layer: int | None, do: Change, back: Change) -> None:
        """Add a step that changes a layer's activation; steps run in the order of their addition.

        `back` multiplies the gradient by the transposed Jacobian of `do`.
        """
        self.changes.setdefault(self.prefix + self.name(short, layer), []).append(
            EditStep(do, back)
        )

    def part(self, record: Record, tokens: int) -> dict[str, tuple[int, Any]]:
        """Return the part of an activation that a record changes, in a text of `tokens` tokens.

        The result maps the name of each axis to `(length, index)`. The record changes only the
        entries at `index`, or the whole axis if `index` is `slice(None)`.
        """
        fields, name = record.fields, self.site(record)
        axes = activation(name).axes[1:]
        changed: dict[str, tuple[int, Any]] = {}
        sizes = shape_of(parse(name), self.network, tokens, tokens)
        for axis, size in zip(axes, sizes, strict=True):
            index = fields.get({"kv_head": "head", "query": "token"}.get(axis, axis))
            if index is not None and "head" in axis and index >= size:
                way = f"0 to {size - 1}, because {fields['at']} has {size} heads"
                raise wrong(record, "head", way)
            changed[axis] = size, slice(None) if index is None else index
        if "head" in fields and not {"head", "kv_head"} & changed.keys():
            raise value_error(
                f"{record.source} has a head, but {fields['at']} does not belong "
                "to a head: omit the head"
            )
        return changed

    def source(self, record: Record) -> Callable[[], Array]:
        """Return a function that computes an activation (T, ...) of the text in "from"."""
        text, name = record.fields["from"], self.site(record)
        if self.read is None:
            way = 'an array in a "set" record, because this model does not read texts'
            raise wrong(record, "from", way)
        if not isinstance(text, str) or not text.strip():
            raise wrong(record, "from", "a text with at least one word")
        if text not in self.sources:
            self.sources[text] = Origin(self.network, self.read(text))
        source = self.sources[text]
        for number, length in enumerate(self.lengths, self.first):
            if length != len(source):
                way = (
                    f"a text of {length} tokens, because text {number} has {length} tokens; "
                    f"the given text has {len(source)}"
                )
                raise wrong(record, "from", way)
        source.names.add(name)
        return partial(source.__getitem__, name)

    def put(self, record: Record, value: Callable[[tuple[Any, ...]], Array]) -> None:
        """Replace the part of an activation that a record selects.

        While `generate` runs, only the prompt is edited.

        Args:
            record: the edit record.
            value: a function that takes an index and returns the new part. The index selects the
                replaced part in the activation of one text.
        """
        at, layer = record.fields["at"], record.fields.get("layer")
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
    """Mask a token for every query."""
    plan.hide(None, record.fields["token"])


def mask(plan: Plan, record: Record) -> None:
    """Mask a key for one query."""
    fields = record.fields
    plan.hide(fields["query"], fields["key"], fields.get("layer"), fields.get("head"))


def causal(plan: Plan, record: Record) -> None:
    """Mask all keys after each query."""
    plan.hide(None, None)


def ablate(plan: Plan, record: Record) -> None:
    """Replace the output of a head with 0 or with another value."""
    layer, head = record.fields["layer"], record.fields.get("head")
    heads = range(plan.network.layers[layer].attn.num_heads) if head is None else [head]
    output = record.fields.get("with", 0)
    plan.ablated.setdefault(layer, {}).update(dict.fromkeys(heads, output))


def scale(plan: Plan, record: Record) -> None:
    """Scale the products of queries and keys by `value` instead of the model's scale.

    If other steps also change the scores (see `is_plain`), the queries are scaled instead.
    """
    for layer in range(len(plan.network.layers)):
        short, usual = scale_in(plan.network, layer)
        scaled = partial(_times, record.fields["value"] / usual)
        plan.change(short, layer, scaled, scaled)


def row(plan: Plan, record: Record) -> None:
    """Replace the attention weights of one query, after the softmax."""
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
    """Add a vector to an activation of size D."""
    fields, dim = record.fields, plan.network.dim
    if not are_numbers(fields["vector"], (dim,)):
        raise wrong(record, "vector", f"{dim} finite numbers, the size of a vector")
    vector, token = np.asarray(fields["vector"]), fields.get("token")
    plan.site(record)

    def steer(array: Array, at: At) -> Array:  # (B, T, D)
        array[at.positions >= 0 if token is None else at.positions == token] += vector
        return array

    plan.change(fields["at"], fields["layer"], steer, lambda grad, at: grad)


def patch(plan: Plan, record: Record) -> None:
    """Replace an activation, or its part for one head or token, with values from another text."""
    source = plan.source(record)
    plan.put(record, lambda index: source()[index])


def set_(plan: Plan, record: Record) -> None:
    """Replace an activation, or its part for one head or token, with an array."""
    for number, length in enumerate(plan.lengths, plan.first):
        axes = plan.part(record, length).values()
        shape = tuple(size for size, chosen in axes if isinstance(chosen, slice))
        if not are_numbers(record.fields["value"], shape):
            way = f"finite numbers {shape}, because text {number} has {length} tokens"
            raise wrong(record, "value", way)
    value = np.asarray(record.fields["value"])
    plan.put(record, lambda _: value)


def swap(plan: Plan, record: Record) -> None:
    """Change nothing, because `swap_tokens` replaces the token before the run."""


class Op(NamedTuple):
    """A kind of record.

    Attributes:
        apply: adds the effect of a record to the plan of a run.
        masks: whether the record masks keys. `Trace.changed` lists such records under "hide".
    """

    apply: Callable[[Plan, Record], None]
    masks: bool = False


OPS = {
    "hide": Op(hide, masks=True),
    "mask": Op(mask, masks=True),
    "causal": Op(causal, masks=True),
    "ablate": Op(ablate),
    "scale": Op(scale),
    "row": Op(row),
    "swap": Op(swap),
    "add": Op(add),
    "patch": Op(patch),
    "set": Op(set_),
}


def wrong(record: Record, name: str, way: str) -> ValueError:
    """Return the error for a wrong field; `way` describes a valid value."""
    value = record.fields[name]
    has = f"an array {value.shape}" if isinstance(value, np.ndarray) else quote(value)
    return value_error(f"{record.source} has {name} {has}; pass {way}")


def are_numbers(value: Any, shape: Shape) -> bool:
    """Return whether a value is an array of this shape whose values fit in float32."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # nested lists of different lengths cannot become an array
        return False
    return is_number(array) and array.shape == shape and bool((np.abs(array) <= _LARGEST).all())


def shape_of(at: Parsed, network: Transformer, queries: int, keys: int, features: int = 0) -> Shape:
    """Return the shape of an activation of one text.

    `features` is the size of a spliced layer's own activations, e.g. of an autoencoder.
    """
    row = activation(at.local)
    sizes = {"query": queries, "key": keys, "token": keys if row.of_keys else queries}
    sizes |= {"one": 1, "D": network.widths.get(at.local, network.dim), "feature": features}
    part = at.local.rpartition(".")[0]
    block: Any = None if at.layer is None else network.layers[at.layer]
    if part == "mlp":
        sizes["F"] = block.mlp.hidden
    elif part in ("attn", "cross_attn"):
        attn = block.attn if part == "attn" else block.cross_attn.attn
        sizes |= {"head": attn.num_heads, "kv_head": attn.num_kv_heads}
        sizes |= {"d": attn.d_query, "dv": attn.d_value}
    return tuple(sizes[axis] for axis in row.axes[1:])


def scale_in(network: Transformer, layer: int) -> tuple[str, float]:
    """Return the activation that a "scale" record multiplies, and the usual scale of the scores.

    >>> import qkv
    >>> scale_in(qkv.load("random").network, 0)
    ('attn_scores', 0.5)
    """
    attn, options = network.layers[layer].attn, network.options[layer]
    usual = options.get("scale") or 1 / math.sqrt(attn.d_query)
    if is_plain(network, layer):
        return "attn_scores", usual
    return "rot_q" if attn.rotary or attn.q_norm or attn.k_norm else "q", usual


def is_plain(network: Transformer, layer: int) -> bool:
    """Return whether a layer computes its scores as `scale * query @ key`, without other steps."""
    attn, options = network.layers[layer].attn, network.options[layer]
    others = attn.rotary or attn.q_norm or attn.k_norm or network.bias
    return others is None and not {"softcap", "alibi_slopes", "sinks"} & options.keys()


def _times(factor: float, array: Array, at: At) -> Array:
    """Return an array times a factor; masked scores remain -inf."""
    masked = np.isneginf(array)
    return np.where(masked, array, np.where(masked, 0, array) * factor)
