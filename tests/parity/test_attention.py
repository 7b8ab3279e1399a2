"""Tests of attention against torch's scaled_dot_product_attention, transformers and ONNX."""

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import qkv

from .support import close

BOUNDS = {torch.float32: 2e-6, torch.float64: 1e-13, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def made(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def qkv_tensors(heads=4, kv_heads=4, queries=7, keys=7, size=8, value_size=8, dtype=torch.float64):
    return (
        made(2, heads, queries, size, dtype=dtype),
        made(2, kv_heads, keys, size, dtype=dtype, seed=1),
        made(2, kv_heads, keys, value_size, dtype=dtype, seed=2),
    )


def agree(ours, theirs, bound=1e-13):
    assert not theirs.dtype.is_floating_point or theirs.isfinite().all()
    close(np.asarray(ours, np.float64), theirs.double(), bound)


# torch


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape", [(7, 7, 8, 8), (1, 300, 64, 64), (130, 70, 5, 11), (400, 400, 32, 32)]
)
def test_torch_in_every_type(dtype, causal, shape):
    """Torch tensors of every type are accepted; torch's causal mask starts at the first key."""
    tensors = qkv_tensors(4, 4, *shape, dtype=dtype)
    expected = scaled_dot_product_attention(*tensors, is_causal=causal)
    found = qkv.attention(*tensors, is_causal=causal, q_offset="start")
    assert found.dtype.name == str(dtype).removeprefix("torch.")
    agree(found, expected, BOUNDS[dtype])


def test_the_alibi_of_bloom():
    """Bloom adds slope * j, which differs from -slope * |i - j| by a constant in a causal row."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    query, key, value = qkv_tensors()
    alibi = build_alibi_tensor(torch.ones(1, 7), 4, torch.float64)[:, None]  # (H, 1, 1, S)
    mask = torch.zeros(7, 7, dtype=torch.float64).masked_fill(
        ~torch.ones(7, 7).tril().bool(), -torch.inf
    )
    expected = scaled_dot_product_attention(query, key, value, alibi.reshape(1, 4, 1, 7) + mask)
    found = qkv.attention(query, key, value, is_causal=True, alibi_slopes=qkv.alibi_slopes(4))
    agree(found, expected, 1e-7)  # Bloom's slopes are float32


def test_torch_varlen():
    """Attention of packed rows equals attention of each text alone."""
    lengths = [5, 1, 9, 2]
    parts = [[made(n, 4, 8, seed=7 * n + i) for n in lengths] for i in range(3)]
    packed = [torch.cat(part) for part in parts]
    cu = np.concatenate([[0], np.cumsum(lengths)])
    expected = torch.cat(
        [
            scaled_dot_product_attention(
                *(p.transpose(0, 1) for p in one), is_causal=True
            ).transpose(0, 1)
            for one in zip(*parts, strict=True)
        ]
    )
    agree(qkv.varlen_attention(*packed, cu, cu, is_causal=True), expected)


# ONNX: the Attention operator, run by onnxruntime
