"""Tasks whose answer is no function: projections written by hand, and sentences to learn from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.engine import mark_values
from qkv.marking.mistake import Mistake, mistake
from qkv.marking.outcome import numbers
from qkv.marking.result import CheckResult
from qkv.marking.tasks.attention.steps import softmax
from qkv.marking.tasks.exercises import gradients
from qkv.marking.tasks.task import Task

# water, money, noun, adjective: what words of lessons 2 and 9 are made of; others are zeros
_TABLE: Mapping[str, Sequence[float]] = MappingProxyType(
    {
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
)
_SHAPE = (4, 2)


_QUIETER = {**_TABLE, "bank": [0.3, 0.3, 1, 0]}  # from the end of lesson 2 on


def _rows(sentence: str, table: Mapping[str, Sequence[float]]) -> Array:
    return np.array([table.get(word, [0, 0, 0, 0]) for word in sentence.split()], float)


def _taken(
    sentence: str, word: str, w_q: Array, w_k: Array, table: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """What a word of a sentence takes from each; of a word that stands twice, from the last."""
    x = _rows(sentence, table)
    query = (x @ w_q)[sentence.split().index(word)]
    weights = softmax((x @ w_k) @ query / np.sqrt(len(query)))
    return dict(zip(sentence.split(), weights.tolist(), strict=True))


def _marked(
    task: str, name: str, tried: str, find: Callable[..., Iterator[Mistake]], things: Sequence[Any]
) -> CheckResult:
    """A verdict on values: what is found of them, each once."""
    return mark_values(task, name, tried, find(*things), (_EMPTY.key, _OTHER.key))


_EMPTY = mistake(
    "not-filled-in",
    "nothing is filled in yet",
    "it is as it was in the empty cell",
    remedy="w_q[2] = 8, 8  # the row of nouns",
    nudge="Which row belongs to nouns?",
    where="the numbers of the matrices",
)
_OTHER = mistake(
    "projections-shape",
    "a projection has another shape than (4, 2), or is no array of numbers",
    "it needs a row for each of the four features, and the columns water and money",
    remedy="w_q = np.zeros((4, 2))",
    nudge="Print the shape of each.",
    where="the brackets of np.array",
)
_QUIET = mistake(
    "projections-quiet",
    "bank finds the right word, and takes too little from it: the query is not loud enough",
    "it should take more than 0.4 from it, and less than 0.1 from the rest",
    remedy="w_q[2] = 8, 8  # and not 1, 1",
    nudge="Multiply w_q by 4, and print the weights of bank.",
    where="how large the numbers of w_q and w_k are",
)
_NOT_FOUND = mistake(
    "projections-not-found",
    "bank does not find the word that says which bank it is",
    "it should take more than 0.4 from it, and less than 0.1 from the rest",
    remedy="w_q[2] = 8, 8; w_k[0] = 1, 0; w_k[1] = 0, 1",
    nudge="Work out the query of bank and the keys of river and friend by hand.",
    where="the row of nouns in w_q, and the rows of water and money in w_k",
)
_WRONG_WAY = mistake(
    "projections-value",
    "bank finds the right word, and its context does not say so",
    "with a river the first number of its context should be the larger one, with a loan the second",
    remedy="w_v[0] = 1, 0; w_v[1] = 0, 1",
    nudge="What does river give, and what does loan give?",
    where="w_v: which column is water?",
)
_CALM = mistake(
    "calm-river",
    "river does not take more than 0.95 from itself",
    "it takes from bank what it does not need",
    remedy="w_q_calm[0] = 8, -8; w_q_calm[1] = -8, 8",
    nudge="What should a word with water ask for beside what each noun asks for?",
    where="the rows of water and money",
)
_CALM_OTHERS = mistake(
    "calm-others",
    "bank or friend does not find its word any more",
    "bank should still take more than 0.85 from river, and friend from loan",
    remedy="w_q_calm[2] = 8, 8  # a noun asks for both, as before",
    nudge="bank has half of water and half of money: what do its rows add up to?",
    where="the row of nouns, and whether the other two rows cancel for bank",
)
_NO_BANK = mistake(
    "more-no-bank",
    "a sentence has no bank in it, or a meaning that is not 0 or 1",
    "the loss is that of bank's context",
    remedy='more = {**sentences, "the cold bank": 0}',
    nudge="Print the sentences: does each have the word bank, and 0 or 1?",
    where="the sentences that you added",
)
_ASKED = mistake(
    "more-asked",
    "a sentence that is asked for in the end is among those that it learns from",
    "what it has read is no test of what it learned",
    remedy='more = {**sentences, "the cold bank": 0, "the dear bank": 1}',
    nudge="Which two sentences does the task name?",
    where="the sentences that you added",
)
_UNKNOWN = mistake(
    "more-unknown",
    "it does not know the wet bank and a cheap bank yet",
    "the right meaning of one of them has less than 0.9",
    remedy='more = {**sentences, "the cold bank": 0, "the dear bank": 1}',
    nudge="In which sentences does the right meaning hang on an adjective alone?",
    where="the sentences that you added: has each meaning one?",
)
_FORGOTTEN = mistake(
    "more-forgotten",
    "it has forgotten one of the eight sentences that it knew",
    "the right meaning of one of them has less than 0.9",
    remedy='more = {**sentences, "the cold bank": 0, "the dear bank": 1}',
    nudge="Are the eight sentences still in it, with their meanings?",
    where="the sentences that you added, and **sentences",
)


def _matrices(*things: Any) -> list[Array] | None:
    """Projections as arrays; None where one is none."""
    arrays = [numbers(thing) for thing in things]
    if any(a is None or a.shape != _SHAPE for a in arrays):
        return None
    return [a.astype(float) for a in arrays if a is not None]


def _projections(*things: Any) -> Iterator[Mistake]:
    arrays = _matrices(*things)
    if arrays is None:
        yield _OTHER
        return
    w_q, w_k, w_v = arrays
    if not any(a.any() for a in arrays):
        yield _EMPTY
        return
    for sentence, wanted, way in (
        ("the bank of the river", "river", 1),
        ("the bank gave a loan", "loan", -1),
        ("the bank gave a friend a loan", "loan", -1),
    ):
        taken = _taken(sentence, "bank", w_q, w_k, _TABLE)
        x = _rows(sentence, _TABLE)
        context = softmax((x @ w_k) @ (x @ w_q)[1] / np.sqrt(2)) @ x @ w_v
        own = taken.pop("bank")
        found = taken.pop(wanted)
        if found <= 0.4 or 1 - own - found >= 0.1:
            yield _QUIET if found > 1.01 * max(taken.values()) else _NOT_FOUND
        elif "friend" not in taken and way * (context[0] - context[1]) <= 0.3:
            yield _WRONG_WAY


def _calm(*things: Any) -> Iterator[Mistake]:
    arrays = _matrices(*things)
    if arrays is None:
        yield _OTHER
        return
    w_q, w_k = arrays
    if not w_q.any():
        yield _EMPTY
        return
    if _taken("the bank of the river", "river", w_q, w_k, _QUIETER)["river"] <= 0.95:
        yield _CALM
    for sentence, asks, wanted in (
        ("the bank of the river", "bank", "river"),
        ("the bank gave a friend a loan", "friend", "loan"),
    ):
        if _taken(sentence, asks, w_q, w_k, _QUIETER)[wanted] <= 0.85:
            yield _CALM_OTHERS


_KNOWN = MappingProxyType(
    {
        "the bank of the river": 0,
        "the bank gave a loan": 1,
        "the river has a bank": 0,
        "a friend of the bank has a loan": 1,
        "the rich dear cheap bank of the river": 0,
        "the wet cold deep bank gave a loan": 1,
        "a rich dear cheap friend at the bank of the river": 0,
        "the bank gave a wet cold deep friend a loan": 1,
    }
)
_ASKED_IN_THE_END = MappingProxyType({"the wet bank": 0, "a cheap bank": 1})


def _adjectives(more: Any) -> Iterator[Mistake]:
    found = more if isinstance(more, Mapping) else {}
    texts = {text: right for text, right in found.items() if isinstance(text, str)}  # ... is none
    if not {*texts} - {*_KNOWN}:
        yield _EMPTY
        return
    if {*_ASKED_IN_THE_END} & {*texts}:
        yield _ASKED
        return
    if not all("bank" in text.split() and right in (0, 1) for text, right in texts.items()):
        yield _NO_BANK
        return
    w = _learned(texts)
    for sentences, one in ((_ASKED_IN_THE_END, _UNKNOWN), (_KNOWN, _FORGOTTEN)):
        if any(_said(text, w)[0][right] <= 0.9 for text, right in sentences.items()):
            yield one


def _said(sentence: str, w: Sequence[Array]) -> tuple[Array, Array, int]:
    """The probabilities of bank's two meanings, the words, and where bank stands."""
    x, bank = _rows(sentence, _QUIETER), sentence.split().index("bank")
    q, k, v = (x @ one for one in w)
    return softmax((softmax(q @ k.T / np.sqrt(2)) @ v)[bank]), x, bank


