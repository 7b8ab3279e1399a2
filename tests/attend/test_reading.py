"""Check that a call reads no memory outside its inputs, and does not write to its inputs."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import qkv
from qkv.ops.kernel import BACKENDS

from .support import ON_ONE_BACKEND

pytestmark = pytest.mark.attack

# Each input has its own read-only memory pages, between two inaccessible pages. The input
# fills these memory pages from their first byte on, or up to their last byte.
FENCES = """
import ctypes, faulthandler, mmap, os, sys

faulthandler.enable()
sys.path[:0] = sys.argv[1:3]
import numpy as np
import qkv
from attend.drawn import BFLOAT16, F16, F32, F64, draw

libc = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE
NONE, READ, WRITE = 0, 1, 2
keep = []


def guard(address, length, rights):
    if length and libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(length), rights):
        raise OSError(ctypes.get_errno(), "mprotect")


def fenced(x, at_end, rights=READ, real=None):
    '''Copy `x` between inaccessible pages; rows from `real` on lie in such a page.'''
    x = np.ascontiguousarray(x)
    open_bytes = x.nbytes if real is None else x[..., :real, :].nbytes
    inside = -(-open_bytes // PAGE) * PAGE
    behind = -(-(x.nbytes - open_bytes) // PAGE) * PAGE + PAGE
    memory = mmap.mmap(-1, PAGE + inside + behind)
    keep.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start = PAGE + (inside - open_bytes if at_end else 0)
    there = np.frombuffer(memory, np.uint8)[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    there[...] = x
    guard(address + PAGE, inside, rights)
    guard(address, PAGE, NONE)
    guard(address + PAGE + inside, behind, NONE)
    return there
"""

CALLS = """
def same(one, two):
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, two, strict=True))


for backend in sys.argv[3:]:
    os.environ["QKV_BACKEND"] = backend
    for seed in range(160):
        case = draw(seed, types=(F32, F16, BFLOAT16, F64), cells=8000)
        if seed % 4 == 3:  # a summary reads everything twice
            run = lambda *given, **options: qkv.summarize_attention(*given, **options)
        else:
            ways = {"return_lse": True, "return_weights": bool(seed % 2)}
            run = lambda *given, **options: qkv.attention(*given, **options, **ways)
        with np.errstate(all="ignore"):
            plain = tuple(np.ascontiguousarray(x) for x in case.arrays)
            expected = run(*plain, **case.options)
            for at_end in (True, False):
                arrays = [fenced(x, at_end) for x in case.arrays]
                options = {
                    name: fenced(x, at_end) if isinstance(x, np.ndarray) and x.size else x
                    for name, x in case.options.items()
                }
                assert same(run(*arrays, **options), expected), seed

    # Padding may lie in inaccessible memory.
    rng = np.random.default_rng(0)
    for L, S, real in [(40, 300, 123), (1, 700, 256), (16, 90, 1), (5, 64, 0)]:
        for size, heads, kv_heads in [(64, 4, 2), (33, 2, 2), (128, 8, 1)]:
            query, key, value = (
                rng.standard_normal((n, length, size), dtype=np.float32)
                for n, length in ((heads, L), (1, S), (1, S))
            )
            for kind in (F32, F16, BFLOAT16) if qkv.backend() != "numpy" else (F32,):
                q, k, v = (x.astype(kind) for x in (query, key, value))
                expected = qkv.attention(q, k, v, key_lengths=real, return_lse=True)
                k, v = fenced(k, True, real=real), fenced(v, True, real=real)
                found = qkv.attention(q, k, v, key_lengths=real, return_lse=True)
                assert same(found, expected), (L, S, real, size)

    # `out` must be written up to its edges.
    for L, S, size, kind in [(1, 9, 5, F32), (130, 40, 33, F32), (7, 300, 64, F16), (3, 3, 1, F16)]:
        query, key, value = (rng.standard_normal((2, n, size)).astype(kind) for n in (L, S, S))
        expected = qkv.attention(query, key, value)
        for at_end in (True, False):
            out = fenced(np.zeros(expected.shape, kind), at_end, READ | WRITE)
            assert same([qkv.attention(query, key, value, out=out)], [expected])
    print(backend)
"""


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    if sys.platform != "linux":
        pytest.skip("the test protects pages with a system call of Linux")
    tests = Path(__file__).resolve().parents[1]
    return subprocess.run(
        [sys.executable, "-c", program, Path(qkv.__file__).parents[1], tests, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@ON_ONE_BACKEND  # the test's subprocess runs every backend
def test_no_byte_outside_the_inputs_is_touched() -> None:
    result = _run(FENCES + CALLS, *BACKENDS)
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
    assert result.stdout.split() == list(BACKENDS)


TOUCHES = """
for touch in ("string_at(end, 1)", "string_at(begin - 1, 1)", "memset(begin, 0, 1)"):
    if (child := os.fork()) == 0:
        faulthandler.disable()
        x = fenced(np.ones(2), "end" in touch)
        begin = x.ctypes.data
        end = begin + 16
        eval("ctypes." + touch)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@ON_ONE_BACKEND
def test_the_fences_hold() -> None:
    ends = [int(code) for code in _run(FENCES + TOUCHES).stdout.split()]
    assert ends == [-signal.SIGSEGV] * 3
