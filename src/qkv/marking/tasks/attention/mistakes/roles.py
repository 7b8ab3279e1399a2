"""The ways to confuse query, key and value, or the projections that make them of x."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from qkv.marking.mistake import Mistake, Steps, mended, mistake
from qkv.marking.tasks.attention.mistakes.lines import CONTEXT, PROJECT, SCALE

_NAMED = {  # by which of query, key and value is used in whose place
    (1, 0, 2): (
        "query-key-swapped",
        "query and key are swapped, so that the scores are transposed",
        "a query's weights belong to the key of the same place",
    ),
    (0, 1, 1): (
        "key-as-value",
        "the key is used as the value",
        "the output does not change when the values do",
    ),
}


def mixed(signature: str) -> Iterator[Mistake]:
    """Each way to use query, key and value, or their projections, in each other's place."""
    arguments = ("query", "key", "value")
    names, remedy = arguments, f"{SCALE}; {CONTEXT}"
    roles = "the {} is used as query, the {} as key and the {} as value"
    order = "arguments-order", f"the arguments are in another order: {roles}"
    shared = "arguments-shared", f"one of the three is used in place of another: {roles}"
    if signature != "qkv":
        names, remedy = ("w_q", "w_k", "w_v"), PROJECT
        roles = "q comes from {}, k from {} and v from {}"
        order = "projections-swapped", f"the projections have changed places: {roles}"
        shared = "projections-shared", f"one projection is used in place of another: {roles}"
    for used in product(range(3), repeat=3):
        unused = [name for n, name in enumerate(arguments) if n not in used]
        if used in _NAMED:
            key, says, shows = _NAMED[used]
        elif unused:
            key, says = shared
            shows = f"the output does not depend on the {' or the '.join(unused)} at all"
        else:
            (key, says), shows = order, "the shapes still fit, the meaning does not"
        if used != (0, 1, 2):
            says = says.format(*(names[n] for n in used))
            choose = {"choose": lambda q, k, v, used=used: [(q, k, v)[n] for n in used]}
            nudge = "Change one of the three at a time: does the output change each time?"
            where = "the names in the product of the scores, and in the one with the values"
            yield mistake(key, says, shows, choose, remedy=remedy, nudge=nudge, where=where)


def _bare(*bare: int) -> Steps:
    """Use x itself in place of some of the three projections."""
    return {
        "project": lambda x, *weights: [
            x if n in bare else x @ weight for n, weight in enumerate(weights)
        ]
    }


PROJECTIONS = mended(
    PROJECT,
    mistake(
        "scale-model-width",
        "the scores are divided by the root of the width D of x, not of the size d of the queries",
        "the weights are too even where d is smaller than D",
        {"scale": lambda s, n: s / np.sqrt(n.width)},
        remedy=SCALE,
        nudge="Let x be wider than the queries: whose size counts?",
        where="the line of the scores: what are they divided by?",
    ),
    mistake(
        "no-projection",
        "a projection is forgotten: x itself is used where x times a weight matrix should be",
        "the output does not depend on all of w_q, w_k and w_v",
        *(_bare(*n) for n in ((0, 1, 2), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))),
        nudge="Change w_q, then w_k, then w_v: does the output change each time?",
    ),
    mistake(
        "projection-transposed",
        "the weights are used transposed: they are (in, out), so x @ w projects",
        "it fails where the weights are not square and is silently wrong where they are",
        {"project": lambda x, *weights: [x @ w.T for w in weights]},
        nudge="Let w_q have 3 rows and 2 columns.",
    ),
    where="the lines that make q, k and v of x",
)
