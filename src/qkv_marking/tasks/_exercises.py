"""The tasks of lessons 1, 2, 4, 7 and 9 in which the learner writes one short function.

Sources: Vaswani et al. 2017, section 3.5 (the rotation of sinusoidal positions).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qkv_marking._engine import generator
from qkv_marking._findings import Symptom, describe
from qkv_marking._outcome import Outcome
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import Exercise
from qkv_marking.tasks.attention.mistakes import softmax

_Cases = Sequence[tuple[Any, ...]]


def _exercise(
    name: str, draw: Callable[[], _Cases], helpers: Mapping[str, Any] | None = None, **options: Any
) -> Exercise:
    """Return the exercise with this name in exercises.toml."""
    return Exercise(name, Table(__package__, "exercises", helpers, section=name), draw, **options)


# lesson 1: the weights of a recurrence; the score that gives a word a certain weight
RECURRENCE_TABLE = _exercise(
    "recurrence-table", lambda: [(2, 0.5), (4, 0.8), (7, int(generator(0).integers(12, 18)) / 20)]
)
SCORE_NEEDED = _exercise(
    "score-needed",
    lambda: [
        (0.5, 3),
        (0.9, 1000),
        (int(generator(1).integers(1, 8)) / 16, 17),
        (0.1, 2),
        (0.99, 999),
    ],
)

# lesson 2: words to ids


def _sentences() -> _Cases:
    words = ["the", "bank", "of", "river", "gave", "a", "loan"]
    generator(0).shuffle(words)
    words.insert(4, "[UNK]")  # [UNK] has neither the first nor the last id
    vocabulary = {word: number for number, word in enumerate(words)}
    texts = ("bank", "the bank of the river", "the creek gave a bank to the the river")
    return [(text, vocabulary) for text in texts]


def _no_such_word(wrong: Outcome) -> Symptom | None:
    """Describe a function that raises a KeyError for a word outside the vocabulary."""
    if not isinstance(wrong.error, KeyError):
        return None
    return TO_IDS.table.finding("ids-unknown-raises", wrong, error=describe(wrong))


TO_IDS = _exercise("ids", _sentences, otherwise=_no_such_word)

# lesson 4: the matrix that shifts a sinusoidal position by some steps
ROTATION = _exercise(
    "rotation", lambda: [(2, 1), (4, 1), (6, int(generator(0).integers(2, 6))), (8, -2)]
)

# lesson 7: how much a head attends to a neighbour, and how removed heads change a vector


def _patterns() -> _Cases:
    """Make cases: random attention weights, whose rows sum to 1, and a value for `step`."""
    cases: list[tuple[Any, ...]] = []
    for number, (tokens, step) in enumerate([(3, 1), (3, -1), (5, -2), (6, 2)]):
        weights = generator(number).integers(1, 10, (tokens, tokens)).astype(float)
        cases.append((weights / weights.sum(axis=1, keepdims=True), step))
    return cases


NEIGHBOUR_SCORE = _exercise("neighbour-score", _patterns)

_Heads = tuple[tuple[int, ...], ...]
# Each key of this dict lists heads (layer, head) that are removed from qkv's own encoder. Column 0
# is the cosine between the vectors of "bank" in two texts. Column 1 is the cosine if the heads are
# removed only for text 1. Column 2 is the cosine if the heads are removed only for text 2. Column
# 3 is the cosine after a mistake: each pair is read as (head, layer). Column 4 is the dot product
# of the vectors. A test recomputes these numbers.
_MEASURED: Mapping[_Heads, Sequence[float]] = {
    (): (0.3904, 0.3904, 0.3904, 0.3904, 71.9944),
    ((0, 3),): (0.5601, 0.4324, 0.5238, 0.3640, 102.9154),
    ((1, 3),): (0.4456, 0.4253, 0.4106, 0.3973, 82.1055),
    ((2, 1), (3, 0)): (0.3878, 0.3483, 0.3858, 0.5521, 71.4075),
}


def _cosine(a: _Heads, b: _Heads) -> float:
    """Return the cosine with the heads `a` removed for text 1, and the heads `b` for text 2."""
    for heads, cosines in _MEASURED.items():
        swapped = tuple(pair[::-1] for pair in heads)
        pairs = [(heads, heads), (heads, ()), ((), heads), (swapped, swapped)]
        if (a, b) in pairs:
            return cosines[pairs.index((a, b))]
    return np.nan  # the cosine was not measured


CLOSENESS = _exercise(
    "closeness",
    lambda: [([*heads],) for heads in _MEASURED],
    {
        "text_1": 1,
        "text_2": 2,
        "bank": lambda text, heads: tuple(map(tuple, heads)),
        "cosine": _cosine,
        "dot": lambda a, b: _MEASURED[a][4] if a == b and a in _MEASURED else np.nan,
    },
    within=2e-3,
)

# lesson 9: the backward pass through the softmax, and through a whole head


def _weights() -> _Cases:
    cases: list[tuple[Any, ...]] = []
    for number, shape in enumerate([(1, 2), (2, 3), (4, 4)]):
        scores, up = generator(number).integers(-4, 5, (2, *shape)) / 2
        cases.append((softmax(scores + np.arange(shape[1]) / 4), up + np.arange(shape[1]) / 2))
    return cases


def _heads() -> _Cases:
    cases: list[tuple[Any, ...]] = []
    for number, (tokens, width, d, d_v) in enumerate([(2, 2, 2, 2), (3, 4, 3, 2), (5, 3, 2, 4)]):
        rng = generator(10 + number)
        shapes = (tokens, width), (width, d), (width, d), (width, d_v), (tokens, d_v)
        cases.append(tuple(rng.integers(-5, 6, shape) / 4 for shape in shapes))
    return cases


SOFTMAX_BACK = _exercise("softmax-back", _weights, {"softmax": softmax})
GRADIENTS = _exercise("gradients", _heads, {"softmax": softmax, "softmax_back": SOFTMAX_BACK.solve})
