"""What runs, the linear layer and its activations, and the work cut over threads."""

import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.ops.activation import activate
from qkv.ops.kernel import BACKENDS, BODIES, body, kernel
from qkv.ops.linear import linear, multiply
from qkv.ops.threads import get_num_threads, go_on, one_blas_thread, run_all, set_num_threads

XS = np.concatenate([np.linspace(-8, 8, 40001), [0.0, -0.0, 1e-30, -1e-4, 30.0, -30.0, 200.0]])

EXACT = {
    "gelu": lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
    "gelu_bloom": lambda x: x / 2 * (1 + math.tanh(0.79788456 * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 3e-7), (np.float64, 5e-16)])
def test_activations_by_the_math_module(name: str, dtype: type, bound: float) -> None:
    x = XS.astype(dtype)
    got = activate(x, name)
    assert got.dtype == dtype
    expected = np.array([EXACT[name](float(number)) for number in x])
    assert (np.abs(got - expected) <= bound * np.maximum(1, np.abs(x))).all()


@pytest.mark.parametrize("name", EXACT)
def test_activations_end_at_nothing_and_at_x(name: str) -> None:
    x = np.array([-1e4, -60.0, 60.0, 1e4], np.float32)
    np.testing.assert_allclose(activate(x, name), np.maximum(x, 0), rtol=1e-7, atol=1e-24)


@pytest.mark.parametrize("name", EXACT)
def test_activations_of_infinities_and_nan(name: str) -> None:
    got = activate(np.array([np.inf, np.nan], np.float32), name)
    assert got[0] == np.inf
    assert np.isnan(got[1])


def test_an_activation_leaves_its_input_and_keeps_its_shape() -> None:
    x = np.asfortranarray(np.arange(-6.0, 6).reshape(3, 4))
    before = x.copy()
    np.testing.assert_array_equal(activate(x, "relu"), np.maximum(before, 0))
    np.testing.assert_array_equal(x, before)
    assert activate(np.zeros((0, 3)), "gelu").shape == (0, 3)


def test_an_unknown_activation_is_told_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'swish'.*gelu, gelu_tanh, silu, relu"):
        activate(np.zeros(2), "swish")


def test_linear_by_hand() -> None:
    x = np.array([[[1.0, 2.0]], [[-3.0, 0.5]]])
    weight = np.array([[1.0, 0.0, -1.0], [2.0, 1.0, 0.0]])
    bias = np.array([0.5, 0.0, 0.0])
    np.testing.assert_array_equal(linear(x, weight), [[[5, 2, -1]], [[-2, 0.5, 3]]])
    np.testing.assert_array_equal(linear(x, weight, bias)[:, 0, 0], [5.5, -1.5])
    whole = linear(x, weight, bias, activation="relu")
    np.testing.assert_array_equal(whole, [[[5.5, 2, 0]], [[0, 0.5, 3]]])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_case_runs_once(threads: int) -> None:
    done: list[int] = []
    set_num_threads(threads)
    run_all(lambda i: done.append(i), [(i,) for i in range(100)])
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_error_of_a_case_comes_out(threads: int) -> None:
    def task(i: int) -> None:
        if i == 7:
            raise ZeroDivisionError(i)

    set_num_threads(threads)
    with pytest.raises(ZeroDivisionError):
        run_all(task, [(i,) for i in range(20)])
    run_all(task, [(1,), (2,)])  # and the next call works


def test_after_an_error_nothing_runs_and_nothing_begins() -> None:
    ended: list[int] = []
    begun = threading.Event()

    def task(i: int) -> None:
        if i == 0:
            begun.wait(20)
            raise ZeroDivisionError
        begun.set()
        time.sleep(0.2)
        ended.append(i)

    set_num_threads(3)
    with pytest.raises(ZeroDivisionError):
        run_all(task, [(i,) for i in range(200)])
    seen = len(ended)
    assert 1 <= seen <= 3
    time.sleep(0.3)
    assert len(ended) == seen


def test_two_threads_work_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=20)
    set_num_threads(2)
    run_all(lambda: both.wait(), [(), ()])  # would time out on one thread


def test_a_long_case_ends_where_another_one_fails() -> None:
    begun = threading.Event()

    def task(fails: bool) -> None:
        if fails:
            assert begun.wait(20)
            raise ZeroDivisionError
        begun.set()
        while True:  # for good, if nothing says that another one has failed
            go_on()
            time.sleep(0.001)

    set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        run_all(task, [(True,), (False,)])
    go_on()  # outside of all cases there is nothing to stop


