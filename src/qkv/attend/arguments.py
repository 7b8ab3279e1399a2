"""The options and checked arguments of an attention call, and a cached plan for their shapes."""

import functools
import math
import sys
import warnings
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import type_error, value_error
from qkv._suggest import nearest
from qkv.arrays import Array, DType, Shape, as_array, compute_type, is_float, native, real_number
from qkv.attend._visibility import check_lengths, check_offset, check_window
from qkv.ops.kernel import compiled

Options = Mapping[str, Any]  # The options of `qkv.attention`: each name with its value.
MAX_SIZE = 0 if compiled is None else compiled.MAX_SIZE
# RETURNS lists the options that select results. PACKED lists the options that are allowed in calls
# with packed rows.
RETURNS = ("return_weights", "return_lse", "out")
PACKED = (
    *("is_causal", "q_offset", "window", "softcap"),
    *("alibi_slopes", "sinks", "scale", "return_lse"),
)
OPTIONS = ("attn_mask", "bias", "query_lengths", "key_lengths", "return_weights", "out", *PACKED)


@dataclass(frozen=True)
class Plan:
    """The checked sizes of an attention call, and the shapes of its results."""

    dtype: DType  # The dtype of the result.
    kind: DType  # The dtype of the computation, of weights and of log-sum-exps.
    lead: Shape  # The leading dimensions of the result.
    heads: int  # Hq.
    kv_heads: int  # Hkv.
    length: int  # L.
    keys: int  # S.
    size: int  # d.
    rows: Shape  # (*lead, Hq, L), or (L,) for 2-D input.
    out: Shape  # (*lead, Hq, L, dv), or (L, dv).
    groups: Shape  # (*lead or 1, Hkv, G): G query heads share each key head.
    is_spread: bool  # Whether the query array is broadcast along leading dimensions.
    is_native: bool  # Whether the kernel can compute the call.

    def group(self, array: Array) -> Array:
        """View a contiguous `(*lead, Hq, n, m)` as `(*lead, Hkv, G, n, m)`."""
        return array.reshape(*self.groups, *array.shape[-2:])

    def grouped_keys(self, array: Array) -> Array:
        """View `(*lead, Hkv, n, m)` as `(*lead, Hkv, 1, n, m)`."""
        return array.reshape(*self.groups[:-1], 1, *array.shape[-2:])

    def ungroup(self, array: Array, dtype: DType | None = None) -> Array:
        """View `(*lead, Hkv, G, L, n)` as `(*lead, Hq, L, n)`, or as 2-D for 2-D input.

        If `dtype` is given, the numbers are rounded to `dtype`.
        """
        whole = array.reshape(*self.rows, array.shape[-1])
        return whole if dtype is None else round_to(whole, dtype)


@functools.lru_cache(maxsize=1024)
def plan_of(query: Shape, key: Shape, value: Shape, *types: DType) -> Plan:
    """Return the plan for arrays of these shapes and dtypes.

    The plan depends only on shapes and dtypes, not on numbers such as the scale or the window.
    Checking a number is faster than looking it up in the cache. The cache would also treat True, 1
    and 1.0 as the same argument.
    """
    dtype = check_types(dict(zip(("query", "key", "value"), types, strict=True)))
    shapes = {"query": query, "key": key, "value": value}
    is_flat = _check_axes(shapes)
    q, k, v = ((1,) * is_flat + shape for shape in shapes.values())
    heads, kv_heads = q[-3], k[-3]
    _check_heads(heads, kv_heads, v[-3])
    lead = _lead(q[:-3], k[:-3], v[:-3])
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


def takes(dtype: DType, size: int) -> bool:
    """Return whether the kernel can compute with this dtype and this head size."""
    return size <= MAX_SIZE and compute_type(dtype) == np.float32


