"""Tests of the decoder in the package: its files, its card and the text that it writes."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import qkv
from qkv.circuits import head_scores
from qkv.models.files.find import shipped_models

from .offline import lines_offline
from .plain import plain_llama
from .test_shipped import said_of_heads

PLACE = shipped_models()["books-decoder"]
CARD = " ".join((PLACE / "README.md").read_text(encoding="utf-8").split())
CONFIG = json.loads((PLACE / "config.json").read_text(encoding="utf-8"))
SENTENCES = [  # written for this test
    "We sat on the bank of the river and watched the boats go by until it was dark.",
    "The bank lent him what he needed for the shop, and he paid it back within a year.",
    "She put the kettle on the fire, and her sister laid the table for tea.",
    "He carried the child up the stairs, and her mother followed with the lamp.",
    "The street was so narrow that no carriage could pass, and we had to walk.",
    "The old man walked slowly along the wall, and he spoke to nobody.",
    "A lantern hung over the door, and under it stood a man with a letter in his hand.",
    "She never forgave him for what he had said to her father that evening.",
    "All of the village helped with the harvest, and there was a dance when it was over.",
    "The judge asked the witness to speak up, but she could not be heard.",
    "The walls of the cellar were damp all winter, and the books that lay there were spoiled.",
    "The boys climbed the tree to look at the nest, but the birds had left it.",
]


SAID = said_of_heads(CARD, ("copies", "previous", "same", "first", "induction"))


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    return qkv.load("books-decoder")


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    """The decoder's tensors: int8 rows times their scales."""
    found = load_file(PLACE / "model.safetensors")
    scales = {
        name: found.pop(f"{name}_scale").astype(np.float32)
        for name in list(found)
        if f"{name}_scale" in found
    }
    return {
        name: array * scales[name][:, None] if name in scales else array
        for name, array in found.items()
    }


def test_its_logits_are_those_of_the_formulas(
    model: qkv.Model, tensors: dict[str, np.ndarray]
) -> None:
    """The logits equal those of a plain Llama in float64."""
    ids = model.tokenize("She opened the door and looked at the river").ids
    vectors = plain_llama(tensors, CONFIG, ids)
    expected = vectors @ tensors["model.embed_tokens.weight"].astype(np.float64).T
    found = model(ids).logits[0]
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()


def test_its_sizes_are_those_of_its_card(model: qkv.Model) -> None:
    layers, heads, dim = model.num_layers, model.num_heads, model.dim
    assert repr(model) == (
        f"<Model books-decoder: llama, {layers} layers, {heads} heads, vectors of {dim}>"
    )
    assert len(model.tokenizer) == CONFIG["vocab_size"]
    numbers = sum(array.size for array in model.parameters.values()) / 1e6
    groups = CONFIG["num_key_value_heads"]
    assert f"{layers} layers, {heads} query heads on {groups} key and value heads" in CARD
    assert f"vectors of {dim} numbers, a vocabulary of {len(model.tokenizer):,} byte" in CARD
    assert f"{model.max_seq_length} positions, {numbers:.1f} million parameters" in CARD


def test_it_copies_as_its_card_says(model: qkv.Model) -> None:
    """A random sequence occurs twice in each text.

    The score *copies* is the weight from a token to the token after its first occurrence.
    """
    count, rng = 24, np.random.default_rng(1)
    plain = [at for at in range(len(model.tokenizer)) if not model.tokenizer.is_special(at)]
    once = np.stack([rng.choice(plain, count, replace=False) for _ in range(24)])
    trace = model.trace(list(np.concatenate([once, once], axis=1)), names=["pattern"])
    second = np.arange(count, 2 * count)
    found = np.array(
        [
            trace["pattern", layer][:, :, second, second - count + 1].mean(axis=(0, 2))
            for layer in range(model.num_layers)
        ]
    )
    said = SAID["copies"].reshape(found.shape)
    np.testing.assert_allclose(found, said, atol=0.08)
    named = re.findall(r"(\d)\.(\d) \(\d\.\d\d\)", CARD)
    assert named == [(str(i), str(j)) for i, j in np.argwhere(said >= 0.4)]
    assert ("Induction heads, whose score *copies* is 0.4 or more: " in CARD) is bool(named)
    assert (
        "It has no induction head: in every head, the score *copies* is below 0.4." in CARD
    ) is not named


def test_its_heads_do_what_its_card_says(model: qkv.Model) -> None:
    """The tolerance is large, because the card's means are over many more and longer texts."""
    names = ("previous", "same", "first")
    found = head_scores(model, [" ".join(SENTENCES[at : at + 3]) for at in (0, 3, 6, 9)], names)
    for name in names:
        np.testing.assert_allclose(found[name].ravel(), SAID[name], atol=0.15, err_msg=name)


def test_it_writes_at_once_and_with_no_network(tmp_path: Path) -> None:
    program = """
from qkv.cli import main

try:
    main(["generate", "She opened the door and"])
except SystemExit as left:
    assert not left.code
"""
    written = " ".join(lines_offline(program, tmp_path))
    assert written.startswith("She opened the door and ")
    assert len(written.split()) >= 8


def test_threads_that_share_a_model_get_the_results_of_one_thread(model: qkv.Model) -> None:
    def results(shared: qkv.Model, text: str) -> tuple[np.ndarray, str]:
        return shared.trace(text)["resid_post", 4], shared.generate(text, max_new_tokens=3)

    expected = [results(model, text) for text in SENTENCES]
    fresh = qkv.load("books-decoder")  # so that the threads also race for what the first call makes
    with ThreadPoolExecutor(len(SENTENCES)) as pool:
        found = pool.map(results, [fresh] * len(SENTENCES), SENTENCES)
        for text, (residual, written), (vectors, words) in zip(
            SENTENCES, found, expected, strict=True
        ):
            np.testing.assert_array_equal(residual, vectors, err_msg=text)
            assert written == words
