"""From a checked call to the native kernel: arrays handed over where they stand."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qkv.arrays import Array, native
from qkv.attend.call import Call
from qkv.attend.heads import ungroup_queries
from qkv.ops.kernel import kernel
from qkv.ops.threads import get_num_threads

MAX_SIZE = 0 if kernel is None else kernel.MAX_SIZE


def takes(call: Call) -> bool:
    """Whether the kernel computes in the type of this call and has room for its head size."""
    return takes_size(call.dtype, call.query.shape[-1])


def takes_gradient(call: Call) -> bool:
    """Whether it computes the gradient: values too must not have too large a size."""
    return takes(call) and takes_size(call.dtype, call.value.shape[-1])


def takes_size(dtype: np.dtype[Any], size: int) -> bool:
    """The same of any numbers of `dtype`, in vectors of `size`."""
    return size <= MAX_SIZE and handed_as(dtype) is not None


def place_for(call: Call, out: Array | None) -> Array:
    """Memory for the result of a call `(*lead, Hkv, G, L, dv)`: that of `out` where it will do."""
    shape = (*call.shape, call.value.shape[-1])
    if out is None or not stands(out):
        return np.empty(shape, call.dtype)
    kv_heads, group, *_ = shape[-4:]
    heads = out[(None,) * (len(shape) - 1 - out.ndim)]  # (*lead, Hq, L, dv)
    return heads.reshape(*heads.shape[:-3], kv_heads, group, *heads.shape[-2:])


def attend(
    chosen: int, call: Call, out: Array, lse: Array | None, weights: Array | None = None
) -> None:
    """Compute a call of float32 or halves into arrays of the layout and type that it asks for.

    `out (*lead, Hkv, G, L, dv)`; where wanted `lse (*lead, Hkv, G, L)` float64 and `weights (*lead,
    Hkv, G, L, S)` float32, which must hold zeros. Heads must be apart by one step, as
    `group_queries` leaves them.
    """
    shown = None if weights is None else ungroup_queries(weights)
    kernel.attend(*_asked(chosen, call, out, lse, shown))


def summarize(
    chosen: int, call: Call, out: Array, lse: Array, indices: Array, weights: Array, received: Array
) -> None:
    """The same, with the largest weights of each query and what each key received.

    `indices` and `weights (*lead, Hkv, G, L, top_k)`, int64 and float32; `received (*lead, Hkv, G,
    1, S)`, float64, which must hold zeros.
    """
    summary = (ungroup_queries(x) for x in (indices, weights, received))
    kernel.summarize(*_asked(chosen, call, out, lse, *summary))


def differentiate(
    chosen: int,
    call: Call,
    above: Array,
    out: Array,
    lse: Array,
    most: float,
    query: Array,
    key: Array,
    value: Array,
    bias: Array,
    sinks: Array,
    slopes: Array,
) -> Array:
    """Compute the gradients of a call of float32 or halves into arrays of float32.

    `out (*lead, Hkv, G, L, dv)` of the call's type and `lse (*lead, Hkv, G, L)` float64 are what
    it gave, `above` the gradient of `out`. The arrays: `query (*lead, Hkv, G, L, d)`, `key` and
    `value (*lead, Hkv, 1, S, n)`, `bias` as the call's but 1 where it is repeated, which holds
    zeros, `sinks (*lead, Hkv, G, n)`, `slopes (*lead, Hkv, G)`.

    Returns:
        `(*lead, Hkv)`: True where the numbers are wrong and have to be computed in another way:
        log-sum-exps are above `most`, or something is infinite or NaN.
    """
    *lead, kv_heads, group, _ = call.shape
    rows, heads = math.prod(lead), kv_heads * group
    unsound = np.zeros((*lead, kv_heads), bool)
    slope_sums = None if call.slopes is None else np.zeros((rows, heads))
    sink_sums = None if call.sinks is None else np.zeros((rows, heads, sinks.shape[-1]))
    more = (
        most,
        _handed(ungroup_queries(_standing(above))),
        ungroup_queries(query),
        key[..., 0, :, :],
        value[..., 0, :, :],
        None if call.bias is None else ungroup_queries(bias),
        slope_sums,
        sink_sums,
        unsound,
    )
    kernel.differentiate(*_asked(chosen, call, out, lse, *more))
    if slope_sums is not None:
        slopes[...] = slope_sums.reshape(slopes.shape)
    if sink_sums is not None:
        sinks[...] = sink_sums.reshape(sinks.shape)
    return unsound


def attend_packed(
    chosen: int,
    call: Call,
    query: Array,
    key: Array,
    value: Array,
    starts: Array,
    key_starts: Array,
    offsets: Array,
    *,
    lse: bool,
) -> tuple[Array, Array | None]:
    """Attention within packed sequences: `out (total, Hq, dv)`, with `lse (total, Hq)` float64.

    `call` is any call with the same rules and heads; arrays are `(total, heads, size)`.
    """
    out = np.empty((*query.shape[:2], value.shape[2]), call.dtype)
    found = np.empty(query.shape[:2], np.float64) if lse else None
    rows = (query, key, value, out, found, starts, key_starts, offsets)
    kernel.attend_packed(*_asked_packed(chosen, call, *rows))
    return out, found


def differentiate_packed(
    chosen: int,
    call: Call,
    query: Array,
    key: Array,
    value: Array,
    starts: Array,
    key_starts: Array,
    offsets: Array,
    above: Array,
    out: Array,
    lse: Array,
    most: float,
    grad_query: Array,
    grad_key: Array,
    grad_value: Array,
    sinks: Array,
    slopes: Array,
) -> Array:
    """Compute the gradients of what `attend_packed` computes into arrays of float32.

    `out (total, Hq, dv)` and `lse (total, Hq)` float64 are what it gave, `above` the gradient of
    `out`. The arrays: those of query, key and value of their shapes, `sinks (B, Hkv, G, n)`,
    `slopes (B, Hkv, G)`.

    Returns:
        `(B, Hkv)`: True where the numbers are wrong, as `differentiate` says it.
    """
    unsound = np.zeros(slopes.shape[:2], bool)
    slope_sums = None if call.slopes is None else np.zeros(slopes.shape)
    sink_sums = None if call.sinks is None else np.zeros(sinks.shape)
    rows = (query, key, value, out, lse, starts, key_starts, offsets)
    more = (
        most,
        _handed(_standing(above)),
        grad_query,
        grad_key,
        grad_value,
        slope_sums,
        sink_sums,
        unsound,
    )
    kernel.differentiate_packed(*_asked_packed(chosen, call, *rows, *more))
    if slope_sums is not None:
        slopes[...] = slope_sums
    if sink_sums is not None:
        sinks[...] = sink_sums
    return unsound


def attend_plain(
    chosen: int, query: Array, key: Array, value: Array, is_causal: bool, scale: float, *, lse: bool
) -> tuple[Array, Array | None]:
    """Attention of arrays that `stands` is true of, with no rule but causality from place 0."""
    rows = query.shape[:-1]
    out = np.empty((*rows, value.shape[-1]), query.dtype)
    found = np.empty((*rows, 1), np.float64) if lse else None
    kernel.attend(
        chosen,
        _handed(query),
        _handed(key),
        _handed(value),
        _handed(out),
        found,
        None,  # mask, bias, slopes, sinks
        None,
        None,
        None,
        0,  # offset, lengths
        None,
        None,
        None,  # window
        0 if is_causal else None,
        None,  # softcap
        scale,
        get_num_threads(),
        None,  # weights
    )
    return out, None if found is None else found[..., 0]


def attend_behind(
    chosen: int,
    query: Array,
    given: Mapping[str, Any],
    *,
    slopes: Array | None,
    sinks: Array | None,
    softcap: float | None,
    scale: float,
    threads: int,
) -> Array:
    """Causal attention of queries `(B, Hq, n, d)` to what a `KVCache` gives: `(B, Hq, n, dv)`.

    The queries stand as `stands` wants them; slopes and sinks are float32.
    """
    key, value, window = given["key"], given["value"], given.get("window")
    out = np.empty((*query.shape[:-1], value.shape[-1]), value.dtype)
    kernel.attend(
        chosen,
        _handed(query),
        _handed(key),
        _handed(value),
        _handed(out),
        None,  # log-sum-exp, mask, bias
        None,
        None,
        slopes,
        sinks,
        given["q_offset"],
        given.get("query_lengths"),
        given.get("key_lengths"),
        None if window is None else window[0],
        0,
        softcap,
        scale,
        threads,
        None,  # weights
    )
    return out


@functools.cache
def handed_as(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The type that the kernel takes numbers of `dtype` for, None where it does not take them."""
    if dtype in (np.float16, np.float32) and dtype.isnative:
        return dtype
    return np.dtype(np.uint16) if dtype.name == "bfloat16" and dtype.isnative else None