def check_types(types: Mapping[str, DType]) -> DType:
    """Return the float type that the named arrays share, or raise an error."""
    kinds = {native(kind) for kind in types.values()}
    if len(kinds) == 1 and is_float(next(iter(kinds))):
        return kinds.pop()
    named = ", ".join(f"{name} {native(kind)}" for name, kind in types.items())
    if not all(map(is_float, kinds)):
        raise type_error(
            f"{named}: all must be float16, bfloat16, float32 or float64; "
            "convert the arrays, for example with .astype(np.float32)"
        )
    raise type_error(f"{named}: all must have the same type; convert them with .astype(...)")


def _check_heads(heads: int, kv_heads: int, value_heads: int) -> None:
    """Raise an error unless the numbers of heads are compatible."""
    if kv_heads != value_heads:
        raise value_error(
            f"key has {kv_heads} heads and value has {value_heads}: "
            "both must have the same number of heads"
        )
    if heads and (kv_heads == 0 or heads % kv_heads):
        raise value_error(
            f"query has {heads} heads and key has {kv_heads}: "
            "the number of query heads must be a multiple of the number of key heads"
        )


def _check_axes(shapes: Mapping[str, Shape]) -> bool:
    """Check that the axes of the arrays match, and return whether the arrays are 2-D."""
    axes = [len(shape) for shape in shapes.values()]
    named = "" if min(axes) == max(axes) > 1 else ", ".join(f"{n} {s}" for n, s in shapes.items())
    if min(axes) < 2:
        raise value_error(
            f"{named}: each must be (..., heads, length, size), or all must be (length, size)"
        )
    if min(axes) == 2 and max(axes) > 2:
        raise value_error(
            f"{named}: all arrays must be 2-D, or none of them; "
            "add a head axis to the 2-D arrays with x[None]"
        )
    (*_, keys, size), query_size = shapes["key"], shapes["query"][-1]
    if query_size != size:
        raise value_error(
            f"query has size {query_size} and key has size {size} in the last axis: "
            "queries and keys must have the same size"
        )
    if size == 0:
        raise value_error("query and key have size 0 in the last axis: the size must be at least 1")
    if shapes["value"][-2] != keys:
        raise value_error(
            f"key has {keys} rows and value has {shapes['value'][-2]}: each key needs a value"
        )
    return max(axes) == 2


def _lead(query: Shape, key: Shape, value: Shape) -> Shape:
    """Return the shape to which the leading dimensions of the arrays broadcast."""
    if query == key == value:
        return query
    try:
        return np.broadcast_shapes(query, key, value)
    except ValueError:
        raise value_error(
            f"the leading dimensions do not broadcast: query {query}, key {key}, value {value}"
        ) from None


@functools.lru_cache(maxsize=1024)
def check_cells(name: str, shape: Shape, dtype: DType, cells: Shape) -> None:
    """Raise an error unless a mask or a bias broadcasts to the shape `cells`, `(..., Hq, L, S)`."""
    if dtype.kind == "b":
        if name != "attn_mask":
            raise type_error(
                f"{name} is bool, but must be float, because it is added to the scores; "
                "pass a bool mask as attn_mask"
            )
    elif not is_float(dtype):
        way = (
            "pass bool (True = may attend), or float (added to the scores, -inf masks); "
            "for 0 and 1, pass attn_mask.astype(bool)"
            if name == "attn_mask"
            else "it is added to the scores; pass floats"
        )
        raise type_error(f"{name} is {dtype}: {way}")
    try:
        fits = np.broadcast_shapes(shape, cells) == cells
    except ValueError:
        fits = False
    if not fits:
        raise value_error(
            f"{name} has shape {shape} and (L, S) is {cells[-2:]}: {name} must broadcast to {cells}"
        )


def check_per_head(name: str, shape: Shape, dtype: DType, heads: int) -> None:
    """Raise an error unless the shape is `(heads,)`; for sinks, `(heads, n)` is also allowed."""
    if not is_float(dtype):
        raise type_error(f"{name} is {dtype}; pass floats")
    most = 2 if name == "sinks" else 1
    if not 1 <= len(shape) <= most or shape[0] != heads:
        expected = f"({heads},) or ({heads}, n)" if name == "sinks" else f"({heads},)"
        raise value_error(
            f"{name} has shape {shape} and query has {heads} heads; pass shape {expected}"
        )


