"""Tests of failing workers, clients, schedulers and disks.

Each row is stored exactly once, or the run ends with one error.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

import processes
import qkv
from qkv.scale import encode, encoding, workers
from qkv.scale.workers import connect

TEXTS = [f"the cat sat {'on the mat ' * (n % 3)}{n}" for n in range(6000)]
PARTS = 12


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    return tmp_path / "a.txt"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with connect("local:2", "test") as client:
        yield client


@cache
def expected() -> Any:
    return qkv.load("books").encode(TEXTS)


def check(folder: Path) -> None:
    """Check that each row is stored exactly once, and that no part is unfinished.

    The stored vectors must be equal to those of a single process, except for rounding.
    """
    rows = [row for path in folder.glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    rows.sort(key=lambda row: row["id"])
    assert [row["id"] for row in rows] == list(range(len(TEXTS)))
    found = np.array([row["vector"] for row in rows], np.float32)
    np.testing.assert_allclose(found, expected(), atol=2e-6)
    assert not list(folder.glob("*.part"))


def parts(folder: Path) -> int:
    return len(list(folder.glob("*.parquet")))


def listed(folder: Path) -> set[str]:
    """Return the parts that the manifest lists as complete."""
    about = json.loads((folder / "_manifest.json").read_text())
    return {part["name"] for part in about["parts"].values()}


def until(folder: Path, count: int, known: int = 0) -> None:
    """Wait for the manifest, and then for each part until at least `count` parts exist.

    The manifest lists at least `known` parts then. Each of these waits takes at most a minute.
    """
    processes.until((folder / "_manifest.json").exists, "the run begins")
    for number in range(1, count + 1):
        processes.until(
            lambda: (parts(folder), len(listed(folder))),
            f"{number} parts, and {known} of {count} are listed",
            lambda found, least=number: found[0] >= least and found[1] >= known + least - count,
        )


def test_workers_that_are_killed(source: Path, client: Any, tmp_path: Path) -> None:
    out, killed = tmp_path / "out", []

    def running() -> list[int]:
        """Return the processes that Dask starts again: not one that it is starting."""
        nannies = [one for one in client.cluster.workers.values() if one.status.name == "running"]
        return [one.pid for one in nannies if one.pid and one.pid not in killed]

    def kill() -> None:
        for count in (1, 4, 7):
            until(out, count)
            victim = processes.until(running, "a worker runs")[0]
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

    killer = threading.Thread(target=kill)
    killer.start()
    done = encode("books", source, out, client=client)
    killer.join(300)
    assert len(set(killed)) == 3
    assert done.rows == len(TEXTS)
    check(out)


def test_a_lost_scheduler_is_one_error(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, compute = tmp_path / "out", encoding.compute
    import distributed

    def losing(*given: Any, **named: Any) -> Iterator[Any]:
        for number, result in enumerate(compute(*given, **named)):
            if number == 1:
                program.kill()
            yield result

    with subprocess.Popen(
        [sys.executable, "-c", SCHEDULER], stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            address = program.stdout.readline().strip()
            client = distributed.Client(address, timeout=60, set_as_default=False)
            with monkeypatch.context() as patch:
                patch.setattr(client, "_timeout", 1)  # for how long it tries to connect again
                patch.setattr(encoding, "compute", losing)
                patch.setattr(workers, "AHEAD", 1)  # no task is ahead of the results
                with pytest.raises(ConnectionError, match=r"the scheduler .* was lost"):
                    encode("books", source, out, client=client)
            client.close(timeout=1)
        finally:
            program.kill()
    assert 2 <= parts(out) < PARTS
    assert encode("books", source, out).rows == len(TEXTS)
    check(out)


def test_a_scheduler_that_is_lost_while_it_is_asked() -> None:
    """The client is still running, but what it returns has no workers."""
    scheduler = SimpleNamespace(address="tcp://here:1")
    client = SimpleNamespace(status="running", scheduler_info=dict, scheduler=scheduler)
    said = "^encode: the scheduler tcp://here:1 was lost: start it and repeat the call$"
    with pytest.raises(ConnectionError, match=said):
        workers.workers_of(client, "encode")
    with pytest.raises(ConnectionError, match=said):
        workers.all_of(client, print, [1], call="encode")


SCHEDULER = """
import time, distributed
if __name__ == "__main__":
    cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False,
        host="127.0.0.1", dashboard_address="127.0.0.1:0", protocol="tcp")
    print(cluster.scheduler_address, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    "name", ["SIGKILL", *(pytest.param(n, marks=pytest.mark.attack) for n in ("SIGTERM", "SIGINT"))]
)
def test_encoding_resumes_after_a_signal_ends_the_client(
    name: str, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", PROGRAM]
    arguments = ["encode", str(source), "-o", str(out), "--cluster", "local:2"]
    with subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True) as program:
        children: list[psutil.Process] = []
        try:
            running = psutil.Process(program.pid)
            processes.until(running.children, "two workers start", lambda found: len(found) >= 2)
            until(out, 3, known=3)
            children = running.children(recursive=True)
            with pytest.raises(RuntimeError, match="another run writes to"):
                encode("books", source, out)
            program.send_signal(getattr(signal, name))
            code = program.wait(100)
        finally:
            program.kill()
            _, alive = psutil.wait_procs(children, timeout=30)
            for child in alive:
                child.kill()
    assert children
    assert not alive
    number = getattr(signal, name)
    assert code == (-number if name == "SIGKILL" else 128 + number)
    written, known = parts(out), listed(out)
    assert 1 <= len(known) <= written < PARTS
    if name != "SIGKILL":  # the run updated its manifest; its workers may have written more
        assert len(known) >= written - 3
    kept = {one: (out / one).stat().st_mtime_ns for one in known}
    assert encode("books", source, out).rows == len(TEXTS)
    assert kept == {one: (out / one).stat().st_mtime_ns for one in known}
    check(out)


# The manifest lists each part at once: a fast run could end before the first update after 1 s.
# After three parts the run waits for the signal, and two workers are at most three parts ahead.
PROGRAM = """
import time
from qkv.cli import main
from qkv.scale import encoding, workers
encoding._SAVE = 0.0
workers.AHEAD = 1
compute = encoding.compute
def waiting(*given, **named):
    for number, result in enumerate(compute(*given, **named)):
        if number == 3:
            time.sleep(600)
        yield result
encoding.compute = waiting
if __name__ == "__main__":
    main()
"""


def _finish() -> None:
    """Wait until the worker that runs this function has ended its task."""
    from qkv.scale.workers import _computing  # the lock of the worker, not of this process

    with _computing:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a file is set of another process")
def test_a_full_disk(source: Path, client: Any, tmp_path: Path) -> None:
    """The test simulates a full disk with a limit on the size of each worker's files."""
    import resource

    client.wait_for_workers(2, timeout=300)
    workers, out = list(client.run(os.getpid).values()), tmp_path / "out"
    before = [resource.prlimit(one, resource.RLIMIT_FSIZE) for one in workers]
    try:
        for one, (_, most) in zip(workers, before, strict=True):
            resource.prlimit(one, resource.RLIMIT_FSIZE, (100_000, most))
        with pytest.raises(OSError, match=r"File too large"):
            encode("books", source, out, client=client)
        client.run(_finish)  # the other worker may still write its part
    finally:
        for one, limits in zip(workers, before, strict=True):
            resource.prlimit(one, resource.RLIMIT_FSIZE, limits)
    assert parts(out) == 0
    assert not list(out.glob("*.part"))
    assert encode("books", source, out).rows == len(TEXTS)
    check(out)
