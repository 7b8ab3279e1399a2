"""One call of attention, its arguments checked once and brought into one layout."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array, as_array, compute_type, is_float, native, real_number
from qkv.attend.heads import group_queries, ungroup_queries
from qkv.attend.visibility import Visibility, check_lengths, check_offset, check_window


@dataclass(frozen=True)
class Call:
    """Everything that `qkv.attention` was asked, checked.

    Query, key and value stand where and in the type they were given; `widened` has them in the
    type the work is done in. Heads are grouped by the key head that they read, and there is at
    least one leading axis:
    query `(*lead, Hkv, G, L, d)`, key `(*lead, Hkv, 1, S, d)`, value `(*lead, Hkv, 1, S, dv)`.
    """

    query: Array
    key: Array
    value: Array
    visibility: Visibility
    bias: Array | None  # float, (*lead, Hkv, G, L, S)
    mask: Array | None  # float, the same shape
    slopes: Array | None  # (Hkv, G, 1, 1)
    sinks: Array | None  # (Hkv, G, 1, n)
    softcap: float | None
    scale: float
    dtype: np.dtype[Any]  # of the result
    axes: int  # of the result: 2 where 2-D input came in

    @property
    def shape(self) -> tuple[int, ...]:
        """`(*lead, Hkv, G, L)`."""
        return self.query.shape[:-1]

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading dimensions."""
        return self.query.shape[:-4]

    @property
    def keys(self) -> int:
        """S."""
        return self.visibility.keys

    @property
    def kind(self) -> np.dtype[Any]:
        """The type that the work is done in, and that weights and log-sum-exp have."""
        return compute_type(self.dtype)

    def widened(self) -> Call:
        """The same with query, key and value in `kind`, copied only where they are not."""
        if self.query.dtype == self.key.dtype == self.value.dtype == self.kind:
            return self
        return replace(
            self,
            query=self.query.astype(self.kind, copy=False),
            key=self.key.astype(self.kind, copy=False),
            value=self.value.astype(self.kind, copy=False),
        )

    def of(self, query: Array, key: Array, value: Array) -> Call:
        """The same call of other arrays, of the shapes and the type that were checked."""
        q, k, v = (x[None, None] if self.axes == 2 else x for x in (query, key, value))
        heads, kv_heads = q.shape[-3], k.shape[-3]
        return replace(
            self,
            query=group_queries(_under(q, (*self.lead, heads)), kv_heads),
            key=_under(k, (*self.lead, kv_heads))[..., None, :, :],
            value=_under(v, (*self.lead, kv_heads))[..., None, :, :],
        )

    def result(self, array: Array, dtype: np.dtype[Any] | None = None) -> Array:
        """`(*lead, Hkv, G, L, n)` with as many axes as came in: `(..., Hq, L, n)`, or 2-D."""
        array = ungroup_queries(array)
        array = array[(0,) * (array.ndim - self.axes)]
        return array if dtype is None else rounded(array, dtype)


def check_call(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    *,
    is_causal: bool = False,
    q_offset: Any = None,
    window: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    softcap: Any = None,
    sinks: Any = None,
    scale: Any = None,
    query_lengths: Any = None,
    key_lengths: Any = None,
    call: str = "attention",
) -> Call:
    """Check the arguments of `qkv.attention`; `call` is the name that errors give."""
    given = {"query": query, "key": key, "value": value}
    arrays = {name: as_array(x, call=call, name=name) for name, x in given.items()}
    dtype = check_types(call, arrays)
    plain = _check_axes(call, arrays)
    q, k, v = (array[None, None] if plain else array for array in arrays.values())
    heads, kv_heads = check_heads(call, q.shape[-3], k.shape[-3], v.shape[-3])
    length, keys = q.shape[-2], k.shape[-2]
    outer = () if plain else _lead(call, q, k, v)
    lead = outer or (1,)

    left, right = check_window(call, window, is_causal)
    needed = left is not None or right is not None or alibi_slopes is not None
    offset = check_offset(call, q_offset, length, keys, outer, needed=needed)
    lengths = [
        check_lengths(call, "query_lengths", query_lengths, length, outer),
        check_lengths(call, "key_lengths", key_lengths, keys, outer),
    ]
    cells = (length, keys) if plain else (*outer, heads, length, keys)
    mask = check_cells(call, "attn_mask", attn_mask, cells)
    added = check_cells(call, "bias", bias, cells)
    full = (*lead, heads, length, keys)
    mask, added = (None if x is None else _spread(x, full, kv_heads) for x in (mask, added))
    given_mask = mask if mask is not None and mask.dtype == bool else None
    number_mask = None if given_mask is not None else mask
    work = compute_type(dtype)
    group = heads // max(kv_heads, 1)
    slopes = _check_per_head(call, "alibi_slopes", alibi_slopes, heads)
    extra = _check_per_head(call, "sinks", sinks, heads)
    if extra is not None and extra.shape[-1] == 0:
        extra = None
    per_head = (kv_heads, group, 1)
    return Call(
        query=group_queries(_under(q, (*lead, heads)), kv_heads),
        key=_under(k, (*lead, kv_heads))[..., None, :, :],
        value=_under(v, (*lead, kv_heads))[..., None, :, :],
        visibility=Visibility(
            length=length,
            keys=keys,
            offset=offset.reshape(lead),
            left=left,
            right=right,
            query_lengths=None if lengths[0] is None else lengths[0].reshape(lead),
            key_lengths=None if lengths[1] is None else lengths[1].reshape(lead),
            given=given_mask,
            numbers=tuple(x for x in (number_mask, added) if x is not None),
        ),
        bias=added,
        mask=number_mask,
        slopes=None if slopes is None else narrow(slopes, work).reshape(*per_head, 1),
        sinks=None if extra is None else narrow(extra, work).reshape(*per_head, extra.shape[-1]),
        softcap=check_softcap(call, softcap),
        scale=check_scale(call, scale, q.shape[-1]),
        dtype=dtype,
        axes=2 if plain else len(outer) + 3,
    )


