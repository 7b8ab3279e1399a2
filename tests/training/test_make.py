"""Tests of training on a very small WordNet, and of the folder that `training.ship` makes."""

import json
from pathlib import Path

import numpy as np
import pytest

import qkv
from training import make, ship, told, wordnet
from training.shares import in_words
from training.wordnet import read

SMALL = [
    *("--layers", "1", "--heads", "2", "--dim", "8", "--vocabulary", "120", "--tokens", "400"),
    *("--length", "16", "--uses", "16", "--begin", "0.4", "--whole", "0.3"),
]


@pytest.fixture
def held_out(monkeypatch: pytest.MonkeyPatch) -> str:
    """Hold out one sentence, and return it; its word "pulled" occurs in no other text."""
    sentence = "they pulled up on the bank"
    monkeypatch.setattr(wordnet, "twelfth_of", lambda text: 0 if text == sentence else 7)
    return sentence


def test_a_run_is_made_and_shipped(folder: Path, tmp_path: Path, held_out: str) -> None:
    run, place = tmp_path / "run", tmp_path / "place"
    make.main([*SMALL, "--wordnet", str(folder), "-o", str(run), "--steps", "5"])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [set(row["losses"]) for row in rows] == [
        *[{"masked"}] * 2,
        *[{"masked", "senses"}] * 2,
        {"masked", "senses, late"},
    ]
    vocabulary = json.loads((run / "tokenizer.json").read_text())["model"]["vocab"]
    assert "banked" in vocabulary
    assert not {"pulled", "##ulled"} & set(vocabulary)

    found = ship.ship(run, place, folder, peer=None)
    model = qkv.load(place)
    assert model.trace(held_out)["pattern", 0].shape[1] == 2
    for name, array in qkv.load(run).parameters.items():
        np.testing.assert_array_equal(
            model.parameters[name], array.astype(np.float16).astype(np.float32)
        )
    text = (place / "README.md").read_text()
    last = found["layers"]["layer 0"]
    assert f"| this one, layer 0 | {last['sense']:.3f} | {last['auc']:.3f} |" in text
    assert "5 steps" in text
    assert "All occurrences of a word in its text are masked together or not at all" in text
    chosen = "whose hash modulo 12 is 1; the model was not trained on these examples either."
    assert f"Settings were chosen on the examples {chosen}" in " ".join(text.split())
    assert f"Of 200 everyday words, {len(found['pieces'])} are" in text
    words = found["masked"]
    named = f"it correctly predicts {in_words(0, words['words'])} of these words."
    named += " A word counts only if all its"
    assert named in " ".join(text.split()) or words["top1"]
    assert "heads have a role" in text
    assert isinstance(json.loads((place / "roles.json").read_text()), dict)
    assert (place / "LICENSE.wordnet").read_text() == "a licence, indented\n"


def test_a_run_goes_on_from_another_and_the_card_tells_both(
    folder: Path, tmp_path: Path, held_out: str
) -> None:
    first, second, place = tmp_path / "first", tmp_path / "second", tmp_path / "place"
    make.main([*SMALL, "--wordnet", str(folder), "-o", str(first), "--steps", "3"])
    more = ["--after", str(first), "--held_out", "1", "--rate", "1e-2", "--in_sight", "2"]
    make.main([*SMALL, "--wordnet", str(folder), "-o", str(second), "--steps", "2", *more])
    begun, done = qkv.load(first), qkv.load(second)
    assert (second / "tokenizer.json").read_bytes() == (first / "tokenizer.json").read_bytes()
    for name, array in begun.parameters.items():
        np.testing.assert_allclose(done.parameters[name], array, atol=0.03)  # 2 steps, rate 0.01
    with pytest.raises(ValueError, match="did not continue another run: leave out --mean"):
        ship.ship(first, place, folder, peer=None, mean=True)
    ship.ship(second, place, folder, peer=None, mean=True)
    shipped = qkv.load(place).parameters
    for name, array in begun.parameters.items():
        expected = ((array + done.parameters[name]) / 2).astype(np.float16)
        np.testing.assert_array_equal(shipped[name], expected.astype(np.float32))
    text = (place / "README.md").read_text()
    flowing = " ".join(text.split())
    mean = "The included weights are the mean of the weights before and after these last steps"
    assert f"{mean} (`training/make.py` explains the choice)" in flowing
    assert "5 steps" in text
    other = "held_out 1, in_sight 2.0, rate 0.01"
    assert f"Then 2 steps from there, with these changes: {other}." in text
    assert str(tmp_path) not in text
    assert "whose hash modulo 12 is 1; then the model was also trained on these" in flowing
    assert "visible content words" in text


