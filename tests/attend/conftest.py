"""Every test of this folder runs on each backend that this machine can run."""

import pytest


@pytest.fixture(autouse=True)
def _on_each(backend: str) -> None:
    """Asks for them, for all tests; `ON_ONE_BACKEND` says which are about none of them."""
