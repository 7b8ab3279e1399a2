"""Mistakes in the formula softmax(Q K^T / sqrt(d)) V."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from qkv.marking.mistake import Mistake, Steps, mended
from qkv.marking.tasks.attention import steps
from qkv.marking.tasks.mistakes.slips import OF_WORDS, SLIPS
from qkv.marking.tasks.task import Texts

_TEXTS = Texts(__name__)
# names of mistakes, keyed by the indices of the arrays used as query, key and value
_EXCHANGED: dict[tuple[int, ...], str] = {(1, 0, 2): "query-key-swapped", (0, 1, 1): "key-as-value"}


def mixed(signature: str) -> Iterator[Mistake]:
    """Yield a mistake for each wrong choice of query, key and value, or of their projections."""
    arguments = ("query", "key", "value")
    names, remedy = arguments, f"{steps.SCALE}; {steps.CONTEXT}"
    order, shared = "arguments-order", "arguments-shared"
    if signature != "qkv":
        names, remedy = ("w_q", "w_k", "w_v"), steps.PROJECT
        order, shared = "projections-swapped", "projections-shared"
    for used in product(range(3), repeat=3):
        if used == (0, 1, 2):
            continue
        unused = " or the ".join(name for n, name in enumerate(arguments) if n not in used)
        yield _TEXTS.mistake(
            _EXCHANGED.get(used, shared if unused else order),
            {"choose": lambda *qkv, used=used: [qkv[n] for n in used]},
            **{role: names[n] for role, n in zip(arguments, used, strict=True)},
            unused=unused,
            remedy=remedy,
        )


def _unprojected(*bare: int) -> Steps:
    """Use x itself instead of some of its projections."""
    return {
        "project": lambda x, *weights: [x if n in bare else x @ w for n, w in enumerate(weights)]
    }


PROJECTIONS = _TEXTS.mistakes(
    {
        "scale-model-width": [{"scale": lambda s, n: s / np.sqrt(n.width)}],
        "no-projection": [
            _unprojected(*n) for n in ((0, 1, 2), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
        ],
        "projection-transposed": [{"project": lambda x, *weights: [x @ w.T for w in weights]}],
    }
)
SCORES = (_TEXTS.mistake("key-not-transposed", {"score": lambda q, k: q @ k}),)
SCALING = _TEXTS.mistakes(
    {
        "no-scaling": [steps.same],
        "scale-d": [lambda s, n: s / n.d],
        "scale-multiplied": [lambda s, n: s * np.sqrt(n.d)],
        "scale-tokens": [lambda s, n: s / np.sqrt(n.tokens)],
        "scale-after-softmax": [
            {"scale": steps.same, "weigh": lambda w, v, n: w @ v / np.sqrt(n.d)},
            {"weigh": lambda w, v, n: w @ v / np.sqrt(n.d)},
        ],
    },
    step="scale",
)
SHAPES = (_TEXTS.mistake("scale-value-size", {"scale": lambda s, n: s / np.sqrt(n.dv)}),)


def _max(**over: Any) -> dict[str, Any]:
    """Return softmax steps that subtract `s.max(**over)`."""
    return {"shift": lambda s: s - s.max(**over)}


def _sum(**over: Any) -> dict[str, Any]:
    """Return softmax steps that divide by `e.sum(**over)`."""
    return {"normalise": lambda e: e / e.sum(**over)}


def over(*axes: int) -> tuple[Steps, Steps]:
    """Return two wrong softmaxes: maximum and sum over these axes, or only the sum."""
    over: dict[str, Any] = {"axis": axes, "keepdims": True}
    return _max(**over) | _sum(**over), _sum(**over)


_ROW_MAX, _ROW_SUM = _max(axis=-1), _sum(axis=-1)
_LATE_SUM: Steps = {"normalise": steps.same, "weigh": lambda e, v, n: e @ v / e.sum(axis=-1)}

# mistakes in softmax itself, shared with the task softmax
SOFTMAX_ROWS = _TEXTS.mistakes(
    {
        "no-exp": [{"shift": steps.same, "exp": steps.same}],
        "softmax-whole-matrix": over(-1, -2),
        "softmax-columns": over(-2),
        "softmax-keepdims": [
            _ROW_SUM,
            {"shift": steps.same, **_ROW_SUM},
            _ROW_MAX,
            _ROW_MAX | _ROW_SUM,
        ],
        "softmax-not-normalised": [
            {"shift": steps.same, "normalise": steps.same},
            {"normalise": steps.same},
            {**_max(axis=(-1, -2), keepdims=True), "normalise": steps.same},
        ],
        "softmax-twice": [{"weigh": lambda w, v, n: steps.softmax(w) @ v}],
    }
)
_NO_ROWS: Steps = {"shift": steps.same, "exp": steps.same, "normalise": steps.same}
SOFTMAX = mended(
    steps.WEIGHTS,
    *_TEXTS.mistakes(
        {
            "no-softmax": [_NO_ROWS],
            "softmax-after-values": [{**_NO_ROWS, "weigh": lambda w, v, n: steps.softmax(w @ v)}],
        }
    ),
    *SOFTMAX_ROWS[:3],
    replace(
        SOFTMAX_ROWS[3],
        variants=(
            *SOFTMAX_ROWS[3].variants,
            _LATE_SUM,
            {"shift": steps.same, **_LATE_SUM},
            {**_ROW_MAX, **_LATE_SUM},
        ),
    ),
    *SOFTMAX_ROWS[4:],
)
LARGE_ROWS = _TEXTS.mistakes(
    {
        "softmax-no-max": [{"shift": steps.same}],
        "softmax-global-max": [_max(axis=(-1, -2), keepdims=True)],
    }
)
LARGE = mended(steps.WEIGHTS, *LARGE_ROWS, kind="fragile")
RESULT = _TEXTS.mistakes(
    {
        "weights-returned": [{"weigh": lambda w, v, n: w}],
        "weights-transposed": [{"weigh": lambda w, v, n: steps.flip(w) @ v}],
        "causal-always": [{"not_causal": lambda i, j: j <= i}],
    }
)


def core(signature: str) -> tuple[Mistake, ...]:
    """Return the mistakes that can be found without masks, heads or special inputs."""
    of_projections = () if signature == "qkv" else (*PROJECTIONS, *OF_WORDS)
    return (*SOFTMAX, *SCORES, *SCALING, *RESULT, *of_projections, *mixed(signature), *SLIPS)


_ALONG_THE_SECOND: Steps = {"normalise": lambda e: e / e.sum(axis=-1)[:, None]}
BATCHES = _TEXTS.mistakes(
    {
        "batch-transpose": [{"score": lambda q, k: q @ k.T}],
        "batch-axis": [
            *over(1),
            {"shift": lambda s: s - s.max(axis=-1)[:, None], **_ALONG_THE_SECOND},
            _ALONG_THE_SECOND,
        ],
    }
)
ONE_TEXT = _TEXTS.mistake("one-text-only")