def test_shipping_keeps_only_stories_that_the_model_tells(
    folder: Path, tmp_path: Path, held_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, place = tmp_path / "run", tmp_path / "place"
    make.main([*SMALL, "--wordnet", str(folder), "-o", str(run), "--steps", "1"])
    asked = {"sentence": "an ox and a [MASK]", "hide": ["ox"], "ablate": [], "reason": "So."}
    one = told.story(qkv.load(run), asked)
    two = {**one, "after": {"word": "elk", "probability": 0.5}}
    told.keep(run, {"searched": 9, "found": 3, "stories": [one, two]})
    ship.ship(run, place, folder, peer=None)
    kept = told.kept_in(place)
    assert [story["sentence"] for story in kept["stories"]] == ["an ox and a [MASK]"]
    assert told.section(kept) in (place / "README.md").read_text()
    assert "ship: 1 stories are left out because this model's guesses" in capsys.readouterr().out
    (run / told.STORIES).unlink()
    ship.ship(run, place, folder, peer=None)  # the stories in the folder stay
    assert told.kept_in(place) == kept


def test_a_run_goes_on_with_its_own_tokenizer(folder: Path, tmp_path: Path, held_out: str) -> None:
    small = read(folder)
    recipe = make.Recipe(
        layers=1, heads=2, dim=8, vocabulary=120, whole=0.3, tokens=40, length=16, uses=4
    )
    make.make(recipe, small, tmp_path / "run", steps=2)
    kept = tmp_path / "run" / "checkpoints" / "tokenizer.json"
    before = kept.read_bytes()
    done = make.make(recipe, small, tmp_path / "run", steps=2, resume=True)
    assert (done.steps, kept.read_bytes()) == (2, before)
    with pytest.raises(ValueError, match="contains a run"):
        make.make(recipe, small, tmp_path / "run", steps=2)
    assert kept.read_bytes() == before


def test_the_card_has_shares_with_their_intervals() -> None:
    found = {
        "copying": {"examples": 800, "another": 8, "right": 64},
        "masked": {"top1": 0.25, "words": 400},
        "masked tokens": {"top1": 0.5, "tokens": 100},
        "pieces": ["fridge", "okay"],
    }
    text = ship._words_in_words(found, {"alike": "base", "held_out": 1, "in_sight": 3.0})
    assert text["another"] == "1.0% (0.5 to 2.0)"
    assert text["right"].startswith("8.0% (6.3 to 10.1)")
    assert text["words_named"] == "25.0% (21.0 to 29.5)"
    assert text["tokens_named"] == "50.0% (40.4 to 59.6)"
    assert (text["pieces"], text["which"]) == ("2", " (fridge, okay)")
    assert "inflected forms" in text["together"]
    assert "then the model was also" in text["choices"]


def test_without_a_run_there_is_nothing_to_ship(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not contain a run: make one with"):
        ship.ship(tmp_path / "run", tmp_path / "place", folder)


def test_invalid_recipes_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="alike='letter': choose word, base or token"):
        make.Recipe(alike="letter")
    with pytest.raises(ValueError, match="held_out=2, but this WordNet was read with kept=1: "):
        make.make(make.Recipe(), read(folder, kept=1), tmp_path / "run", steps=1)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_from_a_model_of_its_own_sizes_only(
    folder: Path, tmp_path: Path, held_out: str
) -> None:
    make.main([*SMALL, "--wordnet", str(folder), "-o", str(tmp_path / "one"), "--steps", "1"])
    more = [*SMALL, "--wordnet", str(folder), "-o", str(tmp_path / "two"), "--steps", "1"]
    with pytest.raises(ValueError, match=r"has hidden_size=8, and the recipe sets \w+=16; "):
        make.main([*more, "--dim", "16", "--after", str(tmp_path / "one")])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        make.main([*more, "--after", str(tmp_path / "nowhere")])


@pytest.mark.parametrize(
    ("alike", "together"), [("word", {"bank"}), ("base", {"bank", "banks"}), ("token", set())]
)
def test_alike_sets_which_words_are_masked_together(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alike: str, together: set[str]
) -> None:
    made = []

    class Seen(make.Masked):
        def __init__(self, *given: object, **named: object) -> None:
            super().__init__(*given, **named)
            made.append(self)

    monkeypatch.setattr(make, "Masked", Seen)
    recipe = make.Recipe(layers=1, heads=2, dim=8, vocabulary=120, whole=0.3, alike=alike)
    make.make(recipe, read(folder), tmp_path / "run", steps=1)
    found = made[0].alike
    if found is None:
        assert not together
    else:
        assert {word for word in ("bank", "banks", "plane") if found(word) == "bank"} == together


def test_some_separate_examples_end_with_a_full_stop(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, texts = make.pieces_of, list[str]()
    monkeypatch.setattr(
        make, "pieces_of", lambda all_, *more: cut(texts.extend(all_) or texts, *more)
    )
    sizes = {"layers": 1, "heads": 2, "dim": 8, "vocabulary": 120, "whole": 0.3}
    recipe = make.Recipe(**sizes, held_out=1, alone=3, ended=2)
    make.make(recipe, read(folder, kept=1), tmp_path / "run", steps=1)
    assert [texts.count(one) for one in ("oxen pull", "oxen pull.", "so!", "so!.")] == [1, 2, 3, 0]
    with pytest.raises(ValueError, match="ended=3, alone=2: `ended` may not exceed `alone`"):
        make.Recipe(alone=2, ended=3)
