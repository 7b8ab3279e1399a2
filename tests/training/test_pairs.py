"""Tests of finding pairs of related words, against pairs found by hand."""

from collections.abc import Sequence

import pytest

from training.pairs import cut, hidden, noun_after, others_at, pairs_of, verb_of
from training.wordnet import Synset, Use, WordNet

SENTENCES = ["He crossed the wide river in the rain", "She read a book of his quickly, the end"]
NOUNS = ("river", "rain", "book", "end", "home", "dog", "way", "bone")
INDEX = {(word, "n"): (0,) for word in NOUNS} | {("home", "r"): (0,), ("quickly", "r"): (0,)}
INDEX |= {("cross", "v"): (0,), ("be", "v"): (0,), ("never", "r"): (0,), ("old", "a"): (0,)}
NET = WordNet(
    [Synset("v", ("cross",), "go over", ()), Synset("n", ("river",), "water", ())],
    INDEX,
    {part: {} for part in "nvar"},
    frozenset(),
)


@pytest.mark.parametrize(
    ("text", "noun"),
    [
        ("the river", "river"),
        ("the wide river in", "river"),
        ("a wide old river.", "river"),
        ("the very river", None),  # "very" is a function word
        ("his dogs", "dogs"),
        ("the wide old cold river", None),  # three words between them
        ("the way home", None),  # "home" is also an adverb
        ("the red", None),
        ("river", None),
        ("the", None),
        ("the, river", None),
    ],
)
def test_the_noun_of_an_article(text: str, noun: str | None) -> None:
    words = cut(text)
    found = noun_after(words, 0, NET)
    assert (None if found is None else words[found][0]) == noun
    assert noun_after(words, len(words), NET) is None


def test_pairs_by_hand() -> None:
    uses = [
        Use(SENTENCES[0], "cross", 0, 3, 10),
        Use(SENTENCES[0], "cross", 0, 3, 10),  # a duplicate adds no pair
        Use(SENTENCES[0], "river", 1, 20, 25),  # not a verb
        Use(SENTENCES[1], "read", 0, 4, 8),
        Use(SENTENCES[1], "read up", 0, 4, 8),
    ]
    words = words_of(*SENTENCES, uses=uses)
    assert words["verb to object"] == [("crossed", "river"), ("read", "book")]
    assert words["object to verb"] == [("river", "crossed"), ("book", "read")]
    assert words["preposition to noun"] == [("in", "rain")]
    assert words["noun to preposition"] == [("rain", "in")]
    assert words["article to noun"] == [("the", "river")]
    assert words["noun to article"] == [("river", "the")]
    assert words["preposition to subject"] == [("in", "He"), ("of", "She")]
    assert words["subject to preposition"] == [("He", "in"), ("She", "of")]
    assert words["preposition to verb"] == [("in", "crossed")]
    assert words["article to auxiliary"] == []  # no sentence has an auxiliary verb


def test_pairs_of_what_is_nearest() -> None:
    words = words_of("He was walking, and the old dog was fed by them in bed")
    assert words["preposition to subject"] == []  # a comma separates "He" from "by" and "in"
    assert words["preposition to verb"] == []  # the index has no verb for "fed"
    assert words["article to auxiliary"] == [("the", "was")]
    assert words["auxiliary to article"] == [("was", "the")]


def test_others_have_the_same_positions_but_are_no_such_pair() -> None:
    sentences = ["the river, then the dog", "a book ends here now", "the dog ran", "one two three"]
    river = ("the river, then the dog", (0, 3), (4, 9))
    dog = ("the river, then the dog", (16, 19), (20, 23))  # words 3 and 4, counted from 0
    known = ("the dog ran", (0, 3), (4, 7))
    found = [others_at([river, dog, known], sentences, seed)[:2] for seed in range(20)]
    assert {one for one, _ in found} == {
        ("a book ends here now", (0, 1), (2, 6)),
        ("one two three", (0, 3), (4, 7)),
    }
    assert {one for _, one in found} == {("a book ends here now", (12, 16), (17, 20))}
    assert others_at([river], sentences[:1]) == [None]


def words_of(*texts: str, uses: Sequence[Use] = ()) -> dict[str, list[tuple[str, str]]]:
    """Return the pairs of words of each relation in the texts."""
    return {
        name: [(text[slice(*a)], text[slice(*b)]) for text, a, b in pairs]
        for name, pairs in pairs_of([*texts], [*uses], NET).items()
    }


def test_pairs_of_adjectives_and_possessives() -> None:
    found = words_of("he saw me, she gave his old dog her bone")
    assert found["adjective to noun"] == [("old", "dog")]
    assert found["noun to adjective"] == [("dog", "old")]
    assert found["possessive to noun"] == [("his", "dog"), ("her", "bone")]
    assert found["noun to possessive"] == [("dog", "his"), ("bone", "her")]
    assert found["possessive to subject"] == [("his", "she"), ("her", "she")]
    assert found["subject to possessive"] == [("she", "his"), ("she", "her")]
    found = words_of("she saw her crossed out the river, his book")
    assert found["possessive to noun"] == [("his", "book")]  # "her" has no noun
    assert found["possessive to subject"] == []  # and a comma precedes "his"
    assert found["adjective to noun"] == []
    assert words_of("the wide river")["adjective to noun"] == []  # the index does not have "wide"


@pytest.mark.parametrize(
    ("text", "verb"),
    [
        ("was crossed", "crossed"),
        ("has never been crossed", "crossed"),
        ("was the river crossed", None),
        ("was, crossed", None),
        ("was walking", None),  # the index has no verb "walk"
        ("was never", None),
        ("river crossed", None),
    ],
)
def test_the_verb_of_an_auxiliary(text: str, verb: str | None) -> None:
    words = cut(text)
    found = verb_of(words, 0, NET)
    assert (None if found is None else words[found][0]) == verb
    expected = [] if verb is None else [(words[0][0], verb)]
    assert words_of(text)["auxiliary to verb"][:1] == expected
    assert words_of(text)["verb to auxiliary"][:1] == [(b, a) for a, b in expected]


def test_a_masked_word_shifts_only_later_words() -> None:
    text = "he crossed the river"
    for looks, at, expected in (
        ((3, 10), (15, 20), "he [MASK] the river"),
        ((11, 14), (3, 10), "he crossed [MASK] river"),
        ((0, 2), (15, 20), "[MASK] crossed the river"),
    ):
        found, query, key = hidden((text, looks, at), "[MASK]")
        assert found == expected
        assert found[slice(*query)] == "[MASK]"
        assert found[slice(*key)] == text[slice(*at)]
