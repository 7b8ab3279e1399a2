"""Tests of the encoder in the package: its files, its card and its predictions."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv.circuits import head_scores
from qkv.models.files.find import shipped_models
from training import copying, everyday, told

from .offline import lines_offline

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def card() -> str:
    """Return the encoder's card as one line."""
    return " ".join((shipped_models()["books"] / "README.md").read_text(encoding="utf-8").split())


STORIES = told.kept_in(shipped_models()["books"])
WATER = [
    "We sat on the bank of the river and watched the water.",
    "The canoe was pulled up on the bank of the stream.",
    "Trees grow along the bank of the lake.",
    "They fished from the muddy bank.",
    "The river flooded its left bank.",
    "The boat struck the bank and sank.",
]
MONEY = [
    "He cashed a check at the bank.",
    "The bank raised its interest rates.",
    "She keeps her money in the bank.",
    "The bank lent him money to buy a house.",
    "He owes the bank a large sum.",
    "The bank paid interest on the deposit.",
]
OTHERS = [
    "She reads the paper every morning.",
    "He was hit by a car.",
    "The dog barks at strangers.",
    "A small boat crossed the lake.",
    "The chef chopped the onions and fried them in butter.",
    "The judge sentenced the thief to two years in prison.",
    "Snow covered the roofs of the village.",
    "The pilot landed the plane safely in heavy fog.",
    "Rain fell all night and the streets were flooded by morning.",
    "The teacher asked the students to read the first chapter of the book.",
    "The soldiers marched through the desert without food or water.",
    "The carpenter built a table from oak and polished it for days.",
]


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    return qkv.load("books")


def test_its_sizes_are_those_of_its_config_and_its_card(model: qkv.Model, card: str) -> None:
    config = json.loads((shipped_models()["books"] / "config.json").read_text())
    assert config["model_type"] == "bert"
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    dim, words = config["hidden_size"], config["vocab_size"]
    assert repr(model) == f"<Model books: bert, {layers} layers, {heads} heads, vectors of {dim}>"
    assert len(model.tokenizer) == words
    numbers = sum(array.size for array in model.parameters.values()) / 1e6
    assert f"{layers} layers, {heads} heads, vectors of {dim} numbers, a vocabulary of" in card
    assert f"a vocabulary of {words:,} lower-case Word" in card
    assert f"{model.max_seq_length} positions, {numbers:.1f} million parameters" in card


def test_the_roles_of_its_heads_are_those_of_its_card(card: str) -> None:
    kept = json.loads((shipped_models()["books"] / "roles.json").read_text(encoding="utf-8"))
    (count,) = re.findall(
        r"By the rule of `training/roles.py`, (\d+) of 24 heads have a role", card
    )
    assert len(kept) == len(roles_in(card)) >= int(count)
    for head, (role, figure) in kept.items():
        assert f"| {head} | {role} {figure:.2f}" in card


def test_the_licence_of_each_model_goes_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    places = [place / "LICENSE.wordnet" for place in shipped_models().values()]
    assert len(places) == 2
    assert set(project["license-files"]) == {
        "LICENSE",
        *(str(path.relative_to(ROOT)) for path in places),
    }
    assert all(path.is_file() for path in places)


def test_it_loads_with_nothing_but_what_is_installed(tmp_path: Path) -> None:
    program = 'import qkv\n\nprint(qkv.load().trace("I sat on the bank.").tokens)'
    [tokens] = lines_offline(program, tmp_path)
    assert tokens == "['[CLS]', 'i', 'sat', 'on', 'the', 'bank', '.', '[SEP]']"


