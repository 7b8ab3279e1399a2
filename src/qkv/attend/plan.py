"""The plan of a call, which depends only on shapes and types and is cached."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array, compute_type, is_float, native
from qkv.ops.kernel import kernel

Shape = tuple[int, ...]
MAX_SIZE = 0 if kernel is None else kernel.MAX_SIZE


@dataclass(frozen=True)
class Plan:
    """The sizes of a call, which were checked, and the shapes of its results."""

    dtype: np.dtype[Any]  # of the result
    kind: np.dtype[Any]  # of the computation, of weights and of log-sum-exps
    lead: Shape  # the leading dimensions of the result
    heads: int  # Hq
    kv_heads: int  # Hkv
    length: int  # L
    keys: int  # S
    size: int  # d
    rows: Shape  # (*lead, Hq, L), or (L,) for 2-D input
    out: Shape  # (*lead, Hq, L, dv), or (L, dv)
    groups: Shape  # (*lead, Hkv, G), with at least one leading axis
    is_spread: bool  # whether the queries are broadcast along leading dimensions
    is_native: bool  # whether the kernel can compute it

    def grouped(self, array: Array) -> Array:
        """View a contiguous `(*lead, Hq, n, m)` as `(*lead, Hkv, G, n, m)`."""
        return array.reshape(*self.groups, *array.shape[-2:])

    def grouped_keys(self, array: Array) -> Array:
        """View `(*lead, Hkv, n, m)` as `(*lead, Hkv, 1, n, m)`."""
        return array.reshape(*self.groups[:-1], 1, *array.shape[-2:])

    def ungrouped(self, array: Array) -> Array:
        """View `(*lead, Hkv, G, L, n)` as `(*lead, Hq, L, n)`, or as 2-D for 2-D input."""
        return array.reshape(*self.rows, array.shape[-1])


@functools.lru_cache(maxsize=1024)
def plan_of(
    call: str,
    query: Shape,
    key: Shape,
    value: Shape,
    query_type: np.dtype[Any],
    key_type: np.dtype[Any],
    value_type: np.dtype[Any],
) -> Plan:
    """Return the plan for arrays of these shapes and types; `call` is the name in errors.

    Errors are not cached. Numbers (scale, window, ...) are not part of the plan: checking a number
    is faster than looking it up, and True, 1 and 1.0 would be the same key of the cache.
    """
    dtype = check_types(call, {"query": query_type, "key": key_type, "value": value_type})
    shapes = {"query": query, "key": key, "value": value}
    is_flat = _check_axes(call, shapes)
    q, k, v = ((1,) * is_flat + shape for shape in shapes.values())
    heads, kv_heads = q[-3], k[-3]
    _check_heads(call, heads, kv_heads, v[-3])
    lead = _lead(call, q[:-3], k[:-3], v[:-3])
    rows = q[-2:-1] if is_flat else (*lead, *q[-3:-1])
    return Plan(
        dtype=dtype,
        kind=compute_type(dtype),
        lead=lead,
        heads=heads,
        kv_heads=kv_heads,
        length=q[-2],
        keys=k[-2],
        size=q[-1],
        rows=rows,
        out=(*rows, v[-1]),
        groups=(*(lead or (1,)), kv_heads, heads // max(kv_heads, 1)),
        is_spread=q[:-3] != lead,
        is_native=takes(dtype, q[-1]),
    )


def takes(dtype: np.dtype[Any], size: int) -> bool:
    """Return whether the kernel can compute with vectors of `size` of this type."""
    return size <= MAX_SIZE and compute_type(dtype) == np.float32


def check_types(call: str, types: Mapping[str, np.dtype[Any]]) -> np.dtype[Any]:
    """Return the float type of the named arrays; raise an error unless all have the same type."""
    kinds = {native(kind) for kind in types.values()}
    if len(kinds) == 1 and is_float(next(iter(kinds))):
        return kinds.pop()
    named = ", ".join(f"{name} {native(kind)}" for name, kind in types.items())
    if not all(map(is_float, kinds)):
        raise TypeError(
            f"{call}: {named}: all must be float16, bfloat16, float32 or float64: "
            "convert them, for example with .astype(np.float32)"
        )
    raise TypeError(f"{call}: {named}: all must have the same type: convert with .astype(...)")


def _check_heads(call: str, heads: int, kv_heads: int, value_heads: int) -> None:
    """Raise an error unless the numbers of heads fit."""
    if kv_heads != value_heads:
        raise ValueError(
            f"{call}: key has {kv_heads} heads and value has {value_heads}: they must match"
        )
    if heads and (kv_heads == 0 or heads % kv_heads):
        raise ValueError(
            f"{call}: query has {heads} heads and key has {kv_heads}: "
            "the number of query heads must be a multiple of the key heads"
        )


def _check_axes(call: str, shapes: Mapping[str, Shape]) -> bool:
    """Check that the axes of the arrays fit, and return whether the arrays are 2-D."""
    axes = [len(shape) for shape in shapes.values()]
    named = "" if min(axes) == max(axes) > 1 else ", ".join(f"{n} {s}" for n, s in shapes.items())
    if min(axes) < 2:
        raise ValueError(
            f"{call}: {named}: each must be (..., heads, length, size), or all (length, size)"
        )
    if min(axes) == 2 and max(axes) > 2:
        raise ValueError(
            f"{call}: {named}: either all arrays are 2-D or none is: "
            "give 2-D arrays a head axis, x[None]"
        )
    (*_, keys, size), query_size = shapes["key"], shapes["query"][-1]
    if query_size != size:
        raise ValueError(
            f"{call}: query has size {query_size} and key has size {size} in the last axis: "
            "queries and keys must have the same size"
        )
    if size == 0:
        raise ValueError(
            f"{call}: query and key have size 0 in the last axis: it must be at least 1"
        )
    if shapes["value"][-2] != keys:
        raise ValueError(
            f"{call}: key has {keys} rows and value has {shapes['value'][-2]}: "
            "each key needs a value"
        )
    return max(axes) == 2


def _lead(call: str, query: Shape, key: Shape, value: Shape) -> Shape:
    """Return the leading dimensions to which those of the arrays broadcast."""
    if query == key == value:
        return query
    try:
        return np.broadcast_shapes(query, key, value)
    except ValueError:
        raise ValueError(
            f"{call}: the leading dimensions do not broadcast: query {query}, key {key}, "
            f"value {value}"
        ) from None


@functools.lru_cache(maxsize=1024)
def check_cells(call: str, name: str, shape: Shape, dtype: np.dtype[Any], cells: Shape) -> None:
    """Raise an error unless a mask or a bias broadcasts to `cells`, `(..., Hq, L, S)`."""
    if dtype.kind == "b":
        if name != "attn_mask":
            raise TypeError(
                f"{call}: {name} is bool and is added to the scores: give a bool mask as attn_mask"
            )
    elif not is_float(dtype):
        way = (
            "write bool (True = may attend), or float (added to the scores, -inf masks); "
            "for 0 and 1 write attn_mask.astype(bool)"
            if name == "attn_mask"
            else "it is added to the scores: write float"
        )
        raise TypeError(f"{call}: {name} is {dtype}: {way}")
    try:
        fits = np.broadcast_shapes(shape, cells) == cells
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{call}: {name} has shape {shape} and (L, S) is {cells[-2:]}: "
            f"it must broadcast to {cells}"
        )


def check_per_head(call: str, name: str, shape: Shape, dtype: np.dtype[Any], heads: int) -> None:
    """Raise an error unless each head has one number, or for sinks any number of them."""
    if not is_float(dtype):
        raise TypeError(f"{call}: {name} is {dtype}: write float")
    most = 2 if name == "sinks" else 1
    if not 1 <= len(shape) <= most or shape[0] != heads:
        expected = f"({heads},) or ({heads}, n)" if name == "sinks" else f"({heads},)"
        raise ValueError(
            f"{call}: {name} has shape {shape} and query has {heads} heads: write {expected}"
        )
