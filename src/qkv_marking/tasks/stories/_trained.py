"""The tasks of lesson 12 about a student's trained decoder: loss, induction head, removed heads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._engine import by_seed, generator, mark_values
from qkv_marking._errors import type_name
from qkv_marking._mistake import Function, Mistake
from qkv_marking._outcome import RAISED, is_stub, numbers
from qkv_marking._result import CheckResult
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import Exercise, task
from qkv_marking.tasks.attention.mistakes import softmax
from qkv_marking.tasks.stories import _grammar
from qkv_marking.tasks.stories._grammar import begins, others, returning

_TEXTS = Table(__package__, "trained", section="decoder")


def _patterns() -> list[tuple[Any, ...]]:
    """Make cases: random attention weights for texts in which names and other words repeat.

    Each row of weights sums to 1. Only the last case has weights above the diagonal, to reveal
    functions that read such weights.
    """
    texts = [
        ([1, 4, 6, 1, 5], [1, 2]),
        ([2, 4, 7, 1, 5, 7, 2, 4], [1, 2]),
        ([3, 4, 7, 2, 5, 8, 3, 4, 7, 3, 4, 8, 2], [2, 3]),
    ]
    cases: list[tuple[Any, ...]] = []
    for number, (ids, names) in enumerate(texts):
        rng = generator(number)
        other = rng.permutation(30)  # a word may have any id
        weights = rng.integers(1, 20, (len(ids), len(ids))).astype(float)
        if number < len(texts) - 1:
            weights = np.tril(weights)
        weights /= weights.sum(axis=1, keepdims=True)
        cases.append((weights, other[ids], other[names]))
    return cases


INDUCTION_SCORE = Exercise(
    "induction-score", Table(__package__, "trained", section="induction-score"), _patterns
)


_STORIES = 16
# number of stories in which the marker counts words
_COUNTED = 500
# minimum probability of repeated last names; a model with one layer reaches 0.3
_SURE = 0.6
# minimum difference between the model's loss and the loss of a counting model
_BELOW = 0.05
# minimum score of a correct head, as a fraction of the best head's score
_NEARLY = 0.8
# minimum score of a head that copies names
_CLEAR = 0.4
EMPTY, _NO_MODEL, _NO_WORDS = map(
    _TEXTS.mistake, ("not-filled-in", "story-model-other", "story-model-vocabulary")
)


class Unmeasured(Exception):
    """The error for a decoder that cannot be measured.

    Args:
        why: the mistake that prevents the measurement.
    """

    def __init__(self, why: Mistake) -> None:
        super().__init__(why.says)
        self.why = why


@dataclass(frozen=True)
class Decoder:
    """A student's decoder, and stories that the marker generated.

    Attributes:
        model: the decoder.
        stories: the texts of the stories.
        ids: the token ids of each story.
    """

    model: Any
    stories: Sequence[str]
    ids: Sequence[Array]

    def logits(self, ids: Array, ablate: Any = ()) -> Array:
        """Return the logits (T, V) of the decoder without the heads in `ablate`."""
        options = {"ablate": [*ablate]} if len(ablate) else {}
        try:
            return np.asarray(self.model(ids, **options).logits, float).reshape(len(ids), -1)
        except RAISED as error:
            raise Unmeasured(_NO_MODEL) from error

    def probabilities(self, number: int) -> Array:
        """Return the probabilities (T, V) of the next word at each position of a story."""
        return softmax(self.logits(self.ids[number]))

    def patterns(self, number: int) -> Array:
        """Return the attention weights (layers, heads, T, T) in a story."""
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
            of_heads = [INDUCTION_SCORE.solve(one, ids.tolist(), names) for one in flat]
            induction.append(np.reshape(of_heads, weights.shape[:2]))
            previous.append(weights.diagonal(-1, 2, 3).mean(axis=-1))
        return np.mean(induction, axis=0), np.mean(previous, axis=0)

    def words(self, number: int) -> list[str]:
        """Return the words of a story."""
        return self.stories[number].split()


def decoder_of(thing: Any) -> Decoder:
    """Generate stories, and return a `Decoder` with these stories and a student's model.

    Raises:
        Unmeasured: the object is not a decoder for these stories.
    """
    if thing is None or type_name(thing) == "ellipsis":
        raise Unmeasured(EMPTY)
    limit = getattr(thing, "max_seq_length", None)
    if isinstance(limit, int) and limit < _grammar.LONGEST:
        raise Unmeasured(_TEXTS.mistake("story-model-short", words=_grammar.LONGEST))
    first = generator(0).integers(1 << 30) if by_seed() else 10**6
    stories = [_grammar.story(int(first) + number) for number in range(_STORIES)]
    ids = []
    for text in stories:
        try:
            tokenized = thing.tokenize(text)
            ids.append(np.asarray(tokenized.ids, int).reshape(-1))
            tokens = [*tokenized.tokens]
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
        said.append(_grammar.next_words(p, ids))
        same.append(p[np.arange(len(ids)), ids])
        names.append(said[-1][returning(decoder.words(number))])
    loss = -np.log(np.maximum(np.concatenate(said), 1e-30)).mean()
    frequent, follows = _grammar.losses_of_counts(
        [*map(_grammar.story, range(_COUNTED))], decoder.stories
    )
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


def _head(thing: Any, answer: Any) -> Iterator[Mistake]:
    if answer is None or type_name(answer) == "ellipsis":
        raise Unmeasured(EMPTY)
    scores, previous = decoder_of(thing).scores()
    pair = numbers(answer)
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
    """Return whether this head exists and is one of the right heads."""
    there = 0 <= layer < right.shape[0] and 0 <= head < right.shape[1]
    return there and bool(right[layer, head])


def _mark_with(task: str, name: str, tried: str, find: Function, things: Any) -> CheckResult:
    """Mark a student's values; the function `find` yields the mistakes in these values."""
    try:
        mistakes = [*find(*things)]
    except Unmeasured as error:
        mistakes = [error.why]
    unread = [one.key for one in (EMPTY, _NO_MODEL, _NO_WORDS)]
    return mark_values(task, name, tried, mistakes, unread)


