"""The model that comes with qkv: what its files promise, and what is known of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import qkv
from qkv.models.files.find import shipped

PLACE = shipped()["wordnet"]
STREAM = [
    "We sat on the bank of the river and watched the water.",
    "The canoe was pulled up on the bank of the stream.",
]
MONEY = [
    "He cashed a check at the bank.",
    "The bank raised its interest rates.",
]


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    return qkv.load("wordnet")


def test_it_is_small_and_of_float16() -> None:
    assert (PLACE / "model.safetensors").stat().st_size < 8e6
    with safe_open(PLACE / "model.safetensors", "numpy") as file:
        kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert kinds == {"F16"}


def test_its_sizes(model: qkv.Model) -> None:
    config = json.loads((PLACE / "config.json").read_text())
    assert config["model_type"] == "bert"
    assert 3e6 < sum(array.size for array in model.parameters.values()) < 4e6
    assert repr(model) == "<Model wordnet: bert, 4 layers, 6 heads, vectors of 192>"


def test_its_card_and_the_licence_of_its_source_are_beside_it() -> None:
    card = (PLACE / "README.md").read_text(encoding="utf-8")
    assert "| chance | 0.292 | 0.500 |" in card
    licence = (PLACE / "LICENSE.wordnet").read_text(encoding="utf-8")
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in licence
    assert "this entire notice" not in card  # it stands in one place


def test_it_loads_with_nothing_but_what_is_installed(tmp_path: Path) -> None:
    program = """
import socket, sys

def refuse(*_):
    raise AssertionError("asks the network")

socket.socket.connect = socket.getaddrinfo = refuse
import qkv

print(qkv.load().trace("I sat on the bank.").tokens)
print(sorted({"huggingface_hub", "torch", "matplotlib"} & set(sys.modules)))
"""
    environment = {"HF_HOME": str(tmp_path), "PATH": "/nonexistent", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | {"PYTHONPATH": str(Path(qkv.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    tokens, imported = done.stdout.splitlines()
    assert tokens == "['[CLS]', 'i', 'sat', 'on', 'the', 'bank', '.', '[SEP]']"
    assert imported == "[]"


def test_banks_of_rivers_are_nearer_to_each_other_than_to_those_that_hold_money(
    model: qkv.Model,
) -> None:
    vectors = []
    for trace in (model.trace(text) for text in (*STREAM, *MONEY)):
        vectors.append(trace.hidden_states[-1][0, trace.tokens.index("bank")])
    unit = np.array(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)
    alike = unit @ unit.T
    assert min(alike[0, 1], alike[2, 3]) > alike[:2, 2:].max() + 0.04


def test_one_head_looks_at_the_token_before_and_one_at_the_next(model: qkv.Model) -> None:
    scores = []
    for trace in (model.trace(text) for text in (*STREAM, *MONEY)):
        weights = np.concatenate(trace.attentions)  # (layers, heads, T, T)
        scores.append([weights.diagonal(k, 2, 3).mean(-1) for k in (-1, 1)])
    previous, after = np.mean(scores, axis=0)
    assert previous.max() > 0.6
    assert after.max() > 0.6


def test_it_names_a_hidden_word(model: qkv.Model) -> None:
    text = model.tokenizer.tokenize("a large body of salt [MASK].")
    logits = model(text.ids[None]).logits
    best = np.argsort(-logits[0, text.tokens.index("[MASK]")])[:10]
    assert "water" in [model.tokenizer.decode([one]) for one in best]
