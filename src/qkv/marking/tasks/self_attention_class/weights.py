"""Read the projections of somebody's layer from its attributes, whatever they are called."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.outcome import RAISED, Elsewhere, numbers

ROLES = ("q", "k", "v", "o")
# what an attribute is called, in lower case, that holds a projection or its bias
_NAMES = {
    "q": {"q", "wq", "bq", "query", "queries"},
    "k": {"k", "wk", "bk", "key", "keys"},
    "v": {"v", "wv", "bv", "value", "values"},
    "o": {"o", "wo", "bo", "out", "output", "proj", "projection", "fc", "unifyheads", "linear"},
}
_WEIGHT = re.compile(r"(^|[._])(w|b)[_.qkvo]|weight|bias|proj|linear|attn|to_")
_FUSED = re.compile("qkv|c_attn|in_proj")


@dataclass(frozen=True)
class Projections:
    """W_Q, W_K, W_V (D, heads * d) and W_O (heads * d, D) as one matrix each, with their biases.

    Attributes:
        matrices: by role; `"o"` is missing where there is none.
        biases: by role, where there are any.
        shared: there is only one matrix, which all heads use.
        slices: each head has a matrix for its own slice of the word vector alone.
    """

    matrices: Mapping[str, Array]
    biases: Mapping[str, Array]
    shared: bool = False
    slices: bool = False


def projections(layer: Any, dim: int, heads: int, flipped: bool) -> Projections | None:
    """The layer's weights, read from its attributes, or None where their sizes do not fit.

    Args:
        layer: somebody's layer; its arrays may be in lists, mappings and objects that it holds.
        dim: how many numbers a word vector has.
        heads: how many heads there are.
        flipped: the matrices are (out, in), as those of torch are, where others are (in, out).
    """
    named: dict[str, list[tuple[str, Array]]] = {}
    seen = set()
    held = layer.held_arrays() if isinstance(layer, Elsewhere) else arrays_of(layer)
    for path, a in sorted(held, key=lambda one: _in_order(one[0])):
        role = _role(path)
        memory = role, a.ctypes.data, a.size
        if role is not None and memory not in seen:  # one array may have two names
            seen.add(memory)
            named.setdefault(role, []).append((path, a))
    found = {}
    for role, arrays in named.items():
        weights = [a for path, a in arrays if _WEIGHT.search(path.lower())]
        found[role] = weights or [a for _, a in arrays]  # w_q, where a query q is kept beside it
    return _read(found, dim, heads, flipped)


def arrays_of(
    thing: Any, path: str = "", been: set[int] | None = None
) -> Iterator[tuple[str, Array]]:
    """All arrays of one to three dimensions that an object holds, by the way to them."""
    been = set() if been is None else been
    try:
        a, inside = _opened(thing)
    except RAISED:  # it lets nobody look, so there is nothing to be found
        return
    if a is not None and 1 <= a.ndim <= 3:
        yield path, a
    if inside and id(thing) not in been:  # objects may hold each other
        been.add(id(thing))
        for name, one in inside.items():
            yield from arrays_of(one, f"{path}.{name}", been)


def _opened(thing: Any) -> tuple[Array | None, dict[Any, Any]]:
    """A thing as an array, or what it holds by the names that this has there."""
    if isinstance(thing, Mapping):
        return None, dict(thing)
    if isinstance(thing, list | tuple):
        return None, dict(enumerate(thing))
    if (a := numbers(thing)) is not None:
        return a, {}
    if hasattr(thing, "__dict__") and not isinstance(thing, type | ModuleType):
        return None, dict(vars(thing))
    return None, {}


def _in_order(path: str) -> list[Any]:
    """Head 10 after head 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]


def _role(path: str) -> str | None:
    """Which projection an attribute of this name holds."""
    words = [word for word in re.split(r"[^a-z]+", path.lower()) if word]
    for role in ("q", "k", "v"):
        if _NAMES[role] & {*words}:
            return role
    if _FUSED.search(path.lower()):
        return "qkv"
    return "o" if _NAMES["o"] & {*words} else None


def _read(
    found: Mapping[str, list[Array]], dim: int, heads: int, flipped: bool
) -> Projections | None:
    """These arrays as one matrix for each role, or None where the sizes do not fit."""
    parts = dict(found)
    if "qkv" in parts and not {"q", "k", "v"} & {*parts}:
        split = [_in_three(a, flipped) for a in parts.pop("qkv")]
        for n, role in enumerate("qkv"):
            parts[role] = [three[n] for three in split]
    matrices, biases, notes = {}, {}, set()
    for role in ROLES:
        arrays = [a for a in parts.get(role, []) if not _flat(a)]
        flat = [a.ravel() for a in parts.get(role, []) if _flat(a)]
        whole = _joined(arrays, role, dim, heads, flipped)
        if whole is None:
            if role == "o" and not arrays:
                continue
            return None
        matrices[role], note = whole
        notes.add(note)
        if flat:
            bias = np.concatenate(flat)
            width = matrices[role].shape[1]
            biases[role] = np.tile(bias, width // len(bias)) if width % len(bias) == 0 else bias
            if len(biases[role]) != width:
                return None
    said = ", ".join(notes)
    return Projections(matrices, biases, "shared" in said, heads > 1 and "slices" in said)


def _flat(a: Array) -> bool:
    """Is it a bias?"""
    return a.ndim == 1 or (a.ndim == 2 and min(a.shape) == 1)


def _in_three(a: Array, flipped: bool) -> list[Array]:
    """A matrix (or bias) of query, key and value side by side, taken apart."""
    axis = 0 if a.ndim == 1 or flipped else 1
    return np.split(a, 3, axis=axis) if a.shape[axis] % 3 == 0 else [a, a, a]


def _joined(
    arrays: list[Array], role: str, dim: int, heads: int, flipped: bool
) -> tuple[Array, str] | None:
    """All heads' matrices as one, and whether it is one for all heads, or for slices of x."""
    if len(arrays) == 1 and arrays[0].ndim == 3:
        arrays = list(arrays[0])  # (heads, D, d)
    arrays = [a.T if flipped else a for a in arrays]
    if not arrays or any(a.ndim != 2 for a in arrays):
        return None
    if role == "o":
        whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return (whole, "") if whole.shape[1] == dim else None
    if all(a.shape[0] == dim for a in arrays):
        whole = np.concatenate(arrays, axis=1)
        if len(arrays) == 1 and heads > 1 and whole.shape[1] * heads == dim:
            return np.tile(whole, heads), "shared"  # of the size of one head
        return (whole, "") if whole.shape[1] % heads == 0 else None
    if arrays[0].shape[0] * heads == dim and len(arrays) in (1, heads):
        each = arrays * heads if len(arrays) == 1 else arrays
        return _on_slices(each), "slices, shared" if len(arrays) == 1 < heads else "slices"
    return None


def _on_slices(arrays: list[Array]) -> Array:
    """One matrix that applies each of these to its own part of the word vector."""
    rows, columns = arrays[0].shape
    whole = np.zeros((rows * len(arrays), columns * len(arrays)))
    for n, a in enumerate(arrays):
        whole[n * rows : (n + 1) * rows, n * columns : (n + 1) * columns] = a
    return whole
