"""The first task of lesson 12: a function that writes stories, judged by what they are like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.marking.draws import by_seed, generator
from qkv.marking.engine import Marking
from qkv.marking.findings import Finding, no_array, nothing_returned, of_mistake, raises
from qkv.marking.functions import options_of
from qkv.marking.mistake import Mistake, mistake
from qkv.marking.outcome import Outcome, kind_of, name_of, outcome
from qkv.marking.result import CheckResult
from qkv.marking.tasks.exercise import Call
from qkv.marking.tasks.stories.grammar import PEOPLE, SENTENCES, sentences_of
from qkv.marking.tasks.task import Task

_STORIES = 60
_LAST_NAMES = 3  # at least so many has a first name in sixty stories; by chance it has ten
_RETURNS = 4  # of ten sentences: so many are about somebody who was there before
_PEOPLE = "six = rng.permutation(NAMES)[:6]; first, last = six[:3], six[3:]  # before the loop"
_WHO = "one = rng.integers(3)  # in each sentence: f'{first[one]} {last[one]} ...'"
_SEED = "rng = np.random.default_rng(seed)"
_JOIN = 'return " ".join(sentences)  # each of them f"{first[one]} {last[one]} {deed} ."'

Sentences = Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class _Written:
    """Stories of one function: each as its sentences, by its seed, and the first once more."""

    texts: Sequence[str]
    stories: Sequence[Sentences]
    again: str

    def people(self, story: Sentences) -> set[tuple[str, str]]:
        """First and last names of a story."""
        return {(first, last) for first, last, _ in story}


def _last_names(written: _Written, first: str) -> set[str]:
    return {last for story in written.stories for one, last, _ in story if one == first}


def _names_change(written: _Written) -> bool:
    """Has somebody who returns another last name, in more stories than not?"""
    changed = [
        len({first for first, *_ in story}) < len(written.people(story))
        for story in written.stories
        if len({first for first, *_ in story}) <= PEOPLE
    ]
    return 2 * sum(changed) > len(written.stories)


def _new_people(written: _Written) -> bool:
    """Does hardly anybody return, in more stories than not, with many people in each?"""
    few = [
        len({first for first, *_ in story}) > PEOPLE
        and len(story) - len(written.people(story)) < _RETURNS
        for story in written.stories
    ]
    return 2 * sum(few) > len(few)


def _shared(written: _Written) -> bool:
    """Is a name that of two people in a story, or twice that of one?"""
    people = map(written.people, written.stories)
    return any(len({name for one in each for name in one}) < 2 * len(each) for each in people)


def _fixed(written: _Written) -> bool:
    """Has a first name that comes often the same few last names?"""
    often = Counter(name for story in written.stories for name in {first for first, *_ in story})
    return any(
        len(_last_names(written, first)) < _LAST_NAMES
        for first, stories in often.items()
        if stories > 2 * _LAST_NAMES
    )


def _split(written: _Written) -> bool:
    """Is no name a first name in one story and a last name in another?"""
    first, last = ({one[part] for story in written.stories for one in story} for part in (0, 1))
    return not first & last


def _in_turn(written: _Written) -> bool:
    """Do people come in the same order again and again?"""
    return all(
        story[i][:2] == story[i - PEOPLE][:2]
        for story in written.stories
        for i in range(PEOPLE, len(story))
    )


def _one_deed(written: _Written) -> bool:
    """Is a story all of one deed?"""
    return any(len({deed for *_, deed in story}) < 2 for story in written.stories)


_GRAMMAR = mistake(
    "story-grammar",
    "a sentence does not follow the grammar: a first name, a last name, a deed and a dot, with"
    " one blank between them and between sentences",
    "the vocabulary of the decoder has the words of the grammar alone",
    remedy=_JOIN,
    nudge="Print one story and read it aloud: where does it stumble?",
    where="the string of a sentence, and what joins sentences",
)
_LENGTH = mistake(
    "story-length",
    f"the story has not {SENTENCES} sentences",
    "the lesson asks for ten in each",
    remedy="for _ in range(10): ...",
    nudge="Count the dots of a story.",
    where="the loop over sentences",
)
# what is wrong, and what shows it in the stories: the first that shows is told
_KNOWN: Sequence[tuple[Mistake, Callable[[_Written], bool]]] = (
    (
        mistake(
            "story-unseeded",
            "the same seed gives another story each time",
            "nobody can draw the same stories again",
            remedy=_SEED,
            nudge="Call it twice with the same seed.",
            where="the line that makes the generator: does it get the seed?",
        ),
        lambda written: written.again != written.texts[0],
    ),
    (
        mistake(
            "story-same",
            "every seed gives the same story",
            "a decoder learns one story by heart, and learns nothing else",
            remedy=_SEED,
            nudge="Print story(0) and story(1).",
            where="the line that makes the generator: which number does it get?",
        ),
        lambda written: len({*written.texts}) < len(written.texts) // 2,
    ),
    (
        mistake(
            "story-new-people",
            "people are drawn anew for each sentence, so names hardly ever return",
            "where no name returns there is nothing to copy",
            remedy=_PEOPLE,
            nudge="How many different people are in one story?",
            where="the line that draws the names: does it stand inside the loop over sentences?",
        ),
        _new_people,
    ),
    (
        mistake(
            "story-names-change",
            "somebody who returns has another last name than before",
            "the last name cannot be known from the story, so copying does not pay",
            remedy=_WHO,
            nudge="Follow one first name through a story: which last names come after it?",
            where="the line that takes the last name: does it use the number of the person?",
        ),
        _names_change,
    ),
    (
        mistake(
            "story-shared-name",
            "a name comes twice among the people of one story",
            "after such a name nobody can know which word comes",
            remedy=_PEOPLE,
            nudge="Write a hundred stories: is there one in which two people are called Ash?",
            where="the calls that draw names: may they draw the same one twice?",
        ),
        _shared,
    ),
    (
        mistake(
            "story-few-people",
            f"a story is about fewer than {PEOPLE} people",
            "with one or two people a decoder guesses right without looking back",
            remedy=_PEOPLE,
            nudge="How many different people are in one story?",
            where="how many names are drawn, and among how many each sentence chooses",
        ),
        lambda written: max(len(written.people(story)) for story in written.stories) < PEOPLE,
    ),
    (
        mistake(
            "story-fixed-pairs",
            "a first name has the same last name in every story",
            "a decoder learns the pairs by heart, and need not look back",
            remedy=_PEOPLE,
            nudge="Write many stories: which last names does Ash have?",
            where="the line that pairs first and last names: is each drawn on its own?",
        ),
        _fixed,
    ),
    (
        mistake(
            "story-split-names",
            "some names are always first names, and the others always last names",
            "a decoder learns which names are last names, and guesses among those of the story",
            remedy=_PEOPLE,
            nudge="Write many stories: is Ash ever a last name?",
            where="the lines that draw names: do both draw from all sixteen?",
        ),
        _split,
    ),
    (
        mistake(
            "story-in-turn",
            "people come in the same order again and again",
            "the place tells which name comes, so a decoder need not look for it",
            remedy=_WHO,
            nudge="Write down who each sentence is about: can you tell who is next?",
            where="the line that chooses the person of a sentence",
        ),
        _in_turn,
    ),
    (
        mistake(
            "story-one-deed",
            "everybody in a story does the same thing",
            "the deed was to be drawn for each sentence",
            remedy="deed = rng.choice(DEEDS)  # inside the loop over sentences",
            nudge="Read the verbs of one story.",
            where="the line that draws the deed: does it stand inside the loop?",
        ),
        _one_deed,
    ),
    (
        mistake(
            "story-many-people",
            f"a story is about more than {PEOPLE} people",
            "the lesson asks for three in each",
            remedy=_PEOPLE,
            nudge="How many different people are in one story?",
            where="how many names are drawn, and among how many each sentence chooses",
        ),
        lambda written: any(
            len({first for first, *_ in story}) > PEOPLE for story in written.stories
        ),
    ),
)


def _seeds() -> list[int]:
    return [int(generator(one).integers(1 << 30)) if by_seed() else one for one in range(_STORIES)]


def _judged(runs: Sequence[Outcome], again: Outcome) -> Iterator[tuple[Finding, Outcome]]:
    """What is wrong with these stories, at most one thing, and the run that shows it."""
    for run in (*runs, again):
        if run.error is not None:
            yield raises(run, "stories"), run
        elif run.returned is None:
            yield nothing_returned(run, "it returns None", _JOIN), run
        elif not isinstance(run.returned, str):
            says = f"it returns {kind_of(run.returned)}; a text was asked for"
            yield replace(no_array(run, _JOIN), says=says, shows="a story is one str"), run
        elif (story := sentences_of(run.returned)) is None or not story:
            yield of_mistake(_GRAMMAR, None), run
        elif len(story) != SENTENCES:
            yield of_mistake(_LENGTH, None), run
        else:
            continue
        return
    texts = [str(run.returned) for run in runs]
    stories = [sentences_of(text) or [] for text in texts]
    written = _Written(texts, stories, str(again.returned))
    for one, shows in _KNOWN:
        if shows(written):
            yield of_mistake(one, None), runs[0]
            return


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    options_of(function, ("seed",), {})
    seeds = _seeds()
    runs = [
        outcome(Call({"seed": seed}), lambda case: function(*case.arguments.values()), np.zeros(0))
        for seed in (*seeds, seeds[0])
    ]
    m = Marking("story", name_of(function), lambda case: case, lambda case, steps: case, {})
    m.tried = [f"{_STORIES} stories"]
    example: dict[str, Any] = {}
    for finding, run in _judged(runs[:-1], runs[-1]):
        m.found.append(replace(finding, run=None))
        example = {**run.case.shown(), "yours": run.error or run.returned}
    m.runs = runs
    m.explained = not any(finding.key in _NOTHING for finding in m.found)
    return replace(m.result(), example=example)


_NOTHING = ("returns-nothing", "wrong-type", "raises", "name-unknown", _GRAMMAR.key)

STORY = Task(
    name="story",
    looks_for=("story",),
    signature="story(seed) -> text",
    asks="ten sentences by the grammar of lesson 12 about three people, who are drawn for each"
    " story and return in it",
    mark=_mark,
    everyday=("story",),
)
