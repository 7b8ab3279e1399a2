"""Tests of the model cards of models trained on books, section by section."""

from pathlib import Path

import numpy as np
import pytest

from learn.support import network
from training import book_ship
from training.books import Book
from training.cards import abouts_of, keep_runs
from training.counting import Corpus
from training.fits import Asked, Said
from training.running import mean_of
from training.shares import in_words


def test_without_a_run_there_is_nothing_to_ship(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not contain a run: make one with"):
        book_ship.ship(tmp_path / "run", tmp_path, tmp_path / "place")
    assert not (tmp_path / "place").exists()


def test_the_card_counts_books_and_the_words_that_are_rare_in_them() -> None:
    listed = [
        Book("a/1", "A", "One", "", "train"),
        Book("a/2", "A", "Two", "", "train"),
        Book("b/1", "B", "Three", "", "test"),
        Book("c/1", "C", "Four", "", "choose"),
        Book("c/2", "C", "Five", "", "choose"),
    ]
    texts = ["The car stopped.", "The car, a phone!", "A train stopped, then."]
    said = book_ship._read(listed, Corpus.of(texts * 2))
    assert said.startswith("2 books of 1 authors from ")
    assert "0.0 million words" in " ".join(said.split())  # 22 words
    assert (
        "held out of training. The 1 books of the first group, which includes all books of five "
        "authors, are only for measuring results. The 2 books of the second group served to choose "
        "between trained models, and between mixtures of training texts."
    ) in " ".join(said.split())
    assert "phone 2 times, car 4 times, computer 0 times" in said


def test_the_card_sums_the_runs_and_lists_their_changes() -> None:
    first = {"after": "build/dictionary", "rate": 0.1, "short": 0.5, "seed": 0}
    abouts = [
        {"step": 1000, "tokens": 40_000, "seconds": 3600.0, "settings": {"recipe": first}},
        {
            "step": 500,
            "tokens": 2_000,
            "seconds": 1800.0,
            "settings": {"recipe": {**first, "after": "/somewhere/run", "rate": 0.2}},
        },
    ]
    said = " ".join(book_ship._trained(abouts).split())
    assert (
        "starting from an encoder that has read only WordNet (`make dictionary`). The training "
        "took 1,500 steps, 42,000 tokens and 1.5 hours" in said
    )
    assert "1.5 hours on one of two cores, in 2 chained runs" in said
    assert (
        "Recipe (name and value of each setting): rate 0.1, short 0.5, seed 0. "
        "Then 500 steps from there, with these" in said
    )
    assert said.endswith("with these changes: rate 0.2.")
    assert "somewhere" not in said
    third = {**abouts[1], "beside": True, "mean": [2, 3]}
    said = " ".join(book_ship._trained([*abouts, third]).split())
    assert "2,000 steps, 44,000 tokens and 2.0 hours on one of two cores, in 3 chained" in said
    assert "runs; the included weights are the mean of runs 2 and 3. `make model`" in said
    assert said.endswith(
        "changes: rate 0.2. In parallel, another run took 500 steps from the same start as the "
        "previous run, with these changes: rate 0.2."
    )
    alone = " ".join(book_ship._trained(abouts[:1]).split())
    assert "1,000 steps" in alone
    assert "chained" not in alone


def test_a_run_ships_with_the_model_that_it_went_on_from() -> None:
    numbers: dict[str, float] = {"step": 1, "tokens": 2, "seconds": 3.0}
    first, second, third, fourth = (
        {**numbers, "settings": {"recipe": {"seed": seed}}} for seed in range(4)
    )
    begun = [first, second]
    folders = [Path("second"), Path("third")]
    both = book_ship._together(folders, [begun, [first, third]])
    assert [about["settings"] for about in both] == [
        about["settings"] for about in (first, second, third)
    ]
    assert both[-1]["beside"]
    assert both[-1]["mean"] == [2, 3]
    alone = book_ship._together([Path("second")], [begun])
    assert all("mean" not in about for about in alone)

    folders = [Path("fourth"), Path("shipped")]
    shipped = book_ship._together(folders, [[*both, fourth], both])
    assert len(shipped) == 4
    assert "beside" not in shipped[-1]
    assert shipped[-1]["mean"] == [4, [2, 3]]
    said = " ".join(book_ship._trained(shipped).split())
    assert "in 4 chained runs; the included weights are the mean" in said
    assert "of run 4 and of the previous model (itself the mean of runs 2 and 3)." in said
    said = "shipped already contains the weights of fourth; pass a model that was made without"
    with pytest.raises(ValueError, match=said):
        book_ship._together(folders, [[*shipped, fourth], shipped])


def test_a_shipped_folder_keeps_its_run_records(tmp_path: Path) -> None:
    recipe = {"after": "build/dictionary", "rate": 0.1}
    later = {"after": "build/one", "beside": "build/other", "rate": 0.2}
    about = {"step": 5, "tokens": 7, "seconds": 2.5}
    abouts = [
        {**about, "settings": {"recipe": recipe}, "places": [1]},
        {**about, "settings": {"recipe": later}, "beside": True, "mean": [1, 2], "places": [2]},
    ]
    assert abouts_of(tmp_path) == []
    keep_runs(abouts, tmp_path)
    assert abouts_of(tmp_path) == [
        {**about, "settings": {"recipe": {"rate": 0.1, "after": "dictionary"}}},
        {**about, "settings": {"recipe": {"rate": 0.2}}, "beside": True, "mean": [1, 2]},
    ]


def test_the_mean_of_weights(tmp_path: Path) -> None:
    models = [network(seed=seed).model() for seed in (1, 2)]
    for name, model in zip("ab", models, strict=True):
        model.save(tmp_path / name)
    found = mean_of(tmp_path / "a", tmp_path / "b").parameters
    for name, array in found.items():
        expected = sum(model.parameters[name].astype(np.float64) for model in models) / 2
        np.testing.assert_allclose(array, expected, atol=1e-7)
    assert any(array.std() > 0.01 for array in found.values())


def test_the_table_of_what_fits() -> None:
    asked = [Asked("the cat _ a mouse", frozenset(["ate", "saw"])), Asked("a _", frozenset(["b"]))]
    words = [("ate", "mouse"), ("c", "b")], [("mouse", "saw"), ("c", "d")]
    said = {
        name: [Said(*pair) for pair in zip(asked, each, strict=True)]
        for name, each in zip(("one", "other"), words, strict=True)
    }
    lines = book_ship._fitting(said).splitlines()
    assert lines[0] == "| | the first fits | one of five fits | the first repeats |"
    none, half, both = (in_words(count, 2) for count in range(3))
    assert lines[2] == f"| one | {half} | {both} | {none} |"
    assert lines[3] == f"| other | {none} | {half} | {half} |"
    first = {
        name: [one._replace(words=one.words[:1]) for one in each] for name, each in said.items()
    }
    assert book_ship._fitting(first).splitlines()[2] == f"| one | {half} |"
