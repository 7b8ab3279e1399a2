"""A run that begins at a layer, on vectors that somebody has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.arrays import Array, as_array, is_float, is_whole_number, shown
from qkv.edits import Edit, edits_of
from qkv.models.network.decoder import EncoderDecoder
from qkv.models.network.transformer import Transformer
from qkv.models.run.fit_edits import fit
from qkv.models.run.layout import Layout
from qkv.text import Tokenized
from qkv.trace.names import parse

_CALL = "run_layers"


def run_layers(
    body: Transformer,
    resid: Any,
    first: Any,
    stop: Any,
    edit: Edit,
    model: str,
    read: Callable[[str, str], Array] | None = None,
) -> Array:
    """What `Model.run_layers` gives for the model of this name, which reads texts by `read`.

    Raises:
        TypeError: an argument is of a wrong type.
        ValueError: `resid` is not (B, T, D) or (T, D), there is no such layer, an edit is of a
            layer that is not run, or the model is an encoder with a decoder.
        KeyError: there is no activation of a name.
    """
    if isinstance(body, EncoderDecoder):
        raise ValueError(
            f"{_CALL}: {model} reads one text and writes another, by two stacks of layers: take a "
            "model of one text"
        )
    given = as_array(resid, call=_CALL, name="resid")
    if not is_float(given.dtype):
        raise TypeError(f"{_CALL}: resid is {given.dtype}: give floats (B, T, {body.dim})")
    if given.ndim not in (2, 3) or given.shape[-1] != body.dim:
        raise ValueError(
            f"{_CALL}: resid has shape {given.shape} and {model} has vectors of {body.dim}: give "
            f"(B, T, {body.dim}), or (T, {body.dim}) for one text"
        )
    count = len(body.layers)
    begin, end = _layer(first, count, "first"), count
    if stop is not None:
        end = _layer(stop, count, "stop")
    if begin > end:
        raise ValueError(f"{_CALL}: first is layer {begin} and stop is {end}: stop comes behind it")
    texts, places, dim = (given[None] if given.ndim == 2 else given).shape
    blank = Tokenized(np.zeros(places, np.int64), [""] * places, [], [])
    edits = edits_of(edit, call=_CALL)
    edited = fit(edits, batch=[blank] * texts, body=body, pieces=None, read=read)
    for one in edits.records:
        layer = one.fields.get("layer", begin)
        if one.op == "swap":
            raise ValueError(f"{_CALL}: {one.source} is of a text, and resid has no token to swap")
        if not begin <= layer < end:
            raise ValueError(
                f"{_CALL}: {one.source} is of layer {layer}, and layers {begin} to {end - 1} are "
                "run: give one of these"
            )
    for name in edited.changes:
        layer = parse(name).layer
        if layer is None or not begin <= layer < end:
            raise ValueError(
                f"{_CALL}: edit has {name}, and layers {begin} to {end - 1} are run: name an "
                "activation of these"
            )
    layout = Layout(range(texts))
    rows, _ = body.run_layers(
        given.reshape(-1, dim).astype(body.dtype, copy=False),
        places * np.arange(texts + 1),
        begin,
        end,
        record=edited.recorder(layout),
        masks=edited.masks(layout, places),
    )
    return rows.reshape(given.shape)


def _layer(number: Any, count: int, name: str) -> int:
    """The number of a layer counted from 0; as many as there are is behind the last."""
    if not is_whole_number(number):
        raise TypeError(f"{_CALL}: {name} is {shown(number)}: give a whole number")
    if not -count <= number <= count:
        raise ValueError(
            f"{_CALL}: {name} is {number} and the model has {count} layers: give 0 to {count}"
        )
    return int(number) + (count if number < 0 else 0)
