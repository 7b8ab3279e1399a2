"""Two Dask workers of one thread each, compared with one process, and Dask's own cost.

The cluster is `LocalCluster(n_workers=2, threads_per_worker=1, memory_limit="1GB")`.
"""

import tempfile
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from benchmarks.common import Goal, Row, Way, beside, ours, seconds
from benchmarks.encode import exact
from benchmarks.long_attention import on_workers
from benchmarks.measure import operations, random_inputs
from benchmarks.texts import sentences

ONCE = True  # not measured again on one thread: the rows compare fixed numbers of threads
COUNT = 4000  # the number of texts to encode
LONG = 262_144  # the number of tokens, for one head of size 64
MOVED = 2**26  # the number of bytes that one worker sends to another worker
SMALL = 64  # the number of tokens in a block; in a block this small, a task's overhead is visible


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for encoding, for a long text, and for the cost model of docs/scale.md."""
    from distributed import Client, LocalCluster

    options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": "1GB"}
    with (
        LocalCluster(**options, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield tasks(client, 1024 // shrink)
        yield transport(client, MOVED // shrink)
        yield merging(LONG // 4 // shrink)
        with tempfile.TemporaryDirectory() as folder:
            yield encoding(client, COUNT // shrink, Path(folder))
        yield attention(client, LONG // shrink)


def encoding(client: Any, count: int, folder: Path) -> Row:
    """Encode a file of texts of natural lengths with MiniLM, and write Parquet parts."""
    model = qkv.load("minilm")
    texts = sentences(count, lambda text: len(model.tokenize(text)))
    source = folder / "texts.txt"
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    shown = np.linspace(0, count - 1, 64).astype(int)
    truth = exact([texts[i] for i in shown])

    def error(found: Any) -> float:
        vectors = written(folder / "vectors") if found is None else found
        assert len(vectors) == count
        return float(np.linalg.norm(vectors[shown] - truth, axis=1).max())

    def scaled(client: Any) -> None:
        from qkv import scale

        scale.encode("minilm", source, folder / "vectors", client=client, resume=False)

    ways: dict[str, Way | None] = {
        "one process, 2 threads": Way(lambda: model.encode(texts, show_progress_bar=False), error),
        "qkv.scale, no client": Way(lambda: scaled(None), error),
        "qkv.scale, 2 workers": Way(lambda: scaled(client), error),
    }
    return Row(
        f"MiniLM, {count:,} texts in a file", ways, (of_one_process(0.9, "qkv.scale"),), rounds=3
    )


def of_one_process(least: float, what: str) -> Goal:
    """Make a goal: the speed of two one-thread workers relative to one process on two threads."""
    return Goal(
        "speed of 2 workers relative to one process on 2 threads",
        lambda row: seconds(row, "one process, 2 threads") / seconds(row, f"{what}, 2 workers"),
        least=least,
    )


def written(folder: Path) -> np.ndarray:
    """Read the vectors (n, D) of Parquet parts."""
    from pyarrow import parquet

    table = parquet.read_table(folder, columns=["id", "vector"]).sort_by("id")
    column = table["vector"].combine_chunks()
    return column.flatten().to_numpy().reshape(len(table), -1)


def attention(client: Any, length: int) -> Row:
    """Time causal attention over many blocks: on one thread, and on two one-thread workers."""
    import dask.array as da

    from qkv import scale

    rng, shape = da.random.default_rng(0), (1, 1, length, 64)
    made = [rng.normal(size=shape, chunks=(1, 1, length // 16, 64)) for _ in "qkv"]
    cut = client.persist([x.astype(np.float32) for x in made])  # the workers store the arrays
    q, k, v = (np.asarray(x) for x in client.compute(cut, sync=True))
    error, work = beside(q, k, v, 64, is_causal=True), operations(q, k, v, is_causal=True)
    allowed = ours(q, k, v)

    def alone() -> np.ndarray:
        before = qkv.get_num_threads()
        qkv.set_num_threads(1)
        try:
            return qkv.attention(q, k, v, is_causal=True)
        finally:
            qkv.set_num_threads(before)

    seen: dict[str, Any] = {}  # measurements of the workers in the last round

    def together() -> np.ndarray:
        with client.as_current():
            [found], about = on_workers(client, [scale.attention(*cut, is_causal=True)])
            seen.update(about)
            return found.compute()

    ways: dict[str, Way | None] = {
        "one process, 1 thread": Way(alone, error(), allowed, work),
        "qkv.scale, 2 workers": Way(together, error(), 2 * allowed, work),
    }
    goals = (
        Goal(
            "speed of 2 workers relative to one process on 1 thread",
            lambda row: (
                seconds(row, "one process, 1 thread") / seconds(row, "qkv.scale, 2 workers")
            ),
        ),
        Goal("restarted workers", lambda row: seen["restarted"], "n", most=0),
        Goal("bytes spilled to disk", lambda row: seen["spilled"], "B", most=0),
        Goal("peak memory of a worker", lambda row: max(seen["peaks"]), "B", most=1e9),
    )
    return Row(f"{length:,} tokens, causal, one head of 64", ways, goals, rounds=1)


def tasks(client: Any, length: int) -> Row:
    """Measure attention in tiny blocks, and the same graph with tasks that do nothing.

    With tiny blocks, Dask's own work takes most of the time.
    """
    import dask.array as da
    from dask._task_spec import convert_legacy_graph  # not public

    from qkv import scale

    q, k, v = random_inputs((1, 1, length, 64), (1, 1, length, 64))
    result = scale.attention(*(da.from_array(x, chunks=(1, 1, SMALL, 64)) for x in (q, k, v)))
    graph = convert_legacy_graph(dict(result.__dask_graph__()))
    keys = [key for [key] in result.__dask_keys__()[0][0]]
    empty = {key: stand_in(task) for key, task in graph.items()}
    count = sum(one is not graph[key] for key, one in empty.items())
    error = beside(q, k, v)()

    def run(graph: dict[Any, Any], way: str) -> Callable[[], np.ndarray]:
        names = [f"{way}-{number}" for number in range(9)]
        # each run needs new names: for old names, Dask returns stored results
        runs = cycle([(renamed(graph, run), [named(key, run) for key in keys]) for run in names])
        return lambda: np.concatenate(client.get(*next(runs)), axis=-2)

    ways: dict[str, Way | None] = {
        "qkv.scale": Way(run(graph, "ours"), error, 2 * ours(q, k, v)),
        "tasks that do nothing": Way(run(empty, "empty"), lambda found: float(np.abs(found).max())),
    }
    goal = Goal(
        "time of a task without Dask's own time",
        lambda row: (seconds(row, "qkv.scale") - seconds(row, "tasks that do nothing")) / count,
        unit="s",
        most=1e-3,
    )
    own = Goal(
        "Dask's own time for a task",
        lambda row: seconds(row, "tasks that do nothing") / count,
        unit="s",
    )
    return Row(f"{count:,} tasks, in blocks of {SMALL} tokens", ways, (goal, own), rounds=5)


def named(key: Any, run: str) -> Any:
    """Return a task's key with the name of one run added to the key."""
    return (f"{key[0]}-run-{run}", *key[1:]) if isinstance(key, tuple) else f"{key}-run-{run}"


