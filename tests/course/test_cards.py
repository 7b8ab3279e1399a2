"""Test the measurements on the cards of the shipped models."""

import re

import numpy as np
import pytest

import qkv
from qkv.models.files.find import shipped_models
from training import bias, book_ship, fits, prose


def card(name: str) -> str:
    return (shipped_models()[name] / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def encoder() -> qkv.Model:
    return qkv.load("books")


@pytest.fixture(scope="module")
def decoder() -> qkv.Model:
    return qkv.load("books-decoder")


def test_the_share_of_fitting_guesses_matches_the_card(encoder: qkv.Model) -> None:
    """One or two guesses may differ, because processors round differently."""
    gaps = fits.asked(fits.GAPS)
    said = fits.guessed(encoder, gaps)
    (row,) = re.findall(
        r"\| this one \| (\d+\.\d)% [^|]*\| (\d+\.\d)% [^|]*\| (\d+\.\d)% ",
        " ".join(card("books").split()),
    )
    found = [sum(one.among(count) for one in said) for count in (1, fits.FIVE)]
    found.append(sum(one.repeats for one in said))
    np.testing.assert_allclose(found, [float(one) / 100 * len(gaps) for one in row], atol=3)


def test_the_card_shows_the_models_guesses_for_its_ten_sentences(encoder: qkv.Model) -> None:
    lines = card("books").splitlines()
    rows = list(book_ship.ten(encoder))
    assert len(rows) == 10
    assert sum(row in lines for row in rows) >= 7  # processors round probabilities differently


def test_no_guess_about_people_is_a_dropped_word(encoder: qkv.Model) -> None:
    found = bias.measured(encoder)["groups"]
    assert sum(row["prompts"] for row in found.values()) == 500
    assert sum(row["dropped"] for row in found.values()) == 0


def test_the_share_of_fitting_next_words_matches_the_card(decoder: qkv.Model) -> None:
    """One or two words may differ, because processors round differently."""
    openings = fits.asked(fits.OPENINGS)
    found = sum(one.fits for one in fits.continued(decoder, openings))
    (said,) = re.findall(r"\| this one \| (\d+\.\d)% ", " ".join(card("books-decoder").split()))
    assert found == pytest.approx(float(said) / 100 * len(openings), abs=2)
    assert found > len(openings) / 2


def test_it_seldom_loops_and_ends_its_sentences(decoder: qkv.Model) -> None:
    """Count the continuations of 100 prompts that loop, and those that end a sentence.

    The limits leave room, because processors round differently.
    """
    found = prose.continued(decoder, ())
    assert found["texts"] == 100
    assert found["loop"] <= 5
    assert found["end"] >= 85


def test_the_card_shows_texts_that_the_decoder_writes(decoder: qkv.Model) -> None:
    lines = book_ship.written(decoder)
    text = card("books-decoder").splitlines()
    assert len(lines) == 3
    assert sum(line in text for line in lines) >= 2