class Call(NamedTuple):
    """The checked arguments of `qkv.attention`.

    Query, key, value, mask and bias are the user's arrays, with their original dtypes.
    """

    plan: Plan
    query: Array
    key: Array
    value: Array
    mask: Array | None  # bool or float
    bias: Array | None
    slopes: Array | None  # (Hq,), contiguous, in the type of the computation.
    sinks: Array | None  # (Hq, n), contiguous, in the type of the computation.
    offset: int | Array  # The position of query 0 among the keys, () or (*lead,).
    query_lengths: Array | None  # (*lead,).
    key_lengths: Array | None  # (*lead,).
    left: int | None  # How many keys a query sees before its own position; None means all.
    right: int | None
    softcap: float | None
    scale: float

    def of(self, query: Array, key: Array, value: Array) -> "Call":
        """Return a call with the same options and new arrays, which are not checked."""
        shapes, types = (query.shape, key.shape, value.shape), (query.dtype, key.dtype, value.dtype)
        plan = plan_of(*shapes, *types)
        return self._replace(plan=plan, query=query, key=key, value=value)

    def in_rows(self, rows: Sequence[Array], starts: Array) -> "Packed":
        """Turn this call for a batch `(B, ...)` into a call for packed rows.

        The call must have neither a mask nor a bias.

        Args:
            rows: query, key and value, `(heads, total, size)`, which are not checked.
            starts: `(B + 1,)`, int64: the index of each text's first row, then the total number of
                rows.
        """
        whole = self.of(*rows)._replace(offset=0, query_lengths=None, key_lengths=None)
        return Packed(whole, starts, starts, np.full(len(starts) - 1, self.offset, np.int64))


class Packed(NamedTuple):
    """The checked arguments of a call with packed rows.

    Sequence b consists of the query rows `starts[b]` to `starts[b + 1] - 1` and the key rows
    `key_starts[b]` to `key_starts[b + 1] - 1`.
    """

    call: Call  # A call in which all rows form one sequence: (heads, total, size).
    starts: Array  # (B + 1,).
    key_starts: Array  # (B + 1,).
    offsets: Array  # (B,).

    @property
    def plan(self) -> Plan:
        """The plan of `call`."""
        return self.call.plan

    @property
    def rows(self) -> tuple[Array, Array, Array]:
        """Query, key and value in the user's layout, `(total, heads, size)`."""
        call = self.call
        return call.query.swapaxes(0, 1), call.key.swapaxes(0, 1), call.value.swapaxes(0, 1)


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
) -> Call:
    """Check the arguments of `qkv.attention`."""
    if not (type(query) is type(key) is type(value) is np.ndarray):
        arrays = {"query": query, "key": key, "value": value}
        query, key, value = (as_array(x, name=name) for name, x in arrays.items())
    plan = plan_of(query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype)
    left, right = check_window(window, is_causal)
    needed = left is not None or right is not None or alibi_slopes is not None
    if query_lengths is not None:
        query_lengths = check_lengths("query_lengths", query_lengths, plan.length, plan.lead)
    if key_lengths is not None:
        key_lengths = check_lengths("key_lengths", key_lengths, plan.keys, plan.lead)
    mask = None if attn_mask is None else _cells("attn_mask", attn_mask, plan)
    if bias is not None:
        bias = _cells("bias", bias, plan)
    slopes = None if alibi_slopes is None else _per_head("alibi_slopes", alibi_slopes, plan)
    if sinks is not None:
        sinks = _per_head("sinks", sinks, plan)
    offset = check_offset(q_offset, plan.length, plan.keys, plan.lead, needed=needed)
    softcap, scale = check_softcap(softcap), check_scale(scale, plan.size)
    return Call(
        plan, query, key, value, mask, bias, slopes, sinks,
        offset, query_lengths, key_lengths, left, right, softcap, scale,
    )  # fmt: skip


