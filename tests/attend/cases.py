"""Calls of attention drawn at random: shapes, types, layouts and every argument."""

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from . import loops
from .support import BFLOAT16, FLOATS, Array


class Case(NamedTuple):
    arrays: tuple[Array, Array, Array]
    options: dict[str, Any]  # including attn_mask


def _sub_shape(draw: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Draw a shape that broadcasts to `shape`."""
    kept = shape[draw(st.integers(0, len(shape))) :]
    return tuple(1 if draw(st.booleans()) else size for size in kept)


def _rows(draw: Any, lead: tuple[int, ...], smallest: int, largest: int) -> Any:
    """Draw an int, or an array of ints that broadcasts to the leading dimensions."""
    one = st.integers(smallest, largest)
    shape = _sub_shape(draw, lead)
    if not shape or draw(st.booleans()):
        return draw(one)
    count = int(np.prod(shape))
    kind = draw(st.sampled_from([np.int64, np.int32, np.int16]))
    return np.array(draw(st.lists(one, min_size=count, max_size=count)), kind).reshape(shape)


def _layout(draw: Any, x: Array) -> Array:
    """Return an array with the same numbers in another memory layout or byte order."""
    way = draw(st.sampled_from(["plain", "transposed", "backwards", "swapped", "read-only"]))
    if way == "transposed" and x.ndim > 2:
        return np.ascontiguousarray(x.swapaxes(-3, -2)).swapaxes(-3, -2)
    if way == "transposed":
        return np.asfortranarray(x)
    if way == "backwards":
        return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    if way == "swapped" and x.dtype != BFLOAT16:
        return x.astype(x.dtype.newbyteorder())
    if way == "read-only":
        x = x.copy()
        x.flags.writeable = False
    return x


@st.composite
def cases(draw: Any, *, long: bool = False) -> Case:
    """Draw one call, often with NaN in masked keys, masked values and padded queries.

    With `long`, the call has so many queries or keys that its work is split into blocks.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from(FLOATS))
    flat = draw(st.integers(0, 5)) == 0  # two-dimensional
    leads = [(), (2,)] if long else [(), (2,), (3,), (2, 2), (1, 3), (2,), (1,), (3,), (0,)]
    lead = () if flat else draw(st.sampled_from(leads))
    kv_heads = 1 if flat else draw(st.integers(1, 2))
    heads = 1 if flat else kv_heads * draw(st.integers(1, 2 if long else 3))
    length = st.sampled_from([3, 4, 5, 6, 7, 5, 2, 1, 0])
    L, S = draw(length), draw(length)
    if draw(st.booleans()):
        S = L
    d, dv = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    if long:
        many = draw(st.integers(500, 1100))
        L, S = draw(st.sampled_from([(2, many), (many, 3)]))
        d = dv = 2

    fronts = [lead] * 3
    if lead and draw(st.booleans()):
        # One array keeps all leading dimensions; those of the other arrays may be smaller.
        keeper = draw(st.integers(0, 2))
        fronts = [lead if i == keeper else _sub_shape(draw, lead) for i in range(3)]
    size = draw(st.sampled_from([0.5, 1.0, 1.0, 3.0]))
    shapes = [(heads, L, d), (kv_heads, S, d), (kv_heads, S, dv)]
    query, key, value = (
        (rng.standard_normal((*front, *shape)) * size).astype(dtype)
        for front, shape in zip(fronts, shapes, strict=True)
    )
    if flat:
        query, key, value = query[0], key[0], value[0]
    cells = (L, S) if flat else (*lead, heads, L, S)

    options: dict[str, Any] = {}

    def maybe(name: str) -> bool:
        return draw(st.integers(0, 3), label=name) == 3

    def added() -> Array:
        numbers = rng.standard_normal(_sub_shape(draw, cells)) * 2
        if draw(st.booleans()):
            numbers = np.where(rng.random(numbers.shape) < 0.2, -np.inf, numbers)
        return np.asarray(numbers).astype(draw(st.sampled_from(FLOATS)))

    if maybe("attn_mask"):
        if draw(st.booleans()):
            options["attn_mask"] = rng.random(_sub_shape(draw, cells)) < draw(
                st.sampled_from([0.4, 0.8, 1.0])
            )
        else:
            options["attn_mask"] = added()
    if maybe("bias"):
        options["bias"] = added()
    if maybe("is_causal"):
        options["is_causal"] = True
    if maybe("window"):
        side = st.none() | st.integers(0, 4)
        side = side | st.integers(200, 900) if long else side
        options["window"] = (draw(side), draw(side))
    if maybe("alibi_slopes"):
        options["alibi_slopes"] = rng.standard_normal(heads).astype(draw(st.sampled_from(FLOATS)))
    placed = options.keys() & {"is_causal", "window", "alibi_slopes"}
    if maybe("q_offset") or (placed and L != S):
        options["q_offset"] = (
            draw(st.sampled_from(["start", "end"]))
            if draw(st.booleans())
            else _rows(draw, lead, *((-900, 900) if long else (-6, 8)))
        )
    if maybe("softcap"):
        options["softcap"] = draw(st.sampled_from([0.3, 2, 15.0]))
    if maybe("sinks"):
        shape = draw(st.sampled_from([(heads,), (heads, 1), (heads, 3)]))
        options["sinks"] = (rng.standard_normal(shape) * 2).astype(draw(st.sampled_from(FLOATS)))
    if maybe("scale"):
        options["scale"] = draw(st.sampled_from([1.0, 0.25, -0.5, 2]))
    if maybe("query_lengths"):
        options["query_lengths"] = _rows(draw, lead, draw(st.sampled_from([0, (L + 1) // 2])), L)
    if maybe("key_lengths"):
        options["key_lengths"] = _rows(draw, lead, draw(st.sampled_from([0, (S + 1) // 2])), S)

    if draw(st.booleans()):
        _poison(query, key, value, lead, options)
    if draw(st.integers(0, 4)) == 0:  # a NaN at a random position
        spoiled = draw(st.sampled_from([query, key, value]))
        if spoiled.size:
            spoiled.reshape(-1)[draw(st.integers(0, spoiled.size - 1))] = np.nan
    query, key, value = (_layout(draw, x) for x in (query, key, value))
    return Case((query, key, value), options)


def _poison(
    query: Array, key: Array, value: Array, lead: tuple[int, ...], options: dict[str, Any]
) -> None:
    """Put NaN into keys and values that no query sees, and into queries that see no key."""
    visible = loops.attention(query, key, value, **options).visible
    if query.ndim == 2:
        query, key, value, visible = query[None], key[None], value[None], visible[None]
    heads = visible.shape[-3]
    for x, by_head in (
        (query, visible.any(axis=-1)),  # (..., Hq, L)
        (key, visible.any(axis=-2)),  # (..., Hq, S)
        (value, visible.any(axis=-2)),
    ):
        front, count = x.shape[:-3], x.shape[-3]
        by_head = by_head.reshape(*lead, count, heads // count, by_head.shape[-1]).any(axis=-2)
        # If x is broadcast, a row counts as used when a query sees any of its copies.
        for axis in range(len(lead)):
            place = axis - len(lead)
            if -place > len(front) or front[place] == 1:
                by_head = by_head.any(axis=axis, keepdims=True)
        used = by_head.reshape(*(by_head.shape[len(lead) - len(front) :]))
        x[~np.broadcast_to(used, x.shape[:-1])] = np.nan
