"""The tasks of lessons 1, 2, 4, 7 and 9 in which the learner writes one short function.

Sources: Vaswani et al. 2017, section 3.5 (the rotation of sinusoidal positions).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._engine import generator
from qkv_marking._findings import Symptom, describe
from qkv_marking._mistake import Function
from qkv_marking._outcome import Outcome
from qkv_marking.tasks._task import DO, Exercise, Phrases
from qkv_marking.tasks.attention.steps import same, softmax

_TEXTS = Phrases(__name__)

# lesson 1: the weights of a recurrence; the score that gives a word a certain weight


def _steps(length: int) -> Array:
    positions = np.arange(length)
    return np.asarray(positions - positions[:, None])


def recurrence_table(length: int, keep: float) -> Array:
    """Return the table (length, length) of the weights of a recurrence.

    The recurrence computes state = keep * state + (1 - keep) * word, and reads the words from last
    to first. Row i lists the weight of each word in the state after word i.
    """
    steps = _steps(length)
    return np.where(steps >= 0, (1 - keep) * keep ** abs(steps), 0)


def _rows_of_one(length: int, keep: float) -> Any:
    table = recurrence_table(length, keep)
    return table / table.sum(axis=1, keepdims=True)


def _from_first(length: int, keep: float) -> Array:
    """Return the table of a recurrence whose initial state is its first input, not zeros."""
    table = recurrence_table(length, keep)
    table[:, -1] /= 1 - keep
    return table


RECURRENCE_TABLE = Exercise(
    "recurrence-table",
    recurrence_table,
    lambda: [(2, 0.5), (4, 0.8), (7, int(generator(0).integers(12, 18)) / 20)],
    _TEXTS.mistakes(
        {
            "table-other-way": [lambda n, keep: recurrence_table(n, keep).T],
            "table-both-ways": [lambda n, keep: (1 - keep) * keep ** abs(_steps(n))],
            "table-not-scaled": [lambda n, keep: recurrence_table(n, keep) / (1 - keep)],
            "table-keep-for-take": [lambda n, keep: recurrence_table(n, 1 - keep)],
            "table-off-by-one": [lambda n, keep: recurrence_table(n, keep) * keep],
            "table-rows-of-one": [_rows_of_one, _from_first],
        },
        DO,
    ),
    tried="tables of 2, 4 and 7 words",
    returns="return table  # (length, length)",
).task()


def score_needed(weight: float, others: float) -> Any:
    """Return the score that gives a word this weight if all other scores are 0."""
    return np.log(others * weight / (1 - weight))


SCORE_NEEDED = Exercise(
    "score-needed",
    score_needed,
    lambda: [(0.5, 3), (0.9, 1000), (int(generator(1).integers(1, 8)) / 16, 17)],
    _TEXTS.mistakes(
        {
            "score-without-others": [lambda weight, n: np.log(weight / (1 - weight))],
            "score-upside-down": [
                lambda weight, n: np.log(n * (1 - weight) / weight),
                lambda weight, n: -score_needed(weight, n),
            ],
            "score-other-logarithm": [
                lambda weight, n: np.log10(n * weight / (1 - weight)),
                lambda weight, n: np.log2(n * weight / (1 - weight)),
            ],
            "score-without-logarithm": [lambda weight, n: n * weight / (1 - weight)],
            "score-without-rest": [
                lambda weight, n: np.log(n * weight),
                lambda weight, n: np.log(weight * (n + 1)),
            ],
        },
        DO,
    ),
    tried="weights among 3, 17 and 1000 other words",
    returns="return score",
).task()

# lesson 2: words to ids

_UNKNOWN = "[UNK]"


def _ids(words: Iterable[str], vocabulary: Mapping[str, int], unknown: int) -> list[int]:
    return [vocabulary.get(word, unknown) for word in words]


def to_ids(sentence: str, vocabulary: Mapping[str, int]) -> list[int]:
    """Return the id of each word in a sentence; an unknown word gets the id of [UNK]."""
    return _ids(sentence.split(), vocabulary, vocabulary[_UNKNOWN])


def _sentences() -> list[tuple[Any, ...]]:
    words = ["the", "bank", "of", "river", "gave", "a", "loan"]
    generator(0).shuffle(words)
    words.insert(4, _UNKNOWN)  # [UNK] has neither the first nor the last id
    vocabulary = {word: number for number, word in enumerate(words)}
    texts = ("bank", "the bank of the river", "the creek gave a bank to the the river")
    return [(text, vocabulary) for text in texts]


def _no_such_word(wrong: Outcome) -> Symptom | None:
    """Describe a function that raises a KeyError for a word outside the vocabulary."""
    if not isinstance(wrong.error, KeyError):
        return None
    return _TEXTS.finding("ids-unknown-raises", wrong, error=describe(wrong))


TO_IDS = Exercise(
    "ids",
    to_ids,
    _sentences,
    _TEXTS.mistakes(
        {
            "ids-unknown-left-out": [lambda text, ids: [ids[w] for w in text.split() if w in ids]],
            "ids-unknown-number": [
                *(lambda text, ids, n=n: _ids(text.split(), ids, n) for n in (0, -1, 8)),
                lambda text, ids: _ids(text.split(), ids, len(ids)),
                lambda text, ids: _ids(text.split(), ids, len(ids) - 1),
            ],
            "ids-of-letters": [lambda text, ids: _ids(text, ids, ids[_UNKNOWN])],
            "ids-once": [lambda text, ids: _ids(dict.fromkeys(text.split()), ids, ids[_UNKNOWN])],
            "ids-sorted": [
                lambda text, ids: sorted(to_ids(text, ids)),
                lambda text, ids: to_ids(text, ids)[::-1],
            ],
        },
        DO,
    ),
    tried="one word, repeated words, unknown words",
    returns="return ids  # a list of T numbers",
    otherwise=_no_such_word,
).task()

# lesson 4: the matrix that shifts a sinusoidal position by some steps

_BASE = 10000.0
_SIGNS = ([[1, -1], [1, 1]], [[1, 1], [-1, 1]], [[1, 1], [1, -1]], [[-1, 1], [1, 1]])


def _rotation(dim: int, angles: Array) -> Array:
    """Return a matrix that rotates each pair of columns by its own angle."""
    even = np.arange(0, dim, 2)
    matrix = np.zeros((dim, dim))
    matrix[even, even] = matrix[even + 1, even + 1] = np.cos(angles)
    matrix[even + 1, even] = np.sin(angles)
    matrix[even, even + 1] = -np.sin(angles)
    return matrix


def _angles(dim: int, steps: float, sign: float = -1.0) -> Array:
    return np.asarray(steps * _BASE ** (sign * np.arange(0, dim, 2) / dim))


def rotation(dim: int, steps: int) -> Array:
    """Return the matrix that maps the vector of position p to the vector of position p + steps."""
    return _rotation(dim, _angles(dim, steps))


def _halves(dim: int, steps: int) -> Array:
    """Return a `rotation` whose pairs are the columns i and i + dim / 2, not neighbours."""
    order = np.arange(dim).reshape(-1, 2).T.ravel()
    return rotation(dim, steps)[np.ix_(order, order)]


ROTATION = Exercise(
    "rotation",
    rotation,
    lambda: [(2, 1), (4, 1), (6, int(generator(0).integers(2, 6))), (8, -2)],
    _TEXTS.mistakes(
        {
            "rotation-other-way": [lambda dim, steps: rotation(dim, -steps)],
            "rotation-one-step": [lambda dim, steps: rotation(dim, 1)],
            "rotation-one-speed": [
                lambda dim, steps: _rotation(dim, np.full(dim // 2, float(steps)))
            ],
            "rotation-exponent": [
                lambda dim, steps, sign=sign: _rotation(dim, _angles(dim, steps, sign))
                for sign in (-2.0, -0.5, 1.0)
            ],
            "rotation-halves": [_halves],
            "rotation-reflection": [
                lambda dim, steps, signs=signs: (
                    rotation(dim, steps) * np.tile(signs, (dim // 2,) * 2)
                )
                for signs in _SIGNS
            ],
        },
        DO,
    ),
    tried="one pair and several pairs, one step and several steps, forwards and backwards",
    returns="return matrix  # (dim, dim)",
).task()

# lesson 7: how much a head attends to a neighbour, and how removed heads change a vector


def neighbour_score(weights: Array, step: int) -> Any:
    """Return the mean weight from each token to the token `step` positions later."""
    return np.diagonal(weights, step).mean()


def _wrap_score(weights: Array, step: int) -> Any:
    return np.diagonal(np.roll(weights, -step, axis=1)).mean()


def _patterns() -> list[tuple[Any, ...]]:
    """Make cases: random attention weights, whose rows sum to 1, and a value for `step`."""
    cases: list[tuple[Any, ...]] = []
    for number, (tokens, step) in enumerate([(3, 1), (3, -1), (5, -2), (6, 2)]):
        weights = generator(number).integers(1, 10, (tokens, tokens)).astype(float)
        cases.append((weights / weights.sum(axis=1, keepdims=True), step))
    return cases


NEIGHBOUR_SCORE = Exercise(
    "neighbour-score",
    neighbour_score,
    _patterns,
    _TEXTS.mistakes(
        {
            "neighbour-other-side": [lambda weights, step: neighbour_score(weights, -step)],
            "neighbour-all-tokens": [
                lambda weights, step: np.diagonal(weights, step).sum() / len(weights),
                lambda weights, step: np.diagonal(weights, step).sum() / (len(weights) - 1),
            ],
            "neighbour-wraps": [
                _wrap_score,
                lambda weights, step: (_wrap_score if step < 0 else neighbour_score)(weights, step),
            ],
            "neighbour-sum": [lambda weights, step: np.diagonal(weights, step).sum()],
            "neighbour-itself": [lambda weights, step: np.diagonal(weights).mean()],
            "neighbour-one-step": [
                lambda weights, step: neighbour_score(weights, 1),
                lambda weights, step: neighbour_score(weights, np.sign(step)),
            ],
            "neighbour-whole-rows": [lambda weights, step: weights.mean()],
        },
        DO,
    ),
    tried="steps of one and two positions, forwards and backwards",
    returns="return score",
).task()

# Each key of this dict lists heads (layer, head) that are removed from qkv's own encoder. Column 0
# is the cosine between the vectors of "bank" in two texts. Column 1 is the cosine if the heads are
# removed only for text 1. Column 2 is the cosine if the heads are removed only for text 2. Column
# 3 is the cosine after a mistake: each pair is read as (head, layer). Column 4 is the dot product
# of the vectors. A test recomputes these numbers.
_MEASURED = {
    (): (0.3904, 0.3904, 0.3904, 0.3904, 71.9944),
    ((0, 3),): (0.5601, 0.4324, 0.5238, 0.3640, 102.9154),
    ((1, 3),): (0.4456, 0.4253, 0.4106, 0.3973, 82.1055),
    ((2, 1), (3, 0)): (0.3878, 0.3483, 0.3858, 0.5521, 71.4075),
}


def _read_column(column: int) -> Function:
    return lambda heads: _MEASURED[tuple(map(tuple, heads))][column]


def closeness(heads: Any) -> Any:
    """Return the cosine between the vectors of "bank" in two texts if these heads are removed."""
    return _read_column(0)(heads)


CLOSENESS = Exercise(
    "closeness",
    closeness,
    lambda: [([*heads],) for heads in _MEASURED],
    _TEXTS.mistakes(
        {
            "closeness-heads-ignored": [lambda heads: _MEASURED[()][0]],
            "closeness-one-text": [_read_column(1), _read_column(2)],
            "closeness-exchanged": [_read_column(3)],
            "closeness-product": [_read_column(4)],
            "closeness-distance": [lambda heads: 1 - closeness(heads)],
        },
        DO,
    ),
    tried="no head, one head and two heads",
    returns="return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))  # of traces with ablate=heads",
    within=2e-3,
).task()

# lesson 9: the backward pass through the softmax, and through a whole head


def softmax_back(weights: Array, d_weights: Array) -> Array:
    """Return the gradient of the scores, given the weights (L, S) and their gradient."""
    out: Array = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    return out


def _weights() -> list[tuple[Any, ...]]:
    cases: list[tuple[Any, ...]] = []
    for number, shape in enumerate([(1, 2), (2, 3), (4, 4)]):
        scores, up = generator(number).integers(-4, 5, (2, *shape)) / 2
        cases.append((softmax(scores + np.arange(shape[1]) / 4), up + np.arange(shape[1]) / 2))
    return cases


SOFTMAX_BACK = Exercise(
    "softmax-back",
    softmax_back,
    _weights,
    _TEXTS.mistakes(
        {
            "back-without-mean": [lambda a, g: a * g],
            "back-plain-mean": [
                lambda a, g: a * (g - g.mean(axis=-1, keepdims=True)),
                lambda a, g: a * (g - (a * g).mean(axis=-1, keepdims=True)),
            ],
            "back-columns": [lambda a, g: a * (g - (a * g).sum(axis=0, keepdims=True))],
            "back-whole-matrix": [lambda a, g: a * (g - (a * g).sum())],
            "back-keepdims": [lambda a, g: a * (g - (a * g).sum(axis=-1))],
            "back-without-weights": [lambda a, g: g - (a * g).sum(axis=-1, keepdims=True)],
            "back-sign": [lambda a, g: -softmax_back(a, g)],
            "back-squared": [lambda a, g: a * (1 - a) * g],
        },
        DO,
    ),
    tried="one row and several",
    returns="return weights * (...)  # (L, S)",
).task()


def gradients(x: Array, w_q: Array, w_k: Array, w_v: Array, d_context: Array) -> Any:
    """Compute the gradients of w_q, w_k and w_v from the gradient of the head's output (T, d_v)."""
    return _head(x, w_q, w_k, w_v, d_context)


