"""One call of attention: a plan for its shapes, and its arguments, checked."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, as_array, real_number
from qkv.attend.plan import Plan, check_cells, check_per_head, plan_of
from qkv.attend.visibility import check_lengths, check_offset, check_window


class Call(NamedTuple):
    """Everything that `qkv.attention` was asked, checked.

    Query, key, value, mask and bias stand where, as and in the type they were given.
    """

    plan: Plan
    query: Array
    key: Array
    value: Array
    mask: Array | None  # bool or float
    bias: Array | None
    slopes: Array | None  # (Hq,), contiguous, in the type that the work is done in
    sinks: Array | None  # (Hq, n), likewise
    offset: int | Array  # the place of query 0 among the keys: one, or (*lead,)
    query_lengths: Array | None  # (*lead,)
    key_lengths: Array | None  # (*lead,)
    left: int | None  # of the window
    right: int | None
    softcap: float | None
    scale: float

    def of(self, query: Array, key: Array, value: Array) -> Call:
        """The same rules for other arrays, which are known to fit."""
        shapes, types = (query.shape, key.shape, value.shape), (query.dtype, key.dtype, value.dtype)
        plan = plan_of("attention", *shapes, *types)
        return self._replace(plan=plan, query=query, key=key, value=value)


class Packed(NamedTuple):
    """Everything that a call about packed rows was asked, checked.

    Sequence b owns the query rows from `starts[b]` to `starts[b + 1]`, and the key rows likewise.
    """

    call: Call  # the same rules, arrays (heads, total, size): as if all rows were one sequence
    starts: Array  # (B + 1,)
    key_starts: Array  # (B + 1,)
    offsets: Array  # (B,)

    @property
    def rows(self) -> tuple[Array, Array, Array]:
        """Query, key and value as they came, `(total, heads, size)`."""
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
    call: str = "attention",
) -> Call:
    """Check the arguments of `qkv.attention`; `call` is the name that errors give."""
    if not (type(query) is type(key) is type(value) is np.ndarray):
        given = {"query": query, "key": key, "value": value}
        query, key, value = (as_array(x, call=call, name=name) for name, x in given.items())
    plan = plan_of(call, query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype)
    left, right = check_window(call, window, is_causal)
    needed = left is not None or right is not None or alibi_slopes is not None
    if query_lengths is not None:
        query_lengths = check_lengths(call, "query_lengths", query_lengths, plan.length, plan.lead)
    if key_lengths is not None:
        key_lengths = check_lengths(call, "key_lengths", key_lengths, plan.keys, plan.lead)
    return Call(
        plan,
        query,
        key,
        value,
        None if attn_mask is None else _cells(call, "attn_mask", attn_mask, plan),
        None if bias is None else _cells(call, "bias", bias, plan),
        None if alibi_slopes is None else _per_head(call, "alibi_slopes", alibi_slopes, plan),
        None if sinks is None else _per_head(call, "sinks", sinks, plan),
        check_offset(call, q_offset, plan.length, plan.keys, plan.lead, needed=needed),
        query_lengths,
        key_lengths,
        left,
        right,
        check_softcap(call, softcap),
        check_scale(call, scale, plan.size),
    )


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


def _cells(call: str, name: str, given: Any, plan: Plan) -> Array:
    """A mask or a bias."""
    array = as_array(given, call=call, name=name)
    check_cells(call, name, array.shape, array.dtype, (*plan.rows, plan.keys))
    if name == "attn_mask" and array.dtype != bool:
        _warn_of_zeros_and_ones(call, array)
    return array


def _per_head(call: str, name: str, given: Any, plan: Plan) -> Array | None:
    """Slopes `(Hq,)` or sinks `(Hq, n)`; None where there are none."""
    array = as_array(given, call=call, name=name)
    check_per_head(call, name, array.shape, array.dtype, plan.heads)
    if name == "sinks":
        array = array.reshape(plan.heads, -1 if array.size else 0)
    return np.ascontiguousarray(narrow(array, plan.kind)) if array.shape[-1:] != (0,) else None


def _for_float32(number: float) -> float:
    """A number, NumPy's float64 where float32 cannot hold it well: arithmetic then widens."""
    return number if 1e-30 < abs(number) < 1e30 or number == 0 else np.float64(number)


def _warn_of_zeros_and_ones(call: str, mask: Array) -> None:
    """A mask of nothing but 0.0 and 1.0 is nearly always a bool mask gone astray."""
    if not mask.size or mask.flat[0] not in (0, 1):
        return
    if ((mask == 0) | (mask == 1)).all() and (mask == 1).any():
        warnings.warn(
            f"{call}: attn_mask is {mask.dtype} and holds nothing but 0 and 1, which are added to "
            "the scores: if 1 means 'may attend', write attn_mask.astype(bool)",
            UserWarning,
            stacklevel=_levels_up(),
        )


def _levels_up() -> int:
    """How far up the code is that called qkv: a warning is for whoever wrote that."""
    found, level, frame = 2, 1, sys._getframe(1)
    while frame.f_back is not None:
        level, frame = level + 1, frame.f_back
        if frame.f_globals.get("__name__", "").startswith("qkv."):
            found = level + 1
    return found
