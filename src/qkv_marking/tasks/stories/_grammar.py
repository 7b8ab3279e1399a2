"""The small grammar of lesson 12, and functions for its stories."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from qkv.arrays import Array

NAMES = (
    *("Ash", "Blake", "Cole", "Dale", "Drew", "Ellis", "Grant", "Hope"),
    *("Jude", "Kit", "Lane", "Lee", "Max", "Ray", "Reed", "Scott"),
)
DEEDS = (
    *("sang a song", "swam home", "baked bread"),
    *("sat by the fire", "slept", "found two keys"),
)
PEOPLE, SENTENCES = 3, 10
LONGEST = SENTENCES * (3 + max(len(deed.split()) for deed in DEEDS))  # in words
_NAME = f"({'|'.join(NAMES)})"
_SENTENCE = re.compile(rf"{_NAME} {_NAME} ({'|'.join(DEEDS)}) \.(?: (?=\w)|$)")


def story(seed: int) -> str:
    """Write ten sentences about three people; each person keeps the same last name."""
    rng = np.random.default_rng(seed)
    first, last = rng.permutation(NAMES)[: 2 * PEOPLE].reshape(2, PEOPLE)
    return " ".join(
        f"{first[one]} {last[one]} {rng.choice(DEEDS)} ."
        for one in rng.integers(PEOPLE, size=SENTENCES)
    )


def sentences_of(text: str) -> list[tuple[str, str, str]] | None:
    """Parse sentences into first name, last name and deed; None if one is ungrammatical."""
    matches = [*_SENTENCE.finditer(text)]
    spelled = "".join(match.group() for match in matches)
    return [match.groups() for match in matches] if spelled == text else None  # type: ignore[misc]


def begins(words: Sequence[str]) -> list[int]:
    """Return the positions of first names, which begin the sentences."""
    return [i for i in range(len(words)) if i == 0 or words[i - 1] == "."]


def returning(words: Sequence[str]) -> list[int]:
    """Return the positions of first names that also occur earlier in the text."""
    return [i for i in begins(words) if words[i] in words[:i]]


def others(words: Sequence[str]) -> list[int]:
    """Return the positions whose next word is not a name."""
    return [i for i, word in enumerate(words[1:]) if word not in NAMES]


def losses_of_counts(texts: Sequence[str], measured: Sequence[str]) -> tuple[float, float]:
    """Return the mean losses of two counting models: one for single words, one for word pairs.

    Args:
        texts: the texts in which words and pairs are counted.
        measured: the texts in which words are predicted.
    """
    pairs = Counter(pair for text in texts for pair in _pairs(text))
    begins, ends = Counter[str](), Counter[str]()
    for (before, after), count in pairs.items():
        begins[before] += count
        ends[after] += count
    total = sum(ends.values())
    known = len(ends) + 1  # add 1 to each count, so that no probability is 0
    test_pairs = [pair for text in measured for pair in _pairs(text)]
    alone = [-np.log((ends[after] + 1) / (total + known)) for _, after in test_pairs]
    follows = [-np.log((pairs[pair] + 1) / (begins[pair[0]] + known)) for pair in test_pairs]
    return float(np.mean(alone)), float(np.mean(follows))


def _pairs(text: str) -> list[tuple[str, str]]:
    return [*pairwise(text.split())]


def next_words(probabilities: Array, ids: Array) -> Array:
    """Select the probabilities (T - 1,) of the actual next words from probabilities (T, V)."""
    return probabilities[np.arange(len(ids) - 1), ids[1:]]
