"""Mistakes in causal masks, in the use of masks, and in the value of masked scores."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from qkv.arrays import Array
from qkv_marking._mistake import Mistake, Steps, fill_hints
from qkv_marking.tasks._task import Phrases
from qkv_marking.tasks.attention.steps import HIDE, flip, same

_TEXTS = Phrases(__name__)
# maps each mistake's name to wrong rules; a rule decides whether query i sees key j
_COMPARED: Mapping[str, list[Callable[..., Array]]] = {
    "ignored": [lambda i, j, first: (i >= 0) & (j >= 0)],
    "upper": [lambda i, j, first: j >= first + i, lambda i, j, first: j > first + i],
    "diagonal": [lambda i, j, first: j < first + i],
    "ahead": [lambda i, j, first: j <= first + i + 1],
}


def causal(keys: Mapping[str, str], remedy: str) -> tuple[Mistake, ...]:
    """Return some of the mistakes in causal masks, and give each mistake a new name.

    `keys` maps the name of each returned mistake in this module to its new name. For example,
    `{"ahead": "causal-ahead"}` returns one mistake, whose `key` is "causal-ahead".
    """
    known = _TEXTS.mistakes({name: _COMPARED[name] for name in keys}, step="sees")
    return fill_hints(remedy, *(replace(mistake, key=keys[mistake.key]) for mistake in known))


OFF = {name: f"causal-{name}" for name in ("diagonal", "ahead", "upper")}
CAUSAL = causal(
    OFF | {"ignored": "causal-ignored"},
    f"visible = np.tril(np.ones((L, L), dtype=bool)); {HIDE.replace('mask', 'visible')}",
)
HIDING = _TEXTS.mistakes(
    {
        "mask-multiplied": [{"hide": lambda s, visible: s * visible, "blank": same}],
        "mask-added": [{"hide": lambda s, visible: s + visible, "blank": same}],
        "mask-after-softmax": [{"hide": same, "blank": lambda w, visible: w * visible}],
    }
)
MASK = _TEXTS.mistakes(
    {
        "mask-inverted": [{"mask": np.logical_not}],
        "mask-ignored": [{"mask": np.ones_like}],
        "mask-transposed": [{"mask": flip}],
    }
)
EMPTY = _TEXTS.mistakes(
    {
        "masked-row-nan": [{"blank": same}],
        "masked-row-uniform": [
            {"hide": lambda s, visible: np.where(visible, s, -1e9), "blank": same},
            {"hide": lambda s, visible: s + np.where(visible, 0.0, -1e9), "blank": same},
        ],
    }
)
BOTH = _TEXTS.mistakes(
    {
        "mask-or-causal": [
            {"both": lambda mask, allowed: mask},
            {"both": lambda mask, allowed: allowed},
            {"both": np.logical_or},
        ]
    }
)
OFFSET = _TEXTS.mistakes(
    {
        "causal-offset": [
            lambda i, j, first: j <= i,
            lambda i, j, first: j <= i - first,
            lambda i, j, first: j <= i + j.max() - i.max(),
        ]
    },
    step="sees",
)


def _instead(*numbers: float, blank: Callable[..., Array] = same) -> Iterator[Steps]:
    """For each number n, yield two variants: a masked score s becomes n, or becomes s + n."""
    for number in numbers:
        yield {"hide": lambda s, visible, n=number: np.where(visible, s, n), "blank": blank}
        yield {"hide": lambda s, visible, n=number: s + np.where(visible, 0.0, n), "blank": blank}


def _zero_masked(weights: Array, visible: Array) -> Array:
    """Set the weights of masked keys to 0, and keep the other weights."""
    return np.where(visible, weights, 0.0)


def _less_the_largest(scores: Array, visible: Array) -> Array:
    """Subtract the largest of all scores of a row, including masked ones; then mask with -inf."""
    return np.where(visible, scores - scores.max(axis=-1, keepdims=True), -np.inf)


def _over_no_zero(e: Array) -> Array:
    """Divide each row by its sum, unless the sum is 0."""
    total = e.sum(axis=-1, keepdims=True)
    out: Array = e / np.where(total == 0, 1, total)
    return out


def _over_a_little_more(*numbers: float) -> Iterator[Steps]:
    """Yield steps that add a small number to each row's sum to avoid a division by 0."""
    for number in numbers:
        yield {
            "hide": _less_the_largest,
            "shift": same,
            "normalise": lambda e, n=number: e / (e.sum(axis=-1, keepdims=True) + n),
        }


# the marker tries these mistakes only in tasks that require a mask
WEAK = _TEXTS.mistakes(
    {
        "mask-too-weak": _instead(-1, -2, -3, -5, -10),
        "mask-times-inf": [
            {"hide": lambda s, visible: s + (1 - visible) * -np.inf, "blank": same},
            {"hide": lambda s, visible: s * visible + (1 - visible) * -np.inf, "blank": same},
        ],
        "mask-inf-after-softmax": [
            {"hide": same, "blank": lambda w, visible: np.where(visible, w, -np.inf)}
        ],
        "mask-times-large": [
            {"hide": lambda s, visible: np.where(visible, s, s * -np.inf), "blank": same},
            {"hide": lambda s, visible: np.where(visible, s, s * -1e9), "blank": same},
        ],
        "mask-plus-inf": [
            {"hide": lambda s, visible: np.where(visible, s, np.inf), "blank": same},
            *_instead(1e9),
        ],
    }
)

_TOO_HIGH = (-20, -50, -100, -200, -500, -999, -1000)
LARGE = _TEXTS.mistakes(
    {
        "mask-not-low-enough": [*_instead(*_TOO_HIGH), *_instead(*_TOO_HIGH, blank=_zero_masked)],
        "mask-max-of-hidden": [
            {"hide": _less_the_largest, "shift": same},
            {"hide": _less_the_largest, "shift": same, "normalise": _over_no_zero},
            *_over_a_little_more(1e-6, 1e-8, 1e-9, 1e-10, 1e-12),
        ],
    }
)
TEXTS = _TEXTS.mistakes(
    {
        "mask-of-first-text": [{"mask": lambda visible: visible[:1]}],
        "mask-of-all-texts": [
            {"mask": lambda visible: visible.all(axis=0)},
            {"mask": lambda visible: visible.any(axis=0)},
        ],
    }
)
