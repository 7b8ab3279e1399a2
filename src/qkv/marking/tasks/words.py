"""The first task of lesson 2: words to ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.marking.draws import generator
from qkv.marking.findings import Finding, told
from qkv.marking.outcome import Outcome
from qkv.marking.tasks.exercise import exercise, slip

_UNKNOWN = "[UNK]"
_IDS = 'return [vocabulary.get(word, vocabulary["[UNK]"]) for word in sentence.split()]'


def to_ids(sentence: str, vocabulary: Mapping[str, int]) -> list[int]:
    """The id of each word of a sentence; a word that has none gets the id of [UNK]."""
    return [vocabulary.get(word, vocabulary[_UNKNOWN]) for word in sentence.split()]


def _sentences() -> list[tuple[Any, ...]]:
    words = ["the", "bank", "of", "river", "gave", "a", "loan"]
    generator(0).shuffle(words)
    words.insert(4, _UNKNOWN)  # neither the first nor the last
    vocabulary = {word: number for number, word in enumerate(words)}
    texts = ("bank", "the bank of the river", "the creek gave a bank to the the river")
    return [(text, vocabulary) for text in texts]


def _no_such_word(wrong: Outcome) -> Finding | None:
    """A word without an id is looked up all the same."""
    if not isinstance(wrong.error, KeyError):
        return None
    return Finding(
        "ids-unknown-raises",
        "a word that the vocabulary does not have raises an error; it should get the id of [UNK]",
        told(wrong),
        _IDS,
        nudge="Try a sentence with the word creek.",
        where="the place where a word is looked up: what if it is not there?",
        run=wrong,
    )


TO_IDS = exercise(
    "ids",
    to_ids,
    _sentences,
    slip(
        "ids-unknown-left-out",
        "a word that the vocabulary does not have is left out; it should get the id of [UNK]",
        "there are fewer ids than words",
        lambda sentence, vocabulary: [vocabulary[w] for w in sentence.split() if w in vocabulary],
        remedy=_IDS,
        nudge="How many ids should a sentence of five words have?",
        where="the place where a word is looked up: what if it is not there?",
    ),
    slip(
        "ids-unknown-number",
        "a word that the vocabulary does not have gets a number that is not the id of [UNK]",
        "the number belongs to another word, or to none",
        lambda sentence, vocabulary: [vocabulary.get(w, 0) for w in sentence.split()],
        lambda sentence, vocabulary: [vocabulary.get(w, -1) for w in sentence.split()],
        lambda sentence, vocabulary: [vocabulary.get(w, len(vocabulary)) for w in sentence.split()],
        lambda sentence, vocabulary: [vocabulary.get(w, 8) for w in sentence.split()],
        lambda sentence, vocabulary: [
            vocabulary.get(w, len(vocabulary) - 1) for w in sentence.split()
        ],
        remedy=_IDS,
        nudge="Print vocabulary['[UNK]'].",
        where="the number for a word that is not there",
    ),
    slip(
        "ids-of-letters",
        "it goes through the letters of the sentence, not through its words",
        "there is an id for each letter",
        lambda sentence, vocabulary: [
            vocabulary.get(one, vocabulary[_UNKNOWN]) for one in sentence
        ],
        remedy=_IDS,
        nudge="Print what the loop runs over: for word in 'the bank': print(word)",
        where="the loop: what does a string give, one after the other?",
    ),
    slip(
        "ids-once",
        "a word that stands twice has its id only once",
        "there are fewer ids than words",
        lambda sentence, vocabulary: [
            vocabulary.get(w, vocabulary[_UNKNOWN]) for w in dict.fromkeys(sentence.split())
        ],
        remedy=_IDS,
        nudge="How many ids should 'the bank of the river' have?",
        where="the set or mapping that words are put in",
    ),
    slip(
        "ids-sorted",
        "the ids are sorted; they should be in the order of the words",
        "the same ids are there, in another order",
        lambda sentence, vocabulary: sorted(to_ids(sentence, vocabulary)),
        lambda sentence, vocabulary: to_ids(sentence, vocabulary)[::-1],
        remedy=_IDS,
        nudge="Which id belongs to the first word?",
        where="whatever is done to the list at the end",
    ),
    signature="to_ids(sentence, vocabulary) -> a list of T numbers",
    asks="the id of each word of the sentence, in order; a word that the vocabulary does not have"
    " gets the id of [UNK]",
    what="one word, words that stand twice, unknown words",
    returns="return ids  # a list of T numbers",
    otherwise=_no_such_word,
)
