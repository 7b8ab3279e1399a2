"""A linear layer fused with bias and GELU, compared with NumPy's matrix product alone."""

from collections.abc import Iterator

import numpy as np

from benchmarks.common import LOOSE, Row, Way, faster, share_of_peak
from benchmarks.measure import processor
from benchmarks.peers import torch_linear
from qkv.ops.linear import linear


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield the table row for the first layer of MiniLM's MLP, with 4,096 tokens."""
    yield row(4096 // shrink, 384, 1536, fast="avx512_bf16" in processor()[1])


def row(tokens: int, into: int, out: int, *, fast: bool) -> Row:
    """Return the row for float32 and bfloat16; `fast`: the processor can multiply bfloat16."""
    from ml_dtypes import bfloat16

    rng = np.random.default_rng(0)
    x = rng.standard_normal((tokens, into), np.float32)
    weight = rng.standard_normal((into, out), np.float32) / np.float32(np.sqrt(into))
    bias = rng.standard_normal(out, np.float32)
    half_x, half_weight = x.astype(bfloat16), weight.astype(bfloat16)
    weight.flags.writeable = half_weight.flags.writeable = (
        False  # frozen weights are packed once, as in a model
    )
    work = 2.0 * tokens * into * out

    def error(x, weight, activated=True, read=np.asarray):
        shown = np.linspace(0, tokens - 1, min(tokens, 128)).astype(int)
        truth = x[shown].astype(np.float64) @ weight.astype(np.float64)
        if activated:
            truth = gelu(truth + bias)
        return lambda y: float(np.abs(read(y)[shown].astype(np.float64) - truth).max())

    torch = torch_linear(x, weight, bias)
    torch_half = torch_linear(x, weight, bias, dtype="bfloat16")
    half = {"allowed": LOOSE["bfloat16"], "operations": work, "dtype": "bfloat16"}
    ways = {
        "qkv": Way(
            lambda: linear(x, weight, bias, activation="gelu"),
            error(x, weight),
            operations=work,
        ),
        "numpy, @ alone": Way(lambda: x @ weight, error(x, weight, False), operations=work),
        "torch": torch and Way(torch[0], error(x, weight, read=torch[1]), operations=work),
        "qkv, bfloat16": Way(
            lambda: linear(half_x, half_weight, bias, activation="gelu"),
            error(half_x, half_weight),
            **half,
        ),
        "torch, bfloat16": torch_half
        and Way(torch_half[0], error(half_x, half_weight, read=torch_half[1]), **half),
    }
    goals = (
        faster("numpy, @ alone", 1.5),
        share_of_peak(0.80, 0.90),
        faster("torch", 1.0),
        faster("qkv", 1.5 if fast else 1.0, 1.8 if fast else None, way="qkv, bfloat16"),
        share_of_peak(None, way="qkv, bfloat16"),
        faster("torch, bfloat16", None, 1.0, way="qkv, bfloat16"),
    )
    return Row(f"{tokens:,} x {into} x {out:,}, bias and GELU", ways, goals)


def gelu(x: np.ndarray) -> np.ndarray:
    """Compute the exact GELU, number by number."""
    import math

    erf = np.vectorize(math.erf, otypes=[np.float64])
    return x / 2 * (1 + erf(x / math.sqrt(2)))
