"""Mistakes in how a function splits, arranges, scales, joins and projects heads."""

from collections.abc import Callable

import numpy as np

from qkv.arrays import Array
from qkv_marking._mistake import Steps
from qkv_marking.tasks._task import Phrases, both_ends, cut, without
from qkv_marking.tasks.attention.steps import flip, join, same

JOIN = "out = np.swapaxes(out, 0, 1).reshape(T, num_heads * d)  # (H, T, d) -> (T, H * d)"
_TEXTS = Phrases(__name__)


def _reshape(a: Array, heads: int) -> Array:
    """Split (..., T, H * d) into (..., H, T, d) without the transpose."""
    return a.reshape(*a.shape[:-2], heads, a.shape[-2], -1)


def _rejoin(a: Array) -> Array:
    """Join (..., H, T, d) to (..., T, H * d) without the transpose."""
    return a.reshape(*a.shape[:-3], a.shape[-2], -1)


def _flat(a: Array) -> Array:
    """Join (..., T, H, d) to (..., T, H * d) by a reshape alone."""
    return a.reshape(*a.shape[:-2], -1)


def _split_only(a: Array, heads: int) -> Array:
    """Split (..., T, H * d) into (..., T, H, d), and forget the transpose."""
    return a.reshape(*a.shape[:-1], heads, -1)


def _rejoin_by_row(a: Array) -> Array:
    """Join (..., T, H, d) to (..., T, H * d) with a needless transpose."""
    return np.swapaxes(a, -3, -2).reshape(*a.shape[:-2], -1)


def _swapped_back(*roles: int) -> Steps:
    """Return a step that undoes the transpose of the query, the key or the value.

    Args:
        roles: one or more arrays, given as numbers: 0 is the query, 1 is the key, 2 is the value.
    """
    return {
        "arranged": lambda *qkv: [
            np.swapaxes(a, -3, -2) if n in roles else a for n, a in enumerate(qkv)
        ]
    }


def _in_turn(a: Array, heads: int) -> Array:
    """Split (..., T, d * H) into (..., H, T, d); each head gets every H-th column."""
    return np.moveaxis(a.reshape(*a.shape[:-1], -1, heads), -1, -3)


def _rejoin_in_turn(a: Array) -> Array:
    """Join (..., H, T, d) to (..., T, d * H) with the columns of the heads interleaved."""
    return _flat(np.moveaxis(a, -3, -1))


def _resize_heads(size: Callable[[int, int, int], int]) -> Steps:
    """Return a step that raises a ValueError if heads of this size do not fill all columns."""

    def resize(a: Array, heads: int, width: int) -> Array:
        return a.reshape(*a.shape[:-1], heads, size(a.shape[-1], heads, width)).reshape(a.shape)

    return {"sized": resize}


HEADS = (
    *_TEXTS.mistakes(
        {
            "heads-size": [
                _resize_heads(lambda columns, heads, width: columns),
                _resize_heads(lambda columns, heads, width: width // heads),
                _resize_heads(lambda columns, heads, width: width),
            ],
            # The first mistake that reproduces a result is reported. "heads-join" and
            # "heads-reshape" can reproduce the same result, because both contain variants with the
            # wrong join `_rejoin`. Such a result must be reported as "heads-join", so "heads-join"
            # comes first.
            "heads-join": [{"join": _rejoin}, {"join": _flat}],
            "heads-reshape": [
                {"split": _reshape},
                {"split": _reshape, "join": _rejoin},
                {"split": _split_only, "join": _flat},
                {"split": _split_only},
                {"split": _split_only, "join": _rejoin_by_row},
            ],
            "heads-not-joined": [{"join": same}],
            "heads-ignored": [{"split": same, "join": same}],
            "heads-scale": [{"scale": lambda s, n: s / np.sqrt(n.all_heads)}],
            "heads-swap-forgotten": [
                _swapped_back(*roles) for roles in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
            ],
        }
    ),
    *both_ends(
        _TEXTS,
        "head-forgotten",
        lambda at: {"join": lambda a: join(without(a, at, -3))},
        lambda at: {"join": lambda a: join(cut(a, at, -3))},
    ),
)
IN_TURN = _TEXTS.mistake(
    "heads-interleaved", {"split": _in_turn, "join": _rejoin_in_turn}, {"split": _in_turn}
)
# mistakes of multi-head functions; a call with only one head also reveals them
ONE_HEAD = _TEXTS.mistakes(
    {
        "heads-beside-words": [
            {"weigh": lambda w, v, n: v},
            {
                "split": _split_only,
                "weigh": lambda w, v, n: w @ v if w.ndim > 2 else v,
                "join": _rejoin_by_row,
            },
        ],
        "heads-transposed-first": [
            {
                "choose": lambda q, k, v: [flip(a).reshape(a.shape) for a in (q, k, v)],
                "split": _reshape,
            }
        ],
    }
)
JOINED = _TEXTS.mistakes(
    {
        "heads-join-interleaved": [_rejoin_in_turn],
        "heads-reversed": [lambda a: join(a[..., ::-1, :, :])],
    },
    step="join",
)
OUTPUT_MISSING = _TEXTS.mistake("output-missing", {"output": lambda out, w_o: out})