def _head(*arrays: Array, **wrong: Any) -> tuple[Array, Array, Array]:
    """Run the backward pass, optionally with some steps of `_BACKWARD` replaced."""
    steps = {**_BACKWARD, **wrong}
    x, w_q, w_k, w_v, d_context = arrays
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    weights = softmax(q @ k.T / np.sqrt(q.shape[-1]))
    d_v = steps["of_values"](weights) @ d_context
    d_scores = steps["back"](weights, d_context @ v.T) * q.shape[-1] ** steps["root"]
    d_q, d_k = steps["order"](d_scores @ k, steps["of_keys"](d_scores) @ q)
    return x.T @ d_q, x.T @ d_k, x.T @ d_v


_BACKWARD: Mapping[str, Any] = {
    "root": -0.5,
    "back": softmax_back,
    "of_keys": np.transpose,
    "of_values": np.transpose,
    "order": lambda d_q, d_k: (d_q, d_k),
}


def _heads() -> list[tuple[Any, ...]]:
    cases: list[tuple[Any, ...]] = []
    for number, (tokens, width, d, d_v) in enumerate([(2, 2, 2, 2), (3, 4, 3, 2), (5, 3, 2, 4)]):
        rng = generator(10 + number)
        shapes = (tokens, width), (width, d), (width, d), (width, d_v), (tokens, d_v)
        cases.append(tuple(rng.integers(-5, 6, shape) / 4 for shape in shapes))
    return cases


GRADIENTS = Exercise(
    "gradients",
    gradients,
    _heads,
    _TEXTS.mistakes(
        {
            "gradients-no-root": [lambda *arrays: _head(*arrays, root=0.0)],
            "gradients-root-twice": [lambda *arrays: _head(*arrays, root=-1.0)],
            "gradients-times-root": [lambda *arrays: _head(*arrays, root=0.5)],
            "gradients-keys-not-transposed": [lambda *arrays: _head(*arrays, of_keys=same)],
            "gradients-values-not-transposed": [lambda *arrays: _head(*arrays, of_values=same)],
            "gradients-softmax-left-out": [lambda *arrays: _head(*arrays, back=lambda a, g: g)],
            "gradients-softmax-without-mean": [
                lambda *arrays: _head(*arrays, back=lambda a, g: a * g)
            ],
            "gradients-changed-places": [lambda *arrays: _head(*arrays, order=lambda q, k: (k, q))],
        },
        DO,
    ),
    tried="square projections and other shapes",
    returns="d_q, d_k = d_scores @ k, d_scores.T @ q; return x.T @ d_q, x.T @ d_k, x.T @ d_v",
    parts=("d_w_q", "d_w_k", "d_w_v"),
).task()
