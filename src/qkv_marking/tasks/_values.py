"""Tasks whose answer is not a function: matrices written by hand, or sentences to train on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._engine import mark_values
from qkv_marking._outcome import numbers
from qkv_marking._result import CheckResult
from qkv_marking.tasks._exercises import GRADIENTS
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import Task, task
from qkv_marking.tasks.attention.mistakes import softmax

_Features = Mapping[str, Sequence[float]]
# the features water, money, noun and adjective of a word; words not in the table have zeros
_FEATURES: _Features = {
    "bank": [0.5, 0.5, 1, 0],
    "river": [1, 0, 1, 0],
    "loan": [0, 1, 1, 0],
    "friend": [0, 0, 1, 0],
    "wet": [0.5, 0, 0, 1],
    "cold": [0.5, 0, 0, 1],
    "deep": [0.5, 0, 0, 1],
    "rich": [0, 0.5, 0, 1],
    "dear": [0, 0.5, 0, 1],
    "cheap": [0, 0.5, 0, 1],
}
_SHAPE = (4, 2)
_TEXTS = Table(__package__, "values")


# the word vectors at the end of lesson 2 and in lesson 9
_WEAK_BANK = {**_FEATURES, "bank": [0.3, 0.3, 1, 0]}


def _rows(sentence: str, table: _Features) -> Array:
    return np.array([table.get(word, [0, 0, 0, 0]) for word in sentence.split()], float)


def _attend(
    sentence: str, word: str, table: _Features, w_q: Array, w_k: Array, w_v: Array
) -> tuple[dict[str, float], Array]:
    """Return the weights from `word` to the words of a sentence, keyed by word, and its context.

    If a word is repeated, the dict holds the weight of its last position.
    """
    x, words = _rows(sentence, table), sentence.split()
    weights = softmax(x @ w_k @ (x @ w_q)[words.index(word)] / np.sqrt(2))
    return dict(zip(words, weights.tolist(), strict=True)), weights @ x @ w_v


def _matrices(*matrices: Any) -> list[Array] | None:
    """Return the projections as arrays, or None if a projection has a wrong shape or type."""
    arrays = [numbers(matrix) for matrix in matrices]
    if any(a is None or a.shape != _SHAPE for a in arrays):
        return None
    return [a.astype(float) for a in arrays if a is not None]


def _projections(*matrices: Any) -> Iterator[str]:
    """Yield the mistakes in w_q, w_k and w_v."""
    arrays = _matrices(*matrices)
    if arrays is None:
        yield "projections-shape"
        return
    if not any(a.any() for a in arrays):
        yield "not-filled-in"
        return
    for sentence, wanted, sign in (
        ("the bank of the river", "river", 1),
        ("the bank gave a loan", "loan", -1),
        ("the bank gave a friend a loan", "loan", -1),
    ):
        taken, context = _attend(sentence, "bank", _FEATURES, *arrays)
        bank, weight = taken.pop("bank"), taken.pop(wanted)
        if weight <= 0.4 or 1 - bank - weight >= 0.1:
            is_largest = weight > 1.01 * max(taken.values())
            yield "projections-quiet" if is_largest else "projections-not-found"
        elif "friend" not in taken and sign * (context[0] - context[1]) <= 0.3:
            yield "projections-value"


def _calm(*matrices: Any) -> Iterator[str]:
    """Yield the names of the mistakes in w_q_calm.

    The marker computes attention weights with w_q_calm and w_k, and checks these weights.
    """
    arrays = _matrices(*matrices)
    if arrays is None:
        yield "projections-shape"
        return
    w_q, w_k = arrays
    if not w_q.any():
        yield "calm-not-filled-in"
        return
    for sentence, word, wanted, limit, name in (
        ("the bank of the river", "river", "river", 0.95, "calm-river"),
        ("the bank of the river", "bank", "river", 0.85, "calm-others"),
        ("the bank gave a friend a loan", "friend", "loan", 0.85, "calm-others"),
    ):
        weights, _ = _attend(sentence, word, _WEAK_BANK, w_q, w_k, w_k)  # the values do not matter
        if weights[wanted] <= limit:
            yield name


_KNOWN = {
    "the bank of the river": 0,
    "the bank gave a loan": 1,
    "the river has a bank": 0,
    "a friend of the bank has a loan": 1,
    "the rich dear cheap bank of the river": 0,
    "the wet cold deep bank gave a loan": 1,
    "a rich dear cheap friend at the bank of the river": 0,
    "the bank gave a wet cold deep friend a loan": 1,
}
_TEST = {"the wet bank": 0, "a cheap bank": 1}


def _adjectives(more: Any) -> Iterator[str]:
    """Yield the names of the mistakes in the sentences that a learner chose for training a model.

    `more` maps each sentence to 0 or 1, the meaning of the word "bank" in this sentence.
    """
    items = more.items() if isinstance(more, Mapping) else ()
    texts = {text: right for text, right in items if isinstance(text, str)}  # without `...`
    if not {*texts} - {*_KNOWN}:
        yield "more-not-filled-in"
        return
    if {*_TEST} & {*texts}:
        yield "more-asked"
        return
    if not all("bank" in text.split() and right in (0, 1) for text, right in texts.items()):
        yield "more-no-bank"
        return
    w = _train(texts)
    for sentences, name in ((_TEST, "more-unknown"), (_KNOWN, "more-forgotten")):
        if any(_meanings(text, w)[right] <= 0.9 for text, right in sentences.items()):
            yield name


def _meanings(sentence: str, w: Sequence[Array]) -> Array:
    """Return the probabilities of both meanings of "bank"."""
    return softmax(_attend(sentence, "bank", _WEAK_BANK, *w)[1])


def _train(sentences: Mapping[str, int], steps: int = 300) -> list[Array]:
    """Train the projections of lesson 9 on these sentences."""
    w = [*np.random.default_rng(0).standard_normal((3, 4, 2)) * 0.1]
    for _ in range(steps):
        total = [np.zeros_like(matrix) for matrix in w]
        for sentence, right in sentences.items():
            x = _rows(sentence, _WEAK_BANK)
            up = np.zeros((len(x), 2))
            up[sentence.split().index("bank")] = _meanings(sentence, w) - np.eye(2)[int(right)]
            for mean, gradient in zip(total, GRADIENTS.solve(x, *w, up), strict=True):
                mean += gradient / len(sentences)
        w = [matrix - step for matrix, step in zip(w, total, strict=True)]
    return w


def _task(name: str, tried: str, find: Callable[..., Iterator[str]]) -> Task:
    """Return a task that marks values; `find` takes the values and yields names of mistakes."""

    def mark(answer: Any, way: str) -> CheckResult:
        mistakes = map(_TEXTS.mistake, find(*answer))
        unread = ("not-filled-in", "projections-shape")
        return mark_values(name, ", ".join(marked.values), tried, mistakes, unread)

    marked = task(name, mark)
    return marked


PROJECTIONS = _task("projections", "three sentences", _projections)
CALM_QUERY = _task("calm-query", "two sentences", _calm)
ADJECTIVES = _task("adjectives", "ten sentences after the training", _adjectives)
