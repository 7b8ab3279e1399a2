"""Which known mistake, or which two, give what a function gave?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, combinations
from typing import Any

from qkv.arrays import Array
from qkv.marking.errors import alike
from qkv.marking.mistake import Mistake, Steps
from qkv.marking.outcome import Outcome, close

# what a case gives if it is computed by these steps
Compute = Callable[[Any, Steps], Array]


def reproduces(run: Outcome, steps: Steps, compute: Compute) -> bool:
    """Do these steps give what a call of the function gave, or fail for the same reason?"""
    try:
        predicted = compute(run.case, steps)
    except (ValueError, IndexError) as error:  # shapes that do not fit
        return run.error is not None and alike(error, run.error)
    return run.out is not None and close(run.out, predicted)


def explain(
    runs: list[Outcome], steps: Steps, known: Sequence[Mistake], compute: Compute
) -> tuple[Steps, list[Mistake]] | None:
    """No mistake if these steps reproduce every run, or the first one that does, or else two."""
    each = [([mistake], variant) for mistake in known for variant in mistake.variants]
    pairs = (
        ([*one, *other], {**first, **second})
        for (one, first), (other, second) in combinations(each, 2)
        if one != other and not first.keys() & second.keys()
    )
    for made, variant in chain([([], {})], each, pairs):
        done = {**steps, **variant}
        if all(reproduces(run, done, compute) for run in runs):
            return done, made
    return None
