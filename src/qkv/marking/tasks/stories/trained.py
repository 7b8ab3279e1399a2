"""The tasks of lesson 12 about a student's trained decoder: its loss and its induction head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import by_seed, generator
from qkv.marking.engine import mark_values
from qkv.marking.errors import type_name
from qkv.marking.mistake import Mistake
from qkv.marking.outcome import RAISED, numbers
from qkv.marking.result import CheckResult
from qkv.marking.tasks.attention.steps import softmax
from qkv.marking.tasks.stories.grammar import (
    LONGEST,
    begins,
    losses_of_counts,
    next_words,
    returning,
    story,
)
from qkv.marking.tasks.stories.score import induction_score
from qkv.marking.tasks.task import task
from qkv.marking.tasks.texts import Texts

_TEXTS = Texts(__name__)
_STORIES = 16
_COUNTED = 500  # the number of stories in which the marker counts words
_SURE = 0.6  # the least probability of last names if a decoder copies; one layer has 0.3
_BELOW = 0.05  # the least difference between two losses that counts
_NEARLY = 0.8  # the part of the best head's score that a right head reaches
_CLEAR = 0.4  # the least score of a head that copies names
EMPTY, _NO_MODEL, _NO_WORDS = map(
    _TEXTS.mistake, ("not-filled-in", "story-model-other", "story-model-vocabulary")
)


class Unmeasured(Exception):
    """The error for a decoder that cannot be measured.

    Args:
        why: the mistake that is the reason.
    """

    def __init__(self, why: Mistake) -> None:
        super().__init__(why.says)
        self.why = why


@dataclass(frozen=True)
class Decoder:
    """A student's decoder, and stories that the marker drew.

    Attributes:
        model: the decoder.
        stories: the texts of the stories.
        ids: the token ids of each story.
    """

    model: Any
    stories: Sequence[str]
    ids: Sequence[Array]

    def logits(self, ids: Array, ablate: Any = ()) -> Array:
        """Return the logits (T, V) for the next word at each position, without some heads."""
        options = {"ablate": [*ablate]} if len(ablate) else {}
        try:
            return np.asarray(self.model(ids, **options).logits, float).reshape(len(ids), -1)
        except RAISED as error:
            raise Unmeasured(_NO_MODEL) from error

    def probabilities(self, number: int) -> Array:
        """Return the probabilities (T, V) of the next word at each position of a story."""
        return softmax(self.logits(self.ids[number]))

    def patterns(self, number: int) -> Array:
        """Return the attention weights (layers, heads, T, T) of all heads in a story."""
        try:
            trace = self.model.trace(self.ids[number], names=["pattern"])
            return np.concatenate([np.asarray(one, float) for one in trace.attentions])
        except RAISED as error:
            raise Unmeasured(_NO_MODEL) from error

    def scores(self) -> tuple[Array, Array]:
        """Return two arrays (layers, heads): the induction scores and the previous-token scores."""
        induction, previous = [], []
        for number, ids in enumerate(self.ids):
            weights = self.patterns(number)
            words = self.words(number)
            names = {int(ids[i]) for i in begins(words)}
            flat = weights.reshape(-1, *weights.shape[2:])
            found = [induction_score(one, ids.tolist(), names) for one in flat]
            induction.append(np.reshape(found, weights.shape[:2]))
            previous.append(weights.diagonal(-1, 2, 3).mean(axis=-1))
        return np.mean(induction, axis=0), np.mean(previous, axis=0)

    def words(self, number: int) -> list[str]:
        """Return the words of a story."""
        return self.stories[number].split()


def decoder_of(thing: Any) -> Decoder:
    """Return a student's decoder, with stories that the marker draws.

    Raises:
        Unmeasured: the object is not a decoder for these stories.
    """
    if thing is None or type_name(thing) == "ellipsis":
        raise Unmeasured(EMPTY)
    room = getattr(thing, "max_seq_length", None)
    if isinstance(room, int) and room < LONGEST:
        raise Unmeasured(_TEXTS.mistake("story-model-short", words=LONGEST))
    first = generator(0).integers(1 << 30) if by_seed() else 10**6
    stories = [story(int(first) + number) for number in range(_STORIES)]
    ids = []
    for text in stories:
        try:
            told = thing.tokenize(text)
            ids.append(np.asarray(told.ids, int).reshape(-1))
            tokens = [*told.tokens]
        except RAISED as error:
            raise Unmeasured(_NO_MODEL) from error
        if [one.casefold() for one in tokens] != text.casefold().split():
            raise Unmeasured(_NO_WORDS)
    return Decoder(thing, stories, ids)


def _model(thing: Any) -> Iterator[Mistake]:
    decoder = decoder_of(thing)
    ids, whole = decoder.ids[0], decoder.probabilities(0)
    changed = np.append(ids[:-1], ids[0])
    if not np.allclose(softmax(decoder.logits(changed))[:-1], whole[:-1], atol=1e-4):
        yield _TEXTS.mistake("story-model-looks-ahead")
        return
    said, same, names = [], [], []
    for number, ids in enumerate(decoder.ids):
        p = decoder.probabilities(number)
        said.append(next_words(p, ids))
        same.append(p[np.arange(len(ids)), ids])
        names.append(said[-1][returning(decoder.words(number))])
    loss = -np.log(np.maximum(np.concatenate(said), 1e-30)).mean()
    frequent, follows = losses_of_counts([*map(story, range(_COUNTED))], decoder.stories)
    if np.concatenate(same).mean() > _SURE:
        yield _TEXTS.mistake("story-model-names-itself")
    elif loss > 1.1 * np.log(whole.shape[1]):
        yield _TEXTS.mistake("story-model-by-heart")
    elif loss >= frequent - _BELOW:
        yield _TEXTS.mistake("story-model-untrained")
    elif loss >= follows - _BELOW:
        yield _TEXTS.mistake("story-model-pairs")
    elif np.concatenate(names).mean() <= _SURE:
        yield _TEXTS.mistake("story-model-no-copy", least=_SURE)


def _head(thing: Any, found: Any) -> Iterator[Mistake]:
    if found is None or type_name(found) == "ellipsis":
        raise Unmeasured(EMPTY)
    scores, previous = decoder_of(thing).scores()
    pair = numbers(found)
    if pair is None or pair.shape != (2,) or pair.dtype.kind not in "iu":
        yield _TEXTS.mistake("head-no-pair")
        return
    layer, head = pair.tolist()
    right = (scores >= _NEARLY * scores.max()) & (scores >= _CLEAR)
    if not right.any():
        yield _TEXTS.mistake("head-none", least=_CLEAR)
    elif _among(right, head, layer) and not _among(right, layer, head):
        yield _TEXTS.mistake("head-exchanged")
    elif not (0 <= layer < scores.shape[0] and 0 <= head < scores.shape[1]):
        yield _TEXTS.mistake("head-no-pair")
    elif not right[layer, head]:
        at_most = previous[layer, head] >= previous.max() and previous[layer, head] > _CLEAR
        yield _TEXTS.mistake("head-previous" if at_most else "head-other")


def _among(right: Array, layer: int, head: int) -> bool:
    """Tell whether the model has this head, and the head is one of the right heads."""
    there = 0 <= layer < right.shape[0] and 0 <= head < right.shape[1]
    return there and bool(right[layer, head])


def _marked(task: str, name: str, tried: str, find: Callable[..., Any], things: Any) -> CheckResult:
    """Return the verdict on values, with the mistakes that a function finds in them."""
    try:
        found = [*find(*things)]
    except Unmeasured as error:
        found = [error.why]
    return mark_values(task, name, tried, found, [one.key for one in (EMPTY, _NO_MODEL, _NO_WORDS)])


STORY_MODEL = task(
    "story-model",
    lambda things, way: _marked(
        "story-model", "story_model", "stories that the model has not read", _model, things
    ),
)
INDUCTION_HEAD = task(
    "induction-head",
    lambda things, way: _marked(
        "induction-head", "induction_head", "stories that the marker drew", _head, things
    ),
)
