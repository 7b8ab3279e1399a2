"""Tests of the settings of a worker while it computes."""

import ctypes
import platform
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.scale.workers import _keeping_memory, _result_of, connect, resolve


def test_a_gguf_file_is_named_by_its_path_and_its_contents(tmp_path: Path) -> None:
    path = tmp_path / "a[b].gguf"
    path.write_bytes(b"GGUF1")
    first = resolve(path, "test")
    assert first.name == str(path)
    path.write_bytes(b"GGUF2")
    assert resolve(path, "test") != first


class _Late:
    """A finished task whose result takes some seconds, because it is large or its worker died."""

    def __init__(self, status: str, seconds: float) -> None:
        self.status, self.seconds = status, seconds

    def result(self, timeout: float) -> int:
        if timeout < self.seconds:
            raise TimeoutError(f"not within {timeout:.0f} s")
        return 7


class _Crew:
    def __init__(self, looks: int) -> None:
        self.looks = looks

    def look(self) -> None:
        self.looks -= 1
        if self.looks < 0:
            raise ConnectionError("no worker")


def test_a_lost_result_is_waited_for_as_long_as_there_are_workers() -> None:
    crew: Any = _Crew(looks=3)
    assert _result_of(_Late("finished", 8), crew) == 7
    assert crew.looks == 0
    with pytest.raises(ConnectionError, match="no worker"):
        _result_of(_Late("pending", 1e9), crew)
    with pytest.raises(TimeoutError, match="not within 1 s"):
        _result_of(_Late("error", 1e9), crew)


def _faults(keeping: bool) -> tuple[int, int]:
    """Make 50 arrays of 2 MB in each of two rounds, and count the page faults of each round.

    If `keeping` is True, the process keeps the memory of freed arrays during the first round.
    """

    # the kernel might give each array one page of 2 MB; 41 is PR_SET_THP_DISABLE
    ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)

    def made() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(50):
            np.ones(2**18)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    if not keeping:
        return made(), made()
    with _keeping_memory():
        inside = made()
    return inside, made()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="Dask's setting is one of glibc")
def test_a_worker_keeps_the_memory_of_arrays_while_it_computes() -> None:
    """With Dask's setting, the memory of each freed array is returned to the operating system.

    Then each new array requests its 512 memory pages again, which causes 512 page faults.
    """
    with connect("local:1", "test") as client:

        def ask(keeping: bool) -> Any:
            [found] = client.run(_faults, keeping).values()
            return found

        assert min(ask(False)) > 50 * 500
        inside, after = ask(True)
        assert inside < 3 * 512
        assert after > 50 * 500  # Dask's setting is restored
