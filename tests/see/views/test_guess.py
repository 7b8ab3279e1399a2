"""Tests that `guess` shows the words and probabilities of `predict` in every output."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import qkv
from models import decoders
from models.support import mask_bert
from qkv.see import guess

TEXT = "the cat sat on the [MASK]."
TWO = "the [MASK] ran. a [MASK] sat"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> qkv.Model:
    folder = tmp_path_factory.mktemp("mask") / "model"
    mask_bert(folder)
    return qkv.load(folder)


def listed(guesses: list[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"word": word, "probability": share} for word, share in guesses]


def test_the_numbers_are_those_of_predict(model: qkv.Model) -> None:
    view = guess(TWO, model=model, top_k=3)
    first, second = model.predict(TWO, top_k=3)
    found = json.loads(json.dumps(view.to_dict()))
    assert found["guesses"] == [
        {"token": 2, "before": listed(first), "after": None},
        {"token": 6, "before": listed(second), "after": None},
    ]
    assert (found["ablate"], found["hide"]) == ([], [])
    assert found["tokens"] == model.tokenize(TWO).tokens
    (one, share), (other, less) = first[0], second[0]
    said = f"Most likely words, in the order of the gaps: {one}, {share:.2f}; {other}, {less:.2f}."
    assert view.sentence == found["sentence"] == said


def test_guesses_with_edits_are_shown_beside_the_original(model: qkv.Model) -> None:
    edits: dict[str, Any] = {"ablate": [(0, 1), (1, None)], "hide": ["cat", 3]}
    view = guess(TEXT, model=model, top_k=4, **edits)
    (before,), (after,) = model.predict(TEXT, 4), model.predict(TEXT, 4, **edits)
    found = view.to_dict()
    assert found["guesses"] == [{"token": 6, "before": listed(before), "after": listed(after)}]
    assert (found["ablate"], found["hide"]) == ([[0, 1], [1, None]], ["cat", 3])
    name = "without layer 0, head 1 and layer 1, cat and token 3 hidden"
    assert view.sentence == (
        f"Most likely: {before[0][0]}, {before[0][1]:.2f}; "
        f"{name}: {after[0][0]}, {after[0][1]:.2f}."
    )


def test_a_terminal_has_a_bar_for_each_word_side_by_side(model: qkv.Model) -> None:
    view = guess(TEXT, model=model, top_k=4, hide="cat")
    lines = str(view).splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("At token 6, the gap (the prob")]
    assert lines[at + 1].split("  ")[0] == "as it is"
    assert lines[at + 1].endswith("cat hidden")
    (before,), (after,) = model.predict(TEXT, 4), model.predict(TEXT, 4, hide="cat")
    for line, one, other in zip(lines[at + 2 :], before, after, strict=True):
        numbers = re.findall(r"(\S+) +(\d\.\d{3})", line)
        assert numbers == [(word, f"{share:.3f}") for word, share in (one, other)]
    assert "█" in lines[at + 2]
    alone = str(guess(TEXT, model=model, top_k=4))
    assert "as it is" not in alone
    assert alone.count("\n") == 8


def test_pictures_and_pages_have_the_words(model: qkv.Model, tmp_path: Path) -> None:
    view = guess(TEXT, model=model, top_k=2, hide="cat")
    (before,), (after,) = model.predict(TEXT, 2), model.predict(TEXT, 2, hide="cat")
    view.to_svg(tmp_path / "a.svg")
    view.to_html(tmp_path / "a.html")
    drawn = " ".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext())
    for text in (drawn, (tmp_path / "a.html").read_text()):
        assert view.sentence in text
        for word, share in (*before, *after):
            assert word in text
            assert f"{share:.3f}" in text
    view.to_png(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_decoder_guesses_the_next_word(tmp_path: Path) -> None:
    model = decoders.writer(tmp_path / "writer", "a b", " the")
    view = guess("a b", model=model, top_k=2)
    share = model.predict("a b")[0][0][1]
    assert view.sentence == f"The most likely next word: the, {share:.2f}."
    assert "What comes next (the probability of each word)" in str(view)
    assert view.to_dict()["guesses"][0]["token"] is None
    assert model.tokenize("a b").tokens == ["a", "Ġ", "b"]
    assert guess("the other", model=model).to_dict()["tokens"][0] == "the"
    assert "Ġ" not in str(guess("in the end", model=model)).partition("What comes next")[0]


def test_a_cut_text_draws_one_warning(model: qkv.Model) -> None:
    long = "the [MASK] " + "cat " * 30
    with pytest.warns(UserWarning, match="cut to 16 tokens") as told:
        view = guess(long, model=model, hide="cat")
    assert len(told) == 1
    assert len(view.tokens) == 16


def test_hide_may_be_an_array_and_ablate_an_iterator(model: qkv.Model) -> None:
    view = guess(TEXT, model=model, hide=np.array([2]), ablate=iter([(0, 1)]))
    assert view.after == model.predict(TEXT, hide=[2], ablate=[(0, 1)])


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", {}, "guess: the text is empty"),
        ("the cat", {}, "guess: the text has no mask token"),
        (TEXT, {"top_k": 31}, "guess: top_k is 31"),
        (TEXT, {"hide": "dog"}, "guess: `hide` has 'dog'"),
        (TEXT, {"theme": "blue"}, "guess: theme"),
    ],
)
def test_invalid_arguments_are_refused(
    model: qkv.Model, text: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        guess(text, model=model, **options)
