"""Folders with small models, and small models that tests must not change."""

import numpy as np
import pytest

from qkv.models import load

from .small_models import CONFIGS, write_small
from .support import Folder


@pytest.fixture
def folder(tmp_path):
    """A folder with a small BERT; change it, then `write()` it."""
    return Folder(tmp_path / "model")


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """The path of a small BERT; tests must not change it."""
    return Folder(tmp_path_factory.mktemp("small") / "model").write()


@pytest.fixture(scope="session")
def double(small):
    """The small BERT in float64."""
    return load(small, dtype=np.float64)


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """A small Llama in float64; its queries share key heads."""
    folder = tmp_path_factory.mktemp("llama") / "llama"
    return load(write_small(folder, CONFIGS["llama"]), dtype=np.float64)
