"""Folders with small models."""

import pytest

from .support import Folder


@pytest.fixture
def folder(tmp_path):
    """A folder with a small BERT; change it, then `write()` it."""
    return Folder(tmp_path / "model")


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """The path of a small BERT; tests must not change it."""
    return Folder(tmp_path_factory.mktemp("small") / "model").write()
