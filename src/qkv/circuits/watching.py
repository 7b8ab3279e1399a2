"""The weights of every layer, one after the other, while texts run: none of them is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qkv.arrays import Array
from qkv.attend import attention
from qkv.models.model import Model
from qkv.trace import Recorder, Trace
from qkv.trace.activations import short_name
from qkv.trace.names import parse

CELLS = 2**21  # weights of one layer that are held at once

# Gets a layer, the place of the first of some queries, and their weights (B, Hq, Q, K).
Use = Callable[[int, int, Array], None]


class _Enough(Exception):
    """The weights of the last layer are there: nothing behind them is computed."""


def room(model: Model) -> int:
    """How many weights of a head are held at once: those of one layer are `CELLS` together."""
    return CELLS // model.num_heads


def watch(model: Model, batch: Sequence[Array], use: Use) -> None:
    """Run texts and give the weights of each layer to a function.

    Args:
        model: of one text at a time.
        batch: the ids of texts, (T,) each.
        use: called for each layer in its order with the weights (B, Hq, Q, K), 0 in the padding.
            What it is given is its own. Of a text alone whose layers have more than `CELLS` weights
            it gets some queries at a time, for each of them all layers.

    >>> import numpy as np
    >>> import qkv
    >>> model = qkv.load("random")
    >>> watch(model, [np.array([1, 2]), np.array([3])], lambda *found: print(found[2].shape))
    (2, 2, 2, 2)
    """
    longest = max(map(len, batch))
    if len(batch) == 1 and longest * longest > room(model):
        _in_parts(model, batch[0], use)
        return
    last = model.num_layers - 1

    def seen(name: str, weights: Array) -> None:
        layer = parse(name).layer
        assert layer is not None
        use(layer, 0, weights)
        if layer == last:
            raise _Enough

    record = Recorder(lambda name: short_name(name) == "pattern", use=seen)
    try:
        model.network.packed(batch, record=record)
    except _Enough:
        return


def _in_parts(model: Model, ids: Array, use: Use) -> None:
    """The same of one long text, whose weights would not fit."""
    rotated = any(layer.attn.rotary or layer.attn.q_norm for layer in model.layers)
    trace = model.trace(ids, names=["q", "k", "v", *["rot_q", "rot_k"] * rotated])
    step = max(1, room(model) // len(ids))
    for first in range(0, len(ids), step):
        for layer in range(trace.num_layers):
            use(layer, first, _weights(trace, layer, slice(first, first + step)))


def _weights(trace: Trace, layer: int, queries: slice) -> Array:
    """The weights (1, Hq, Q, K) of some queries."""
    inputs = trace.attention_inputs(layer)
    inputs["query"] = inputs["query"][..., queries, :]
    inputs["q_offset"] = queries.start
    if "bias" in inputs:
        inputs["bias"] = inputs["bias"][..., queries, :]
    weights: Array = attention(**inputs, return_weights=True)[1]
    return weights
