"""Tests of the texts read from books and WordNet, and of the shares of several sources."""

from dataclasses import replace
from pathlib import Path

import pytest

from qkv.learn import Sequences
from training.books import has_dropped
from training.reading import Mixed, clauses, cleaned, typed
from training.wordnet import Synset, documents, examples, read


def sources() -> dict[str, Sequences]:
    return {
        "long": Sequences([[1] * 9, [2] * 7, [3] * 8]),
        "short": Sequences([[4], [5, 5]]),
        "rare": Sequences([[6] * 5]),
    }


SHARES = {"long": 3.0, "short": 2.0, "rare": 1.0}


def test_each_source_has_its_share_of_the_tokens_at_any_time() -> None:
    mixed = Mixed(sources(), SHARES)
    given = dict.fromkeys(SHARES, 0)
    for count in range(1, 400):
        taken = mixed.take()
        given["long" if taken[0] < 4 else "short" if taken[0] < 6 else "rare"] += len(taken)
        if count > 20:
            total = sum(given.values())
            for name, share in SHARES.items():
                assert abs(given[name] - total * share / 6) < 10  # about one sequence


def test_a_restored_mixture_continues_from_its_state() -> None:
    mixed, other = Mixed(sources(), SHARES), Mixed(sources(), SHARES)
    for _ in range(7):
        mixed.take()
    state = mixed.state()
    later = [mixed.take().tolist() for _ in range(20)]
    other.restore(state)
    assert [other.take().tolist() for _ in range(20)] == later


@pytest.mark.parametrize("shares", [{"long": 1.0}, {**SHARES, "rare": 0.0}, {**SHARES, "more": 1}])
def test_shares_that_do_not_fit_are_named(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"^Mixed: the sources are \['long', 'rare', 'short'\] .*"):
        Mixed(sources(), shares)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("We must go home.", "We must go home."),
        ("We must go.", ""),  # only three words
        ('"Did you see him?"', "Did you see him?"),
        ("'Did you see him!'", "Did you see him!"),
        ("It's the dogs' own house.", ""),  # an apostrophe after a word may be a quotation mark
        ("It's the dog's own house.", "It's the dog's own house."),
        ('He said "No" to him.', ""),
        ("He came; I went home.", ""),
        ("He came \u2014 I went home.", ""),
        ("He came and went home", ""),  # no punctuation mark at the end
        (" ".join(["word"] * 14) + ".", " ".join(["word"] * 14) + "."),
        (" ".join(["word"] * 15) + ".", ""),
        ('""', ""),
        ('"', ""),
    ],
)
def test_sentences_as_people_type_them(sentence: str, expected: str) -> None:
    assert typed(sentence) == expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("We must go home.", ["We must go home."]),
        ("We all went home, and she soon ran away.", ["We all went home", "she soon ran away."]),
        ('"Why should I go, sir?" asked the boy.', ["Why should I go, sir?"]),
        ("'We must go home,' said the old man.", ["We must go home", "said the old man."]),
        ("It's the dog's own house; I know it.", ["It's the dog's own house"]),
        ("But you are not afraid; because it is far away", [
            "you are not afraid",
            "it is far away",
        ]),
        ("He came \u2014 I went home with it.", ["I went home with it."]),
        ("It's the dogs' own house, for all that.", []),
        (" ".join(["word"] * 14) + ".", [" ".join(["word"] * 14) + "."]),
        (" ".join(["word"] * 15) + ".", []),
    ],
)  # fmt: skip
def test_the_parts_of_a_sentence(sentence: str, expected: list[str]) -> None:
    assert clauses(sentence) == expected


def test_dropped_words_are_cleaned_out_of_wordnet(folder: Path) -> None:
    wordnet = read(folder)
    number = len(wordnet.synsets)
    more = [
        Synset("n", ("harlot",), "a woman", ("a harlot sang", "she sang")),
        Synset("n", ("lamp", "harlot"), "what a harlot lights", ("the lamp burns", "a harlot's")),
    ]
    index = {("harlot", "n"): (number, number + 1), ("lamp", "n"): (number + 1,)}
    dirty = replace(wordnet, synsets=[*wordnet.synsets, *more], index={**wordnet.index, **index})
    found = cleaned(dirty)
    assert found.synsets[:number] == wordnet.synsets
    assert found.synsets[number:] == [
        Synset("n", (), "a woman", ()),
        Synset("n", ("lamp",), "lamp", ("the lamp burns",)),
    ]
    assert found.index == {**wordnet.index, ("lamp", "n"): (number + 1,)}
    assert not any(map(has_dropped, [*documents(found), *examples(found)]))
    assert has_dropped("The HARLOTS sang.")
    assert not has_dropped("The charlotte.")
