"""The heads of plain arrays of weights, wherever they came from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from qkv.arrays import Array, as_array
from qkv.see.analysis.heads import Axis, Heads
from qkv.see.analysis.words import is_special

# What may stand around a weight of 1 after a softmax in a half.
_SLACK = 1e-2


def heads_from(
    attention: Any,
    tokens: Iterable[str],
    keys: Iterable[str] | None = None,
    *,
    call: str,
    name: str = "attention",
    title: str = "",
) -> Heads:
    """The heads of plain arrays.

    Args:
        attention: weights, one array `(layers, heads, L, S)`, or for each layer an array or a
            tensor `(heads, L, S)` or `(1, heads, L, S)`, as `transformers` returns them.
        tokens: the L queries.
        keys: the S keys, where they are other tokens.
        call: what an error says.
        name: what the argument is called in an error.
        title: what the text is called beside others.
    """
    arrays = _layers(attention, call, name)
    size, width = arrays[0].shape[1:]
    queries = _axis(tokens, size, call, name, "queries")
    others = None if keys is None else _axis(keys, width, call, name, "keys")
    if others is None and size != width:
        raise ValueError(
            f"{call}: {name} has {size} queries and {width} keys: tokens of its own for the keys "
            "are taken by head_view(cross_attention=, encoder_tokens=, decoder_tokens=)"
        )
    return Heads(queries, list(range(len(arrays))), arrays, other_keys=others, name=title)


def _layers(attention: Any, call: str, name: str) -> list[Array]:
    """Each layer's weights `(heads, L, S)`."""
    if isinstance(attention, (list, tuple)) and len(attention) and _dims(attention[0]) != 2:
        parts = list(attention)
    else:
        whole = _read(attention, call, name)
        if whole.ndim == 5 and whole.shape[1] == 1:
            whole = whole[:, 0]
        if whole.ndim != 4:
            raise ValueError(
                f"{call}: {name} has shape {whole.shape}: give (layers, heads, L, S), or for each "
                "layer (heads, L, S)"
            )
        parts = list(whole)
    arrays: list[Array] = []
    for number, part in enumerate(parts):
        if part is None:
            raise ValueError(
                f"{call}: {name} of layer {number} is None: load the transformers model with "
                'attn_implementation="eager" and call it with output_attentions=True'
            )
        array = _read(part, call, f"{name} of layer {number}")
        if array.ndim == 4 and array.shape[0] == 1:
            array = array[0]
        if array.ndim != 3 or 0 in array.shape:
            several = f"{array.shape[0]} texts" if array.ndim == 4 else f"shape {array.shape}"
            raise ValueError(
                f"{call}: {name} of layer {number} has {several}: give one text, (heads, L, S) "
                "or (1, heads, L, S)"
            )
        if arrays and array.shape != arrays[0].shape:
            raise ValueError(
                f"{call}: {name} of layer {number} is {array.shape} and of layer 0 "
                f"{arrays[0].shape}: all layers must have the same shape"
            )
        arrays.append(array)
    if not arrays:
        raise ValueError(f"{call}: {name} is empty: give at least one layer")
    return arrays


def _dims(part: Any) -> int:
    return len(getattr(part, "shape", np.shape(part) if part is not None else (1, 1, 1)))


def _read(x: Any, call: str, name: str) -> Array:
    """Weights as float32 or float64, wherever they are and whatever hangs on them."""
    for method in ("detach", "cpu"):  # a tensor on another device, or one that wants gradients
        x = getattr(x, method)() if hasattr(x, method) else x
    array = as_array(x, call=call, name=name)
    if array.dtype.kind not in "fiuV":
        raise TypeError(f"{call}: {name} is {array.dtype}: give weights, numbers from 0 to 1")
    array = array if array.dtype == np.float64 else array.astype(np.float32, copy=False)
    numbers = array[~np.isnan(array)]
    low, high = float(numbers.min(initial=0.0)), float(numbers.max(initial=0.0))
    if low < -_SLACK or high > 1 + _SLACK:
        raise ValueError(
            f"{call}: {name} holds {low if low < 0 else high:.3g}: give weights, from 0 to 1, "
            "not scores"
        )
    return array


def _axis(tokens: Iterable[str], size: int, call: str, name: str, which: str) -> Axis:
    if isinstance(tokens, str):
        raise TypeError(f"{call}: the tokens are one string: give a list, one for each token")
    listed = [str(token) for token in tokens]
    if len(listed) != size:
        raise ValueError(
            f"{call}: {name} has {size} {which} and there are {len(listed)} tokens: "
            "give one for each"
        )
    return Axis(listed, [is_special(token) for token in listed])
