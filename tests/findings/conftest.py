"""Fixtures for tests of findings: models, and findings of the shipped models."""

from pathlib import Path

import numpy as np
import pytest

import qkv
from models.support import mask_bert

GLASS = "She drank a glass of [MASK]."


@pytest.fixture(scope="session")
def model() -> qkv.Model:
    return qkv.load("books")


@pytest.fixture(scope="session")
def exact() -> qkv.Model:
    return qkv.load("books", dtype=np.float64)


@pytest.fixture(scope="session")
def decoder() -> qkv.Model:
    return qkv.load("books-decoder")


@pytest.fixture(scope="session")
def glass(model: qkv.Model) -> qkv.Finding:
    return qkv.finding(model, GLASS, hide="glass", claim="A glass makes it wine.")


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a BERT that is not shipped with qkv."""
    made = tmp_path_factory.mktemp("mask") / "small"
    mask_bert(made)
    return made
