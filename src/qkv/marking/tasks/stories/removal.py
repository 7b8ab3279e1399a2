"""The last task of lesson 12: the probabilities of a decoder without some of its heads."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.engine import mark_values
from qkv.marking.mistake import Mistake
from qkv.marking.outcome import is_stub
from qkv.marking.result import CheckResult
from qkv.marking.tasks.attention.steps import softmax
from qkv.marking.tasks.exercise import DO, exercise
from qkv.marking.tasks.stories.grammar import begins, next_words, others, returning
from qkv.marking.tasks.stories.trained import EMPTY, Decoder, Unmeasured, decoder_of
from qkv.marking.tasks.task import Texts, task

_TEXTS = Texts(__name__)
_NAME, _TRIED = "head-removed", "no head, one head and two heads"
_MEANS = "return p[returning(ids)].mean(), p[others(ids)].mean()"
_WITHIN = 2e-4  # for rounding in float32; any mistake has a far larger effect

NO_FUNCTION = _TEXTS.mistake("removal-no-function")


class _Removed:
    """A cache of logits, computed by a decoder without some of its heads.

    Args:
        decoder: a student's decoder with its stories.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        numbered = enumerate(decoder.ids)
        self.words = {ids.tobytes(): decoder.words(number) for number, ids in numbered}
        self.known: dict[Any, Array] = {}
        shape = decoder.patterns(0).shape
        self.heads = [(layer, head) for layer in range(shape[0]) for head in range(shape[1])]

    def logits(self, ids: Array, heads: Any) -> Array:
        """Return the logits without these heads; ignore heads that do not exist."""
        asked = tuple(one for one in map(tuple, heads) if one in self.heads)
        key = ids.tobytes(), asked
        if key not in self.known:
            self.known[key] = self.decoder.logits(ids, asked)
        return self.known[key]

    def means(self, said: Callable[[Array, Array], Array], positions: Callable[..., Any]) -> Any:
        """Return a function that takes ids and heads, and returns two means over positions.

        Args:
            said: a function that takes logits and ids, and returns a number per position.
            positions: a function that takes words, and returns the positions for each mean.
        """

        def of(ids: Array, heads: Any) -> list[float]:
            each = said(self.logits(ids, heads), ids)
            return [float(each[at].mean()) for at in positions(self.words[ids.tobytes()])]

        return of

    def cases(self) -> list[tuple[Array, list[tuple[int, int]]]]:
        """Return stories, each with a different list of heads to remove."""
        scores, _ = self.decoder.scores()
        best = np.unravel_index(scores.argmax(), scores.shape)
        found = (int(best[0]), int(best[1]))
        rest = [one for one in self.heads if one != found]
        some = [[], [found], [rest[0]], rest[-2:], [found, rest[0]]] if rest else [[], [found]]
        return [(self.decoder.ids[number], heads) for number, heads in enumerate(some)]


def _positions(words: Sequence[str]) -> tuple[list[int], list[int]]:
    return returning(words), others(words)


def _next(logits: Array, ids: Array) -> Array:
    return next_words(softmax(logits), ids)


def _slips(removed: _Removed, right: Callable[..., Any]) -> tuple[Mistake, ...]:
    means = removed.means

    def kept(ids: Array, heads: Any) -> Any:
        named = [*map(tuple, heads)]
        return right(ids, [pair for pair in removed.heads if pair not in named])

    def this_word(logits: Array, ids: Array) -> Array:
        return softmax(logits)[np.arange(len(ids)), ids]

    def logits_of_next(logits: Array, ids: Array) -> Array:
        return logits[np.arange(len(ids) - 1), ids[1:]]

    def all_but_names(words: Sequence[str]) -> list[int]:
        return [i for i in range(len(words) - 1) if i not in returning(words)]

    return _TEXTS.mistakes(
        {
            "removal-ignored": [lambda ids, heads: right(ids, [])],
            "removal-exchanged": [lambda ids, heads: right(ids, [pair[::-1] for pair in heads])],
            "removal-kept": [kept],
            "removal-this-word": [means(this_word, _positions)],
            "removal-order": [lambda ids, heads: right(ids, heads)[::-1]],
            "removal-first-mentions": [means(_next, lambda words: (begins(words), others(words)))],
            "removal-all-words": [
                means(_next, lambda words: (returning(words), [*range(len(words) - 1)])),
                means(_next, lambda words: (returning(words), all_but_names(words))),
            ],
            "removal-last-names": [
                means(_next, lambda words: ([i + 1 for i in returning(words)], others(words)))
            ],
            "removal-logits": [means(logits_of_next, _positions)],
            "removal-losses": [
                means(lambda logits, ids: -np.log(_next(logits, ids)), _positions),
                means(lambda logits, ids: np.log(_next(logits, ids)), _positions),
            ],
        },
        DO,
    )


def _mark(things: Any, way: str) -> CheckResult:
    model, function = things
    if is_stub(function):
        return _verdict(EMPTY)
    if not callable(function):
        return _verdict(NO_FUNCTION)
    try:
        removed = _Removed(decoder_of(model))
        right = removed.means(_next, _positions)
        right.__name__ = "without"
        asked = exercise(
            _NAME,
            right,
            removed.cases,
            *_slips(removed, right),
            tried=_TRIED,
            returns=_MEANS,
            within=_WITHIN,
        )
        return asked.mark(function, "")
    except Unmeasured as error:
        return _verdict(error.why)
    except TypeError:  # the function cannot be called with ids and heads
        return _verdict(NO_FUNCTION)


def _verdict(one: Mistake) -> CheckResult:
    return mark_values(_NAME, "without", _TRIED, [one], [one.key])


HEAD_REMOVED = task(_NAME, _mark)
