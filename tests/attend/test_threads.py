"""Tests of the number of threads: how it is set, and that it does not affect results."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

import qkv
from qkv.ops.kernel import BACKENDS

from .support import ON_ONE_BACKEND, numbers, qkv_arrays


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = qkv.get_num_threads()
    yield
    qkv.set_num_threads(before)


def _big(dtype: type = np.float32, **sizes: int) -> tuple[np.ndarray, ...]:
    return qkv_arrays(
        **{"lead": (2,), "heads": 3, "L": 600, "S": 800, "d": 32, "dv": 16} | sizes, dtype=dtype
    )


def _packed() -> tuple[np.ndarray, ...]:
    cu = np.cumsum([0, 700, 3, 0, 500, 64, 300])
    return (*(numbers((cu[-1], 3, 32), i) for i in range(3)), cu, cu)


CALLS: dict[str, Callable[[], object]] = {
    "plain": lambda: qkv.attention(*_big(), return_lse=True),
    "weights": lambda: qkv.attention(*_big(), return_weights=True, return_lse=True),
    "float64": lambda: qkv.attention(*_big(np.float64), return_lse=True),
    "float16": lambda: qkv.attention(*_big(np.float16), return_lse=True),
    "bfloat16": lambda: qkv.attention(*_big(ml_dtypes.bfloat16), return_lse=True),
    "causal": lambda: qkv.attention(*_big(), is_causal=True, q_offset="end", return_lse=True),
    "grouped": lambda: qkv.attention(
        *_big(kv_heads=1), window=(300, 5), q_offset=77, return_lse=True
    ),
    "one long head": lambda: qkv.attention(
        *_big(lead=(), heads=1, L=2100, S=2300), return_lse=True, sinks=[1.0], softcap=5.0
    ),
    "one query": lambda: qkv.attention(*_big(L=1, S=5000), return_lse=True),
    "decoding": lambda: qkv.attention(
        *_big(heads=8, kv_heads=2, L=2, S=4000), is_causal=True, q_offset="end", return_lse=True
    ),
    "lengths": lambda: qkv.attention(
        *_big(), key_lengths=[800, 333], query_lengths=[17, 600], bias=numbers((600, 800), 8)
    ),
    "summary": lambda: vars_of(qkv.summarize_attention(*_big())),
    "varlen": lambda: qkv.varlen_attention(*_packed(), is_causal=True, return_lse=True),
}


def vars_of(summary: object) -> tuple[np.ndarray, ...]:
    names = ("out", "lse", "top_indices", "top_weights", "received")
    return tuple(getattr(summary, name) for name in names)


@pytest.mark.parametrize("name", CALLS)
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    results = []
    for threads in (1, 3):
        qkv.set_num_threads(threads)
        results.append(CALLS[name]())
        if not isinstance(results[-1], tuple):
            results[-1] = (results[-1],)
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            same = one.tobytes() == two.tobytes()  # a failing `assert` would print megabytes
            assert same


PROGRAM = """
import hashlib
import os
import sys

sys.path.insert(0, sys.argv[1])
import numpy as np
import qkv

print(qkv.get_num_threads())
for backend in sys.argv[2:]:
    os.environ["QKV_BACKEND"] = backend
    rng = np.random.default_rng(0)
    digest = hashlib.sha256()
    for dtype, L, S, d in [("f4", 1000, 900, 64), ("f8", 500, 700, 48), ("f4", 1, 6000, 64)]:
        query, key, value = (rng.standard_normal((2, n, d)).astype(dtype) for n in (L, S, S))
        for options in ({}, {"is_causal": True, "q_offset": "end"}):
            for result in qkv.attention(query, key, value, return_lse=True, **options):
                digest.update(result.tobytes())
            summary = qkv.summarize_attention(query, key, value, **options)
            digest.update(summary.top_weights.tobytes())
            digest.update(summary.received.tobytes())
    _, weights = qkv.attention(query, key, value, return_weights=True)
    digest.update(weights.tobytes())
    print(backend, digest.hexdigest())
"""


def _run(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        k: v for k, v in os.environ.items() if k not in ("QKV_NUM_THREADS", "QKV_BACKEND")
    }
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def _source() -> str:
    return os.path.dirname(os.path.dirname(qkv.__file__))


@ON_ONE_BACKEND  # the test's subprocesses run every backend
def test_thread_counts_from_the_environment_give_the_same_bits() -> None:
    digests = set()
    for ours, theirs in (("1", "1"), ("2", "2")):
        result = _run(
            PROGRAM, _source(), *BACKENDS, QKV_NUM_THREADS=ours, OPENBLAS_NUM_THREADS=theirs
        )
        assert result.returncode == 0, result.stderr
        threads, *of_backends = result.stdout.splitlines()
        assert threads == ours
        assert [line.split()[0] for line in of_backends] == list(BACKENDS)
        digests.add(tuple(of_backends))
    assert len(digests) == 1


SHOW = "import sys; sys.path.insert(0, sys.argv[1]); import qkv; print(qkv.{}())"


@ON_ONE_BACKEND
def test_the_backend_of_the_environment_runs() -> None:
    result = _run(SHOW.format("backend"), _source(), QKV_BACKEND=BACKENDS[-1])
    assert result.stdout.strip() == BACKENDS[-1]


def test_set_and_get() -> None:
    for count in (1, 3, np.int64(2)):
        qkv.set_num_threads(count)
        assert qkv.get_num_threads() == count


@pytest.mark.parametrize("count", [0, -1, "2", 1.5, None])
def test_a_number_of_threads_is_an_int_of_1_or_more(count: object) -> None:
    with pytest.raises(ValueError if count in (0, -1) else TypeError, match="set_num_threads"):
        qkv.set_num_threads(count)


@ON_ONE_BACKEND
def test_the_default_is_the_cores_of_this_process() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no processor affinity")
    result = _run(SHOW.format("get_num_threads"), _source())
    assert int(result.stdout) == len(os.sched_getaffinity(0))
    one = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    result = _run(one + SHOW.format("get_num_threads"), _source())
    assert int(result.stdout) == 1


def test_calls_never_change_the_thread_count_of_numpy() -> None:
    query, key, value = _big(np.float64)
    calls = [
        lambda: qkv.attention(query, key, value),
        lambda: qkv.attention(query[0, 0, :9], key[0, 0, :9], value[0, 0, :9]),
        lambda: qkv.summarize_attention(query, key, value),
        lambda: qkv.trace_attention(query, key, value),
        lambda: qkv.attention_grad(query, key, value, value[..., :600, :]),
    ]
    qkv.set_num_threads(2)
    found: set[int] = set()
    ended = threading.Event()
    with threadpool_limits(2):
        libraries = ThreadpoolController().select(user_api="blas").lib_controllers

        def watch() -> None:
            while not ended.is_set():
                found.update(library.num_threads for library in libraries)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for call in calls * 3:
                call()
        finally:
            ended.set()
            watcher.join()
    assert found == {2}
