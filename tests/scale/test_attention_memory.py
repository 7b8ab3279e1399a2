"""Tests of long attention on real workers: little memory, no spilling, and a killed worker."""

import os
import signal
import time
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import qkv
from attend.support import numbers
from benchmarks.long_attention import arrays, on_workers, workers
from processes import until
from qkv import scale

MEMORY = 400 << 20  # bytes per worker; the scores of 16,384 tokens alone take 1 GB


@pytest.fixture(scope="module")
def client() -> Any:
    with workers(MEMORY) as found:
        yield found


@pytest.mark.alone
def test_long_attention_stays_in_little_memory(client: Any) -> None:
    tokens = 16_384
    query, key, value = arrays(tokens, 2048)
    out, lse = scale.attention(query, key, value, is_causal=True, return_lse=True)
    (out, lse), measured = on_workers(client, [out, lse])
    assert measured["restarted"] == measured["spilled"] == 0
    assert max(measured["peaks"]) < MEMORY / 2
    key, value = (x[0].compute().astype(float) for x in (key, value))
    for first in (0, 2047, 10_000, tokens - 2):
        rows = query[0, first : first + 2].compute().astype(float)
        truth, sums = qkv.attention(
            rows, key, value, is_causal=True, q_offset=first, return_lse=True
        )
        assert (
            np.abs(out[0, first : first + 2] - truth).max().compute() < 4e-6 * np.abs(value).max()
        )
        assert np.abs(lse[0, first : first + 2] - sums).max().compute() < 4e-5


def test_a_worker_that_is_killed_changes_nothing(client: Any, tmp_path: Any) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    begun.mkdir()

    def slow(block: Any) -> Any:
        (begun / f"{time.time_ns()}-{os.getpid()}").touch()
        while len([*begun.iterdir()]) >= 5 and not go.exists():
            time.sleep(0.02)
        return block

    given = numbers((2, 960, 16), 0)
    x = da.from_array(given, chunks=(1, 120, 16)).map_blocks(slow, dtype=np.float32, meta=given[:0])
    out = client.compute(scale.attention(x, x, x, is_causal=True))
    until(lambda: [*begun.iterdir()], "the first block")
    seen = until(lambda: sorted(begun.iterdir()), "five blocks", lambda some: len(some) >= 5)
    killed = int(seen[-1].name.partition("-")[2])
    os.kill(killed, signal.SIGKILL)
    go.touch()
    found = out.result(timeout=300)
    client.wait_for_workers(2, timeout=60)
    assert killed not in client.run(os.getpid).values()
    with dask.config.set(scheduler="synchronous"):
        again = scale.attention(*[da.from_array(given, chunks=(1, 120, 16))] * 3, is_causal=True)
        assert (found == again.compute()).all()
    np.testing.assert_allclose(found, qkv.attention(*[given] * 3, is_causal=True), atol=2e-6)
