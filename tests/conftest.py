"""Settings that every test shares: fixed random cases, no network, no screen."""

import gc
import os
import signal
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

from qkv.ops.kernel import BACKENDS

# Set these variables before a test imports a module that reads them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.pop("QKV_MODEL", None)

# Tests send these signals; a process that nohup or a background shell started may ignore them.
for _name, _usual in (("INT", signal.default_int_handler), ("HUP", None), ("QUIT", None)):
    _signal = getattr(signal, f"SIG{_name}", None)
    if _signal is not None and signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _usual or signal.SIG_DFL)

# Collected tests stay in memory until the end. If garbage collection stayed on, it would use a
# third of the time that pytest needs to collect the tests.
gc.disable()


@pytest.hookimpl(trylast=True)  # after -m and -k have selected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With QKV_SAMPLE=4, run the first item of each test and about a fourth of its other items.

    The same items run each time, because a checksum of an item's name decides. A test with the mark
    `unsampled` runs all its items.
    """
    sample = int(os.environ.get("QKV_SAMPLE") or 1)
    tests: set[str] = set()
    run, left = [], []
    for item in items:
        test = item.nodeid.partition("[")[0]
        chosen = (
            test not in tests
            or zlib.crc32(item.nodeid.encode()) % sample == 0
            or item.get_closest_marker("unsampled") is not None
        )
        tests.add(test)
        (run if chosen else left).append(item)
    if left:
        items[:] = run
        config.hook.pytest_deselected(items=left)


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, and enable it for the test run."""
    gc.freeze()
    # The default thresholds of Python 3.11 and 3.12 are 700, 10 and 10. With these thresholds, the
    # garbage collector would check new objects about 4 times as often, and old objects about 40
    # times as often.
    gc.set_threshold(3000, 10, 100)
    gc.enable()


# Try the same cases in each run, without a database of examples; with QKV_ATTACK, new cases.
_same = not os.environ.get("QKV_ATTACK")
settings.register_profile("qkv", deadline=None, derandomize=_same, database=None, print_blob=True)
settings.load_profile("qkv")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return a list to which each forward pass of new tokens adds the number of texts per batch."""
    from qkv.models.network.transformer import Transformer  # most tests need no model

    found: list[list[int]] = []
    step_together = Transformer.step_together

    def spy(network: Any, batches: Any) -> Any:
        found.append([len(batch.ids) for batch in batches])
        return step_together(network, batches)

    monkeypatch.setattr(Transformer, "step_together", spy)
    return found


@pytest.fixture(scope="session", autouse=True)
def _one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread: two threads spend most of their time waiting for each other.

    qkv computes its own products on one thread anyway. Tests of the effects of threads ask for two
    threads, or start a separate process.
    """
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set QKV_BACKEND: each test with this fixture is one item for each backend of this machine.

    A test with `best_backend_alone` stays one item, without a backend in its name.
    """
    name: str = getattr(request, "param", BACKENDS[0])
    monkeypatch.setenv("QKV_BACKEND", name)
    return name


@pytest.fixture
def best_backend_alone() -> None:
    """Run a test on the fastest backend only, in a folder whose tests run on every backend."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Add the backend's name to the item's name: `test_scale[numpy]` or `test_heads[numpy-3]`."""
    names = set(metafunc.fixturenames)
    if "backend" in names and "best_backend_alone" not in names:
        metafunc.parametrize("backend", BACKENDS, indirect=True)


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the number of threads to the default: an earlier test may have changed the number."""
    monkeypatch.setattr(sys.modules["qkv.ops.kernel"], "_threads", None)