def alike(model: qkv.Model, layer: int) -> np.ndarray:
    """Return the cosines (12, 12) between the vectors of *bank*, river banks first."""
    vectors = []
    for trace in model.trace([*WATER, *MONEY]):
        vectors.append(trace.hidden_states[layer][0, trace.tokens.index("bank")])
    unit = np.array(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


def test_vectors_of_bank_cluster_by_sense(
    model: qkv.Model,
) -> None:
    same = np.kron(np.eye(2, dtype=bool), np.ones((6, 6), bool)) & ~np.eye(12, dtype=bool)
    other = np.kron(np.eye(2, dtype=bool)[::-1], np.ones((6, 6), bool))
    first, last = alike(model, 0), alike(model, -1)
    near, far = (np.where(kind, last, 0).sum(axis=1) / kind.sum(axis=1) for kind in (same, other))
    assert (near - far).min() > 0.05  # for each *bank*
    assert last[same].mean() > last[other].mean() + 0.2
    assert abs(first[same].mean() - first[other].mean()) < 0.05  # embeddings alone do not tell


def said_of_heads(card: str, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the columns (layers * heads,) of a card's table of heads, by name."""
    rows = re.findall(r"\| \d\.\d " + r"\| (\d\.\d\d) " * len(names), card)
    return dict(zip(names, np.array(rows, np.float64).T, strict=True))


def roles_in(card: str) -> list[list[str]]:
    """Return the roles of each head that has a role."""
    return [row.split(", ") for row in re.findall(r"\| \d\.\d \| ([a-z][^|]*) \|", card)]


def test_the_card_counts_the_roles_in_its_table(card: str) -> None:
    said = re.search(r"(\d+) of 24 heads have a role.*?; (\d+) of the heads", card)
    assert said is not None
    rows = roles_in(card)
    alone = [row for row in rows if all(role.startswith("hidden ") for role in row)]
    ends = [row for row in rows if all(role.split()[0] in ("first", "last") for role in row)]
    # the card's count includes at most 3 heads that only attend to [CLS] (first) or [SEP] (last)
    counted = len(rows) - max(0, len(ends) - 3)
    assert [counted, len(alone)] == [int(count) for count in said.groups()]
    assert len(rows) >= 8
    assert all(float(role.split()[-1]) >= 0.4 for row in rows for role in row)


def test_its_heads_do_what_its_card_says(model: qkv.Model, card: str) -> None:
    """The tolerance is large, because the card's means are over many more sentences."""
    said = said_of_heads(card, ("previous", "next", "same", "first", "last"))
    del said["same"]  # the card counts this role differently
    found = head_scores(model, [*WATER, *MONEY, *OTHERS], said)
    for name, column in said.items():
        np.testing.assert_allclose(found[name].ravel(), column, atol=0.15, err_msg=name)


def test_it_seldom_predicts_a_visible_word_for_a_masked_one(model: qkv.Model) -> None:
    """For a masked word, the model seldom guesses another content word of the same sentence.

    The test masks each content word once, if the word is a single token. The previous encoder
    guessed another content word in 28 of 77 cases.
    """
    hidden = [one for text in (*WATER, *MONEY, *OTHERS) for one in copying.examples_of(text)]
    hidden = [one for one in hidden if copying.place_of(one, model.tokenizer) is not None]
    assert len(hidden) > 70
    seen = copying.copying(model, hidden)["another"]
    assert seen < 0.12 * len(hidden)


def test_the_card_names_the_everyday_words_that_are_split(model: qkv.Model, card: str) -> None:
    found = everyday.in_pieces(model.tokenizer)
    assert f"Of {len(everyday.WORDS)} everyday words, {len(found)} are split" in card
    assert f"({', '.join(found)})" in card
    assert len(found) < 10


def test_the_card_contains_its_five_stories() -> None:
    assert len(STORIES["stories"]) == 5
    assert 5 < STORIES["found"] < STORIES["searched"]
    assert told.section(STORIES) in (shipped_models()["books"] / "README.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("story", STORIES["stories"], ids=lambda story: story["sentence"])
def test_its_stories_match_its_predictions(model: qkv.Model, story: dict) -> None:
    edit = {kind: story[kind] for kind in ("hide", "ablate")}
    assert sum(map(len, edit.values())) == 1
    words = set(re.findall(r"\w+", story["sentence"].lower()))
    guesses = []
    for told_of, options in ((story["before"], {}), (story["after"], edit)):
        [[(word, probability), *_]] = model.predict(story["sentence"], **options)
        assert (word, round(probability, 2)) == (
            told_of["word"],
            pytest.approx(told_of["probability"], abs=0.02),
        )
        guesses.append(word)
    assert len({*guesses} - words) == 2
    assert all(guess.isalpha() for guess in guesses)
    assert story["reason"].endswith(".")
