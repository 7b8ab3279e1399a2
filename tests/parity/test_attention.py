"""Tests of attention of torch tensors against torch's scaled_dot_product_attention."""

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import qkv

from .support import close

BOUNDS = {torch.float32: 2e-6, torch.float64: 1e-13, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def made(*shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape", [(7, 7, 8, 8), (1, 300, 64, 64), (130, 70, 5, 11), (400, 400, 32, 32)]
)
def test_torch_in_every_type(dtype, causal, shape):
    """Torch tensors of every type are accepted; torch's causal mask starts at the first key."""
    queries, keys, size, value_size = shape
    sizes = ((queries, size), (keys, size), (keys, value_size))
    tensors = [made(2, 4, *rows, dtype=dtype, seed=seed) for seed, rows in enumerate(sizes)]
    expected = scaled_dot_product_attention(*tensors, is_causal=causal)
    found = qkv.attention(*tensors, is_causal=causal, q_offset="start")
    assert found.dtype.name == str(dtype).removeprefix("torch.")
    close(np.asarray(found, np.float64), expected.double(), BOUNDS[dtype])
