"""Small slips in attention: truncated fractions, loops that end early, wrong products."""

from collections.abc import Iterable

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Mistake, Steps, mended
from qkv.marking.tasks.attention.steps import WEIGHTS, flip, same
from qkv.marking.tasks.task import Texts, both_ends, cut, first_row_only, without

_TEXTS = Texts(__name__)


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

# slips in softmax itself, shared with the task softmax
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
    *mended(WEIGHTS, HARD),
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
    """Compute some projections with elementwise products."""
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
    """Return the slips in the product of the joined heads with w_o."""
    known = _TEXTS.mistakes(
        {
            "output-elementwise": [lambda out, w_o: out * w_o],
            "output-order": [lambda out, w_o: w_o @ out],
        },
        step="output",
    )
    return mended(remedy, *known)


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
SLIPS = mended("", *_CUT_OFF, *_LOOPS, *_FORGOTTEN, alone=True)


def _seen_without(w: Array, at: int) -> Array:
    """In each row, set to 0 the weight of the first key (at = 0) or last visible key (at = -1)."""
    positions = np.arange(w.shape[-1])
    last = np.where(w > 0, positions, -1).max(axis=-1, keepdims=True)
    return np.where(positions == (last if at else 0), 0.0, w)


# for causal tasks, in which a loop runs only over visible keys
OF_CAUSAL = both_ends(
    _TEXTS,
    "seen-key-forgotten",
    lambda at: {"weigh": lambda w, v, n: _seen_without(w, at) @ v},
)