def check_options(options: Options, without: Container[str] = (), why: str = "") -> None:
    """Raise an error for an unknown option, or for an option that the call does not accept.

    `without` contains the options that the call does not accept. The error message for such an
    option ends with `why`.
    """
    for name in options:
        if name in without:
            raise type_error(f"{name} is not an option of this call{why}")
        if name not in OPTIONS:
            near = nearest(name, OPTIONS, 1, 0.61)
            meant = f"did you mean {near[0]}?" if near else f"choose from {', '.join(OPTIONS)}"
            raise type_error(f"there is no option {name}: {meant}")


def check_softcap(softcap: Any) -> float | None:
    """Return `softcap` as a number; raise an error unless it is finite and above 0."""
    if softcap is None:
        return None
    number = real_number(softcap, name="softcap")
    if not (math.isfinite(number) and number > 0):
        raise value_error(f"softcap is {number}: it must be finite and above 0, or None for no cap")
    return _for_float32(number)


def check_scale(scale: Any, size: int) -> float:
    """Return `scale` as a number; if `scale` is None, return `1 / sqrt(size)`."""
    if scale is None:
        return 1 / math.sqrt(size)
    number = real_number(scale, name="scale")
    if not math.isfinite(number):
        raise value_error(f"scale is {number}: it must be finite, or None for 1 / sqrt({size})")
    return _for_float32(number)


def round_to(array: Array, dtype: DType) -> Array:
    """Convert to `dtype` without a warning; numbers that are too large become infinite."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def clamp(array: Array, dtype: DType) -> Array:
    """Convert to `dtype`, and keep numbers finite: -1e300 becomes the lowest float32, not -inf."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    lost = np.isinf(converted)
    if lost.any():
        lost &= np.isfinite(array)
        converted[lost] = np.copysign(np.finfo(dtype).max, converted[lost])
    return converted


def _cells(name: str, value: Any, plan: Plan) -> Array:
    """Return a mask or a bias as an array; check its shape and its dtype."""
    array = as_array(value, name=name)
    check_cells(name, array.shape, array.dtype, (*plan.rows, plan.keys))
    if name == "attn_mask" and array.dtype != bool:
        _warn_of_zeros_and_ones(array)
    return array


def _per_head(name: str, value: Any, plan: Plan) -> Array | None:
    """Return slopes `(Hq,)` or sinks `(Hq, n)` for the kernel; return None if n is 0."""
    array = as_array(value, name=name)
    check_per_head(name, array.shape, array.dtype, plan.heads)
    if name == "sinks":
        array = array.reshape(plan.heads, -1 if array.size else 0)
    return np.ascontiguousarray(clamp(array, plan.kind)) if array.shape[-1:] != (0,) else None


def _for_float32(number: float) -> float:
    """Return `number`, as an np.float64 if it is too large or too small for float32."""
    return number if 1e-30 < abs(number) < 1e30 or number == 0 else np.float64(number)


def _warn_of_zeros_and_ones(mask: Array) -> None:
    """Warn if a float mask holds only 0.0 and 1.0, because the user probably means a bool mask."""
    if not mask.size or mask.flat[0] not in (0, 1):
        return
    if ((mask == 0) | (mask == 1)).all() and (mask == 1).any():
        warnings.warn(
            f"attn_mask is {mask.dtype} and holds only 0 and 1, which are added to "
            "the scores: if 1 means 'may attend', pass attn_mask.astype(bool)",
            UserWarning,
            stacklevel=_levels_up(),
        )


def _levels_up() -> int:
    """Return how many stack levels the user's code is above this function, for a warning."""
    outside, level, frame = 2, 1, sys._getframe(1)
    while frame.f_back is not None:
        level, frame = level + 1, frame.f_back
        if frame.f_globals.get("__name__", "").startswith("qkv."):
            outside = level + 1
    return outside
