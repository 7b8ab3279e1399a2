"""Mistakes in softmax(Q K^T / sqrt(d)) V: wrong steps, wrong loops, and truncated numbers."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._mistake import Mistake, Steps, fill_hints
from qkv_marking.tasks._task import Phrases, both_ends, cut, first_row_only, without
from qkv_marking.tasks.attention.steps import CONTEXT, PROJECT, SCALE, WEIGHTS, flip, same, softmax

_TEXTS = Phrases(__name__)


def _added_up(terms: Iterable[Array]) -> Array:
    """Add up floats in an integer array, which truncates each sum."""
    total: Array = np.array(0.0)
    for term in terms:
        total = np.trunc(total + term)
    return total


def _scores_added_up(q: Array, k: Array) -> Array:
    columns = range(q.shape[-1])
    return _added_up(q[..., :, None, n] * k[..., None, :, n] for n in columns)


def _values_added_up(w: Array, v: Array, *_: object) -> Array:
    return _added_up(w[..., :, j, None] * v[..., None, j, :] for j in range(v.shape[-2]))


def _root(s: Array, d: int) -> Array:
    out: Array = s / np.sqrt(d)
    return out


_WHOLE_SCORES: Steps = {"scale": lambda s, n: np.trunc(_root(s, n.d))}

# mistakes in softmax itself, shared with the task softmax
HARD = _TEXTS.mistake(
    "softmax-hard",
    {
        "shift": lambda s: s - s.max(axis=-1, keepdims=True),
        "exp": lambda s: (s == 0).astype(np.float64),
    },
    {"normalise": lambda e: np.eye(e.shape[-1])[e.argmax(axis=-1)]},
)
WHOLE_WEIGHTS = _TEXTS.mistake(
    "whole-weights", {"normalise": lambda e: e // e.sum(axis=-1, keepdims=True)}
)
WHOLE_EXPONENTIALS = _TEXTS.mistake(
    "integer-exponentials", {"shift": same, "exp": lambda s: np.trunc(np.exp(s))}
)
SUMS = _TEXTS.mistakes(
    {
        "overwritten-sum": [lambda e: e / e[..., -1:]],
        "sum-not-reset": [lambda e: e / np.cumsum(e.sum(axis=-1, keepdims=True), axis=-2)],
    },
    step="normalise",
)

_CUT_OFF = (
    *_TEXTS.mistakes(
        {
            "floor-division-of-scores": [{"scale": lambda s, n: s // np.sqrt(n.d)}],
            "floor-division-of-sums": [
                {
                    "normalise": same,
                    "weigh": lambda e, v, n: e @ v // e.sum(axis=-1, keepdims=True),
                }
            ],
        }
    ),
    WHOLE_WEIGHTS,
    *fill_hints(WEIGHTS, HARD),
    WHOLE_EXPONENTIALS,
    *_TEXTS.mistakes(
        {
            "integer-scores": [
                _WHOLE_SCORES,
                {"score": lambda q, k: np.trunc(q @ flip(k))},
                {"score": _scores_added_up},
                {"score": _scores_added_up, **_WHOLE_SCORES},
            ],
            "integer-output": [
                {"weigh": lambda w, v, n: np.trunc(w @ v)},
                {"weigh": _values_added_up},
            ],
            "scale-power": [lambda s, n: s / (n.d / 2), lambda s, n: s / (2 * n.d)],
            "scale-whole": [
                lambda s, n: s / np.floor(np.sqrt(n.d)),
                lambda s, n: s / (n.d // 2),
            ],
        },
        step="scale",
    ),
)


def _one_score_each(q: Array, k: Array) -> Array:
    out: Array = (q * k).sum(axis=-1)[..., None, :]
    return out


_LOOPS = (
    _TEXTS.mistake("return-in-loop", *first_row_only("weigh", lambda w, v, n: w @ v)),
    *SUMS,
    *_TEXTS.mistakes(
        {
            "overwritten-score": [{"score": lambda q, k: q[..., -1:] @ flip(k[..., -1:])}],
            "overwritten-output": [{"weigh": lambda w, v, n: w[..., -1:] @ v[..., -1:, :]}],
            "scores-elementwise": [
                {"score": lambda q, k: q * k},
                {"score": lambda q, k: q * flip(k)},
                {"score": lambda q, k: q * k, "weigh": lambda w, v, n: w * v},
                {"score": lambda q, k: (q * k).sum(axis=-1, keepdims=True)},
                {"score": _one_score_each, "weigh": lambda w, v, n: (w @ v)[..., 0, :]},
                {"score": _one_score_each, "weigh": lambda w, v, n: flip(w) * v},
            ],
            "values-elementwise": [{"weigh": lambda w, v, n: w * v}],
            "values-order": [{"weigh": lambda w, v, n: v @ w}],
        }
    ),
)


def _each_number(*by: int) -> Steps:
    """Return steps that compute x * w, not x @ w; `by` selects w: 0 = w_q, 1 = w_k, 2 = w_v."""
    return {
        "project": lambda x, *weights: [x * w if n in by else x @ w for n, w in enumerate(weights)]
    }


OF_WORDS = _TEXTS.mistakes(
    {
        "projections-elementwise": map(lambda by: _each_number(*by), ((0, 1, 2), (0,), (1,), (2,))),
        "projections-order": [{"project": lambda x, *weights: [w @ x for w in weights]}],
    }
)


def of_output(remedy: str) -> tuple[Mistake, ...]:
    """Return the mistakes in the product of the joined heads with w_o."""
    known = _TEXTS.mistakes(
        {
            "output-elementwise": [lambda out, w_o: out * w_o],
            "output-order": [lambda out, w_o: w_o @ out],
        },
        step="output",
    )
    return fill_hints(remedy, *known)


_FORGOTTEN = (
    *both_ends(
        _TEXTS,
        "key-forgotten",
        lambda at: {"scale": lambda s, n: without(_root(s, n.d), at, -1)},
        lambda at: {"scale": lambda s, n: without(_root(s, n.d), at, -1, -np.inf)},
        lambda at: {"normalise": lambda e: e / cut(e, at, -1).sum(axis=-1, keepdims=True)},
        lambda at: {"weigh": lambda w, v, n: cut(w, at, -1) @ cut(v, at, -2)},
    ),
    *both_ends(
        _TEXTS,
        "query-forgotten",
        lambda at: {"weigh": lambda w, v, n: without(w @ v, at, -2)},
        lambda at: {"weigh": lambda w, v, n: cut(w @ v, at, -2)},
    ),
    *both_ends(
        _TEXTS,
        "dimension-forgotten",
        lambda at: {"score": lambda q, k: cut(q, at, -1) @ flip(cut(k, at, -1))},
    ),
    *both_ends(
        _TEXTS,
        "column-forgotten",
        lambda at: {"weigh": lambda w, v, n: without(w @ v, at, -1)},
        lambda at: {"weigh": lambda w, v, n: cut(w @ v, at, -1)},
    ),
)
SLIPS = fill_hints("", *_CUT_OFF, *_LOOPS, *_FORGOTTEN, alone=True)


def _seen_without(w: Array, at: int) -> Array:
    """Set the first weight (at = 0) or the last positive weight (at = -1) of each row to 0."""
    positions = np.arange(w.shape[-1])
    last = np.where(w > 0, positions, -1).max(axis=-1, keepdims=True)
    return np.where(positions == (last if at else 0), 0.0, w)


# in causal tasks: a loop over the visible keys that skips the first or the last key
OF_CAUSAL = both_ends(
    _TEXTS,
    "seen-key-forgotten",
    lambda at: {"weigh": lambda w, v, n: _seen_without(w, at) @ v},
)


# names of mistakes, keyed by the indices of the arrays used as query, key and value; for example,
# (1, 0, 2) swaps query (0) and key (1)
_EXCHANGED: dict[tuple[int, ...], str] = {(1, 0, 2): "query-key-swapped", (0, 1, 1): "key-as-value"}


def mix_inputs(signature: str) -> Iterator[Mistake]:
    """Yield a mistake for each wrong choice of query, key and value, or of their projections."""
    arguments = ("query", "key", "value")
    names, remedy = arguments, f"{SCALE}; {CONTEXT}"
    order, shared = "arguments-order", "arguments-shared"
    if signature != "qkv":
        names, remedy = ("w_q", "w_k", "w_v"), PROJECT
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


def _skip_projections(*bare: int) -> Steps:
    """Return steps that leave out some of the projections w_q, w_k and w_v.

    `bare` holds the indices (0, 1, 2) of these projections. The steps use x in place of x @ w.
    """
    return {
        "project": lambda x, *weights: [x if n in bare else x @ w for n, w in enumerate(weights)]
    }


PROJECTIONS = _TEXTS.mistakes(
    {
        "scale-model-width": [{"scale": lambda s, n: s / np.sqrt(n.width)}],
        "no-projection": [
            _skip_projections(*n) for n in ((0, 1, 2), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
        ],
        "projection-transposed": [{"project": lambda x, *weights: [x @ w.T for w in weights]}],
    }
)
SCORES = (_TEXTS.mistake("key-not-transposed", {"score": lambda q, k: q @ k}),)
SCALING = _TEXTS.mistakes(
    {
        "no-scaling": [same],
        "scale-d": [lambda s, n: s / n.d],
        "scale-multiplied": [lambda s, n: s * np.sqrt(n.d)],
        "scale-tokens": [lambda s, n: s / np.sqrt(n.tokens)],
        "scale-after-softmax": [
            {"scale": same, "weigh": lambda w, v, n: w @ v / np.sqrt(n.d)},
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
    """Return the steps of two wrong softmaxes, which sum over `axes`.

    The first softmax also subtracts the maximum over `axes`.
    """
    over: dict[str, Any] = {"axis": axes, "keepdims": True}
    return _max(**over) | _sum(**over), _sum(**over)


_ROW_MAX, _ROW_SUM = _max(axis=-1), _sum(axis=-1)
_LATE_SUM: Steps = {"normalise": same, "weigh": lambda e, v, n: e @ v / e.sum(axis=-1)}

# mistakes in softmax itself, shared with the task softmax
SOFTMAX_ROWS = _TEXTS.mistakes(
    {
        "no-exp": [{"shift": same, "exp": same}],
        "softmax-whole-matrix": over(-1, -2),
        "softmax-columns": over(-2),
        "softmax-keepdims": [
            _ROW_SUM,
            {"shift": same, **_ROW_SUM},
            _ROW_MAX,
            _ROW_MAX | _ROW_SUM,
        ],
        "softmax-not-normalised": [
            {"shift": same, "normalise": same},
            {"normalise": same},
            {**_max(axis=(-1, -2), keepdims=True), "normalise": same},
        ],
        "softmax-twice": [{"weigh": lambda w, v, n: softmax(w) @ v}],
    }
)
_NO_ROWS: Steps = {"shift": same, "exp": same, "normalise": same}
SOFTMAX = fill_hints(
    WEIGHTS,
    *_TEXTS.mistakes(
        {
            "no-softmax": [_NO_ROWS],
            "softmax-after-values": [{**_NO_ROWS, "weigh": lambda w, v, n: softmax(w @ v)}],
        }
    ),
    *SOFTMAX_ROWS[:3],
    replace(
        SOFTMAX_ROWS[3],
        variants=(
            *SOFTMAX_ROWS[3].variants,
            _LATE_SUM,
            {"shift": same, **_LATE_SUM},
            {**_ROW_MAX, **_LATE_SUM},
        ),
    ),
    *SOFTMAX_ROWS[4:],
)
LARGE_ROWS = _TEXTS.mistakes(
    {
        "softmax-no-max": [{"shift": same}],
        "softmax-global-max": [_max(axis=(-1, -2), keepdims=True)],
    }
)
LARGE = fill_hints(WEIGHTS, *LARGE_ROWS, kind="fragile")
RESULT = _TEXTS.mistakes(
    {
        "weights-returned": [{"weigh": lambda w, v, n: w}],
        "weights-transposed": [{"weigh": lambda w, v, n: flip(w) @ v}],
        "causal-always": [{"not_causal": lambda i, j: j <= i}],
    }
)


def core(signature: str) -> tuple[Mistake, ...]:
    """Return the mistakes that can be found without masks, heads or special inputs."""
    of_projections = () if signature == "qkv" else (*PROJECTIONS, *OF_WORDS)
    return (*SOFTMAX, *SCORES, *SCALING, *RESULT, *of_projections, *mix_inputs(signature), *SLIPS)


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