def test_numpys_products_do_not_depend_on_what_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    # Shapes of which NumPy's BLAS gives other bits on one thread and on two.
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
                with one_blas_thread():  # as attention on another thread has it
                    found.append(linear(x, weight))
        assert all((each == found[0]).all() for each in found)
        np.testing.assert_allclose(found[0], x @ weight, atol=1e-11)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 0, 3), (4,), (2, 3)])
@pytest.mark.parametrize("width", [0, 5])
def test_products_of_every_shape(shape: tuple[int, ...], width: int) -> None:
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal(shape), rng.standard_normal((shape[-1], width))
    found = multiply(left, right)
    assert found.shape == (left @ right).shape
    np.testing.assert_allclose(found, left @ right, rtol=1e-13)


ENDED = """
import atexit, sys, threading, time
sys.path.insert(0, sys.argv[1])
import numpy as np, qkv
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
    expected = compute()  # the first call of all, after the main thread has ended
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


def test_where_no_thread_can_be_had_the_caller_computes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sys.modules["qkv.ops.threads"], "_helpers", [])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    set_num_threads(3)
    run_all(done.append, [(i,) for i in range(9)])
    assert done == list(range(9))


@pytest.mark.parametrize("wanted", ["0", "1025", "9" * 5000, "1.5", "-1"])
def test_a_number_of_threads_that_cannot_be_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv("QKV_NUM_THREADS", wanted)
    with pytest.raises(ValueError, match=r"^QKV_NUM_THREADS=.{1,80}: write 1 to 1024$"):
        get_num_threads()


# What runs


@pytest.fixture(params=BACKENDS)
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each backend that this machine can run, in use."""
    monkeypatch.setenv("QKV_BACKEND", request.param)
    return request.param


native = pytest.mark.skipif(kernel is None, reason="the kernel was not built")


def test_the_best_comes_first_and_numpy_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKV_BACKEND", raising=False)
    order = ["native-avx512", "native-avx2", "native-portable", "numpy"]
    assert list(BACKENDS) == [name for name in order if name in BACKENDS]
    assert qkv.backend() == BACKENDS[0]
    assert "numpy" in BACKENDS
    assert ("native-portable" in BACKENDS) == (kernel is not None)


def test_each_backend_can_be_picked(chosen: str) -> None:
    assert qkv.backend() == chosen
    assert body() == BODIES.get(chosen)


def test_one_that_is_not_there_is_an_error_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_BACKEND", "native-abacus")
    x = np.ones((2, 2), np.float32)
    for call in (qkv.attention, qkv.summarize_attention):
        with pytest.raises(ValueError, match=rf"native-abacus is not.*{', '.join(BACKENDS)}"):
            call(x, x, x)


def _arrays(L: int = 300, S: int = 400) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal((2, 4, n, 32), dtype=np.float32) for n in (L, S, S)]


def test_calls_from_eight_threads_at_once(chosen: str) -> None:
    arrays = [_arrays(), _arrays(1, 5000), _arrays(40, 9)]
    set_num_threads(3)
    expected = [qkv.attention(*each) for each in arrays]
    with ThreadPoolExecutor(8) as pool:
        jobs = [(i % 3, pool.submit(qkv.attention, *arrays[i % 3])) for i in range(96)]
        assert all((job.result() == expected[i]).all() for i, job in jobs)


# Forking beside running threads is what is tested: Python 3.12 warns of it.
FORK = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import numpy as np, qkv

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


