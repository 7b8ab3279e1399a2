"""Calls of the native kernel for attention and its gradients."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, native
from qkv.attend.arguments import Call, Packed
from qkv.ops.kernel import bits, compiled, get_num_threads, is_bfloat16


class Gradients(NamedTuple):
    """The arrays for the gradients, in the dtype of the computation.

    `bias`, `sinks` and `slopes` begin as zeros, to which the gradients of all blocks are added.
    """

    query: Array  # (*lead, Hq, L, d); for packed rows (total, Hq, d).
    key: Array  # (*lead, Hkv, S, d); for packed rows (total, Hkv, d).
    value: Array  # (*lead, Hkv, S, dv); for packed rows (total, Hkv, dv).
    bias: Array  # The shape of the call's bias.
    sinks: Array  # (*lead, Hkv, G, n), `lead` not empty; for packed rows (B, Hkv, G, n).
    slopes: Array  # (*lead, Hkv, G); for packed rows (B, Hkv, G).


class Outputs(NamedTuple):
    """The inputs of the backward pass: a call's results, and the gradient for the call's output."""

    grad_out: Array  # (*lead, Hq, L, dv); for packed rows (total, Hq, dv).
    out: Array  # The shape of `grad_out`.
    lse: Array  # (*lead, Hq, L, 1); for packed rows (total, Hq, 1).
    exact: float  # The largest `lse` for which the weights `exp(score - lse)` are accurate.

    def each(self, change: Callable[[Array], Array]) -> "Outputs":
        """Return the outputs with `change` applied to each array."""
        return Outputs(change(self.grad_out), change(self.out), change(self.lse), self.exact)


def attend_native(
    variant: int, call: Call, out: Array, lse: Array | None, weights: Array | None
) -> None:
    """Compute a call in float32 or half precision; write to `out`, `lse` and `weights`.

    `out (*lead, Hq, L, dv)` must have a contiguous last axis and the dtype of the call or float32,
    `lse (*lead, Hq, L, 1)` must be float64, and `weights (*lead, Hq, L, S)` must be float32 zeros.
    """
    compiled.attend(*_arguments(variant, call, out, lse, weights))


def attend_new(
    variant: int, call: Call, query: Array, cached: Mapping[str, Any], out: Array, threads: int
) -> None:
    """Compute the attention of new tokens `query (B, Hq, L, d)` to cached keys; write to `out`.

    `call` holds the options, but neither a mask nor a bias. `cached` holds the arguments that
    `KVCache.append` returns. All arrays must be readable by the kernel.
    """
    compiled.attend(
        variant, bits(query), bits(cached["key"]), bits(cached["value"]), bits(out),
        None, None, None, call.slopes, call.sinks,
        cached["q_offset"], cached.get("query_lengths"), cached.get("key_lengths"),
        call.left, call.right, call.softcap, call.scale, threads, None,
    )  # fmt: skip


def attend_packed(variant: int, packed: Packed, out: Array, lse: Array | None) -> None:
    """Compute a call with packed rows; write to `out (total, Hq, dv)` and `lse (total, Hq, 1)`."""
    compiled.attend_packed(*_arguments_packed(variant, packed, out, lse))


def summarize(
    variant: int,
    call: Call,
    out: Array,
    lse: Array,
    indices: Array,
    weights: Array,
    received: Array,
) -> None:
    """Compute a call's output, each query's largest weights and the sum of each key's weights.

    `indices (*lead, Hq, L, top_k)` must be int64, `weights (*lead, Hq, L, top_k)` float32, and
    `received (*lead, Hq, 1, S)` float64 zeros.
    """
    compiled.summarize(*_arguments(variant, call, out, lse, indices, weights, received))


def differentiate(
    variant: int, call: Call | Packed, outputs: Outputs, gradients: Gradients
) -> Array:
    """Compute the gradients of a call, and write them to `gradients`.

    Returns:
        Booleans `(*lead, Hkv)`, or `(B, Hkv)` for packed rows: True for each key head whose
        gradients are wrong and must be recomputed with NumPy.
        Gradients are wrong in two cases. The absolute value of a log-sum-exp is above the limit
        `outputs.exact` (-inf is allowed), or the kernel computes an infinite or NaN value.
    """
    rules = call.call if isinstance(call, Packed) else call
    grad_out, out, lse, exact = outputs
    wrong = np.zeros(gradients.slopes.shape[:-1], bool)
    slopes = None if rules.slopes is None else np.zeros(gradients.slopes.shape)
    sinks = None if rules.sinks is None else np.zeros(gradients.sinks.shape)
    arrays = (exact, bits(_readable(grad_out)), *gradients[:3])
    sums = (slopes, sinks, wrong)
    if isinstance(call, Packed):
        compiled.differentiate_packed(*_arguments_packed(variant, call, out, lse, *arrays, *sums))
    else:
        bias = None if call.bias is None else gradients.bias
        compiled.differentiate(*_arguments(variant, call, out, lse, *arrays, bias, *sums))
    if slopes is not None:
        gradients.slopes[...] = slopes
    if sinks is not None:
        gradients.sinks[...] = sinks
    return wrong


def is_contiguous(array: Array) -> bool:
    """Return whether the array is aligned and its last axis is contiguous."""
    return array.flags.aligned and array.strides[-1] == array.itemsize


def _arguments(variant: int, call: Call, out: Array, lse: Any, *more: Any) -> Any:
    """Return the arguments of the kernel's functions in the right order."""
    plan = call.plan
    query, key, value = _readable(call.query), _readable(call.key), _readable(call.value)
    if is_bfloat16(plan.dtype):
        query, key, value, out = (bits(x) for x in (query, key, value, out))
    if plan.is_spread:
        query = np.broadcast_to(query, (*plan.lead, *query.shape[-3:]))
    mask = None if call.mask is None else bits(_readable(call.mask, contiguous=0))
    bias = None if call.bias is None else bits(_readable(call.bias, contiguous=0))
    return (
        variant, query, key, value, out, lse, mask, bias, call.slopes, call.sinks,
        call.offset, call.query_lengths, call.key_lengths, call.left, call.right,
        call.softcap, call.scale, get_num_threads(), *more,
    )  # fmt: skip


