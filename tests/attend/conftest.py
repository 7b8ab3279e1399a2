"""Every test of this folder runs once for each backend that this machine can run."""

from collections.abc import Iterator

import pytest

from qkv.ops.kernel import BACKENDS


@pytest.fixture(params=BACKENDS, scope="module", autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_BACKEND", request.param)
        yield request.param
