"""A decoder that writes step by step: its own keys and values grow, those of the context do not.

Source: Shazeer 2019, Fast Transformer Decoding (incremental attention, with an encoder).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Steps
from qkv.marking.tasks.kv_cache import RIGHT as KV_CACHE
from qkv.marking.tasks.kv_cache import Kept, advance, attend
from qkv.marking.tasks.stepping import Run
from qkv.marking.tasks.wiring import Part


class Writing(Run):
    """A text that is handed over in parts, beside a context (S, D) that is there as a whole."""

    def shown(self) -> dict[str, Any]:
        """What a learner needs to make these calls by hand."""
        named = ((*name.partition(" "), a) for name, a in super().shown().items())
        return {
            f'parameters["{name}"]{space}{rest}'
            if name[:-2] in ("self", "cross")
            else f"{name}{space}{rest}": a
            for name, space, rest, a in named
        }


def compute(case: Run, steps: Steps) -> Array:
    """The outputs of all calls below each other, (T, D)."""
    width = case.arrays["x"].shape[1]
    own, cross = Kept(np.zeros((0, width)), np.zeros((0, width))), Kept(*np.zeros((2, 0, width)))
    said = case.arrays["x"][:0]  # what self-attention was given in earlier calls
    outs: list[Array] = []
    for x in case.pieces():
        p = (case.later or case.arrays) if outs else case.arrays
        first, second = steps["projections"]("self", "cross")
        mine = tuple(p[f"{first}_{role}"] for role in "qkv")
        theirs = tuple(p[f"{second}_{role}"] for role in "qkv")

        def self_attention(x: Array, w: tuple[Array, ...] = mine) -> Array:
            nonlocal own, said
            own = Kept(*steps["recalls"](own, said, w[1], w[2]))
            said = np.concatenate([said, x])
            out, own = advance(x, (w[0], w[1], w[2]), own, steps)
            return out

        def cross_attention(x: Array, w: tuple[Array, ...] = theirs, before: Array = x) -> Array:
            nonlocal cross
            words = steps["words"](x, before)
            read, cross = steps["source"](cross, case.arrays["context"], words, w[1], w[2])
            read = steps["found"](read, own)
            i, j = np.arange(len(x))[:, None], np.arange(len(read.key))
            sees = steps["source_sees"](i, j, len(said) - len(x))
            return attend(x @ w[0], read.key, read.value, sees, x.shape[1], steps)

        outs.append(steps["wire"](x, self_attention, cross_attention, len(outs)))
    return np.concatenate(outs)


def once(cross: Kept, context: Array, x: Array, w_k: Array, w_v: Array) -> tuple[Kept, Kept]:
    """Keys and values of the context: what is read, and what is kept for the next call."""
    made = cross if len(cross.key) else Kept(context @ w_k, context @ w_v)
    return made, made


def in_order(x: Array, own: Part, cross: Part, calls: int) -> Array:
    """Self-attention is added to x, and then cross-attention."""
    x = x + own(x)
    return x + cross(x)


RIGHT: Steps = MappingProxyType(
    {
        **KV_CACHE,
        "projections": lambda own, cross: (own, cross),
        "source": once,
        "words": lambda x, before: x,  # which of them a mistake makes keys of
        "found": lambda cross, own: cross,
        "source_sees": lambda i, j, before: j >= 0,
        "wire": in_order,
    }
)
