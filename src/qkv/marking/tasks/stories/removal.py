"""The last task of lesson 12: what a decoder says without some of its heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.engine import mark_values
from qkv.marking.functions import is_stub
from qkv.marking.mistake import Mistake, mistake
from qkv.marking.result import CheckResult
from qkv.marking.tasks.attention.steps import softmax
from qkv.marking.tasks.exercise import exercise, slip
from qkv.marking.tasks.stories.grammar import begins, others, returning
from qkv.marking.tasks.stories.measured import EMPTY, Decoder, Unmeasured, decoder_of
from qkv.marking.tasks.task import Task

_NAME, _TRIED = "head-removed", "no head, one and two"
_LOGITS = "logits = story_model(ids, ablate=heads).logits[0]"
_NEXT = "p = qkv.softmax(logits)[np.arange(len(ids) - 1), ids[1:]]"
_MEANS = "return p[returning(ids)].mean(), p[others(ids)].mean()"
_WITHIN = 2e-4  # what float32 rounds off, and far less than any mistake changes

NO_FUNCTION = mistake(
    "removal-no-function",
    "without is no function of ids and heads",
    "it is called as without(ids, heads)",
    remedy="def without(ids, heads): ...",
    nudge="Print what without is.",
    where="the line of def without",
)


class _Removed:
    """What a decoder says of its stories without some heads, each computed once.

    Args:
        decoder: it.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        numbered = enumerate(decoder.ids)
        self.words = {ids.tobytes(): decoder.words(number) for number, ids in numbered}
        self.known: dict[Any, Array] = {}
        shape = decoder.patterns(0).shape
        self.heads = [(layer, head) for layer in range(shape[0]) for head in range(shape[1])]

    def logits(self, ids: Array, heads: Any) -> Array:
        """Those without these heads, as far as the model has them."""
        asked = tuple(one for one in map(tuple, heads) if one in self.heads)
        key = ids.tobytes(), asked
        if key not in self.known:
            self.known[key] = self.decoder.logits(ids, asked)
        return self.known[key]

    def means(self, said: Callable[[Array, Array], Array], places: Callable[..., Any]) -> Any:
        """A function of ids and heads: two means of what is said of each word.

        Args:
            said: of each place, given the logits and the ids.
            places: of the words, those of both means.
        """

        def of(ids: Array, heads: Any) -> list[float]:
            each = said(self.logits(ids, heads), ids)
            return [float(each[at].mean()) for at in places(self.words[ids.tobytes()])]

        return of

    def cases(self) -> list[tuple[Array, list[tuple[int, int]]]]:
        """Stories, each without other heads."""
        scores, _ = self.decoder.scores()
        best = np.unravel_index(scores.argmax(), scores.shape)
        found = (int(best[0]), int(best[1]))
        rest = [one for one in self.heads if one != found]
        some = [[], [found], [rest[0]], rest[-2:], [found, rest[0]]] if rest else [[], [found]]
        return [(self.decoder.ids[number], heads) for number, heads in enumerate(some)]


def _places(words: Sequence[str]) -> tuple[list[int], list[int]]:
    return returning(words), others(words)


def _next(logits: Array, ids: Array) -> Array:
    return softmax(logits)[np.arange(len(ids) - 1), ids[1:]]