def _run(program: str, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QKV_")}
    result = subprocess.run(
        [sys.executable, "-c", program, os.path.dirname(os.path.dirname(qkv.__file__))],
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
def test_a_fork_beside_running_calls_makes_a_pool_of_its_own() -> None:
    assert _run(FORK, QKV_BACKEND=BACKENDS[0]) == "done\n"


AFFINITY = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np, qkv

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
def test_threads_stay_on_the_cores_of_whoever_calls() -> None:
    assert _run(AFFINITY, OPENBLAS_NUM_THREADS="1", QKV_BACKEND=BACKENDS[0]) == "followed\n"


@native
def test_no_thread_is_made_where_one_is_enough() -> None:
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import numpy as np, qkv;"
        "x = np.ones((4, 4, 200, 32), np.float32);"
        "before = threads = len(os.listdir('/proc/self/task')) if os.path.exists('/proc') else 0;"
        "qkv.attention(x, x, x);"
        "print(len(os.listdir('/proc/self/task')) - before if before else 0)"
    )
    assert _run(program, QKV_NUM_THREADS="1", QKV_BACKEND=BACKENDS[0]) == "0\n"


# The kernel trusts nobody with its memory: what does not fit is refused before anything is read.

QUERY, KEY, VALUE = (
    np.ones((2, 4, 5, 8), "f4"),
    np.ones((2, 2, 7, 8), "f4"),
    np.ones((2, 2, 7, 3), "f4"),
)
ASKED: dict[str, Any] = {
    "body": 0,
    "query": QUERY,
    "key": KEY,
    "value": VALUE,
    "out": np.zeros((2, 4, 5, 3), "f4"),
    "lse": np.zeros((2, 4, 5, 1)),
    "mask": None,
    "bias": None,
    "slopes": None,
    "sinks": None,
    "offset": 0,
    "query_lengths": None,
    "key_lengths": None,
    "left": None,
    "right": None,
    "softcap": None,
    "scale": 1.0,
    "threads": 1,
    "weights": None,
}


@native
@pytest.mark.parametrize(
    "wrong",
    [
        {"body": len(BODIES)},
        {"body": -1},
        {"key": KEY[:, :, :, :7]},
        {"key": KEY[:1, :, :6]},
        {"key": np.ones((3, 2, 7, 8), "f4")},
        {"key": np.ones((2, 3, 7, 8), "f4")},
        {"value": VALUE[:, :1]},
        {"value": VALUE[:, :, :6]},
        {"value": VALUE.astype("f2")},
        {"query": QUERY[0]},
        {"query": QUERY.astype("f8"), "key": KEY.astype("f8"), "value": VALUE.astype("f8")},
        {"query": QUERY[..., ::-1]},
        {"query": np.ones((2, 4, 5, 257), "f4"), "key": np.ones((2, 2, 7, 257), "f4")},
        {"query": QUERY[..., :0], "key": KEY[..., :0]},
        {"out": np.zeros((2, 4, 5, 2), "f4")},
        {"out": np.zeros((1, 4, 5, 3), "f4")},
        {"out": np.zeros((2, 4, 5, 3), "f2")},
        {"lse": np.zeros((2, 4, 5, 1), "f4")},
        {"lse": np.zeros((2, 4, 4, 1))},
        {"lse": np.zeros((1, 4, 5, 1))},
        {"mask": np.ones((5, 6), bool)},
        {"mask": np.ones((3, 1, 5, 7), bool)},
        {"mask": np.ones((2, 2, 5, 7), bool)},
        {"mask": np.ones((1, 2, 4, 5, 7), bool)},
        {"mask": np.ones((5, 7), np.int64)},
        {"bias": np.ones((5, 7), bool)},
        {"bias": np.ones((6, 7), "f4")},
        {"slopes": np.ones(3, "f4")},
        {"slopes": np.ones(4)},
        {"slopes": np.ones(8, "f4")[::2]},
        {"sinks": np.ones((3, 2), "f4")},
        {"sinks": np.ones(4, "f4")},
        {"offset": np.zeros(3, np.int64)},
        {"offset": 2**61},
        {"query_lengths": 6},
        {"query_lengths": -1},
        {"key_lengths": np.array([3, 8])},
        {"left": -1},
        {"weights": np.zeros((2, 4, 5, 6), "f4")},
        {"weights": np.zeros((4, 5, 7), "f4")},
        {"weights": np.zeros((2, 4, 5, 7))},
    ],
    ids=lambda wrong: " ".join(wrong),
)
def test_the_kernel_refuses_what_does_not_fit(wrong: dict[str, Any]) -> None:
    kernel.attend(*ASKED.values())
    with pytest.raises(ValueError, match=r"^kernel: "):
        kernel.attend(*(ASKED | wrong).values())


@native
@pytest.mark.parametrize(
    "wrong",
    [
        {"query": None},
        {"query": [[1.0]]},
        {"offset": 1.5},
        {"scale": "1"},
        {"mask": np.ones((5, 7), np.int8)},
        {"mask": np.ones((5, 7), ">f4")},
    ],
    ids=lambda wrong: " ".join(wrong),
)
def test_the_kernel_refuses_other_types(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        kernel.attend(*(ASKED | wrong).values())


@native
def test_the_kernel_does_not_write_where_it_may_not() -> None:
    sealed = np.zeros((2, 4, 5, 3), "f4")
    sealed.flags.writeable = False
    with pytest.raises((BufferError, ValueError)):
        kernel.attend(*(ASKED | {"out": sealed}).values())


@native
@pytest.mark.parametrize(
    ("starts", "key_starts"),
    [
        ([0, 3, 6], [0, 2, 5]),
        ([0, 3, 2], [0, 2, 4]),
        ([0, 5], [0, 2, 4]),
        ([-1, 5], [0, 4]),
        ([], []),
    ],
)
def test_the_kernel_refuses_starts_beyond_the_rows(
    starts: list[int], key_starts: list[int]
) -> None:
    query, key = np.ones((5, 2, 4), "f4"), np.ones((4, 2, 4), "f4")
    edges = [np.array(cu, np.int64) for cu in (starts, key_starts)]
    rest = (None, None, 0, None, None, None, 1.0, 1)
    out, lse = np.zeros((5, 2, 4), "f4"), np.zeros((5, 2, 1))
    with pytest.raises(ValueError, match=r"^kernel: "):
        kernel.attend_packed(0, query, key, key, out, lse, *edges, *rest)
    kernel.attend_packed(0, query, key, key, out, lse, np.array([0, 5]), np.array([1, 4]), *rest)
    wide = [np.ones((n, 2, 257), "f4") for n in (5, 4)]
    with pytest.raises(ValueError, match=r"^kernel: .* MAX_SIZE"):
        kernel.attend_packed(0, *wide, key, out, lse, np.array([0, 5]), np.array([0, 4]), *rest)


def test_lse_changes_nothing_but_what_comes_with_it(chosen: str) -> None:
    query, key, value = _arrays(40, 50)
    for options in ({}, {"return_weights": True}, {"key_lengths": 9, "sinks": np.ones(4)}):
        out, *more = qkv.attention(query, key, value, return_lse=True, **options)
        alone = qkv.attention(query, key, value, **options)
        pairs = zip(alone, (out, *more[:-1]), strict=True) if more[1:] else [(alone, out)]
        for one, other in pairs:
            np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(more[-1], _lse(query, key, **options), rtol=2e-6)
    q, k, v = (np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in (query, key, value))
    cu = ([0, 3, 40], [0, 20, 50])
    out, lse = qkv.varlen_attention(q, k, v, *cu, return_lse=True)
    np.testing.assert_array_equal(qkv.varlen_attention(q, k, v, *cu), out)
    np.testing.assert_allclose(lse[:3].T, _lse(query[0, :, :3], key[0, :, :20]), rtol=2e-6)


def _lse(query: np.ndarray, key: np.ndarray, **options: Any) -> np.ndarray:
    key = key[..., : options.get("key_lengths", key.shape[-2]), :]
    scores = query.astype(np.float64) @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    return np.log(np.exp(scores).sum(-1) + (np.e if "sinks" in options else 0))


@native
def test_the_kernel_computes_up_to_its_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKV_BACKEND", raising=False)
    asked: list[int] = []
    for name in ("attend", "attend_packed", "summarize"):
        monkeypatch.setattr(kernel, name, lambda *given: asked.append(given[1].shape[-1]))
    for d in (255, 256, 257):
        x = np.ones((2, 2, d), np.float32)
        qkv.attention(x, x, x)
        qkv.attention(x, x, x, softcap=5.0)
        qkv.summarize_attention(x, x, x)
        qkv.varlen_attention(x, x, x, [0, 2], [0, 2])
    assert kernel.MAX_SIZE == 256
    assert asked == [255] * 4 + [256] * 4


@native
@pytest.mark.parametrize("here", BODIES.values())
def test_the_kernel_takes_lse_or_none(here: int) -> None:
    given = ASKED | {"body": here, "lse": np.zeros((2, 4, 5, 1))}
    kernel.attend(*given.values())
    np.testing.assert_allclose(given["lse"], 8 + math.log(7), rtol=2e-6)
    out = np.zeros_like(ASKED["out"])
    kernel.attend(*(given | {"lse": None, "out": out}).values())
    np.testing.assert_allclose(out, 1, rtol=2e-6)
    summary = (np.zeros((2, 4, 5, 3), "i8"), np.zeros((2, 4, 5, 3), "f4"), np.zeros((2, 4, 1, 7)))
    asked = list(given.values())[:-1]
    kernel.summarize(*asked, *summary)
    asked[list(given).index("lse")] = None
    with pytest.raises(ValueError, match=r"^kernel: an array is missing"):
        kernel.summarize(*asked, *summary)


# Where arrays stand


def _seen_from(arrays: list[np.ndarray], change: Any) -> list[np.ndarray]:
    return [change(array) for array in arrays]


def _assert_same(chosen: str, actual: np.ndarray, expected: np.ndarray) -> None:
    """To the last bit, but for NumPy, whose products round by the way that arrays stand."""
    error = np.abs(actual.astype(np.float64) - expected).max()
    assert error <= (0 if chosen != "numpy" else 1e-3 if expected.dtype == "f2" else 2e-6)


def _odd(array: np.ndarray) -> np.ndarray:
    """The same numbers, none of which begins where a number of its size should."""
    memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
    shifted = memory.view(array.dtype).reshape(array.shape)
    shifted[...] = array
    return shifted


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
        lambda x: np.ascontiguousarray(x[:, ::-1, ::-1])[:, ::-1, ::-1],
        lambda x: x.astype(x.dtype.newbyteorder(">")),
        _odd,
        lambda x: np.rec.fromarrays([x, x > 0], names="x,y").x,
    ],
    ids=["swapped", "fortran", "steps", "back", "backwards", "big-endian", "misaligned", "record"],
)
def test_arrays_are_read_where_they_stand(chosen: str, dtype: str, change: Any) -> None:
    arrays = [array.astype(dtype) for array in _arrays(5, 7)]
    others = _seen_from(arrays, change)
    _assert_same(chosen, qkv.attention(*others), qkv.attention(*arrays))
    mask = np.where(np.arange(7) % 3, arrays[0][0, 0, :, :7], -np.inf).astype(dtype)[None, None]
    expected = qkv.attention(*arrays, mask, bias=mask)
    _assert_same(chosen, qkv.attention(*others, change(mask), bias=change(mask)), expected)


