"""Run a learner's causal mask and say in words which mistake it made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import by_seed, generator
from qkv.marking.engine import Group, Marking
from qkv.marking.findings import Finding, of_mistake
from qkv.marking.mistake import Mistake, Steps, mended, mistake
from qkv.marking.outcome import Outcome, name_of, numbers, outcome
from qkv.marking.parameters import options_of
from qkv.marking.result import CheckResult

LINE = "mask = np.tril(np.ones((length, length), dtype=bool))  # True = may attend"
_WHERE = "the comparison of places, or np.tril and its k"


@dataclass(frozen=True)
class Length:
    """One call: how many words."""

    length: int

    def shown(self) -> dict[str, Any]:
        """What a learner needs to make this call by hand."""
        return {"length": self.length}


def compute(case: Length, steps: Steps) -> Array:
    """Where query i sees key j, (L, S), as 1 and 0."""
    i, j = np.arange(case.length)[:, None], np.arange(case.length)
    visible: Array = np.broadcast_to(steps["sees"](i, j), (case.length, case.length))
    return visible.astype(np.float64)


RIGHT: Steps = MappingProxyType({"sees": lambda i, j: j <= i})


def _forgotten(at: int) -> Iterator[Mistake]:
    """What a loop leaves out that ends one too early (-1), or begins one too late (0)."""
    one = "last" if at else "first"
    yield mistake(
        "row-forgotten",
        f"the {one} row is forgotten: the {one} word sees nothing, not even itself",
        "a row that hides everything makes softmax divide 0 by 0",
        {"sees": lambda i, j: (j <= i) & (i != i[at])},
        nudge=f"What does the {one} word see?",
        where="the loop over the rows: where does it begin and end?",
        alone=True,
    )
    yield mistake(
        "key-forgotten",
        f"the {one} column is forgotten: no word sees the {one} one",
        "a word that nobody sees changes nothing",
        {"sees": lambda i, j: (j <= i) & (j != j[at])},
        nudge=f"Which words see the {one} word?",
        where="the loop inside: where does it begin and end?",
        alone=True,
    )


KNOWN = mended(
    LINE,
    mistake(
        "causal-diagonal",
        "the mask is off by one: a word may see itself too",
        "the diagonal is hidden, and the first word sees nothing at all",
        {"sees": lambda i, j: j < i},
        nudge="What does the first word see?",
    ),
    mistake(
        "causal-ahead",
        "the mask is off by one: a word may not see the one after it",
        "each word sees one word of the future",
        {"sees": lambda i, j: j <= i + 1},
        nudge="What does the first word see?",
    ),
    mistake(
        "causal-upper",
        "the mask is the upper triangle: each word sees the future and not the past",
        "the last word sees nothing of what came before it",
        {"sees": lambda i, j: j >= i},
        {"sees": lambda i, j: j > i},
        nudge="Rows are queries, columns are keys: what does the last row hold?",
    ),
    mistake(
        "causal-itself",
        "each word sees itself alone",
        "there is nothing but the diagonal",
        {"sees": lambda i, j: j == i},
        nudge="What does the last word see?",
    ),
    *_forgotten(-1),
    *_forgotten(0),
    where=_WHERE,
)

EVERYTHING, NOTHING = mended(
    LINE,
    mistake(
        "causal-everything",
        "the mask hides nothing",
        "each word sees the future too",
        nudge="What does the first word see?",
    ),
    mistake(
        "causal-nothing",
        "the mask hides everything",
        "no word sees anything",
        nudge="What does the last word see?",
    ),
    where=_WHERE,
)

_TRUE_HIDES = Mistake(
    "mask-true-hides",
    "True stands for hidden; the task asks for True = may attend",
    "torch's MultiheadAttention has it so; its scaled_dot_product_attention has it the other way",
    LINE,
    nudge="What does your attention do where the mask is True?",
    where="what True means",
)
_NUMBERS = Mistake(
    "mask-of-numbers",
    "the mask is of 1 and 0; the task asks for True and False, or 0 and -inf to add",
    "added to the scores it hides nothing, and ~mask is -1 and -2",
    LINE,
    nudge="Print ~mask.",
    where="the dtype of the mask",
)
_FINITE = Mistake(
    "mask-finite",
    "a large negative number stands for hidden, not -inf",
    "it hides a key only beside one that is visible, and float16 has no -1e9",
    "mask = np.where(np.tril(np.ones((length, length), dtype=bool)), 0.0, -np.inf)",
    "fragile",
    nudge="Add it to a row of scores of which everything is hidden: what are the weights?",
    where="the number that stands for hidden",
)


def _read(out: Array) -> tuple[Array, Mistake | None]:
    """What a mask lets through as 1 and 0, and what is to be said of how it is written."""
    if out.dtype == bool:
        return out.astype(np.float64), None
    numbers = {*np.unique(out).tolist()}
    if numbers <= {0.0, -np.inf} and out.dtype.kind == "f":
        return (out == 0).astype(np.float64), None
    if numbers <= {0.0, 1.0}:
        return out.astype(np.float64), _NUMBERS
    lowest = min(numbers)
    if numbers <= {0.0, lowest} and lowest <= -1e3:
        return (out == 0).astype(np.float64), _FINITE
    return out, None


def _as_written(run: Outcome, way: Mistake) -> dict[str, Any]:
    """A mask as it was returned, and the right one of its kind: what they let through is equal."""
    visible = run.right.astype(bool)
    return {
        "yours": numbers(run.returned),
        "right": np.where(visible, 0.0, -np.inf) if way is _FINITE else visible,
    }


def _all_or_nothing(runs: list[Outcome]) -> Finding | None:
    """A mask that is the same everywhere, as one that was only begun."""
    outs = [run.out for run in runs]
    for number, found in ((1, EVERYTHING), (0, NOTHING)):
        if all(out is not None and out.size and (out == number).all() for out in outs):
            return of_mistake(found, runs[0])
    return None


def mark_causal(function: Callable[..., Any]) -> CheckResult:
    """A mask for so many words.

    Raises:
        TypeError: it cannot be called with a length.
    """
    options_of(function, ("length",), {})
    ways: list[Mistake] = []

    def call(case: Length) -> Outcome:
        run = outcome(case, lambda given: function(given.length), compute(case, RIGHT))
        if run.out is None:
            return run
        visible, said = _read(run.out)
        inverted = run.out.dtype == bool and np.array_equal(1 - visible, run.right)
        if inverted and (case.length > 1 or _TRUE_HIDES in ways):
            visible, said = run.right, _TRUE_HIDES
        if said is not None:
            ways.append(said)
        return replace(run, out=visible)

    m = Marking("mask", name_of(function), call, compute, RIGHT, returns="return mask")
    m.nothing_done = _all_or_nothing
    m.first_call(Length(2))
    if m.wrong:
        return m.result()
    longest = int(generator(5).integers(6, 12)) if by_seed() else 5
    lengths = [Length(2), Length(3), Length(longest)]
    m.test(Group(f"masks of 2, 3 and {longest} words", lengths, KNOWN))
    if ways and not m.wrong:
        m.find(of_mistake(ways[0], m.runs[0], _as_written(m.runs[0], ways[0])))
    m.test(Group("a mask of one word", [Length(1)], may_refuse=True, if_right=True))
    return m.result()
