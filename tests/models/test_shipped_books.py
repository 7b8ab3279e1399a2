"""Tests of the models that were trained on books: their files and vocabularies."""

from __future__ import annotations

import pytest
from safetensors import safe_open

import qkv
from qkv.models.files.find import shipped_models
from training.books import is_dropped

PLACE = shipped_models()["books"]
CARD = " ".join((PLACE / "README.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    return qkv.load("books")


def test_both_models_are_small_and_their_matrices_rows_of_int8() -> None:
    places = [shipped_models()[name] for name in ("books", "books-decoder")]
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
    """In a decoder, only tokens that begin with a blank count as words."""
    tokens = qkv.load(name).tokenizer.vocabulary
    begin = "\u0120" if name == "books-decoder" else ""
    words = {token.removeprefix(begin) for token in tokens if token.startswith(begin)}
    assert len(words) > 3000
    assert not any(word.isalpha() and is_dropped(word.casefold()) for word in words)
