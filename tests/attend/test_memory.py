"""Tests that memory is linear in the lengths.

All weights of 16,384 tokens would take 1 GiB, and those of 4,096 tokens 64 MiB. The best backend
computes 16,384 tokens; the other backends, which are far slower, compute 4,096.
"""

import os
import subprocess
import sys

import pytest

import qkv
from qkv.ops.kernel import BACKENDS

# The program reads its peak from /proc, because getrusage may report the peak of its parent.
PROGRAM = """
import sys

sys.path.insert(0, sys.argv[1])
import numpy as np
import qkv


def megabytes(name):
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith(name + ":"))
    return int(line.split()[1]) / 1024


tokens = int(sys.argv[2])
rng = np.random.default_rng(0)
query, key, value = (rng.standard_normal((1, tokens, 64), dtype=np.float32) for _ in range(3))
before = megabytes("VmRSS")
{call}
print(megabytes("VmHWM") - before)

# A few rows against the formula in float64.
for row in (0, 1, 1000, tokens // 2 - 1, tokens // 2, tokens - 1):
    scores = key[0, : row + 1].astype(float) @ query[0, row].astype(float) / 8
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    expected = weights @ value[0, : row + 1]
    assert np.abs(out[0, row] - expected).max() < 2e-5, row
    {check}
"""
CALLS = {
    "attention": ("out = qkv.attention(query, key, value, is_causal=True)", ""),
    "summarize_attention": (
        "s = qkv.summarize_attention(query, key, value, is_causal=True); out = s.out",
        "assert s.top_indices[0, row, 0] == weights.argmax();"
        " assert abs(s.top_weights[0, row, 0] - weights.max()) < 1e-5",
    ),
}


@pytest.mark.alone
@pytest.mark.attack
@pytest.mark.parametrize("name", CALLS)
def test_many_tokens(name: str, backend: str) -> None:
    if not os.path.exists("/proc/self/status"):
        pytest.skip("the peak is read from /proc")
    call, check = CALLS[name]
    tokens, most = (16_384, 48) if backend == BACKENDS[0] else (4_096, 32)
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            PROGRAM.replace("{call}", call).replace("{check}", check),
            os.path.dirname(os.path.dirname(qkv.__file__)),
            str(tokens),
        ],
        env={**os.environ, "QKV_NUM_THREADS": "2"},  # each thread has memory of its own
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    peak = float(result.stdout)
    assert tokens / 4096 <= peak < most, f"peak {peak} MB above the inputs"
