"""Fixtures of the tests of marking: files of students, and processes that start quickly."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from qkv_marking import _isolated

from .forked import Forks


@pytest.fixture(scope="module")
def forks():
    if not hasattr(os, "fork"):
        yield None
        return
    forks = Forks(subprocess.Popen)
    yield forks
    forks.end()


@pytest.fixture
def quick(forks, monkeypatch):
    """Fork processes instead of starting Python; forks are twenty times faster."""
    if forks is not None:
        monkeypatch.setattr(_isolated.subprocess, "Popen", forks.start)


@pytest.fixture
def file(tmp_path):
    def write(source, name="mine.py"):
        path = tmp_path / name
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
        return path

    return write


@pytest.fixture
def book(tmp_path):
    def write(*cells: str, tasks: list[str] | None = None) -> Path:
        metadata = {} if tasks is None else {"qkv": {"tasks": tasks}}
        code = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
        words = {"cell_type": "markdown", "source": ["def attention(q, k, v): not code"]}
        path = tmp_path / "mine.ipynb"
        path.write_text(json.dumps({"cells": [words, *code], "metadata": metadata, "nbformat": 4}))
        return path

    return write
