"""Tests of reading a few lines in WordNet's format; the expected results are written by hand."""

import hashlib
from pathlib import Path

import pytest

from training import wordnet
from training.wordnet import (
    CHOSEN,
    REPORTED,
    document,
    documents,
    is_held_out,
    is_in,
    read,
    twelfth_of,
)


def test_a_line_is_parsed(folder: Path) -> None:
    found = read(folder).synsets
    assert [one.part for one in found] == ["n", "n", "n", "v", "a", "r"]
    assert found[0].lemmas == ("bank", "river bank")
    assert found[0].definition == "sloping land"
    assert found[1].definition == "an institution: money"
    assert found[1].examples == ("the Bank's doors", "two banks")
    assert found[4].lemmas == ("big",)  # without the marker "(a)"
    assert found[5].examples == ()


def test_senses_come_in_the_order_of_the_index(folder: Path) -> None:
    all_of_it = read(folder)
    assert all_of_it.senses("bank", "n") == (1, 0)
    assert all_of_it.senses("bank") == (1, 0, 3)
    assert all_of_it.senses("cow") == ()


def test_uses_are_found_with_their_endings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordnet, "is_held_out", lambda sentence, *_: False)
    uses = list(read(folder).uses())
    assert [(use.lemma, use.synset, use.sentence[use.start : use.end]) for use in uses] == [
        ("bank", 0, "bank"),
        ("bank", 1, "Bank"),
        ("bank", 1, "banks"),
        ("ox", 2, "oxen"),
        ("bank", 3, "banked"),
        ("big", 4, "biggest"),
    ]


@pytest.mark.parametrize(
    ("word", "part", "base"),
    [
        ("ladies", "n", "lady"),
        ("churches", "n", "church"),
        ("firemen", "n", "fireman"),
        ("making", "v", "make"),
        ("tries", "v", "try"),
        ("goes", "v", "go"),
        ("finer", "a", "fine"),
        ("oxen", "n", "ox"),
        ("well", "r", "well"),
    ],
)
def test_bases(folder: Path, word: str, part: str, base: str) -> None:
    assert base in read(folder).bases(word, part)


def test_the_base_of_a_word_is_one_that_wordnet_knows(folder: Path) -> None:
    small = read(folder)
    words = ("banks", "banked", "banking", "bank", "oxen", "biggest", "plane", "wells")
    assert [small.base(word) for word in words] == [
        *(["bank"] * 4),
        *("ox", "big", "plane", "wells"),  # "plane" is unknown, "well" only an adverb
    ]


def test_lemmas_of_several_words_match_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordnet, "is_held_out", lambda sentence, *_: False)
    path = folder / "data.verb"
    path.write_text(path.read_text().replace("so!", "He looked up the bank"))
    use = [one for one in read(folder).uses() if one.synset == 3][-1]
    assert (use.lemma, use.sentence[use.start : use.end]) == ("look up", "looked up")


def test_the_split_is_the_hash_of_the_sentence() -> None:
    texts = [f"sentence {n}" for n in range(500)]
    expected = [int(hashlib.sha256(t.encode("utf-8")).hexdigest(), 16) % 12 for t in texts]
    assert [twelfth_of(text) for text in texts] == expected
    assert [is_in(text, CHOSEN) for text in texts] == [n == 1 for n in expected]
    assert [is_held_out(text) for text in texts] == [n in (0, 1) for n in expected]
    assert [is_held_out(text, 1) for text in texts] == [n == 0 for n in expected]
    assert 20 < expected.count(0) < 65


def test_a_final_run_learns_from_the_examples_used_for_choices(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"they pulled up on the bank": REPORTED, "two banks": CHOSEN}
    monkeypatch.setattr(wordnet, "twelfth_of", lambda sentence: parts.get(sentence, 7))
    for kept, left_out in ((2, set(parts)), (1, {"they pulled up on the bank"})):
        small = read(folder, kept=kept)
        assert not {use.sentence for use in small.uses()} & left_out
        assert [use.sentence for use in small.uses(CHOSEN)] == ["two banks"]
        texts = " ".join(documents(small))
        assert [one in texts for one in parts] == [False, kept == 1]
    said = "kept, the number of held-out parts of the examples, is 0; pass 1 to 11"
    with pytest.raises(ValueError, match=said):
        read(folder, kept=0)


def test_nothing_held_out_is_learned_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        wordnet, "twelfth_of", lambda sentence: REPORTED if sentence == "the Bank's doors" else 5
    )
    path = folder / "data.verb"
    path.write_text(path.read_text().replace("so!", "see, the bank's doors are open"))
    small = read(folder)
    texts = list(documents(small))
    assert texts[1] == "bank: an institution: money. two banks"
    # the other example is left out, because it contains the held-out example
    assert texts[3] == "bank, look up: tip. he banked the plane"
    assert [use.sentence for use in small.uses(REPORTED)] == ["the Bank's doors"]
    assert {"two banks", "he banked the plane"} <= {use.sentence for use in small.uses()}
    assert not any("doors" in use.sentence for use in small.uses())


def test_a_document_ends_its_sentences(folder: Path) -> None:
    synset = read(folder).synsets[3]
    assert document(synset, synset.examples) == "bank, look up: tip. he banked the plane. so!"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data\.noun is missing: apt-get install"):
        read(tmp_path)
