"""Tests of Ctrl-C: it ends a call at once on every backend, and the next call is correct."""

import os
import subprocess
import sys

import pytest

import qkv
from qkv.ops.kernel import BACKENDS, compiled

pytestmark = [
    pytest.mark.attack,
    pytest.mark.skipif(os.name != "posix", reason="this system has no signals to send"),
]
native = pytest.mark.skipif(compiled is None, reason="the kernel was not built")

# Each call must still run when the interrupt comes. Most calls would take minutes. For the others,
# `result` is the output: its last number is written at the end of the call, so a 0 there shows that
# the interrupt came before the end.
START = """
import signal, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, qkv
from numpy.lib.stride_tricks import as_strided
from qkv.ops.kernel import variant, compiled
from qkv.ops.linear import linear

threads = int(sys.argv[2])
qkv.set_num_threads(threads)
small = [np.random.default_rng(i).standard_normal((4, 300, 64)).astype("f4") for i in range(3)]
expected = qkv.attention(*small), linear(small[0], small[1][0, :64])

signal.signal(signal.SIGPROF, lambda *_: signal.raise_signal(signal.SIGINT))

def interrupted(call, result=None):
    try:
        signal.setitimer(signal.ITIMER_PROF, 0.04)  # seconds of processor time
        call()
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("it ended before it was interrupted")
    assert result is None or result.flat[-1] == 0, "the interrupt came after the end"
    for found, wanted in zip((qkv.attention(*small), linear(small[0], small[1][0, :64])), expected):
        assert (found == wanted).all()
"""

KERNEL = """
here = variant()
zeros = lambda *shape: np.zeros(shape, "f4")  # memory that nobody touches takes none
one = lambda *shape: np.broadcast_to(np.float32(1), shape)
same = lambda rows, size: as_strided(np.ones(size, "f4"), (rows, size), (0, 4))  # rows, all one

L = 300_000
x = zeros(1, L, 64)
interrupted(lambda: qkv.attention(x, x, x))
interrupted(lambda: qkv.attention(x, x, x, softcap=9.0, is_causal=True, return_lse=True))
interrupted(lambda: qkv.summarize_attention(x, x, x, is_causal=True))
interrupted(lambda: qkv.attention_grad(x, x, x, x, forward=(x, zeros(1, L))))
interrupted(lambda: qkv.attention_grad(x, x, x, x, bias=zeros(1, 1), forward=(x, zeros(1, L))))
rows, at = x.reshape(L, 1, 64), [0, L]
interrupted(lambda: qkv.varlen_attention(rows, rows, rows, at, at))
nan = np.broadcast_to(np.float32("nan"), (1, L, 64))  # computed in double precision
interrupted(lambda: qkv.attention(x, nan, x))
keys = one(1, 100_000_000, 256)  # one query
keys = as_strided(np.ones(256, "f4"), (1, 100_000_000, 256), (0, 0, 4))
out = zeros(1, 1, 256)
interrupted(lambda: qkv.attention(keys[:, :1], keys, keys, out=out), out)

size = compiled.packed_size(here, 1024, 1024, zeros(0, 0))
packed, many = zeros(size), 1_000_000_000
interrupted(lambda: compiled.linear(
    here, same(many, 1024), packed, None, 0, None, None, same(many, 1024), threads))
blocks = zeros(147_456)  # Q4_0, (1024, 1024)
interrupted(lambda: compiled.multiply_blocks(
    here, 0, same(many, 1024), blocks, None, 0, None, None, same(many, 1024), threads))
eighths = np.zeros(4 * compiled.packed_size(here, 1024, 1024, np.zeros((0, 0), "i1")), "i1")
interrupted(lambda: compiled.linear(
    here, same(many, 1024), eighths, None, 0, None, None, same(many, 1024), threads))
interrupted(lambda: compiled.outer(
    here, same(many, 1024), same(many, 1024), zeros(1024, 1024), None, None, threads))
wide = 30_000
packed = zeros(compiled.packed_size(here, wide, wide, zeros(0, 0)))
interrupted(lambda: compiled.pack(here, same(wide, wide), packed, threads), packed)
digits = as_strided(np.ones(1, "i1"), (wide, wide), (0, 0))
packed = np.zeros(4 * compiled.packed_size(here, wide, wide, digits), "i1")
interrupted(lambda: compiled.pack_int8(
    here, digits, digits, np.ones(wide, "f4"), packed, threads), packed)
many = 200_000_000
scale = zeros(many)
interrupted(lambda: compiled.norm(
    here, same(many, 256), one(256).copy(), None, 1.0, True, same(many, 256), scale, threads
), scale)
grad = zeros(many, 4)
interrupted(lambda: compiled.norm_grad(
    here, same(many, 4), one(4).copy(), scale, same(many, 4), True, grad, zeros(4), None, threads))
losses, grad = zeros(100_000), grad.ravel()[: 100_000 * 8000].reshape(100_000, 8000)
interrupted(lambda: compiled.cross_entropy(
    here, same(100_000, 8000), np.zeros(100_000, "i8"), None, losses, grad, threads), losses)
x, y = zeros(many * 4), zeros(many * 4)
x[-1] = 1
interrupted(lambda: compiled.map(here, 1, x, None, y, threads), y)
y = y.view("u2")[: x.size]
interrupted(lambda: compiled.narrow(here, x, y, threads), y)
"""

NUMPY = """
x = np.zeros((1, 100_000, 64))
interrupted(lambda: qkv.attention(x, x, x))
interrupted(lambda: qkv.summarize_attention(x, x, x))
interrupted(lambda: qkv.attention_grad(x, x, x, x, forward=(x, x[..., 0])))
x = np.broadcast_to(1.0, (200_000, 2000))
interrupted(lambda: linear(x, x[:2000]))
"""

HANDLED = """
x = np.random.default_rng(0).standard_normal((1, 16_000, 64)).astype("f4")
plain, heard = qkv.attention(x, x, x), []

def hear(*_):
    heard.append((qkv.attention(*small) == expected[0]).all())

signal.signal(signal.SIGALRM, hear)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
found = qkv.attention(x, x, x)
signal.setitimer(signal.ITIMER_REAL, 0)
assert len(heard) > 1 and all(heard), heard  # without hearing there is one, at the end
assert (found == plain).all()
"""


def _run(program: str, threads: int, backend: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QKV_")}
    source = os.path.dirname(os.path.dirname(qkv.__file__))
    result = subprocess.run(
        [sys.executable, "-c", START + program, source, str(threads)],
        env=environment | {"QKV_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,  # only a safeguard: a call that misses the signal takes minutes
    )
    assert result.returncode == 0, result.stderr


@native
@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupt_ends_every_call_of_the_kernel(threads: int) -> None:
    _run(KERNEL, threads, BACKENDS[0])


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupt_ends_numpys_work(threads: int) -> None:
    _run(NUMPY, threads, "numpy")


@native
@pytest.mark.parametrize("threads", [1, 2])
def test_a_signal_handler_that_calls_attention_changes_no_result(threads: int) -> None:
    _run(HANDLED, threads, BACKENDS[0])