def check_types(call: str, arrays: dict[str, Array]) -> np.dtype[Any]:
    """The one float type that all of the named arrays share."""
    types = {native(array.dtype) for array in arrays.values()}
    if len(types) == 1 and is_float(next(iter(types))):
        return types.pop()
    named = ", ".join(f"{name} {native(array.dtype)}" for name, array in arrays.items())
    if not all(map(is_float, types)):
        raise TypeError(
            f"{call}: {named}: all must be float16, bfloat16, float32 or float64: "
            "convert them, for example with .astype(np.float32)"
        )
    raise TypeError(f"{call}: {named}: they must share one type: convert with .astype(...)")


def check_heads(call: str, heads: int, kv_heads: int, value_heads: int) -> tuple[int, int]:
    """How many query heads and how many key heads there are."""
    if kv_heads != value_heads:
        raise ValueError(
            f"{call}: key has {kv_heads} heads and value has {value_heads}: they must match"
        )
    if heads and (kv_heads == 0 or heads % kv_heads):
        raise ValueError(
            f"{call}: query has {heads} heads and key has {kv_heads}: "
            "the number of query heads must be a multiple of the key heads"
        )
    return heads, kv_heads


def check_softcap(call: str, softcap: Any) -> float | None:
    """`softcap` as a number."""
    if softcap is None:
        return None
    number = real_number(softcap, call=call, name="softcap")
    if not (math.isfinite(number) and number > 0):
        raise ValueError(
            f"{call}: softcap is {number}: it must be finite and above 0, or None for no cap"
        )
    return _for_float32(number)


def check_scale(call: str, scale: Any, size: int) -> float:
    """`scale` as a number, `1 / sqrt(size)` where it is None."""
    if scale is None:
        return 1 / math.sqrt(size)
    number = real_number(scale, call=call, name="scale")
    if not math.isfinite(number):
        raise ValueError(
            f"{call}: scale is {number}: it must be finite, or None for 1 / sqrt({size})"
        )
    return _for_float32(number)


def check_cells(call: str, name: str, given: Any, cells: tuple[int, ...]) -> Array | None:
    """A mask or a bias that broadcasts to `cells`, `(..., Hq, L, S)`; None where none was given."""
    if given is None:
        return None
    array = as_array(given, call=call, name=name)
    if array.dtype == bool:
        if name != "attn_mask":
            raise TypeError(
                f"{call}: {name} is bool: it is added to the scores; what hides goes into attn_mask"
            )
    elif not is_float(array.dtype):
        way = (
            "write bool (True = may attend), or float (added to the scores, -inf hides); "
            "for 0 and 1 that is attn_mask.astype(bool)"
            if name == "attn_mask"
            else "it is added to the scores: write float"
        )
        raise TypeError(f"{call}: {name} is {array.dtype}: {way}")
    try:
        fits = np.broadcast_shapes(array.shape, cells) == cells
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{call}: {name} has shape {array.shape} and (L, S) is {cells[-2:]}: "
            f"it must broadcast to {cells}"
        )
    if name == "attn_mask" and array.dtype != bool and _only_zeros_and_ones(array):
        warnings.warn(
            f"{call}: attn_mask is {array.dtype} and holds nothing but 0 and 1, which are added to "
            "the scores: if 1 means 'may attend', write attn_mask.astype(bool)",
            UserWarning,
            stacklevel=_levels_up(),
        )
    return array


