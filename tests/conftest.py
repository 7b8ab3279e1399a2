"""Settings that every test shares: fixed random cases in CI, no network, no screen."""

import os
import sys

import pytest
from hypothesis import settings

from qkv.backend import BACKENDS

# Set before any test imports what reads them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.pop("QKV_MODEL", None)

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each backend that this machine can run, in turn; it computes while the test runs."""
    monkeypatch.setenv("QKV_BACKEND", request.param)
    return request.param


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many threads as there are by default, whatever the test before has set."""
    monkeypatch.setattr(sys.modules["qkv.backend"], "_threads", None)
