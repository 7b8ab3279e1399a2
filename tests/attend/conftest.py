"""Every test of this folder runs on each backend that this machine can run."""

import pytest


@pytest.fixture(autouse=True)
def _on_each(backend: str) -> None:
    """Run each test on every backend, except tests that are marked with `ON_ONE_BACKEND`."""