def _arguments_packed(
    variant: int, packed: Packed, out: Array, lse: Array | None, *more: Any
) -> Any:
    """Return the arguments of the kernel's functions for packed rows."""
    call = packed.call
    rows = (array.swapaxes(0, 1) for array in (call.query, call.key, call.value))
    arrays = [*map(_readable, rows), out]
    if is_bfloat16(call.plan.dtype):
        arrays = [bits(x) for x in arrays]
    return (
        variant, *arrays, lse, packed.starts, packed.key_starts, call.slopes, call.sinks,
        packed.offsets, call.left, call.right, call.softcap, call.scale, get_num_threads(), *more,
    )  # fmt: skip


def _readable(array: Array, *, contiguous: int = 1) -> Array:
    """Return an array that the kernel can read; copy it only if necessary.

    The result is aligned and in this machine's byte order. With `contiguous=1`, the last axis of
    the result is contiguous. With `contiguous=0`, a mask or a bias that is broadcast along the last
    axis stays broadcast.
    """
    is_readable = array.flags.aligned and array.dtype.isnative
    if not is_readable or (contiguous and array.strides[-1] != array.itemsize):
        # Along a broadcast axis, all entries are equal, so copy only the first entry, and
        # broadcast the copy back to the shape of `array`.
        steps = array.strides[: array.ndim - contiguous]
        once = array[tuple(slice(0, 1) if step == 0 else slice(None) for step in steps)]
        array = np.broadcast_to(once.astype(native(array.dtype), order="C"), array.shape)
    return array
