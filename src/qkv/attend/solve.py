"""From checked calls to results: where a backend is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.attend import native, tiled
from qkv.attend.call import Call
from qkv.ops.kernel import body
from qkv.ops.threads import run_all


class Solved(NamedTuple):
    """What a call comes to, heads still grouped: `(*lead, Hkv, G, L, ...)`."""

    context: Array  # of the type that was asked for, or of that the work is done in
    lse: Array | None  # where wanted; float64, whatever the type the work is done in
    weights: Array | None  # where wanted


def answer(
    call: Call, *, weights: bool = False, lse: bool = False, out: Array | None = None
) -> tuple[Array, ...]:
    """What the caller of `call` wants: out, and with it weights and log-sum-exp where asked for.

    The result is written to `out` where it is given, and that is the array that comes back.
    """
    [solved] = solve([call], weights=weights, lse=lse, out=out)
    found = [call.result(solved.context, call.dtype)]
    if out is not None:
        if not np.may_share_memory(out, solved.context):
            out[...] = found[0]
        found = [out]
    if solved.weights is not None:
        found.append(call.result(solved.weights))
    if solved.lse is not None:
        found.append(call.result(solved.lse[..., None], call.kind)[..., 0])
    return tuple(found)


def solve(
    calls: Sequence[Call],
    *,
    weights: bool = False,
    lse: bool = False,
    out: Array | None = None,
) -> list[Solved]:
    """Compute checked calls: by the kernel one by one, by NumPy side by side.

    `weights` and `lse` say what is wanted beside the context. `out`, where it is given, may be
    used for the context of a single call.
    """
    chosen = body()  # an error here if QKV_BACKEND asks for what is not there
    solved, cases = [], []
    for call in calls:
        sums = np.empty(call.shape, np.float64) if lse else None
        shown = np.zeros((*call.shape, call.keys), call.kind) if weights else None
        if chosen is not None and native.takes(call):
            context = native.place_for(call, out)
            native.attend(chosen, call, context, sums, shown)
        else:
            context = np.empty((*call.shape, call.value.shape[-1]), call.kind)
            cut = tiled.parts(call, call.keys if weights else tiled.KEYS)
            wide = call.widened()
            cases += [(wide, part, context, sums, shown) for part in cut]
        solved.append(Solved(context, sums, shown))
    if cases:
        run_all(tiled.attend, cases)
    return solved
