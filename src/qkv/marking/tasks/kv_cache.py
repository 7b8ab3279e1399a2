"""The task `kv-cache`: a step function that caches keys and values of earlier words.

Source: Shazeer 2019, Fast Transformer Decoding (incremental attention).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.marking.engine import Group, generator, per_seed
from qkv.marking.mistake import Steps
from qkv.marking.outcome import options_of
from qkv.marking.result import CheckResult
from qkv.marking.tasks.attention.steps import RIGHT as ATTENTION
from qkv.marking.tasks.attention.steps import Sizes
from qkv.marking.tasks.mistakes.formula import LARGE, core
from qkv.marking.tasks.mistakes.slips import OF_CAUSAL
from qkv.marking.tasks.stepping import Run, StepMarking
from qkv.marking.tasks.task import Texts, task

_TEXTS = Texts(__name__)
_WEIGHTS = ("w_q", "w_k", "w_v")

# the computation, step by step


class Kept(NamedTuple):
    """The cached keys and values of earlier words."""

    key: Array
    value: Array


def compute(case: Run, steps: Steps) -> Array:
    """Return the outputs (T, dv) of all calls, concatenated."""
    w_q, w_k, w_v = (case.arrays[name] for name in _WEIGHTS)
    kept = Kept(np.zeros((0, w_k.shape[1])), np.zeros((0, w_v.shape[1])))
    outs: list[Array] = []
    before = 0
    words = case.arrays["x"][:0]  # words of earlier calls
    for x in case.pieces():
        if case.later is not None and outs:
            w_q, w_k, w_v = (case.later[name] for name in _WEIGHTS)
        kept = Kept(*steps["recalls"](kept, words, w_k, w_v))
        if case.positions is not None:
            x = x + case.positions[steps["positions"](len(x), before, len(outs))]
        words = np.concatenate([words, x])
        out, kept = advance(x, (w_q, w_k, w_v), kept, steps)
        outs.append(out)
        before += len(x)
    return np.concatenate(outs)


def advance(
    x: Array, weights: tuple[Array, Array, Array], kept: Kept, steps: Steps
) -> tuple[Array, Kept]:
    """Return the output of causal attention from new words to all words, and the new cache."""
    q, k, v = steps["choose"](*steps["project"](x, *weights))
    keys, values = steps["reads"](kept, k, v)
    first = steps["first"](len(kept.key), len(keys), len(x))  # the position of the first new word
    i, j = np.arange(len(q))[:, None], np.arange(len(keys))
    out = attend(q, keys, values, steps["sees"](i, j, first), x.shape[1], steps)
    return out, Kept(*steps["keeps"](kept, k, v))


def attend(q: Array, k: Array, v: Array, sees: Array, width: int, steps: Steps) -> Array:
    """Return the output (n, dv) of attention from new queries to visible keys."""
    if not len(k):
        return np.zeros((len(q), v.shape[1]))
    sizes = Sizes(q.shape[-1], v.shape[-1], len(k), width, q.shape[-1])
    scores = steps["scale"](steps["score"](q, k), sizes)
    visible = np.broadcast_to(sees, scores.shape)
    weights = steps["normalise"](steps["exp"](steps["shift"](np.where(visible, scores, -np.inf))))
    out: Array = steps["weigh"](weights, v, sizes)
    return out


def after(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    """Append the new rows to the cached rows."""
    return np.concatenate([kept.key, k]), np.concatenate([kept.value, v])


RIGHT: Steps = MappingProxyType(
    {
        **ATTENTION,
        "positions": lambda new, before, calls: before + np.arange(new),
        "recalls": lambda kept, words, w_k, w_v: kept,
        "reads": after,
        "keeps": after,
        "first": lambda kept, keys, new: keys - new,
    }
)


# the mistakes, each of which replaces steps


def _both(way: Callable[[Kept, Array, Array], Sequence[Array]]) -> Steps:
    """Return steps that use `way` to combine cached and new rows, for attention and the cache."""
    return {"reads": way, "keeps": way}


def _twice(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    """Append the new rows to the cached rows twice."""
    return after(Kept(*after(kept, k, v)), k, v)


def _new(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    return k, v


CACHING = _TEXTS.mistakes(
    {
        "cache-unused": [{"reads": _new}],
        "cache-overwritten": [{"keeps": _new}],
        "cache-twice": [{"keeps": _twice}, {"reads": _twice}, _both(_twice)],
        "cache-twice-at-first": [
            _both(lambda kept, k, v: after(kept if len(kept.key) else Kept(k, v), k, v))
        ],
        "cache-one-of-two": [
            _both(lambda kept, k, v: (after(kept, k, v)[0], v)),
            _both(lambda kept, k, v: (k, after(kept, k, v)[1])),
        ],
        "cache-summed": [
            _both(lambda kept, k, v: (kept.key + k, kept.value + v) if len(kept.key) else (k, v))
        ],
        # attention reads only cached keys, but the positions of the new words are right
        "cache-late": [
            {"reads": lambda kept, k, v: kept, "first": lambda kept, keys, new: kept},
            {
                "reads": lambda kept, k, v: kept if len(kept.key) else (k, v),
                "first": lambda kept, keys, new: kept,
            },
        ],
    }
)
# for a step whose first call returns None as the cache
NOT_FILLED = _TEXTS.mistake("cache-not-filled", {"keeps": lambda kept, k, v: kept})
# found with other projections in later calls; these must not change the cached rows
RECOMPUTED = _TEXTS.mistake(
    "cache-recomputed",
    {"recalls": lambda kept, words, w_k, w_v: (words @ w_k, words @ w_v)},
    {"recalls": lambda kept, words, w_k, w_v: (words @ w_k, kept.value)},
    {"recalls": lambda kept, words, w_k, w_v: (kept.key, words @ w_v)},
)
EXCHANGED = _TEXTS.mistake("cache-exchanged", {"keeps": lambda kept, k, v: after(kept, k, v)[::-1]})
MASKING = _TEXTS.mistakes(
    {
        "cache-no-mask": [lambda i, j, first: j >= 0],
        "cache-mask-first-call": [lambda i, j, first: (j <= i) | (first > 0)],
        "cache-mask-no-first": [lambda i, j, first: (j <= first + i) | (first == 0)],
        "cache-mask-upper": [lambda i, j, first: j >= first + i],
        "cache-mask-row": [lambda i, j, first: j <= (first + i).T],
        "cache-counts-arrays": [{"first": lambda kept, keys, new: 2 if kept else 0}],
        "cache-mask-start": [lambda i, j, first: j <= i],
        "cache-mask-diagonal": [lambda i, j, first: j < first + i],
        "cache-mask-ahead": [lambda i, j, first: j <= first + i + 1],
        "cache-front": [_both(lambda kept, k, v: after(Kept(k, v), *kept))],
    },
    step="sees",
)
PLACING = _TEXTS.mistakes(
    {
        "cache-positions-restart": [lambda new, before, calls: np.arange(new)],
        "cache-positions-calls": [lambda new, before, calls: calls + np.arange(new)],
        "cache-positions-off": [
            lambda new, before, calls: before + 1 + np.arange(new),
            lambda new, before, calls: before + new + np.arange(new),
        ],
        # the last row of the table is zeros
        "cache-positions-ignored": [lambda new, before, calls: np.full(new, -1)],
    },
    step="positions",
)
KNOWN = (*CACHING, *MASKING, *core("x,w_q,w_k,w_v"), *OF_CAUSAL, EXCHANGED)

# the inputs, and the marking


def _drawn(seed: int, parts: tuple[int, ...], sizes: tuple[int, int, int]) -> Run:
    """Draw word vectors and projections of sizes D, d, dv in multiples of 1/2."""
    width, d, dv = sizes
    rng = generator(seed)
    shapes = {"x": (sum(parts), width), "w_q": (width, d), "w_k": (width, d), "w_v": (width, dv)}
    return Run({name: rng.integers(-4, 5, shape) / 2 for name, shape in shapes.items()}, parts)


def _cases(seed: int, *parts: tuple[int, ...]) -> list[Run]:
    """Draw two texts of different sizes for each way to split a text into calls."""
    return [
        _drawn(seed + 2 * n + bool(sizes[0] > 2), one, sizes)
        for n, one in enumerate(parts)
        for sizes in ((2, 2, 2), (4, 5, 5))
    ]


# scores of 0 and 1000: first in two calls of one word, then in one call of two words
_LARGE = {"x": [[1, 0], [1, 1]], "w_q": [[1000], [0]], "w_k": [[0], [1]], "w_v": [[1], [1]]}
_LARGE_ARRAYS = {name: np.array(rows, dtype=float) for name, rows in _LARGE.items()}

LARGE_SCORES = Group(
    "scores of 1000", [Run(_LARGE_ARRAYS, (1, 1)), Run(_LARGE_ARRAYS, (2,))], LARGE
)


@per_seed
def word_by_word() -> list[Run]:
    """Return texts with one word in each call, smallest first."""
    return _cases(10, (1, 1), (1, 1, 1))


@per_seed
def several() -> list[Run]:
    """Return texts with several words in at least one call."""
    return [
        *_cases(110, (2,)),
        *_cases(20, (2, 1), (3, 1, 1)),
        *_cases(30, (1, 2), (2, 2), (1, 3, 2)),
    ]


def _with_positions(case: Run) -> Run:
    """Add a table of position vectors with three more rows than words; the last row is zeros."""
    words, width = case.arrays["x"].shape
    table = np.arange(1.0, 1 + (words + 3) * width).reshape(-1, width) % 5 / 2
    table[-1] = 0
    return replace(case, positions=table)


@per_seed
def _positions() -> Group:
    cases = _cases(40, (1, 1), (2, 1), (1, 2, 1))
    return Group("positions", [_with_positions(case) for case in cases], PLACING)


def _call(step: Callable[..., Any], case: Run, x: Array, cache: Any) -> Any:
    """Call a step function with these words and this cache."""
    positions = {} if case.positions is None else {"positions": case.positions}
    return step(x, cache, *(case.arrays[name] for name in _WEIGHTS), **positions)


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    """Mark a step function with a cache."""
    names = ("x", "cache", "w_q", "w_k", "w_v")
    options, _ = options_of(function, names, {"positions": ("positions",)})
    returns = "return out, (k, v)  # all keys and values so far"
    smallest = word_by_word()[0]
    m = StepMarking("kv-cache", function, _call, compute, RIGHT, returns=returns, smallest=smallest)
    m.first_calls()
    if m.wrong:
        return m.result()
    m.test_in_parts(word_by_word(), several(), (NOT_FILLED, *KNOWN) if m.gives_none else KNOWN)
    m.test(LARGE_SCORES)
    if "positions" in options:
        m.test(_positions())
    else:
        m.untried.append("positions")
    others = [_with_other_projections(case) for case in (smallest, several()[-1])]
    m.last_calls(others, [RECOMPUTED])
    return m.result()


def _with_other_projections(case: Run) -> Run:
    """Change the key and value projections of a case after the first call."""
    w = {name: case.arrays[name] for name in _WEIGHTS}
    return replace(case, later=w | {"w_k": w["w_k"] + 1, "w_v": w["w_v"] - 2})


KV_CACHE = task("kv-cache", _mark)
