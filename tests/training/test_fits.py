"""Tests of two files, `gaps.txt` and `openings.txt`, and of the words that fit.

`gaps.txt` contains sentences with gaps, and `openings.txt` contains the first words of sentences.
"""

from pathlib import Path

import pytest

import qkv
from training.fits import GAPS, OPENINGS, PARTS, Asked, Said, asked, continued, guessed, main


def test_gap_and_opening_files_are_well_formed() -> None:
    for path, gaps in ((GAPS, 1), (OPENINGS, 0)):
        texts = [one.text for part in PARTS for one in asked(path, part)]
        assert len(set(texts)) == len(texts)
        assert all(text.split().count("_") == text.count("_") == gaps for text in texts)
        assert all(text == text.casefold() for text in texts)
        for part in PARTS:
            for one in asked(path, part):
                assert all(word.replace("'", "").isalpha() for word in one.fitting), one
                assert one.fitting == {word.casefold() for word in one.fitting}


def test_a_line_without_words_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gaps.txt"
    path.write_text("# about\n[test]\na _ = b\na cat\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^fits: gaps\.txt, line 4: write TEXT = WORD WORD"):
        asked(path)


def test_what_fits_and_what_repeats() -> None:
    gap = Asked("the cat sat on the _", frozenset(["mat", "rug"]))
    assert Said(gap, ("rug", "cat")).fits
    assert not Said(gap, ("cat", "rug")).fits
    assert Said(gap, ("cat", "rug")).among(2)
    assert Said(gap, ("cat",)).repeats
    assert not Said(gap, ("the",)).repeats  # "the" is not a content word
    assert not Said(gap, ()).fits
    assert not Said(gap, ()).repeats


def test_an_encoder_guesses_and_a_decoder_writes() -> None:
    """The words equal those of `predict` and `generate` of the shipped models."""
    encoder, decoder = qkv.load("books"), qkv.load("books-decoder")
    [gap] = guessed(encoder, [Asked("he drank a glass of _", frozenset(["water"]))])
    [expected] = encoder.predict("he drank a glass of [MASK]")
    assert gap.words == tuple(word for word, _ in expected)
    [opening] = continued(decoder, [Asked("once upon a", frozenset(["time"]))])
    text = str(decoder.generate("once upon a", max_new_tokens=6))
    assert opening.words == (text.split()[0].strip(".,;:"),)


class Writes:
    """A model that writes one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def generate(self, prompt: str, max_new_tokens: int) -> str:
        return self.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" time, there", ("time",)),
        ("s were", ()),
        (' "Oh" said', ("oh",)),
        (" 3 men", ()),
        ("", ()),
    ],
)
def test_the_next_word_is_a_separate_word(text: str, words: tuple[str, ...]) -> None:
    [found] = continued(Writes(text), [Asked("the door", frozenset())])
    assert found.words == words


def test_the_command_measures_the_first_guess() -> None:
    said: list[str] = []
    main(["books-decoder", "--choose", "--wrong"], said.append)
    assert said[0].startswith("books-decoder: the first guess fits in ")
    assert " of 25, " in said[0]
    assert len(said) == 1 + 25 - int(said[0].split("fits in ")[1].split()[0])
