"""One call of attention: its checked arguments with a plan for their shapes, and its options."""

from __future__ import annotations

import difflib
import math
import sys
import warnings
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, as_array, real_number
from qkv.attend.plan import Plan, check_cells, check_per_head, plan_of
from qkv.attend.visibility import check_lengths, check_offset, check_window

# The options that select results, the options that packed rows support, and all options.
RETURNS = ("return_weights", "return_lse", "out")
PACKED = (
    *("is_causal", "q_offset", "window", "softcap"),
    *("alibi_slopes", "sinks", "scale", "return_lse"),
)
OPTIONS = ("attn_mask", "bias", "query_lengths", "key_lengths", "return_weights", "out", *PACKED)


class Call(NamedTuple):
    """The checked arguments of `qkv.attention`.

    Query, key, value, mask and bias are the given arrays, in their own types.
    """

    plan: Plan
    query: Array
    key: Array
    value: Array
    mask: Array | None  # bool or float
    bias: Array | None
    slopes: Array | None  # (Hq,), contiguous, in the type of the computation
    sinks: Array | None  # (Hq, n), contiguous, in the type of the computation
    offset: int | Array  # the position of query 0 among the keys, () or (*lead,)
    query_lengths: Array | None  # (*lead,)
    key_lengths: Array | None  # (*lead,)
    left: int | None  # of the window
    right: int | None
    softcap: float | None
    scale: float

    def of(self, query: Array, key: Array, value: Array) -> Call:
        """Return a call with the same options for other arrays, which are known to fit."""
        shapes, types = (query.shape, key.shape, value.shape), (query.dtype, key.dtype, value.dtype)
        plan = plan_of("attention", *shapes, *types)
        return self._replace(plan=plan, query=query, key=key, value=value)


class Packed(NamedTuple):
    """The checked arguments of a call about packed rows.

    Sequence b owns the query rows from `starts[b]` to `starts[b + 1]`, and the key rows between
    the same two entries of `key_starts`.
    """

    call: Call  # the options, and arrays (heads, total, size), as if all rows were one sequence
    starts: Array  # (B + 1,)
    key_starts: Array  # (B + 1,)
    offsets: Array  # (B,)

    @property
    def rows(self) -> tuple[Array, Array, Array]:
        """Query, key and value as given, `(total, heads, size)`."""
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
    """Check the arguments of `qkv.attention`; `call` is the name in errors."""
    if not (type(query) is type(key) is type(value) is np.ndarray):
        arrays = {"query": query, "key": key, "value": value}
        query, key, value = (as_array(x, call=call, name=name) for name, x in arrays.items())
    plan = plan_of(call, query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype)
    left, right = check_window(call, window, is_causal)
    needed = left is not None or right is not None or alibi_slopes is not None
    if query_lengths is not None:
        query_lengths = check_lengths(call, "query_lengths", query_lengths, plan.length, plan.lead)
    if key_lengths is not None:
        key_lengths = check_lengths(call, "key_lengths", key_lengths, plan.keys, plan.lead)
    mask = None if attn_mask is None else _cells(call, "attn_mask", attn_mask, plan)
    if bias is not None:
        bias = _cells(call, "bias", bias, plan)
    slopes = None if alibi_slopes is None else _per_head(call, "alibi_slopes", alibi_slopes, plan)
    if sinks is not None:
        sinks = _per_head(call, "sinks", sinks, plan)
    offset = check_offset(call, q_offset, plan.length, plan.keys, plan.lead, needed=needed)
    softcap, scale = check_softcap(call, softcap), check_scale(call, scale, plan.size)
    return Call(
        plan, query, key, value, mask, bias, slopes, sinks,
        offset, query_lengths, key_lengths, left, right, softcap, scale,
    )  # fmt: skip


def check_options(
    options: Mapping[str, Any], *, call: str, without: Collection[str] = (), why: str = ""
) -> None:
    """Raise an error if an option does not exist or is in `without`; `why` gives the reason."""
    for name in options:
        if name in without:
            raise TypeError(f"{call}: there is no {name} here{why}")
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1, cutoff=0.61)
            meant = f"did you mean {near[0]}?" if near else f"choose from {', '.join(OPTIONS)}"
            raise TypeError(f"{call}: there is no option {name}: {meant}")


def check_softcap(call: str, softcap: Any) -> float | None:
    """Return `softcap` as a number."""
    if softcap is None:
        return None
    number = real_number(softcap, call=call, name="softcap")
    if not (math.isfinite(number) and number > 0):
        raise ValueError(
            f"{call}: softcap is {number}: it must be finite and above 0, or None for no cap"
        )
    return _for_float32(number)


def check_scale(call: str, scale: Any, size: int) -> float:
    """Return `scale` as a number, `1 / sqrt(size)` if it is None."""
    if scale is None:
        return 1 / math.sqrt(size)
    number = real_number(scale, call=call, name="scale")
    if not math.isfinite(number):
        raise ValueError(
            f"{call}: scale is {number}: it must be finite, or None for 1 / sqrt({size})"
        )
    return _for_float32(number)


def rounded(array: Array, dtype: np.dtype[Any]) -> Array:
    """Convert without a warning; numbers too large for `dtype` become infinite."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def narrow(array: Array, dtype: np.dtype[Any]) -> Array:
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


def _cells(call: str, name: str, value: Any, plan: Plan) -> Array:
    """Check a mask or a bias."""
    array = as_array(value, call=call, name=name)
    check_cells(call, name, array.shape, array.dtype, (*plan.rows, plan.keys))
    if name == "attn_mask" and array.dtype != bool:
        _warn_of_zeros_and_ones(call, array)
    return array


def _per_head(call: str, name: str, value: Any, plan: Plan) -> Array | None:
    """Check slopes `(Hq,)` or sinks `(Hq, n)`; return None if there are none."""
    array = as_array(value, call=call, name=name)
    check_per_head(call, name, array.shape, array.dtype, plan.heads)
    if name == "sinks":
        array = array.reshape(plan.heads, -1 if array.size else 0)
    return np.ascontiguousarray(narrow(array, plan.kind)) if array.shape[-1:] != (0,) else None


def _for_float32(number: float) -> float:
    """Return the number, as np.float64 if float32 lacks the range, so that results are float64."""
    return number if 1e-30 < abs(number) < 1e30 or number == 0 else np.float64(number)


def _warn_of_zeros_and_ones(call: str, mask: Array) -> None:
    """Warn if a float mask has only 0.0 and 1.0: the user almost certainly means a bool mask."""
    if not mask.size or mask.flat[0] not in (0, 1):
        return
    if ((mask == 0) | (mask == 1)).all() and (mask == 1).any():
        warnings.warn(
            f"{call}: attn_mask is {mask.dtype} and holds only 0 and 1, which are added to "
            "the scores: if 1 means 'may attend', write attn_mask.astype(bool)",
            UserWarning,
            stacklevel=_levels_up(),
        )


def _levels_up() -> int:
    """Return the number of stack levels up to the user's code, which the warning should name."""
    outside, level, frame = 2, 1, sys._getframe(1)
    while frame.f_back is not None:
        level, frame = level + 1, frame.f_back
        if frame.f_globals.get("__name__", "").startswith("qkv."):
            outside = level + 1
    return outside