def rounded(array: Array, dtype: np.dtype[Any]) -> Array:
    """Convert; what `dtype` cannot hold becomes infinite, without a word."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def narrow(array: Array, dtype: np.dtype[Any]) -> Array:
    """Convert, keeping finite what is finite: -1e300 becomes the lowest float32, not -inf."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    lost = np.isinf(converted)
    if lost.any():
        lost &= np.isfinite(array)
        converted[lost] = np.copysign(np.finfo(dtype).max, converted[lost])
    return converted


def _check_axes(call: str, arrays: dict[str, Array]) -> bool:
    """Whether the arrays are plain 2-D ones, once their axes are known to fit."""
    shapes = {name: array.shape for name, array in arrays.items()}
    axes = [array.ndim for array in arrays.values()]
    named = "" if min(axes) == max(axes) > 1 else ", ".join(f"{n} {s}" for n, s in shapes.items())
    if min(axes) < 2:
        raise ValueError(
            f"{call}: {named}: each must be (..., heads, length, size), or all (length, size)"
        )
    if min(axes) == 2 and max(axes) > 2:
        raise ValueError(
            f"{call}: {named}: 2-D goes with 2-D only: give the 2-D ones a head axis, x[None]"
        )
    (*_, keys, size), query_size = shapes["key"], shapes["query"][-1]
    if query_size != size:
        raise ValueError(
            f"{call}: query has size {query_size} and key has size {size} in the last axis: "
            "a query meets a key of its own size"
        )
    if size == 0:
        raise ValueError(
            f"{call}: query and key have size 0 in the last axis: it must be at least 1"
        )
    if shapes["value"][-2] != keys:
        raise ValueError(
            f"{call}: key has {keys} rows and value has {shapes['value'][-2]}: "
            "each key needs its value"
        )
    return max(axes) == 2


def _lead(call: str, query: Array, key: Array, value: Array) -> tuple[int, ...]:
    shapes = [array.shape[:-3] for array in (query, key, value)]
    if shapes[0] == shapes[1] == shapes[2]:
        return shapes[0]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(
            f"{call}: the leading dimensions do not broadcast: query {shapes[0]}, key {shapes[1]}, "
            f"value {shapes[2]}"
        ) from None


def _check_per_head(call: str, name: str, given: Any, heads: int) -> Array | None:
    """`(Hq, n)` numbers for the heads: one each, or for sinks any number."""
    if given is None:
        return None
    array = as_array(given, call=call, name=name)
    if not is_float(array.dtype):
        raise TypeError(f"{call}: {name} is {array.dtype}: write float")
    most = 2 if name == "sinks" else 1
    if not 1 <= array.ndim <= most or array.shape[0] != heads:
        shape = f"({heads},) or ({heads}, n)" if name == "sinks" else f"({heads},)"
        raise ValueError(
            f"{call}: {name} has shape {array.shape} and query has {heads} heads: write {shape}"
        )
    return array.reshape(heads, -1) if array.size else array.reshape(heads, 0)


def _levels_up() -> int:
    """How far up the code is that called qkv: a warning is for whoever wrote that."""
    found, level, frame = 2, 1, sys._getframe(1)
    while frame.f_back is not None:
        level, frame = level + 1, frame.f_back
        if frame.f_globals.get("__name__", "").startswith("qkv."):
            found = level + 1
    return found


def _for_float32(number: float) -> float:
    """A number, NumPy's float64 where float32 cannot hold it well: arithmetic then widens."""
    return number if 1e-30 < abs(number) < 1e30 or number == 0 else np.float64(number)


def _only_zeros_and_ones(array: Array) -> bool:
    """Also some 1: a mask of nothing but 0 is a float mask that hides nothing."""
    if not array.size or array.flat[0] not in (0, 1):
        return False
    return bool(((array == 0) | (array == 1)).all() and (array == 1).any())


def _spread(cells: Array, full: tuple[int, ...], kv_heads: int) -> Array:
    """A mask seen as `(*lead, Hkv, G, L, S)`: nothing is copied, broadcast axes have stride 0."""
    return group_queries(np.broadcast_to(cells, full), kv_heads)


def _under(array: Array, lead_and_heads: tuple[int, ...]) -> Array:
    shape = (*lead_and_heads, *array.shape[-2:])
    return array if array.shape == shape else np.broadcast_to(array, shape)
