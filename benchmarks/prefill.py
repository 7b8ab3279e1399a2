"""Whole texts in float32, plain and causal."""

from collections.abc import Iterator

import qkv
from benchmarks.common import Row, Way, beside, faster, ours, share_of_peak
from benchmarks.measure import operations, plain_attention, random_inputs
from benchmarks.peers import (
    openvino_attention,
    ort_attention,
    ort_grouped,
    ort_multi_head,
    torch_attention,
)

ORT = "onnxruntime|onnxruntime, opset 24|onnxruntime, GQA"


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for three lengths, and causal rows for the last two lengths."""
    for shape, torch, others, peak, aim in (
        ((1, 12, 512 // shrink, 64), 2.2, 1.0, 0.78, 0.85),
        ((1, 12, 2048 // shrink, 64), 2.3, 1.05, 0.85, 0.92),
        ((1, 8, 4096 // shrink, 128), 2.3, 1.05, 0.90, 0.95),
    ):
        goals = (
            faster("torch", torch),
            faster(ORT, others),
            faster("openvino", others),
            share_of_peak(peak, aim),
        )
        yield row(shape, goals, plain=shape[2] < 4096)
    for shape in ((1, 12, 2048 // shrink, 64), (1, 8, 4096 // shrink, 128)):
        yield row(shape, (faster("torch", 2.3),), causal=True)


def row(shape, goals=(), *, causal=False, plain=False) -> Row:
    """Make the table row for one shape `(B, H, L, d)`."""
    q, k, v = random_inputs(shape, shape)
    error = beside(q, k, v, is_causal=causal)
    work = operations(q, k, v, is_causal=causal)
    peers = {
        "torch": torch_attention(q, k, v, is_causal=causal),
        "onnxruntime": ort_multi_head(q, k, v, causal),
        "onnxruntime, opset 24": ort_attention(q, k, v, causal),
        "openvino": openvino_attention(q, k, v, causal),
    }
    if causal:
        peers["onnxruntime, GQA"] = ort_grouped(q, k, v)
    ways: dict[str, Way | None] = {
        "qkv": Way(lambda: qkv.attention(q, k, v, is_causal=causal), error(), ours(q, k, v), work),
    }
    for name, peer in peers.items():
        ways[name] = peer and Way(peer[0], error(peer[1]), operations=work)
    if plain:
        ways["numpy"] = Way(
            lambda: plain_attention(q, k, v, is_causal=causal), error(), operations=work
        )
    return Row(f"{shape}{', causal' * causal}", ways, tuple(goals))