def _asked(chosen: int, call: Call, out: Array, lse: Array | None, *more: Any) -> Any:
    """The arguments of the kernel's functions, in their order."""
    seen = call.visibility
    mask = call.mask if seen.given is None else seen.given
    cells = (None if x is None else ungroup_queries(_addressed(x)) for x in (mask, call.bias))
    rows = (
        None if x is None else np.ascontiguousarray(x)
        for x in (seen.offset, seen.query_lengths, seen.key_lengths)
    )
    return (
        chosen,
        _handed(ungroup_queries(_standing(call.query))),
        _handed(_standing(call.key)[..., 0, :, :]),
        _handed(_standing(call.value)[..., 0, :, :]),
        _handed(ungroup_queries(out)),
        None if lse is None else ungroup_queries(lse[..., None]),
        *(x if x is None or x.dtype.name != "bfloat16" else x.view(np.uint16) for x in cells),
        *_per_head(call),
        *rows,
        seen.left,
        seen.right,
        call.softcap,
        call.scale,
        get_num_threads(),
        *more,
    )


def _asked_packed(
    chosen: int,
    call: Call,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    lse: Array | None,
    starts: Array,
    key_starts: Array,
    offsets: Array,
    *more: Any,
) -> Any:
    """The arguments of the kernel's functions for packed rows, in their order."""
    seen = call.visibility
    return (
        chosen,
        *(_handed(_standing(x)) for x in (query, key, value)),
        _handed(out),
        None if lse is None else lse[..., None],
        np.ascontiguousarray(starts),
        np.ascontiguousarray(key_starts),
        *_per_head(call),
        np.ascontiguousarray(offsets),
        seen.left,
        seen.right,
        call.softcap,
        call.scale,
        get_num_threads(),
        *more,
    )


