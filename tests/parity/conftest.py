"""Settings of torch and transformers for every parity test: no messages, one thread, one seed.

Idle threads keep the processor busy while they wait. Threads of two libraries would therefore make
each other several times slower.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from threadpoolctl import threadpool_limits


@pytest.fixture(scope="session", autouse=True)
def _quiet() -> Iterator[None]:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the models of docs/coming-from.md, and the results of the page's code."""
    from .coming_from import Theirs

    return Theirs(tmp_path_factory.mktemp("coming-from"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
