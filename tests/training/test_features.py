"""Tests of the autoencoder of docs/features.md: its parts by hand, its files and its numbers."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import qkv
from qkv.circuits import SAE, scan
from qkv.learn._tokenizer import train_tokenizer
from qkv.models.untrained import fresh_model
from training import features
from training.book_decoder import Recipe

KEPT = features.before()


@pytest.fixture(scope="module")
def decoder() -> qkv.Model:
    return qkv.load(features.NAME)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(json.loads(features.PASSAGES.read_bytes()))


def test_passages_are_whole_sentences_of_some_length() -> None:
    """A passage has 80 to 360 characters; shorter runs and longer sentences are left out."""
    one = "x" * 149 + "."
    runs = [[one, one, one], ["Short."], ["y" * 361], ["z" * 79], ["z" * 80]]
    assert list(features.passages(runs)) == [f"{one} {one}", one, "z" * 80]


def test_the_share_that_tokens_explain() -> None:
    """Token 1 has the values 0 and 2, token 2 has the value 4; token 3 is too rare to count."""
    rows = np.array([[0.0], [2.0]] * 10 + [[4.0]] * 20 + [[99.0]])
    ids = np.array([1] * 20 + [2] * 20 + [3])
    # The mean of the 40 frequent rows is 2.5. Their squared distances from this mean sum to
    # 10 * 2.5**2 + 10 * 0.5**2 + 20 * 1.5**2 = 110. The mean of token 1's rows is 1, and the mean
    # of token 2's rows is 4. The squared distances of the rows from these means sum to 20.
    assert features.of_tokens(rows, ids) == pytest.approx(1 - 20 / 110, rel=1e-12)


def test_zeroing_a_layer_gives_uniform_probabilities(decoder: qkv.Model) -> None:
    """Norms, attention and MLP map 0 to 0, so all 8,192 logits are 0."""
    eye = np.eye(decoder.dim)
    twice = np.concatenate([eye, -eye], axis=1)  # x = relu(x) - relu(-x)
    whole = SAE(twice, twice.T, at=("resid_post", 3))
    found = features.measured(decoder, whole, ["The cat sat on the mat and looked at me."])
    assert found["loss_zero"] == pytest.approx(math.log(8192), abs=1e-4)
    assert found["loss_spliced"] == pytest.approx(found["loss"], abs=1e-3)
    assert found["recovered_of_zero"] == pytest.approx(1, abs=1e-3)
    assert found["explained_variance"] == pytest.approx(1, abs=1e-4)


class Found:
    """A scan in which feature n has n examples."""

    density = np.linspace(0, 1, 200)

    def __len__(self) -> int:
        return 200

    def examples(self, number: int) -> list[SimpleNamespace]:
        one = SimpleNamespace(value=1.5, number=0, tokens=["a", "b"], position=1)
        return [one] * number


def test_features_are_drawn_and_the_first_with_a_name_are_shown() -> None:
    drawn = features.named(Found(), {})["drawn"]
    assert len(set(drawn)) == 60
    assert min(drawn) >= features.FIRES
    names = {number: f"name {number}" for number in sorted(drawn[5:30])}
    found = features.named(Found(), names | {drawn[7]: ""})
    assert (found["named"], found["unnamed"]) == (24, 36)
    expected = [*drawn[5:7], *drawn[8:18]]
    assert [one["feature"] for one in found["shown"]] == expected
    assert found["shown"][0]["name"] == f"name {drawn[5]}"
    assert found["shown"][0]["examples"][0]["token"] == "b"
    assert features.named(Found(), {}, seed=1)["drawn"] != drawn


def test_sae_is_trained_measured_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["the cat sat on the mat and ran", "a dog ran to the cat and sat down"] * 20
    recipe = Recipe(layers=2, heads=2, kv_heads=1, dim=16, hidden=16, length=32)
    tokenizer = train_tokenizer(words, "bytes", 300)
    model = fresh_model(recipe.config(tokenizer), tokenizer, seed=1)
    model.save(tmp_path / "model")
    monkeypatch.setattr(features, "NAME", str(tmp_path / "model"))
    monkeypatch.setattr(features, "drawn", lambda source, part: words)
    files = {"FOLDER": "sae", "RESULTS": "sae.json", "PASSAGES": "texts.json", "NAMES": "names.csv"}
    for name, file in files.items():
        monkeypatch.setattr(features, name, tmp_path / file)
    for name, value in {"FEATURES": 8, "K": 2, "TEXTS": 30, "DRAWN": 2, "FIRES": 1}.items():
        monkeypatch.setattr(features, name, value)
    said: list[str] = []
    features.main(["books", "--tokens", "2000"], said.append)
    kept = json.loads((tmp_path / "sae.json").read_bytes())
    assert len(kept["of_tokens"]) == 2
    assert SAE.load(tmp_path / "sae").at == f"blocks.{kept['layer']}.hook_resid_post"
    assert kept["held_out"]["tokens"] == sum(len(model.tokenize(one).ids) for one in words)
    assert kept["held_out"]["l0"] <= 2
    assert (tmp_path / "names.csv").read_text(encoding="utf-8") == "feature,name\n"
    features.main([], said.append)
    reading = json.loads((tmp_path / "sae.json").read_bytes())["reading"]
    assert (reading["named"], reading["unnamed"]) == (0, 2)
    assert all(str(number) in "".join(said) for number in reading["drawn"])


def test_the_shipped_sae_belongs_to_the_shipped_decoder(decoder: qkv.Model) -> None:
    assert decoder.sha256 == KEPT["model_sha256"], "train it again: python -m training.features"
    sae = SAE.load(features.FOLDER)
    assert (sae.at, sae.k, sae.num_features) == (KEPT["at"], KEPT["k"], KEPT["features"])
    assert np.argmin(KEPT["of_tokens"]) == KEPT["layer"]
    assert sum(path.stat().st_size for path in features.FOLDER.iterdir()) < 1.5e6


def test_the_shipped_sae_reproduces_the_kept_numbers(decoder: qkv.Model, texts: list[str]) -> None:
    """The shipped passages give the kept numbers, up to float rounding on other processors."""
    expected = KEPT["shipped_texts"]
    found = SAE.load(features.FOLDER).evaluate(decoder, texts[: expected["passages"]])
    for name, value in found.items():
        assert value == pytest.approx(expected[name], abs=2e-3), name


def test_shown_features_fire_at_their_kept_examples(decoder: qkv.Model, texts: list[str]) -> None:
    reading = KEPT["reading"]
    assert len(reading["drawn"]) == reading["named"] + reading["unnamed"] == features.DRAWN
    assert len(reading["shown"]) == features.SHOWN
    found = scan(decoder, texts, of=SAE.load(features.FOLDER), top=1)
    for one in reading["shown"]:
        best, kept = found.examples(one["feature"])[0], one["examples"][0]
        assert best.value == pytest.approx(kept["value"], abs=0.05)
        assert best.position == kept["position"]
        # texts that begin with the same token have the same value there, up to rounding
        tied = one["examples"][1]["value"] == kept["value"]
        assert tied or best.number == kept["text"]
        assert one["density"] == pytest.approx(found.density[one["feature"]], abs=2e-4)
