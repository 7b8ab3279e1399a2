"""Causal attention over more tokens than one call can hold, on workers with little memory."""

import os
import time
from contextlib import contextmanager

import numpy as np

SIZE = 64  # the size of the head


@contextmanager
def workers(memory, count=2):
    """Yield a client of `count` workers, each with one thread and the given memory ("1GB")."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            memory_limit=memory,
            dashboard_address="127.0.0.1:0",  # any free port
            host="127.0.0.1",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def arrays(tokens, chunk):
    """Make query, key and value `(1, tokens, 64)` on the workers."""
    import dask.array as da

    chunks = ((1,), (chunk,) * (tokens // chunk), (SIZE,))
    meta = np.empty((0, 0, 0), np.float32)
    return [
        da.map_blocks(_numbers, which, chunk, chunks=chunks, dtype=np.float32, meta=meta)
        for which in range(3)
    ]


def _numbers(which, chunk, block_info=None):
    seed = (which, *block_info[None]["chunk-location"])
    return np.random.default_rng(seed).standard_normal((1, chunk, SIZE), np.float32)


def on_workers(client, work):
    """Compute dask arrays on the workers, and keep them there.

    Returns:
        `(arrays, about)`. The dict `about` contains `seconds`, `tasks`, `restarted` (the number of
        restarted workers), `spilled` (bytes written to disk), `processor` (processor seconds of all
        workers) and `peaks` (the peak memory of each worker in bytes).
    """
    import dask
    from distributed import wait

    before = client.run(os.getpid)
    client.run(_forget_the_peak)
    busy, begin = _processor(client), time.perf_counter()
    tasks = len({key for array in work for key in dict(array.__dask_graph__())})
    done = dask.persist(*work)
    wait(done)
    seconds = time.perf_counter() - begin
    same = before.items() & client.run(os.getpid).items()
    return done, {
        "seconds": seconds,
        "tasks": tasks,
        "restarted": len(before) - len(same),
        "spilled": sum(client.run(_spilled).values()),
        "processor": _processor(client) - busy,
        "peaks": list(client.run(_peak).values()),
    }


def _processor(client):
    return sum(client.run(time.process_time).values())


def _forget_the_peak():
    from benchmarks.memory import forget_the_peak

    forget_the_peak()


def _peak():
    from benchmarks.memory import resident

    return resident()[1]


def _spilled(dask_worker):
    written = getattr(dask_worker.data, "cumulative_metrics", {})
    return sum(count for what, count in written.items() if what == ("disk-write", "bytes"))