def _slips(removed: _Removed, right: Callable[..., Any]) -> list[Mistake]:
    means = removed.means
    places = np.arange

    def swapped(ids: Array, heads: Any) -> Any:
        return right(ids, [one[::-1] for one in heads])

    def kept(ids: Array, heads: Any) -> Any:
        given = [*map(tuple, heads)]
        return right(ids, [one for one in removed.heads if one not in given])

    return [
        slip(
            "removal-ignored",
            "the heads are not removed: the numbers are the same whatever heads is",
            "it is right for an empty list alone",
            lambda ids, heads: right(ids, []),
            remedy=_LOGITS,
            nudge="Call it with an empty list and with your induction head.",
            where="the call of story_model: does it get the heads?",
        ),
        slip(
            "removal-exchanged",
            "layer and head have changed places: a pair is (layer, head)",
            "other heads are removed",
            swapped,
            remedy=_LOGITS,
            nudge="What does (1, 0) name: head 0 of layer 1, or head 1 of layer 0?",
            where="whatever is done to the list before the model gets it",
        ),
        slip(
            "removal-kept",
            "the heads that are named stay, and all others are removed",
            "the numbers are far too small",
            kept,
            remedy=_LOGITS,
            nudge="What should it give for an empty list?",
            where="the list that goes to ablate",
        ),
        slip(
            "removal-this-word",
            "it is the probability of the word at each place; row i is about the word after it",
            "the numbers are near 0",
            means(lambda logits, ids: softmax(logits)[places(len(ids)), ids], _places),
            remedy=_NEXT,
            nudge="Which word does row 0 of the logits score?",
            where="the ids that pick the columns: ids, or ids[1:]?",
        ),
        slip(
            "removal-order",
            "the two numbers have changed places: names first, then the rest",
            "removing the head seems to change the rest",
            lambda ids, heads: right(ids, heads)[::-1],
            remedy=_MEANS,
            nudge="Which of the two should fall without the induction head?",
            where="the return statement",
        ),
        slip(
            "removal-first-mentions",
            "first names that come for the first time count too: nobody can know their last names",
            "the first number is too small for the whole model",
            means(
                _next,
                lambda words: (
                    begins(words),
                    others(words),
                ),
            ),
            remedy=_MEANS,
            nudge="Print returning(ids): is the first word of the story among them?",
            where="the places of the first mean",
        ),
        slip(
            "removal-all-words",
            "the rest has names among it",
            "the second number falls too, since names are in it",
            means(
                _next,
                lambda words: (returning(words), [*range(len(words) - 1)]),
            ),
            means(
                _next,
                lambda words: (
                    returning(words),
                    [i for i in range(len(words) - 1) if i not in returning(words)],
                ),
            ),
            remedy=_MEANS,
            nudge="Print others(ids): how many places has it?",
            where="the places of the second mean",
        ),
        slip(
            "removal-last-names",
            "it looks one place too far: what follows the last name, not the last name",
            "the first number is about the deed",
            means(_next, lambda words: ([i + 1 for i in returning(words)], others(words))),
            remedy=_MEANS,
            nudge="Which row of the logits scores the last name?",
            where="the places of the first mean",
        ),
        slip(
            "removal-logits",
            "these are logits; softmax makes probabilities of them",
            "probabilities lie between 0 and 1",
            means(lambda logits, ids: logits[places(len(ids) - 1), ids[1:]], _places),
            remedy=_NEXT,
            nudge="Can a probability be above 1?",
            where="what is done to the logits before the right words are picked",
        ),
        slip(
            "removal-losses",
            "these are losses, or logarithms; probabilities were asked for",
            "the number rises where it should fall",
            means(lambda logits, ids: -np.log(_next(logits, ids)), _places),
            means(lambda logits, ids: np.log(_next(logits, ids)), _places),
            remedy=_NEXT,
            nudge="What should a model that is always right give?",
            where="np.log, if it is there",
        ),
    ]


def _mark(things: Any, way: str) -> CheckResult:
    model, function = things
    if is_stub(function):
        return _verdict(EMPTY)
    if not callable(function):
        return _verdict(NO_FUNCTION)
    try:
        removed = _Removed(decoder_of(model))
        right = removed.means(_next, _places)
        right.__name__ = "without"
        asked = exercise(
            _NAME,
            right,
            removed.cases,
            *_slips(removed, right),
            signature=HEAD_REMOVED.signature,
            asks=HEAD_REMOVED.asks,
            what=_TRIED,
            returns=_MEANS,
            within=_WITHIN,
        )
        return asked.mark(function, "")
    except Unmeasured as error:
        return _verdict(error.why)
    except TypeError:  # it cannot be called with ids and heads
        return _verdict(NO_FUNCTION)


def _verdict(one: Mistake) -> CheckResult:
    return mark_values(_NAME, "without", _TRIED, [one], [one.key])


HEAD_REMOVED = Task(
    name=_NAME,
    looks_for=("without",),
    signature="without(ids, heads) -> two numbers, beside story_model",
    asks="the mean probability of last names that return, and that of words that are no names, when"
    " story_model reads ids without some heads",
    mark=_mark,
    values=("story_model", "without"),
    may_use=True,
    by_name=True,
    seconds=30.0,
)
