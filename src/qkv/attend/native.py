"""From a checked call to the native kernel: arrays where they stand, heads as they come."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, native
from qkv.attend.call import Call, Packed
from qkv.ops.kernel import get_num_threads, kernel
from qkv.ops.layout import bits, is_bfloat16


class Gradients(NamedTuple):
    """What gradients are written to, in the type that the work is done in.

    What blocks or heads add to holds zeros at first.
    """

    query: Array  # (*lead, Hq, L, d), of packed rows (total, Hq, d)
    key: Array  # (*lead, Hkv, S, d), (total, Hkv, d)
    value: Array  # (*lead, Hkv, S, dv), (total, Hkv, dv)
    bias: Array  # of the shape of the bias
    sinks: Array  # (*lead, Hkv, G, n) with at least one leading axis, of packed rows (B, Hkv, G, n)
    slopes: Array  # (*lead, Hkv, G), (B, Hkv, G)


def attend(
    chosen: int, call: Call, out: Array, lse: Array | None, weights: Array | None = None
) -> None:
    """Compute a call of float32 or half precision.

    `out (*lead, Hq, L, dv)` has a contiguous last axis; where wanted `lse (*lead, Hq, L, 1)` is
    float64 and `weights (*lead, Hq, L, S)` float32, and must hold zeros.
    """
    kernel.attend(*_arguments(chosen, call, out, lse, weights))


def attend_packed(chosen: int, packed: Packed, out: Array, lse: Array | None) -> None:
    """The same of packed rows: `out (total, Hq, dv)`, `lse (total, Hq, 1)`."""
    kernel.attend_packed(*_arguments_packed(chosen, packed, out, lse))


def summarize(
    chosen: int, call: Call, out: Array, lse: Array, indices: Array, weights: Array, received: Array
) -> None:
    """`attend`, with the largest weights of each query and what each key received.

    `indices` and `weights (*lead, Hq, L, top_k)` are int64 and float32, `received (*lead, Hq, 1,
    S)` float64, and must hold zeros.
    """
    kernel.summarize(*_arguments(chosen, call, out, lse, indices, weights, received))


def differentiate(
    chosen: int,
    call: Call | Packed,
    grad_out: Array,
    out: Array,
    lse: Array,
    most: float,
    found: Gradients,
) -> Array:
    """Compute the gradients of a call into `found`; `out` and `lse` are what it gave.

    Returns:
        `(*lead, Hkv)`, of packed rows `(B, Hkv)`: True where the numbers are wrong and have to be
        computed in another way: log-sum-exps are above `most`, or something is infinite or NaN.
    """
    rules = call.call if isinstance(call, Packed) else call
    unsound = np.zeros(found.slopes.shape[:-1], bool)
    slopes = None if rules.slopes is None else np.zeros(found.slopes.shape)
    sinks = None if rules.sinks is None else np.zeros(found.sinks.shape)
    given = (most, bits(_readable(grad_out)), found.query, found.key, found.value)
    sums = (slopes, sinks, unsound)
    if isinstance(call, Packed):
        kernel.differentiate_packed(*_arguments_packed(chosen, call, out, lse, *given, *sums))
    else:
        bias = None if call.bias is None else found.bias
        kernel.differentiate(*_arguments(chosen, call, out, lse, *given, bias, *sums))
    if slopes is not None:
        found.slopes[...] = slopes
    if sinks is not None:
        found.sinks[...] = sinks
    return unsound


def is_contiguous(array: Array) -> bool:
    """Whether the elements are aligned, and those of the last axis contiguous."""
    return array.flags.aligned and array.strides[-1] == array.itemsize


def _arguments(chosen: int, call: Call, out: Array, lse: Array | None, *more: Any) -> Any:
    """The arguments of the kernel's functions, in their order."""
    plan = call.plan
    query, key, value = _readable(call.query), _readable(call.key), _readable(call.value)
    if is_bfloat16(plan.dtype):
        query, key, value, out = (bits(x) for x in (query, key, value, out))
    if plan.is_spread:
        query = np.broadcast_to(query, (*plan.lead, *query.shape[-3:]))
    return (
        chosen,
        query,
        key,
        value,
        out,
        lse,
        None if call.mask is None else bits(_readable(call.mask, contiguous=0)),
        None if call.bias is None else bits(_readable(call.bias, contiguous=0)),
        call.slopes,
        call.sinks,
        call.offset,
        call.query_lengths,
        call.key_lengths,
        call.left,
        call.right,
        call.softcap,
        call.scale,
        get_num_threads(),
        *more,
    )


def _arguments_packed(
    chosen: int, packed: Packed, out: Array, lse: Array | None, *more: Any
) -> Any:
    """The same of packed rows."""
    call, arrays = packed.call, [*map(_readable, packed.rows), out]
    if is_bfloat16(call.plan.dtype):
        arrays = [bits(x) for x in arrays]
    return (
        chosen,
        *arrays,
        lse,
        packed.starts,
        packed.key_starts,
        call.slopes,
        call.sinks,
        packed.offsets,
        call.left,
        call.right,
        call.softcap,
        call.scale,
        get_num_threads(),
        *more,
    )


def _readable(array: Array, *, contiguous: int = 1) -> Array:
    """An array as the kernel reads it, a copy where it has to be.

    Elements are aligned and in this machine's byte order, and those of so many last axes contiguous
    (of masks and biases they need not be).
    """
    is_readable = array.flags.aligned and array.dtype.isnative
    if not is_readable or (contiguous and array.strides[-1] != array.itemsize):
        # what is repeated in the original is repeated in the copy
        steps = array.strides[: array.ndim - contiguous]
        once = array[tuple(slice(0, 1) if step == 0 else slice(None) for step in steps)]
        array = np.broadcast_to(once.astype(native(array.dtype), order="C"), array.shape)
    return array