def test_repeated_arrays_are_read_once_and_again(chosen: str) -> None:
    query, key, value = _arrays(5, 7)
    wide = [np.broadcast_to(x[:1], x.shape) for x in (query, key, value)]
    _assert_same(
        chosen, qkv.attention(*wide), qkv.attention(*(np.ascontiguousarray(x) for x in wide))
    )
    odd = [np.broadcast_to(_odd(x[:1]), x.shape) for x in (query, key, value)]
    _assert_same(chosen, qkv.attention(*odd), qkv.attention(*wide))
    same = np.broadcast_to(np.float32(0.5), (5, 32))
    np.testing.assert_allclose(qkv.attention(same, same, same), 0.5, rtol=1e-6)


@pytest.mark.parametrize("heads", [4, 2])
def test_out_of_any_steps_is_written_where_it_stands(chosen: str, heads: int) -> None:
    query, key, value = _arrays(5, 7)
    key, value = key[:, :heads], value[:, :heads]
    expected = qkv.attention(query, key, value)
    whole = np.full((2, 5, 4, 40), 9, np.float32)
    for out in (
        whole.transpose(0, 2, 1, 3)[..., 3:35],  # heads behind tokens
        np.full((2, 4, 5, 64), 9, np.float32)[..., ::2],
        np.full((5, 2, 4, 32), 9, np.float32).transpose(1, 2, 0, 3),
    ):
        assert qkv.attention(query, key, value, out=out) is out
        np.testing.assert_array_equal(out, expected)
    assert (whole[..., :3] == 9).all()
    assert (whole[..., 35:] == 9).all()


def test_out_is_as_it_was_after_an_error(chosen: str) -> None:
    query, key, value = _arrays(5, 7)
    out = np.full((2, 4, 5, 32), 9, np.float32)
    with pytest.raises(ValueError, match="q_offset"):
        qkv.attention(query, key, value, is_causal=True, out=out)
    with pytest.raises(ValueError, match="key_lengths"):
        qkv.attention(query, key, value, key_lengths=8, out=out)
    assert (out == 9).all()
