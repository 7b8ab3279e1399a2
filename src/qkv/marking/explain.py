"""Which known mistake, or which two, give what a function gave?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, combinations
from typing import Any

from qkv.arrays import Array
from qkv.marking.errors import alike, clash
from qkv.marking.mistake import Mistake, Steps
from qkv.marking.outcome import Outcome, close

# what a case gives if it is computed by these steps
Compute = Callable[[Any, Steps], Array]
NO_FIT = (ValueError, IndexError)  # of shapes


def reproduces(run: Outcome, steps: Steps, compute: Compute, exactly: bool = False) -> bool:
    """Do these steps give what a call of the function gave, or fail for the same reason?

    Args:
        run: the call.
        steps: how it may have been computed.
        compute: computes by steps.
        exactly: an error must have the same words; else the same sizes have to clash.
    """
    try:
        predicted = compute(run.case, steps)
    except NO_FIT as error:
        return run.error is not None and alike(error, run.error, exactly)
    return run.out is not None and close(run.out, predicted)


def _can_be_reproduced(run: Outcome) -> bool:
    """Did it give numbers, or an error as arithmetic with other steps could raise?"""
    if run.error is None:
        return run.out is not None
    return isinstance(run.error, NO_FIT) or bool(clash(run.error))


def explain(
    runs: list[Outcome], steps: Steps, known: Sequence[Mistake], compute: Compute
) -> tuple[Steps, list[Mistake]] | None:
    """No mistake if these steps reproduce every run, or the first one that does, or else two."""
    if not all(map(_can_be_reproduced, runs)):
        return None
    each = [([mistake], variant) for mistake in known for variant in mistake.variants]
    paired = [way for way in each if not way[0][0].alone]
    pairs = (
        ([*one, *other], {**first, **second})
        for (one, first), (other, second) in combinations(paired, 2)
        if one != other and not first.keys() & second.keys()
    )
    none: list[tuple[list[Mistake], Steps]] = [([], {})]
    ways = [(False, chain(none, each, pairs))]
    if any(run.error is not None for run in runs):  # the same words tell more than the same sizes
        ways = [(True, chain(none, each)), *ways]
    for exactly, found in ways:
        for made, variant in found:
            done = {**steps, **variant}
            if all(reproduces(run, done, compute, exactly) for run in runs):
                return done, made
    return None
