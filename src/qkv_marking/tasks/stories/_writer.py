"""The first task of lesson 12: a function that writes stories."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv_marking._engine import Marking, by_seed, generator
from qkv_marking._findings import Symptom, no_array, nothing_returned, raises
from qkv_marking._mistake import Function
from qkv_marking._outcome import Outcome, kind_of, name_of, options_of, outcome
from qkv_marking._result import CheckResult
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import Arguments, task
from qkv_marking.tasks.stories._grammar import PEOPLE, SENTENCES, sentences_of

_TEXTS = Table(__package__, "writer")
_STORIES = 60
# minimum number of last names per first name in sixty stories; ten is usual
_LAST_NAMES = 3
# at least this many of a story's ten sentences must be about a person who occurs earlier
_RETURNS = 4
_JOIN = 'return " ".join(sentences)  # each sentence is f"{first[one]} {last[one]} {deed} ."'

Sentences = Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class _Written:
    """Stories that one function wrote.

    Attributes:
        texts: the stories as texts, one per seed.
        stories: the parsed sentences of each story.
        again: the story from a second call with the first seed.
    """

    texts: Sequence[str]
    stories: Sequence[Sentences]
    again: str


def _people(story: Sentences) -> set[tuple[str, str]]:
    """Return the first and last names of a story's people."""
    return {(first, last) for first, last, _ in story}


def _first_names(story: Sentences) -> set[str]:
    return {first for first, *_ in story}


def _names_change(written: _Written) -> bool:
    """Return whether most stories change the last name of a person."""
    changed = [
        len(_first_names(story)) < len(_people(story))
        for story in written.stories
        if len(_first_names(story)) <= PEOPLE
    ]
    return 2 * sum(changed) > len(written.stories)


def _new_people(written: _Written) -> bool:
    """Return whether most stories have too many people, and repeat names too rarely."""
    few = [
        len(_first_names(story)) > PEOPLE and len(story) - len(_people(story)) < _RETURNS
        for story in written.stories
    ]
    return 2 * sum(few) > len(few)


def _has_shared_name(written: _Written) -> bool:
    """Return whether any name occurs twice among the first and last names of a story's people."""
    people = map(_people, written.stories)
    return any(len({name for one in pairs for name in one}) < 2 * len(pairs) for pairs in people)


def _has_fixed_pairs(written: _Written) -> bool:
    """Return whether any frequent first name has too few different last names."""
    often = Counter(name for story in written.stories for name in _first_names(story))
    pairs = Counter(first for first, _ in set.union(*map(_people, written.stories)))
    return any(
        pairs[first] < _LAST_NAMES for first, stories in often.items() if stories > 2 * _LAST_NAMES
    )


def _split(written: _Written) -> bool:
    """Return whether the first names and the last names have no name in common."""
    first, last = ({one[part] for story in written.stories for one in story} for part in (0, 1))
    return not first & last


def _in_turn(written: _Written) -> bool:
    """Return whether people appear in a fixed order."""
    return all(
        story[i][:2] == story[i - PEOPLE][:2]
        for story in written.stories
        for i in range(PEOPLE, len(story))
    )


# one test per mistake; only the first mistake found is reported
_SHOWS: Mapping[str, Callable[[_Written], bool]] = {
    "story-unseeded": lambda written: written.again != written.texts[0],
    "story-same": lambda written: len({*written.texts}) < len(written.texts) // 2,
    "story-new-people": _new_people,
    "story-names-change": _names_change,
    "story-shared-name": _has_shared_name,
    "story-few-people": lambda written: max(map(len, map(_people, written.stories))) < PEOPLE,
    "story-fixed-pairs": _has_fixed_pairs,
    "story-split-names": _split,
    "story-in-turn": _in_turn,
    "story-one-deed": lambda written: any(
        len({deed for *_, deed in story}) < 2 for story in written.stories
    ),
    "story-many-people": lambda written: any(
        len(_first_names(story)) > PEOPLE for story in written.stories
    ),
}


def _judge(runs: Sequence[Outcome], again: Outcome) -> Iterator[tuple[Symptom, Outcome]]:
    """Yield the first mistake in these stories, if any, and the run that shows this mistake."""
    for run in (*runs, again):
        if run.error is not None:
            yield raises(run, "stories"), run
        elif run.returned is None:
            yield nothing_returned(run, "it returns None", _JOIN), run
        elif not isinstance(run.returned, str):
            says = f"it returns {kind_of(run.returned)}, but should return a text"
            yield replace(no_array(run, _JOIN), says=says, shows="a story should be one str"), run
        elif (story := sentences_of(run.returned)) is None or not story:
            yield _TEXTS.finding("story-grammar", None), run
        elif len(story) != SENTENCES:
            yield _TEXTS.finding("story-length", None), run
        else:
            continue
        return
    texts = [str(run.returned) for run in runs]
    stories = [sentences_of(text) or [] for text in texts]
    written = _Written(texts, stories, str(again.returned))
    mistakes = [name for name, shows in _SHOWS.items() if shows(written)]
    for name in mistakes[:1]:
        yield _TEXTS.finding(name, None), runs[0]


def _mark(function: Function, way: str) -> CheckResult:
    options_of(function, ("seed",), {})
    seeds = [*range(_STORIES)]
    if by_seed():
        seeds = [int(generator(one).integers(1 << 30)) for one in seeds]
    runs = [
        outcome(Arguments({"seed": seed}), lambda case: function(case.by_name["seed"]), np.zeros(0))
        for seed in (*seeds, seeds[0])
    ]
    m = Marking("story", name_of(function), lambda case: case, lambda case, steps: case, {})
    m.tried = [f"{_STORIES} stories"]
    example: dict[str, Any] = {}
    for finding, run in _judge(runs[:-1], runs[-1]):
        m.findings.append(replace(finding, run=None))
        example = {**run.case.list_arguments(), "yours": run.error or run.returned}
    m.runs = runs
    m.by_mistakes = True
    m.empty = any(finding.key in _NOTHING for finding in m.findings)
    return replace(m.result(), example=example)


_NOTHING = ("returns-nothing", "wrong-type", "raises", "name-unknown", "story-grammar")

STORY = task("story", _mark)
