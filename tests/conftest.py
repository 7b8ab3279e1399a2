"""Settings that every test shares: fixed random cases, no network, no screen."""

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

from qkv.ops.kernel import BACKENDS

# Set before any test imports what reads them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.pop("QKV_MODEL", None)

# Whoever starts the tests (nohup, a shell in the background) may ignore signals that tests send.
for _name, _usual in (("INT", signal.default_int_handler), ("HUP", None), ("QUIT", None)):
    _signal = getattr(signal, f"SIG{_name}", None)
    if _signal is not None and signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _usual or signal.SIG_DFL)

# What is collected stays to the end: to search it for garbage takes a third of the collecting.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on for garbage of the tests alone."""
    gc.freeze()
    gc.set_threshold(3000, 10, 100)  # what is new is searched a fourth as often as usual, and
    # all that is not new a fortieth
    gc.enable()


# The same cases each time, from no folder of earlier ones; others where QKV_ATTACK is set.
_same = not os.environ.get("QKV_ATTACK")
settings.register_profile("qkv", deadline=None, derandomize=_same, database=None, print_blob=True)
settings.load_profile("qkv")


@pytest.fixture(scope="session", autouse=True)
def _one_blas_thread() -> Iterator[None]:
    """One thread for NumPy's products: two wait for each other spinning, for most of the time.

    Ours do so anyway; tests of what threads change ask for two, or for a process of their own.
    """
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture
def backend() -> str:
    """The backend that computes: a test that asks for it runs on each that this machine can run."""
    return BACKENDS[0]


@pytest.fixture
def best_backend_alone() -> None:
    """For a test of a folder where all run on each backend, which runs on the best one only."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test once for each backend, where it asks for that: as one test, which costs less."""
    if "backend" not in pyfuncitem.fixturenames:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for name in BACKENDS[:1] if "best_backend_alone" in pyfuncitem.fixturenames else BACKENDS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QKV_BACKEND", name)
            patch.setattr(sys.modules["qkv.ops.kernel"], "_threads", None)
            try:
                pyfuncitem.obj(**given | ({"backend": name} if "backend" in given else {}))
            except BaseException as error:
                error.add_note(f"on the backend {name}")
                raise
    return True


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many threads as there are by default, whatever the test before has set."""
    monkeypatch.setattr(sys.modules["qkv.ops.kernel"], "_threads", None)
