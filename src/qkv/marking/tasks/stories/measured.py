"""What the marker measures of somebody's decoder, which may be in another process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import by_seed, generator
from qkv.marking.errors import type_name
from qkv.marking.mistake import Mistake, mistake
from qkv.marking.outcome import RAISED
from qkv.marking.tasks.attention.steps import softmax
from qkv.marking.tasks.stories.grammar import LONGEST, begins, story
from qkv.marking.tasks.stories.score import induction_score

_STORIES = 16
_LOAD = "story_model = qkv.load(folder)"
_CONFIG = "learn.fresh_model(config, tokenizer)  # the tokenizer of the lesson"

EMPTY = mistake(
    "not-filled-in",
    "nothing is filled in yet",
    "it is as it was in the empty cell",
    remedy=_LOAD,
    nudge="Is there still a ... in the cell of the task?",
    where="the cell of the task",
)
NO_MODEL = mistake(
    "story-model-other",
    "story_model is no model of qkv that takes ids and gives logits",
    "what learn.train gives is a report, and a network is what learns",
    remedy=_LOAD,
    nudge="Print type(story_model): what does qkv.load give?",
    where="what is assigned to story_model last",
)
NO_WORDS = mistake(
    "story-model-vocabulary",
    "the model does not know the words of the grammar, each as one token",
    "a story is other tokens to it than its words",
    remedy=_CONFIG,
    nudge='Print story_model.tokenize("Ash Cole slept .").tokens.',
    where="the tokenizer that fresh_model gets, and vocab_size",
)
NO_ROOM = mistake(
    "story-model-short",
    "the model has no room for a whole story",
    f"ten sentences have up to {LONGEST} words",
    remedy='config |= {"max_position_embeddings": 72}',
    nudge="How long is the longest story that story can write?",
    where="max_position_embeddings in the config",
)


class Unmeasured(Exception):
    """The decoder cannot be measured.

    Args:
        why: the mistake that shows.
    """

    def __init__(self, why: Mistake) -> None:
        super().__init__(why.says)
        self.why = why


@dataclass(frozen=True)
class Decoder:
    """Somebody's decoder, and stories that the marker drew.

    Attributes:
        model: it.
        stories: their texts.
        ids: the ids of each.
    """

    model: Any
    stories: Sequence[str]
    ids: Sequence[Array]

    def logits(self, ids: Array, ablate: Any = ()) -> Array:
        """What each place gives to all next words, (T, V), without some heads."""
        options = {"ablate": [*ablate]} if len(ablate) else {}
        try:
            given = np.asarray(self.model(ids, **options).logits, float)
            return given.reshape(len(ids), -1)
        except RAISED as error:
            raise Unmeasured(NO_MODEL) from error

    def probabilities(self, number: int) -> Array:
        """Of each place of a story, those of all next words, (T, V)."""
        return softmax(self.logits(self.ids[number]))

    def patterns(self, number: int) -> Array:
        """The weights of all heads in a story, (layers, heads, T, T)."""
        try:
            trace = self.model.trace(self.ids[number], names=["pattern"])
            return np.concatenate([np.asarray(one, float) for one in trace.attentions])
        except RAISED as error:
            raise Unmeasured(NO_MODEL) from error

    def scores(self) -> tuple[Array, Array]:
        """The induction score and the previous-token score of each head, (layers, heads)."""
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
        """The words of a story."""
        return self.stories[number].split()


def decoder_of(thing: Any) -> Decoder:
    """Somebody's decoder, with stories that the marker has drawn.

    Raises:
        Unmeasured: it is none.
    """
    if thing is None or type_name(thing) == "ellipsis":
        raise Unmeasured(EMPTY)
    room = getattr(thing, "max_seq_length", None)
    if isinstance(room, int) and room < LONGEST:
        raise Unmeasured(NO_ROOM)
    first = generator(0).integers(1 << 30) if by_seed() else 10**6
    stories = [story(int(first) + number) for number in range(_STORIES)]
    ids = []
    for text in stories:
        try:
            told = thing.tokenize(text)
            ids.append(np.asarray(told.ids, int).reshape(-1))
            tokens = [*told.tokens]
        except RAISED as error:
            raise Unmeasured(NO_MODEL) from error
        if [one.casefold() for one in tokens] != text.casefold().split():
            raise Unmeasured(NO_WORDS)
    return Decoder(thing, stories, ids)
