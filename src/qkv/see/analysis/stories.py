"""Stories: sentences in which one edit changes what the model that ships guesses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.models.files.find import DEFAULT, shipped

FILE = "stories.json"  # beside the model, where `training.stories` has put it


@dataclass(frozen=True)
class Story:
    """A sentence, what is taken from it or from the model, and what that does to the guess.

    Attributes:
        sentence: with a mask token where a word is missing.
        hide: words that no token may look at.
        ablate: heads that the model goes without, as (layer, head).
        before: the model's first guess.
        after: its first guess then.
        reason: why, in a sentence.
    """

    sentence: str
    hide: tuple[str, ...]
    ablate: tuple[tuple[int, int], ...]
    before: str
    after: str
    reason: str


@dataclass(frozen=True)
class Stories:
    """Those that were chosen, and out of how many, so that nobody takes them for what is usual.

    Attributes:
        told: they.
        searched: in how many sentences they were searched.
        found: in how many of these one edit changes the guess.
    """

    told: tuple[Story, ...]
    searched: int
    found: int


def stories() -> Stories:
    """The five stories of the model that comes with qkv, as its card has them.

    Chosen, as the clearest that a reader found, from what a search found in thousands of sentences:
    they show what the model can do, and not what it usually does.

    >>> kept = stories()
    >>> len(kept.told) <= kept.found <= kept.searched
    True
    >>> import qkv
    >>> model = qkv.load("books")
    >>> all(model.predict(one.sentence, 1)[0][0][0] == one.before for one in kept.told)
    True
    """
    return read_stories(shipped()[DEFAULT])


def read_stories(folder: Path) -> Stories:
    """Those that the folder of a model has."""
    kept: dict[str, Any] = json.loads((folder / FILE).read_bytes())
    told = tuple(
        Story(
            sentence=one["sentence"],
            hide=tuple(one["hide"]),
            ablate=tuple((layer, head) for layer, head in one["ablate"]),
            before=one["before"]["word"],
            after=one["after"]["word"],
            reason=one["reason"],
        )
        for one in kept["stories"]
    )
    return Stories(told, kept["searched"], kept["found"])
