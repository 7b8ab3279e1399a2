"""Every test of this folder runs on each backend that this machine can run, one after the other."""

import sys

import pytest

from qkv.ops.kernel import BACKENDS


@pytest.fixture
def backend() -> str:
    """The backend that computes: the best one first, then each of the others."""
    return BACKENDS[0]


@pytest.fixture
def best_backend_alone() -> None:
    """Asked for by `ON_ONE_BACKEND`."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Call the test once for each backend: what it is compared with is then computed once."""
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for name in BACKENDS[:1] if "best_backend_alone" in pyfuncitem.fixturenames else BACKENDS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QKV_BACKEND", name)
            patch.setattr(sys.modules["qkv.ops.threads"], "_threads", None)
            try:
                pyfuncitem.obj(**given | ({"backend": name} if "backend" in given else {}))
            except BaseException as error:
                error.add_note(f"on the backend {name}")
                raise
    return True
