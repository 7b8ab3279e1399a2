"""bfloat16 inputs and outputs, compared with float32 and with other libraries in bfloat16."""

from collections.abc import Iterator

import numpy as np

import qkv
from benchmarks.common import LOOSE, Row, Way, beside, faster, no_less_exact, ours, with_amx
from benchmarks.measure import operations, processor, random_inputs
from benchmarks.peers import openvino_attention, torch_attention


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for five shapes, plain and causal, with goals for processors with AMX."""
    fast = "avx512_bf16" in processor()[1]
    for shape, torch in (
        ((32 // shrink, 12, 32, 64), 3.0),
        ((1, 12, 128 // shrink, 64), 2.0),
        ((1, 12, 512 // shrink, 64), 2.0),
        ((1, 12, 2048 // shrink, 64), 2.0),
        ((1, 8, 4096 // shrink, 128), 1.7),
    ):
        long = shape[2] >= 2048 // shrink
        for causal in (False, True):
            goals = [with_amx(faster("torch", torch)), faster("openvino", None, 1.0)]
            if long and not causal:
                own = faster("qkv, float32", 1.3 if fast else 1.0)
                goals = [own, *goals, no_less_exact("openvino")]
            yield row(shape, goals, causal=causal)


def row(shape, goals, *, causal: bool) -> Row:
    """Make the table row for one shape (B, H, L, d)."""
    q, k, v = random_inputs(shape, shape, "bfloat16")
    wide = [x.astype(np.float32) for x in (q, k, v)]
    given = {"is_causal": causal}
    error = beside(*wide, **given)
    work = operations(q, k, v, **given)
    torch = torch_attention(*wide, dtype="bfloat16", **given)
    openvino = openvino_attention(*wide, causal, dtype="bfloat16")
    dtype = "bfloat16"
    ways = {
        "qkv": Way(
            lambda: qkv.attention(q, k, v, **given), error(), ours(q, k, v), work, dtype=dtype
        ),
        "qkv, float32": Way(lambda: qkv.attention(*wide, **given), error(), ours(*wide), work),
        "torch": torch and Way(torch[0], error(torch[1]), LOOSE[dtype], work, dtype=dtype),
        "openvino": openvino
        and Way(openvino[0], error(openvino[1]), LOOSE[dtype], work, dtype=dtype),
    }
    return Row(f"{shape}{', causal' * causal}, bfloat16", ways, tuple(goals))
