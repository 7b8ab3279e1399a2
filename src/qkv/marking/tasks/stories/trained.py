"""Tasks of lesson 12 about a decoder that somebody trained: it, its induction head, its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.engine import mark_values
from qkv.marking.errors import type_name
from qkv.marking.mistake import Mistake, mistake
from qkv.marking.outcome import numbers
from qkv.marking.result import CheckResult
from qkv.marking.tasks.attention.steps import softmax
from qkv.marking.tasks.stories.grammar import losses_of_counts, next_words, returning, story
from qkv.marking.tasks.stories.measured import EMPTY, NO_MODEL, NO_WORDS, Unmeasured, decoder_of
from qkv.marking.tasks.task import Task

_TRAIN = "learn.train(network, objective, folder=folder, steps=600, schedule=5e-3)"
_COUNTED = 500  # stories in which the marker counts words
_SURE = 0.6  # what a decoder that copies gives to a last name that returns; one layer gives 0.3
_BELOW = 0.05  # so far below what counts give is below it
_NEARLY = 0.8  # of the best head's score
_CLEAR = 0.4  # a score below which no head copies names

_AHEAD = mistake(
    "story-model-looks-ahead",
    "words that come later change what it says: it is no decoder",
    "whoever sees the next word need not guess it",
    remedy='config = {"model_type": "qkv-attention-only", ...}  # causal',
    nudge="Change the last word of a story: do the logits before it change?",
    where="the model_type in the config",
)
_ITSELF = mistake(
    "story-model-names-itself",
    "it names the word that it has just read, not the next one",
    "the targets of its training were not moved by one place",
    remedy="objective = learn.Causal(learn.Sequences(texts), tokens_per_step=2048)",
    nudge="What does it say is likeliest after Ash?",
    where="the objective: which target belongs to which word?",
)
_BY_HEART = mistake(
    "story-model-by-heart",
    "in stories that it has not read it is worse than guessing: it knows a few by heart",
    "its loss in new stories is above that of equal probabilities for all words",
    remedy="texts = [tokenizer.tokenize(story(seed)).ids for seed in range(2000)]",
    nudge="How many stories were there to learn from?",
    where="the texts that it was trained on",
)
_UNTRAINED = mistake(
    "story-model-untrained",
    "it knows nothing of the stories yet: counting how frequent each word is does as well",
    "its loss in new stories is not below that of word frequencies",
    remedy=_TRAIN,
    nudge="What was the loss that the training printed?",
    where="the number of steps and the learning rate; was the trained network taken?",
)
_PAIRS = mistake(
    "story-model-pairs",
    "it knows which word follows which, and no more",
    "its loss in new stories is not below that of counting pairs of words",
    remedy=_TRAIN,
    nudge="What is the loss where a name returns, and what is it elsewhere?",
    where="the number of steps, and the stories: do names return in them?",
)
_NO_COPY = mistake(
    "story-model-no-copy",
    "it does not copy: the last name of somebody who returns gets too little probability",
    f"it should get more than {_SURE} on average, in new stories",
    remedy=f'config |= {{"num_hidden_layers": 2}}; {_TRAIN}',
    nudge="Are there two layers? What was the loss in the end?",
    where="the number of layers, steps and the learning rate",
)


def _model(thing: Any) -> Iterator[Mistake]:
    decoder = decoder_of(thing)
    ids, whole = decoder.ids[0], decoder.probabilities(0)
    changed = np.append(ids[:-1], ids[0])
    if not np.allclose(softmax(decoder.logits(changed))[:-1], whole[:-1], atol=1e-4):
        yield _AHEAD
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
        yield _ITSELF
    elif loss > 1.1 * np.log(whole.shape[1]):
        yield _BY_HEART
    elif loss >= frequent - _BELOW:
        yield _UNTRAINED
    elif loss >= follows - _BELOW:
        yield _PAIRS
    elif np.concatenate(names).mean() <= _SURE:
        yield _NO_COPY


_NO_PAIR = mistake(
    "head-no-pair",
    "it is no pair (layer, head) of whole numbers that the model has",
    "layers and heads are counted from 0",
    remedy="induction_head = 1, 0  # layer 1, head 0",
    nudge="Print the shape of your scores: which numbers may stand in each place?",
    where="what is assigned to induction_head; argmax alone gives one number",
)
_EXCHANGED = mistake(
    "head-exchanged",
    "layer and head have changed places: a pair is (layer, head)",
    "the pair names another head",
    remedy="induction_head = layer, head",
    nudge="Which of the two numbers counts layers?",
    where="the order of the two numbers",
)
_PREVIOUS = mistake(
    "head-previous",
    "this is a previous-token head: it looks at the word before, whatever that is",
    "an induction head needs one below it, and is another",
    remedy="induction_head = 1, 0  # the head with the highest induction score",
    nudge="In which layer can a head know what stood before each word?",
    where="the score by which it was chosen",
)
_OTHER_HEAD = mistake(
    "head-other",
    "another head has a far higher induction score in stories that the marker drew",
    "this one does not look behind the earlier name",
    remedy="np.unravel_index(scores.argmax(), scores.shape)  # the mean over several stories",
    nudge="Print the scores of all heads, as a mean over twenty stories.",
    where="how the highest score is looked up, and over how many stories",
)
_NONE_COPIES = mistake(
    "head-none",
    "no head of this model looks behind the earlier name",
    f"no induction score is above {_CLEAR}",
    remedy=_TRAIN,
    nudge="Is story_model marked right?",
    where="the training of story_model",
)


def _head(thing: Any, found: Any) -> Iterator[Mistake]:
    if found is None or type_name(found) == "ellipsis":
        raise Unmeasured(EMPTY)
    scores, previous = decoder_of(thing).scores()
    pair = numbers(found)
    if pair is None or pair.shape != (2,) or pair.dtype.kind not in "iu":
        yield _NO_PAIR
        return
    layer, head = pair.tolist()
    right = (scores >= _NEARLY * scores.max()) & (scores >= _CLEAR)
    if not right.any():
        yield _NONE_COPIES
    elif _among(right, head, layer) and not _among(right, layer, head):
        yield _EXCHANGED
    elif not (0 <= layer < scores.shape[0] and 0 <= head < scores.shape[1]):
        yield _NO_PAIR
    elif not right[layer, head]:
        at_most = previous[layer, head] >= previous.max() and previous[layer, head] > _CLEAR
        yield _PREVIOUS if at_most else _OTHER_HEAD


def _among(right: Array, layer: int, head: int) -> bool:
    """Is it a head of the model, and one of these?"""
    there = 0 <= layer < right.shape[0] and 0 <= head < right.shape[1]
    return there and bool(right[layer, head])


def _marked(task: str, name: str, tried: str, find: Callable[..., Any], things: Any) -> CheckResult:
    """A verdict on values: what is found of them."""
    try:
        found = [*find(*things)]
    except Unmeasured as error:
        found = [error.why]
    return mark_values(task, name, tried, found, (EMPTY.key, NO_MODEL.key, NO_WORDS.key))


STORY_MODEL = Task(
    name="story-model",
    looks_for=("story_model",),
    signature="story_model, a decoder of qkv that was trained on stories",
    asks="a decoder whose loss in stories that the marker draws is below that of counting pairs of"
    " words, and which copies last names",
    mark=lambda things, way: _marked(
        "story-model", "story_model", "stories that it has not read", _model, things
    ),
    values=("story_model",),
    may_use=True,
    seconds=30.0,
)
INDUCTION_HEAD = Task(
    name="induction-head",
    looks_for=("induction_head",),
    signature="induction_head, a pair (layer, head) of story_model",
    asks="the head of the decoder that looks behind the earlier place of a name that returns",
    mark=lambda things, way: _marked(
        "induction-head", "induction_head", "stories that the marker drew", _head, things
    ),
    values=("story_model", "induction_head"),
    may_use=True,
    seconds=30.0,
)
