"""Settings that every test shares: fixed random cases, no network, no screen."""

import gc
import os
import re
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings
from threadpoolctl import threadpool_limits

from qkv.ops.kernel import BACKENDS
from rows import SAMPLE
from seconds import name, slow_cases

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


class _Examples:
    """A plugin that searches for examples only in files with ">>>", also outside this folder.

    It keeps each `__init__.py`: if pytest imported a file before its package, and the package
    imports the file, there would be two modules with the file's name.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Iterator[None]:
        found: Any = yield
        examples = file_path.name == "__init__.py" or file_path.suffix != ".py"
        if not examples and ">>>" not in file_path.read_text("utf-8"):
            found = [it for it in found if not isinstance(it, DoctestModule)]
        return found


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin; without it, a third of the time of the collection is lost."""
    config.pluginmanager.register(_Examples())


def pytest_itemcollected(item: pytest.Item) -> None:
    """Add the mark `slow` to the cases that .ci/seconds.txt names."""
    if name(item.nodeid) in slow_cases():
        item.add_marker("slow")


def _selects(config: pytest.Config) -> Callable[[set[str]], bool]:
    """Return whether `-m` selects an item with these marks; of `or` and parentheses, say yes."""
    terms = [term.split() for term in config.option.markexpr.split(" and ") if term]
    if any(len(term) > 2 or "(" in term[-1] for term in terms):
        return lambda marks: True
    return lambda marks: all((name in marks) != bool(no) for *no, name in terms)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not read a file whose every test has a mark that `-m` leaves out."""
    if not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text("utf-8")
    marks = re.findall(r"^pytestmark = pytest\.mark\.(attack|slow)$", text, re.MULTILINE)
    if not marks or f"not {marks[0]}" not in config.option.markexpr:
        return None
    named = {Path(arg.partition("::")[0]).resolve() for arg in config.args}
    return True if collection_path not in named else None


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Run a test on each backend, and leave cases out before pytest makes an item of each.

    The backend's name is part of the item's name: `test_scale[numpy]` or `test_heads[numpy-3]`.
    Backends other than the best one and NumPy have the mark `slow`.

    Cases that `-m` does not select are left out. With QKV_SAMPLE=4, the first case of each test and
    about a fourth of its other cases remain. The same cases run each time, because a checksum of
    the case's name decides. A test with the mark `unsampled` keeps all its cases.
    """
    names = set(metafunc.fixturenames)
    if "backend" in names and "best_backend_alone" not in names:
        metafunc.parametrize("backend", [_backend(it) for it in BACKENDS], indirect=True)
    yield
    selects = _selects(metafunc.config)
    own = {mark.name for mark in metafunc.definition.iter_markers()}
    sample = 1 if "unsampled" in own else SAMPLE
    kept = []
    for case in metafunc._calls:
        case_name = name(f"{metafunc.definition.nodeid}[{case.id}]")
        marks = own | {mark.name for mark in case.marks}
        marks |= {"slow"} if case_name in slow_cases() else set()
        drawn = not kept or zlib.crc32(case_name.encode()) % sample == 0
        if drawn and selects(marks):
            kept.append(case)
    metafunc._calls[:] = kept or metafunc._calls[:1]  # `-m` leaves out the last one


def _backend(backend: str) -> Any:
    return pytest.param(
        backend, marks=() if backend in (BACKENDS[0], "numpy") else pytest.mark.slow
    )


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


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the number of threads to the default: an earlier test may have changed the number."""
    monkeypatch.setattr(sys.modules["qkv.ops.kernel"], "_threads", None)