def renamed(graph: dict[Any, Any], run: str) -> dict[Any, Any]:
    """Copy a graph, and rename the tasks of the copy for one run."""
    names = {key: named(key, run) for key in graph}
    return {names[key]: task.substitute(names, key=names[key]) for key, task in graph.items()}


def stand_in(task: Any) -> Any:
    """Return a task that computes nothing, with the dependencies and the result size of `task`."""
    from dask.task_spec import Task, TaskRef

    if not isinstance(task, Task):
        return task
    return Task(task.key, _nothing, *(TaskRef(key) for key in sorted(task.dependencies, key=str)))


def _nothing(*parts: Any) -> np.ndarray:
    return np.zeros((1, 1, SMALL, 64), np.float32)


def transport(client: Any, size: int) -> Row:
    """Send an array of `size` bytes from the memory of one worker to another worker."""
    one, other = client.scheduler_info()["workers"]

    def way(count: int, reads: float = 0) -> Way:
        made = client.submit(_made, count, workers=[one])  # keeps the array
        truth = float(made.result().sum())

        def call() -> Any:
            return client.run(_fetched, made.key, one, workers=[other])

        return Way(call, lambda found: abs(found[other] - truth), 0.0, reads=reads)

    ways: dict[str, Way | None] = {
        "from worker to worker": way(size // 4, size),
        "the same of 4 bytes": way(1),
    }
    return Row(f"{size / 2**20:g} MiB over loopback", ways)


def _made(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32)


async def _fetched(key: Any, source: str, dask_worker: Any) -> float:
    """Fetch an array from another worker, and return the sum of the array."""
    from distributed.worker import get_data_from_worker

    found = await get_data_from_worker(dask_worker.rpc, [key], source)
    return float(found["data"][key].sum())


def merging(length: int) -> Row:
    """Merge the results of `length` queries over two parts of the keys, as `qkv.scale` does."""
    q, k, v = random_inputs((1, 1, length, 64), (1, 1, 256, 64))
    parts = [
        qkv.attention(q, k[..., half, :], v[..., half, :], return_lse=True)
        for half in (slice(None, 128), slice(128, None))
    ]
    (one, lse), (other, lse2) = parts
    truth, read = beside(q, k, v), sum(x.nbytes for part in parts for x in part)
    way = Way(
        lambda: qkv.merge_attention(one, lse, other, lse2),
        truth(lambda found: found[0]),
        2 * ours(q, k, v),
        reads=read,
    )
    return Row(f"merge_attention, {length:,} queries, one head of 64", {"qkv": way})
