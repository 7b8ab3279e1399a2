"""What the decoder reads, the nouns that it is asked for, and what stands above a noun."""

from __future__ import annotations

from pathlib import Path

import pytest

from training import wordnet
from training.definitions import (
    Counted,
    above,
    common_nouns,
    entries,
    hypernyms,
    read_nouns,
    repeats,
    tagged,
)
from training.wordnet import CHOSEN, FOLDER, REPORTED, read


@pytest.fixture(autouse=True)
def held_out(monkeypatch: pytest.MonkeyPatch) -> str:
    sentence = "two banks"
    monkeypatch.setattr(wordnet, "twelfth_of", lambda text: 0 if text == "two banks" else 7)
    return sentence


def test_each_word_of_each_sense_has_a_text_with_the_examples_that_it_stands_in(
    folder: Path,
) -> None:
    texts = [one.text for one in entries(read(folder))]
    assert texts == [
        "bank: sloping land. they pulled up on the bank",
        "river bank: sloping land",
        "bank: an institution: money. the Bank's doors",
        "ox: a bull. oxen pull",
        "bank: tip. he banked the plane",  # and not "so!", where it does not stand
        "look up: tip",
        "big: large. the biggest bank of all",
        "well: in a good way",
    ]


def test_a_held_out_example_stands_behind_its_own_definition_and_nowhere_else(
    folder: Path, held_out: str
) -> None:
    small = read(folder)
    assert [one.text for one in entries(small, REPORTED)] == [
        "bank: an institution: money. two banks"
    ]
    assert not any(held_out in one.text for one in entries(small))
    assert entries(small, CHOSEN) == []


COUNTS = [
    "bank%1:14:00:: 1 5",
    "bank%1:17:00:: 2 2",
    "bank%2:40:00:: 1 1",
    "big%5:00:00:large:00 1 4",
    "look_up%2:31:00:: 1 8",
    "ox%1:05:00:: 9 3",
]


def test_texts_of_common_senses_are_read_more_often(folder: Path) -> None:
    (folder / "cntlist.rev").write_text("\n".join(COUNTS) + "\n")
    counted = tagged(folder)
    assert counted[0] == Counted("bank", "n", 0, "14", 5)
    assert counted[3:5] == [Counted("big", "a", 0, "00", 4), Counted("look up", "v", 0, "31", 8)]
    small = read(folder)
    # the land was counted twice (10 in binary), the institution 5 times (101), the ox in a sense
    # that is not there, big 4 times (100), to bank once, to look up 8 times (1000)
    assert repeats(entries(small), small, counted) == [3, 1, 4, 1, 2, 5, 4, 1]


def test_the_common_nouns_are_the_most_counted_of_both_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("training.definitions.HALF", 2)
    counted = [
        Counted("dog", "n", 0, "05", 3),
        Counted("time", "n", 0, "28", 9),
        Counted("run", "n", 0, "04", 8),
        Counted("run", "v", 0, "38", 8),  # as often a verb: it is left out
        Counted("cat", "n", 0, "05", 1),
        Counted("cat", "n", 1, "18", 2),  # as often as dog, and before it in the alphabet
        Counted("axe", "n", 0, "06", 2),
        Counted("ox", "n", 0, "05", 30),  # too short
        Counted("ice cream", "n", 0, "13", 30),
        Counted("French", "n", 0, "10", 30),
        Counted("idea", "n", 0, "09", 1),
        Counted("bank", "n", 1, "17", 30),  # its most common sense was not counted
    ]
    assert common_nouns(counted) == ["cat", "dog", "time", "idea"]


def test_the_list_is_what_its_rule_gives() -> None:
    nouns = read_nouns()
    assert len(nouns) == len(set(nouns)) == 100
    if not (FOLDER / "cntlist.rev").is_file():
        pytest.skip("its rule counts words of WordNet: apt-get install wordnet-base")
    assert nouns == common_nouns(tagged())


def test_what_stands_above_a_noun_is_read_from_its_pointers(tmp_path: Path) -> None:
    (tmp_path / "data.noun").write_text(
        "  1 a licence, indented\n"
        "00000100 03 n 01 thing 0 001 ~ 00000200 n 0000 | what is\n"
        "00000200 05 n 02 animal 0 beast 0 002 @ 00000100 n 0000 + 00000100 v 0101 | it lives\n"
        "00000300 05 n 01 Rex 0 001 @i 00000200 n 0000 | a dog of mine\n"
        "00000400 05 n 01 pack 0 001 %m 00000300 n 0000 | many of them\n"
    )
    direct = hypernyms(tmp_path)
    assert direct == [(), (0,), (1,), ()]
    assert above([2, 3], direct) == {0, 1}
    assert above([0], direct) == set()
    with pytest.raises(FileNotFoundError, match=r"cntlist\.rev: apt-get install wordnet-base"):
        tagged(tmp_path)
