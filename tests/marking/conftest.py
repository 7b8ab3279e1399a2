"""Fixtures of the tests of marking: files of students, and processes that start quickly."""

import os
import subprocess

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
