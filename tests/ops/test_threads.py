"""Tests of the number of threads, and of work that threads share."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import qkv
from processes import TWO_PROCESSORS
from qkv.ops.kernel import BACKENDS, compiled, get_num_threads, set_num_threads
from qkv.ops.linear import linear
from qkv.ops.threads import go_on, matmul_alone, run_all


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_case_runs_once(threads: int) -> None:
    done: list[int] = []
    set_num_threads(threads)
    run_all(lambda i: done.append(i), [(i,) for i in range(100)])
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_error_of_a_case_is_raised_to_the_caller(threads: int) -> None:
    def task(i: int) -> None:
        if i == 7:
            raise ZeroDivisionError(i)

    set_num_threads(threads)
    with pytest.raises(ZeroDivisionError):
        run_all(task, [(i,) for i in range(20)])
    run_all(task, [(1,), (2,)])  # the next call works again


def test_no_case_runs_on_or_starts_after_an_error() -> None:
    began: list[int] = []
    ended: list[int] = []
    begun = threading.Event()

    def task(i: int) -> None:
        if i == 0:
            assert begun.wait(60)
            raise ZeroDivisionError
        began.append(i)
        begun.set()
        try:
            while True:  # until the error is known
                go_on()
                time.sleep(0.001)
        finally:
            ended.append(i)

    set_num_threads(3)
    with pytest.raises(ZeroDivisionError):
        run_all(task, [(i,) for i in range(200)])
    assert sorted(ended) == sorted(began)
    assert 1 <= len(began) <= 2  # one on each of the two other threads
    go_on()  # outside of a case, `go_on` does nothing


def test_two_threads_work_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=60)
    set_num_threads(2)
    run_all(lambda: both.wait(), [(), ()])  # one thread alone would time out


def test_numpy_products_do_not_depend_on_the_blas_thread_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # For these shapes, NumPy's BLAS gives different bits on one thread and on two threads.
    threadpoolctl = pytest.importorskip("threadpoolctl")
    monkeypatch.setenv("QKV_BACKEND", "numpy")
    rng = np.random.default_rng(0)
    for rows, depth, width in [(500, 2000, 300), (12, 1000, 1000), (33, 4000, 33), (1, 900, 5000)]:
        x, weight = rng.standard_normal((rows, depth)), rng.standard_normal((depth, width))
        found = []
        for blas, threads in [(2, 1), (2, 2), (1, 3)]:
            set_num_threads(threads)
            with threadpoolctl.threadpool_limits(blas):
                found.append(linear(x, weight))
        assert all((each == found[0]).all() for each in found)
        np.testing.assert_allclose(found[0], x @ weight, atol=1e-11)


# Sizes around the edges of blocks, products of vectors, empty products and long products.
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [
        *[(256, 64, 512), (41, 129, 49), (40, 64, 48), (90, 3000, 90), (1, 900, 500)],
        *[
            (300, 400, 1),
            (1, 20000, 1),
            (1, 1, 20000),
            (20000, 1, 1),
            (1000, 1, 1000),
            (0, 5, 3),
            (5, 0, 3),
        ],
    ],
)
@pytest.mark.parametrize("lead", [((), ()), ((2,), (2,)), ((3, 1), (2,)), ((), (2,))])
def test_a_product_in_blocks_is_the_product(
    rows: int, depth: int, columns: int, lead: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    rng = np.random.default_rng(0)
    left = rng.standard_normal((*lead[0], rows, depth))
    right = np.swapaxes(rng.standard_normal((*lead[1], columns, depth)), -1, -2)
    expected = left @ right
    found = matmul_alone(left, right)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-11)
    written = np.full((*expected.shape[:-1], columns + 1), 7.0)
    matmul_alone(left, right, out=written[..., :columns])
    np.testing.assert_allclose(written[..., :columns], expected, atol=1e-11)
    assert (written[..., columns] == 7).all()


@pytest.mark.alone
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="this system has no /proc")
@TWO_PROCESSORS  # or no product is shared
def test_a_product_in_blocks_runs_on_the_calling_thread() -> None:
    program = """if True:
        from qkv.ops.threads import matmul_alone

        def elsewhere():  # seconds that all other threads have computed
            return time.process_time() - time.thread_time()

        x = np.ones((300, 300))
        before = -1  # the threads of OpenBLAS wait actively for a moment after they start
        while elsewhere() > before:
            before = elsewhere()
            time.sleep(0.1)
        shapes = [(256, 64, 512), (500, 500, 500), (1, 900, 900), (900, 900, 1), (12, 1000, 100)]
        arrays = [(np.ones((n, k)), np.ones((k, m))) for n, k, m in shapes]
        arrays.append((x, x.T))  # NumPy calls another function of BLAS for this product
        for product in (matmul_alone, np.matmul):
            began = elsewhere()
            for _ in range(20):
                for left, right in arrays:
                    product(left, right)
            print(round(elsewhere() - began, 3))
    """
    alone, shared = map(float, _run(program, OPENBLAS_NUM_THREADS="2").split())
    assert alone < 0.1 * shared


ENDED = """
import atexit
from qkv.ops.linear import linear

