"""Run some of a model's layers on given vectors: `Model.run_layers`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, as_array, is_float, is_whole_number, shown
from qkv.edits import Edit, edits_of
from qkv.models.core import Core
from qkv.models.run.layout import Layout
from qkv.text import Tokenized
from qkv.trace.activations import parse

_CALL = "run_layers"


def run_layers(
    model: Core, resid: ArrayLike, first: int, stop: int | None = None, *, edit: Edit = None
) -> Array:
    """Run some consecutive layers on given input vectors.

    `unembed(run_layers(trace["resid_pre", 3], 3))` equals `trace["logits"]`, but layers 0 to 2 are
    not run.

    Args:
        resid: (B, T, D), or (T, D) for one text, float: `resid_pre` of layer `first`. All T
            positions are tokens, without padding.
        first: the first layer to run; -1 is the last layer. If `first` is the number of layers, no
            layer runs.
        stop: the run ends before this layer; None runs all layers from `first` on.
        edit: activations of these layers to change, as in `trace`. Replacement arrays, and the
            arrays that functions get, are (B, T, ...).

    Returns:
        The output of the last of these layers, before the final norm, in the shape of `resid`;
        float64 for a float64 model, otherwise float32.

    Raises:
        TypeError: `resid` does not hold floats, or a layer is not a whole number; also as in
            `trace`.
        ValueError: `resid` has another shape, a layer does not exist, an edit changes a layer that
            is not run, or the model reads one text and writes another; also as in `trace`.
        KeyError: an activation does not exist; the message has the nearest names.

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> trace = model.trace("spoon: a", logits=True)
    >>> logits = model.unembed(model.run_layers(trace["resid_pre", 3], 3))
    >>> bool(abs(logits - trace["logits"]).max() < 1e-4)
    True
    """
    body = model.network
    if not model.continues:
        raise ValueError(
            f"{_CALL}: {model.name} reads one text and writes another, with two stacks of layers: "
            "load a model with one stack"
        )
    vectors = as_array(resid, call=_CALL, name="resid")
    if not is_float(vectors.dtype):
        raise TypeError(f"{_CALL}: resid is {vectors.dtype}: give floats (B, T, {body.dim})")
    if vectors.ndim not in (2, 3) or vectors.shape[-1] != body.dim:
        raise ValueError(
            f"{_CALL}: resid has shape {vectors.shape} and {model.name} has vectors of {body.dim}: "
            f"give (B, T, {body.dim}), or (T, {body.dim}) for one text"
        )
    count = len(body.layers)
    begin, end = _layer(first, count, "first"), count
    if stop is not None:
        end = _layer(stop, count, "stop")
    if begin > end:
        raise ValueError(f"{_CALL}: first is layer {begin} and stop is {end}: give a later stop")
    texts, length, dim = (vectors[None] if vectors.ndim == 2 else vectors).shape
    blank = Tokenized(np.zeros(length, np.int64), [""] * length, [], [])
    edits = edits_of(edit, call=_CALL)
    swaps = [record.source for record in edits.records if record.op == "swap"]
    if swaps:
        raise ValueError(f"{_CALL}: {swaps[0]} needs tokens, but resid holds only vectors: omit it")
    _, edited = model._fit(edits, [blank] * texts)
    for record in edits.records:
        layer = record.fields.get("layer", begin)
        if not begin <= layer < end:
            raise ValueError(
                f"{_CALL}: {record.source} is of layer {layer}, and layers {begin} to {end - 1} "
                "are run: give one of these"
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
        vectors.reshape(-1, dim).astype(body.dtype, copy=False),
        length * np.arange(texts + 1),
        begin,
        end,
        record=edited.recorder(layout),
        masks=edited.masks(layout, length),
    )
    return rows.reshape(vectors.shape)


def _layer(number: Any, count: int, name: str) -> int:
    """Return a layer's number from 0; the number of layers means the end."""
    if not is_whole_number(number):
        raise TypeError(f"{_CALL}: {name} is {shown(number)}: give a whole number")
    if not -count <= number <= count:
        raise ValueError(
            f"{_CALL}: {name} is {number} and the model has {count} layers: give 0 to {count}"
        )
    return int(number) + (count if number < 0 else 0)
