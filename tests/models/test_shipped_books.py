"""The encoder that has read books: what its files promise, and what is known of it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from safetensors import safe_open

import qkv
from qkv.models.files.find import shipped
from training import bias, book_ship, fits
from training.books import is_dropped

PLACE = shipped()["books"]
CARD = " ".join((PLACE / "README.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    return qkv.load("books")


def test_both_models_are_small_and_their_matrices_rows_of_int8() -> None:
    places = [shipped()[name] for name in ("books", "books-decoder")]
    files = ("model.safetensors", "tokenizer.json")
    assert sum((place / name).stat().st_size for place in places for name in files) < 10.5e6
    for place in places:
        with safe_open(place / "model.safetensors", "numpy") as file:
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        kinds = {name: (one.get_dtype(), len(one.get_shape())) for name, one in found.items()}
        assert set(kinds.values()) == {("I8", 2), ("F16", 1)}
        matrices = {name for name, (kind, _) in kinds.items() if kind == "I8"}
        assert {f"{name}_scale" for name in matrices} == {
            name for name in kinds if name.endswith("_scale")
        }


@pytest.mark.parametrize("name", ["books", "books-decoder"])
def test_no_dropped_word_is_in_a_vocabulary(name: str) -> None:
    """A piece within words, without a blank before it, is no word of a decoder's."""
    tokens = qkv.load(name).tokenizer.vocabulary
    begin = "\u0120" if name == "books-decoder" else ""
    words = {token.removeprefix(begin) for token in tokens if token.startswith(begin)}
    assert len(words) > 3000
    assert not any(word.isalpha() and is_dropped(word.casefold()) for word in words)


def test_its_guesses_fit_as_often_as_its_card_says(model: qkv.Model) -> None:
    """Another processor may round a guess or two otherwise."""
    gaps = fits.asked(fits.GAPS)
    said = fits.guessed(model, gaps)
    (row,) = re.findall(r"\| this one \| (\d+\.\d)% [^|]*\| (\d+\.\d)% [^|]*\| (\d+\.\d)% ", CARD)
    found = [sum(one.among(count) for one in said) for count in (1, fits.FIVE)]
    found.append(sum(one.repeats for one in said))
    np.testing.assert_allclose(found, [float(one) / 100 * len(gaps) for one in row], atol=3)


def test_the_card_has_the_ten_sentences_as_they_are_answered(model: qkv.Model) -> None:
    lines = (PLACE / "README.md").read_text(encoding="utf-8").splitlines()
    rows = list(book_ship.ten(model))
    assert len(rows) == 10
    assert sum(row in lines for row in rows) >= 7  # a chance may be rounded otherwise


def test_no_guess_about_people_is_a_dropped_word(model: qkv.Model) -> None:
    found = bias.measured(model)["groups"]
    assert sum(row["prompts"] for row in found.values()) == 500
    assert sum(row["dropped"] for row in found.values()) == 0