STORY_MODEL = task(
    "story-model",
    lambda things, way: _mark_with(
        "story-model", "story_model", "stories that the model has not read", _model, things
    ),
)
INDUCTION_HEAD = task(
    "induction-head",
    lambda things, way: _mark_with(
        "induction-head", "induction_head", "stories that the marker drew", _head, things
    ),
)


_NAME = "head-removed"
_WITHOUT = Table(__package__, "trained", {"softmax": softmax}, section=_NAME)
# The allowed error of a mean: float32 rounding errors are smaller, and a mistake causes much larger
# errors.
_WITHIN = 2e-4

NO_FUNCTION = _TEXTS.mistake("removal-no-function")


class _Removed:
    """A decoder whose heads can be removed, with a cache of its logits.

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

    def __call__(self, ids: Array, ablate: Any = ()) -> SimpleNamespace:
        """Return the logits without these heads; ignore heads that do not exist."""
        valid_heads = tuple(one for one in map(tuple, ablate) if one in self.heads)
        key = ids.tobytes(), valid_heads
        if key not in self.known:
            self.known[key] = self.decoder.logits(ids, valid_heads)
        return SimpleNamespace(logits=[self.known[key]])

    def values(self) -> dict[str, Any]:
        """Return the variables that the lines of the task use."""

        def on_ids(positions: Function) -> Function:
            return lambda ids: positions(self.words[ids.tobytes()])

        finders = {"begins": begins, "returning": returning, "others": others}
        functions = {name: on_ids(positions) for name, positions in finders.items()}
        return {"story_model": self, "all_heads": self.heads, **functions}

    def cases(self) -> list[tuple[Array, list[tuple[int, int]]]]:
        """Return stories, each with a different list of heads to remove."""
        scores, _ = self.decoder.scores()
        layer, head = np.unravel_index(scores.argmax(), scores.shape)
        best = (int(layer), int(head))
        rest = [one for one in self.heads if one != best]
        some = [[], [best], [rest[0]], rest[-2:], [best, rest[0]]] if rest else [[], [best]]
        return [(self.decoder.ids[number], heads) for number, heads in enumerate(some)]


def _mark(things: Any, way: str) -> CheckResult:
    model, function = things
    if is_stub(function):
        return _verdict(EMPTY)
    if not callable(function):
        return _verdict(NO_FUNCTION)
    try:
        removed = _Removed(decoder_of(model))
        exercise = Exercise(_NAME, _WITHOUT, removed.cases, within=_WITHIN, values=removed.values())
        return exercise.mark(function)
    except Unmeasured as error:
        return _verdict(error.why)
    except TypeError:  # the function cannot be called with ids and heads
        return _verdict(NO_FUNCTION)


def _verdict(one: Mistake) -> CheckResult:
    return mark_values(_NAME, "without", _WITHOUT.fields["tried"], [one], [one.key])


HEAD_REMOVED = task(_NAME, _mark)
