"""The choice of a backend, and the computation of checked calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.attend import native, tiled
from qkv.attend.call import Call, rounded
from qkv.attend.grouped import grouped
from qkv.ops.kernel import body
from qkv.ops.threads import run_all


class Result(NamedTuple):
    """The result of a call."""

    out: Array  # (*lead, Hq, L, dv), of the call's type or the type of the computation
    lse: Array | None  # (*lead, Hq, L, 1) if wanted, always float64
    weights: Array | None  # (*lead, Hq, L, S) if wanted


def answer(
    call: Call, *, weights: bool = False, lse: bool = False, out: Array | None = None
) -> tuple[Array, ...]:
    """Return the output of `call`, or a tuple with the output, and weights or log-sum-exp.

    If `out` is given, the output is written to it, and `out` is returned.
    """
    result, sums, shown, cases = _begun(call, weights, lse, out)
    if cases:
        run_all(tiled.attend, cases)
    result = rounded(result, call.plan.dtype)
    if out is not None and result is not out:
        out[...] = result
        result = out
    extra = () if shown is None else (shown,)
    if sums is None:
        return result, *extra
    return result, *extra, rounded(sums[..., 0], call.plan.kind)


def solve(calls: Sequence[Call], *, weights: bool = False, lse: bool = False) -> list[Result]:
    """Compute checked calls: one after the other in the kernel, or in parallel with NumPy."""
    begun = [_begun(call, weights, lse, None) for call in calls]
    run_all(tiled.attend, [case for *_, cases in begun for case in cases])
    return [Result(out, sums, shown) for out, sums, shown, _ in begun]


def _begun(
    call: Call, weights: bool, lse: bool, out: Array | None
) -> tuple[Array, Array | None, Array | None, Sequence[tuple[Any, ...]]]:
    """Return the fields of a `Result`, and the cases of `tiled.attend` that fill its arrays.

    The kernel fills the arrays at once, without cases. It writes to `out` if the layout fits.
    """
    plan, chosen = call.plan, body()  # raises if QKV_BACKEND names an unavailable backend
    sums = np.empty((*plan.rows, 1), np.float64) if lse else None
    shown = np.zeros((*plan.rows, plan.keys), plan.kind) if weights else None
    if chosen is not None and plan.is_native:
        if out is None or not native.is_contiguous(out):
            out = np.empty(plan.out, plan.dtype)
        native.attend(chosen, call, out, sums, shown)
        return out, sums, shown, ()
    out = np.empty(plan.out, plan.kind)
    if shown is None and tiled.is_one_block(call) and tiled.attend_one_block(call, out, sums):
        return out, sums, None, ()
    cut = tiled.tiles(wide := grouped(call), plan.keys if weights else tiled.KEYS)
    views = [None if x is None else plan.grouped(x) for x in (out, sums, shown)]
    return out, sums, shown, [(wide, tile, *views) for tile in cut]
