"""bfloat16 inputs and outputs, compared with float32 and with other libraries in bfloat16."""

from collections.abc import Iterator

import numpy as np

import qkv
from benchmarks.common import LOOSE, Row, Way, beside, faster, no_less_exact, ours
from benchmarks.peers import openvino_attention, torch_attention
from qkv.measure import operations, processor, random_inputs


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for the two longest shapes of `benchmarks.prefill`, which measures float32."""
    for shape in ((1, 12, 2048 // shrink, 64), (1, 8, 4096 // shrink, 128)):
        yield row(shape, fast="avx512_bf16" in processor()[1])


def row(shape, *, fast: bool) -> Row:
    """Make the table row for one shape.

    Args:
        shape: (B, H, L, d).
        fast: whether the processor has instructions for products of bfloat16 numbers.
    """
    q, k, v = random_inputs(shape, shape, "bfloat16")
    wide = [x.astype(np.float32) for x in (q, k, v)]
    error = beside(*wide)
    work = operations(q, k, v)
    torch = torch_attention(*wide, dtype="bfloat16")
    openvino = openvino_attention(*wide, dtype="bfloat16")
    dtype = "bfloat16"
    ways = {
        "qkv": Way(lambda: qkv.attention(q, k, v), error(), ours(q, k, v), work, dtype=dtype),
        "qkv, float32": Way(lambda: qkv.attention(*wide), error(), ours(*wide), work),
        "torch": torch and Way(torch[0], error(torch[1]), LOOSE[dtype], work, dtype=dtype),
        "openvino": openvino
        and Way(openvino[0], error(openvino[1]), LOOSE[dtype], work, dtype=dtype),
    }
    goals = (
        faster("qkv, float32", 1.3 if fast else 1.0),
        faster("openvino", None, 1.0),
        no_less_exact("openvino"),
    )
    return Row(f"{shape}, bfloat16", ways, goals)
