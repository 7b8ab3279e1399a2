"""Combine books and WordNet into training texts for the models that come with qkv."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qkv.arrays import Array
from qkv.learn._corpus import Source
from training.books import has_dropped
from training.wordnet import Synset, WordNet

SHORT = 4, 14  # the minimum and maximum number of words of a typed sentence
# Typed sentences contain none of these marks.
_MARKS = re.compile(r"[\"\u2014;:()\[\]]|(?<!\w)'|'(?!\w)")

_BETWEEN = re.compile(
    r"\s*[;:\u2014()\[\]\"]+\s*|(?<=[,?!.])'\s*|(?<!\w)'\s*|,\s+(?=(?:and|but|for|so|or|yet|as|"
    r"because|though|although|when|while|if|where|who|which|since|until|till|after|before)\b)"
)
_JOINING = re.compile(r"(?i)^(?:and|but|for|so|or|yet|then|that|because|though|although)\s+")


class Mixed:
    """A mixture of several sources; each source gives a fixed share of the tokens.

    The next sequence comes from the source that is furthest below its share.

    Args:
        sources: the sources, keyed by name.
        shares: the shares, keyed by the same names; the sum of the shares may differ from 1.

    Raises:
        ValueError: the names differ, or a share is not above 0.

    >>> from qkv.learn import Sequences
    >>> mixed = Mixed({"a": Sequences([[1, 1]]), "b": Sequences([[2]])}, {"a": 0.5, "b": 0.5})
    >>> [int(mixed.take()[0]) for _ in range(6)]
    [1, 2, 2, 1, 2, 2]
    """

    def __init__(self, sources: Mapping[str, Source], shares: Mapping[str, float]) -> None:
        if set(sources) != set(shares) or not all(share > 0 for share in shares.values()):
            raise ValueError(
                f"Mixed: the sources are {sorted(sources)} and the shares {dict(shares)}; pass "
                "a share above 0 for each source"
            )
        self._sources, self._shares = dict(sources), dict(shares)
        self._given = dict.fromkeys(self._sources, 0)

    def take(self) -> Array:
        """Return the next sequence."""
        name = min(self._given, key=lambda name: self._given[name] / self._shares[name])
        found = self._sources[name].take()
        self._given[name] += len(found)
        return found

    def state(self) -> dict[str, Any]:
        """Return the number of tokens taken from each source, and the state of each source."""
        return {
            "given": dict(self._given),
            "sources": {name: source.state() for name, source in self._sources.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._given = dict(state["given"])
        for name, source in self._sources.items():
            source.restore(state["sources"][name])


def typed(sentence: str) -> str:
    """Return a sentence as a reader would type it, or "" for an unsuitable sentence.

    >>> typed('"We must go home now."'), typed("He said: 'No.'"), typed("I am too old for it.")
    ('We must go home now.', '', 'I am too old for it.')
    """
    if sentence[:1] in ('"', "'") and sentence[-1:] == sentence[:1]:
        sentence = sentence[1:-1]
    shortest, longest = SHORT
    fits = shortest <= len(sentence.split()) <= longest and sentence[-1] in ".?!"
    return sentence if fits and not _MARKS.search(sentence) else ""


def clauses(sentence: str) -> list[str]:
    """Split a sentence into clauses; keep clauses that a user of the page might type.

    >>> clauses('"I must go," said Tom at once, and he took his hat.')
    ['said Tom at once', 'he took his hat.']
    """
    shortest, longest = SHORT
    parts = (_JOINING.sub("", part.strip()) for part in _BETWEEN.split(sentence))
    return [
        part
        for part in (part.rstrip("',\"") for part in parts)
        if shortest <= len(part.split()) <= longest and not _MARKS.search(part)
    ]


def cleaned(wordnet: WordNet) -> WordNet:
    """Remove the dropped words from WordNet, and the definitions and examples that contain them.

    If a synset loses its definition, its words become the definition.
    """
    return replace(
        wordnet,
        synsets=[_cleaned(one) for one in wordnet.synsets],
        index={key: of for key, of in wordnet.index.items() if not has_dropped(key[0])},
    )


def _cleaned(synset: Synset) -> Synset:
    lemmas = tuple(word for word in synset.lemmas if not has_dropped(word))
    instead = ", ".join(lemmas) or "not read"
    return replace(
        synset,
        lemmas=lemmas,
        definition=instead if has_dropped(synset.definition) else synset.definition,
        examples=tuple(text for text in synset.examples if lemmas and not has_dropped(text)),
    )