def _learned(sentences: Mapping[str, int], steps: int = 300) -> list[Array]:
    """The projections of lesson 9 after its training, from these sentences."""
    w = [*np.random.default_rng(0).standard_normal((3, 4, 2)) * 0.1]
    for _ in range(steps):
        total = [np.zeros_like(one) for one in w]
        for sentence, right in sentences.items():
            said, x, bank = _said(sentence, w)
            up = np.zeros((len(x), 2))
            up[bank] = said - np.eye(2)[int(right)]
            for one, part in zip(total, gradients(x, w[0], w[1], w[2], up), strict=True):
                one += part / len(sentences)
        w = [one - change for one, change in zip(w, total, strict=True)]
    return w


def _task(
    name: str,
    values: tuple[str, ...],
    find: Callable[..., Iterator[Mistake]],
    *,
    signature: str,
    asks: str,
    tried: str,
) -> Task:
    def mark(things: Any, way: str) -> CheckResult:
        return _marked(name, ", ".join(values), tried, find, things)

    return Task(name, values[:1], signature, asks, mark, values=values)


PROJECTIONS = _task(
    "projections",
    ("w_q", "w_k", "w_v"),
    _projections,
    signature="w_q, w_k (4, 2), w_v (4, 2)",
    asks="projections with which bank takes more than 0.4 from river or loan and less than 0.1 from"
    " the rest, and its context leans to water or to money",
    tried="three sentences",
)
CALM_QUERY = _task(
    "calm-query",
    ("w_q_calm", "w_k"),
    _calm,
    signature="w_q_calm (4, 2), beside w_k (4, 2)",
    asks="queries with which river takes more than 0.95 from itself, and bank and friend still take"
    " more than 0.85 from their words",
    tried="two sentences",
)
ADJECTIVES = _task(
    "adjectives",
    ("more",),
    _adjectives,
    signature="more, a dict of sentences with 0 or 1",
    asks="sentences after which the model of lesson 9 knows two that it has not read, and still all"
    " eight",
    tried="ten sentences after the training",
)