qkv.set_num_threads(3)
x = np.random.default_rng(0).standard_normal((1, 3, 600, 16))
weight = np.ones((600, 4000))

def compute():
    return qkv.attention(x, x, x), qkv.attention_grad(x, x, x, x).key, linear(x[0, :, :, 0], weight)

def compare(where):
    print(where, all((a == b).all() for a, b in zip(compute(), expected)), flush=True)

def later():
    threading.main_thread().join()
    global expected
    expected = compute()  # the first call, after the main thread has ended
    compare("thread")

class Last:
    def __del__(self):
        compare("del")

last = Last()
atexit.register(compare, "atexit")
threading.Thread(target=later).start()
"""


@pytest.mark.parametrize("name", sorted({BACKENDS[0], "numpy"}))
def test_calls_after_the_main_thread_has_ended(name: str) -> None:
    assert _run(ENDED, QKV_BACKEND=name) == "thread True\natexit True\ndel True\n"


def test_the_caller_computes_alone_when_no_thread_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = sys.modules["qkv.ops.threads"]
    monkeypatch.setattr(threads, "_helpers", threads._Helpers())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    set_num_threads(3)
    run_all(done.append, [(i,) for i in range(9)])
    assert done == list(range(9))


@pytest.mark.parametrize("wanted", ["0", "1025", "9" * 5000, "1.5", "-1"])
def test_an_invalid_qkv_num_threads_is_refused(
    monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv("QKV_NUM_THREADS", wanted)
    with pytest.raises(ValueError, match=r"^QKV_NUM_THREADS=.{1,80}: set it to a number from"):
        get_num_threads()


native = pytest.mark.skipif(compiled is None, reason="the kernel was not built")


def test_calls_from_eight_threads_at_once(backend: str) -> None:
    rng, sizes = np.random.default_rng(7), ((300, 400), (1, 5000), (40, 9))
    arrays = [
        [rng.standard_normal((2, 4, n, 32), dtype=np.float32) for n in (L, S, S)] for L, S in sizes
    ]
    set_num_threads(3)
    expected = [qkv.attention(*each) for each in arrays]
    with ThreadPoolExecutor(8) as pool:
        jobs = [(i % 3, pool.submit(qkv.attention, *arrays[i % 3])) for i in range(96)]
        assert all((job.result() == expected[i]).all() for i, job in jobs)


# This script forks its process while threads are running. Python 3.12 warns about such a fork.
FORK = """
import warnings
warnings.simplefilter("ignore")
qkv.set_num_threads(3)
rng = np.random.default_rng(0)
arrays = [rng.standard_normal((1, 4, 256, 32), dtype=np.float32) for _ in range(3)]
expected = qkv.attention(*arrays)
busy = True

def keep_busy():
    while busy:
        qkv.attention(*arrays)

for _ in range(2):
    threading.Thread(target=keep_busy, daemon=True).start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        ok = all((qkv.attention(*arrays) == expected).all() for _ in range(3))
        os._exit(0 if ok else 3)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
assert (qkv.attention(*arrays) == expected).all()
print("done", flush=True)
# and the process ends while its threads compute
"""


IMPORTS = """import os, sys, threading, time
sys.path.insert(0, sys.argv[1])
import numpy as np, qkv
"""


def _run(program: str, **variables: str) -> str:
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith("QKV_") or k == "QKV_AMX"
    }
    result = subprocess.run(
        [sys.executable, "-c", IMPORTS + program, os.path.dirname(os.path.dirname(qkv.__file__))],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_process_forked_during_calls_computes_correctly() -> None:
    assert _run(FORK, QKV_BACKEND=BACKENDS[0]) == "done\n"


AFFINITY = """
qkv.set_num_threads(2)
x = np.ones((8, 4, 200, 32), np.float32)
before = set(os.listdir("/proc/self/task"))
qkv.attention(x, x, x)
workers = set(os.listdir("/proc/self/task")) - before
assert len(workers) == 1, workers
one = max(os.sched_getaffinity(0))
os.sched_setaffinity(0, {one})
end = time.monotonic() + 60
while time.monotonic() < end:
    qkv.attention(x, x, x)
    if all(os.sched_getaffinity(int(worker)) == {one} for worker in workers):
        print("followed")
        break
"""


@native
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_threads_follow_the_cpu_affinity_of_the_caller() -> None:
    assert _run(AFFINITY, OPENBLAS_NUM_THREADS="1", QKV_BACKEND=BACKENDS[0]) == "followed\n"


@native
def test_a_single_threaded_call_starts_no_thread() -> None:
    program = (
        "x = np.ones((4, 4, 200, 32), np.float32);"
        "before = threads = len(os.listdir('/proc/self/task')) if os.path.exists('/proc') else 0;"
        "qkv.attention(x, x, x);"
        "print(len(os.listdir('/proc/self/task')) - before if before else 0)"
    )
    assert _run(program, QKV_NUM_THREADS="1", QKV_BACKEND=BACKENDS[0]) == "0\n"