def _per_head(call: Call) -> tuple[Array | None, Array | None]:
    """Slopes `(Hq,)` and sinks `(Hq, n)`, float32."""
    slopes = None if call.slopes is None else np.ascontiguousarray(call.slopes.ravel())
    if call.sinks is None:
        return slopes, None
    return slopes, np.ascontiguousarray(call.sinks.reshape(-1, call.sinks.shape[-1]))


def _handed(array: Array) -> Array:
    """The same numbers under the type that the kernel takes them for."""
    handed = handed_as(array.dtype)
    return array if handed is array.dtype or handed is None else array.view(handed)


def stands(array: Array) -> bool:
    """Whether its elements are whole, and those of the last axis stand together."""
    return array.flags.aligned and array.strides[-1] == array.itemsize


def _standing(array: Array) -> Array:
    """The same where it stands so that the kernel can read it, otherwise a copy."""
    return array if stands(array) and array.dtype.isnative else _copy(array, whole=1)


def _addressed(array: Array) -> Array:
    """The same with whole, native-endian elements, at any steps."""
    return array if array.flags.aligned and array.dtype.isnative else _copy(array, whole=0)


def _copy(array: Array, *, whole: int) -> Array:
    """A copy in this machine's byte order that repeats what is repeated in the original.

    Of the last `whole` axes each element is copied.
    """
    steps = array.strides[: array.ndim - whole]
    once = array[tuple(slice(0, 1) if step == 0 else slice(None) for step in steps)]
    return np.broadcast_to(once.astype(native(array.dtype), order="C"), array.shape)
