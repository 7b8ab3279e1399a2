"""Tests of attention against torch's scaled_dot_product_attention, transformers and ONNX."""

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
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


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_torch_grouped_heads(kv_heads):
    tensors = qkv_tensors(6, kv_heads)
    agree(qkv.attention(*tensors), scaled_dot_product_attention(*tensors, enable_gqa=True))


@pytest.mark.parametrize(
    "shape", [(7, 9), (2, 1, 7, 9), (1, 4, 7, 9), (2, 4, 7, 9), (1, 9), (2, 1, 1, 9)]
)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_torch_masks(shape, kind):
    tensors = qkv_tensors(queries=7, keys=9)
    mask = made(*shape, seed=3) > -0.8
    mask[..., 0] = True
    if kind == "float":
        mask = torch.where(mask, made(*shape, seed=4), -torch.inf)
    agree(qkv.attention(*tensors, mask), scaled_dot_product_attention(*tensors, mask))


@pytest.mark.parametrize("scale", [1.0, 0.05, -0.5])
def test_torch_scale(scale):
    tensors = qkv_tensors()
    agree(qkv.attention(*tensors, scale=scale), scaled_dot_product_attention(*tensors, scale=scale))


def test_q_offset_equals_the_mask_that_torch_needs_with_a_cache():
    query, key, value = qkv_tensors(queries=3, keys=9)
    mask = torch.ones(3, 9).tril(6).bool()
    expected = scaled_dot_product_attention(query, key, value, mask)
    agree(qkv.attention(query, key, value, is_causal=True, q_offset="end"), expected)
    agree(qkv.attention(query, key, value, is_causal=True, q_offset=6), expected)


def test_torch_padding():
    query, key, value = qkv_tensors(queries=7, keys=9)
    lengths = torch.tensor([9, 4])
    mask = (torch.arange(9) < lengths[:, None])[:, None, None]  # (B, 1, 1, S)
    expected = scaled_dot_product_attention(query, key, value, mask)
    poisoned = key.clone(), value.clone()
    for part in poisoned:
        part[1, :, 4:] = torch.nan
    found = qkv.attention(query, *poisoned, key_lengths=lengths)
    agree(found, expected)


@pytest.mark.parametrize("window", [1, 3, 8, 20])
def test_the_sliding_window_of_transformers(window):
    """transformers' `sliding_window=W` equals `window=(W - 1, 0)`."""
    from transformers.masking_utils import sliding_window_causal_mask_function

    visible = sliding_window_causal_mask_function(window)
    positions = torch.arange(9)
    mask = visible(None, None, positions[:, None], positions)
    tensors = qkv_tensors(queries=9, keys=9)
    expected = scaled_dot_product_attention(*tensors, mask)
    agree(qkv.attention(*tensors, window=(window - 1, 0), is_causal=True), expected)
    agree(qkv.attention(*tensors, window=(window - 1, 0)), expected)


@pytest.mark.parametrize("offset", [0, 3])
def test_the_eager_attention_of_gemma2(offset):
    """Softcap, scale and grouped heads agree with Gemma 2's eager attention."""
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    class Module:
        num_key_value_groups = 2
        training = False

    query, key, value = (part * 3 for part in qkv_tensors(4, 2, 5, 5 + offset))
    visible = torch.ones(5, 5 + offset).tril(offset).bool()
    mask = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -torch.inf)
    expected, weights = eager_attention_forward(
        Module(), query, key, value, mask, scaling=0.3, softcap=2.5
    )
    found, found_weights = qkv.attention(
        query,
        key,
        value,
        is_causal=True,
        q_offset="end",
        scale=0.3,
        softcap=2.5,
        return_weights=True,
    )
    # transformers computes the softmax in float32
    agree(np.swapaxes(found, 1, 2), expected, 1e-6)
    agree(found_weights, weights, 1e-6)


def test_the_sinks_of_gpt_oss():
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    class Module:
        num_key_value_groups = 2
        training = False
        sinks = made(4, seed=5)

    query, key, value = qkv_tensors(4, 2)
    mask = torch.zeros(7, 7, dtype=torch.float64).masked_fill(
        ~torch.ones(7, 7).tril().bool(), -torch.inf
    )
    expected, weights = eager_attention_forward(
        Module(), query, key, value, mask[None, None].expand(2, 1, 7, 7), scaling=8**-0.5
    )
    found, found_weights = qkv.attention(
        query, key, value, is_causal=True, sinks=Module.sinks, return_weights=True
    )
    agree(np.swapaxes(found, 1, 2), expected)
    agree(found_weights, weights)


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


def onnx_attention(query, key, value, mask=None, *, opset=23, **attributes):
    """Run a model of one Attention node, whose inputs are (B, H, T, d)."""
    arrays = {"Q": query, "K": key, "V": value} | ({} if mask is None else {"M": mask})
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(bool): TensorProto.BOOL}
    inputs = [
        helper.make_tensor_value_info(name, kinds[array.dtype], array.shape)
        for name, array in arrays.items()
    ]
    node = helper.make_node("Attention", list(arrays), ["Y"], **attributes)
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, arrays)[0]


def arrays(*sizes):
    return [part.float().numpy() for part in qkv_tensors(*sizes)]


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize(
    ("sizes", "attributes", "options"),
    [
        ((4, 4, 7, 7), {}, {}),
        ((4, 4, 7, 7), {"is_causal": 1}, {"is_causal": True}),
        ((4, 4, 5, 9), {"is_causal": 1}, {"is_causal": True, "q_offset": "start"}),
        ((4, 4, 7, 9, 8, 5), {"scale": 0.25}, {"scale": 0.25}),
        ((6, 2, 7, 9), {}, {}),
        ((6, 1, 7, 7), {"is_causal": 1}, {"is_causal": True}),
        ((4, 4, 7, 9), {"softcap": 1.5}, {"softcap": 1.5}),
    ],
)
def test_onnx(opset, sizes, attributes, options):
    tensors = arrays(*sizes)
    expected = onnx_attention(*tensors, opset=opset, **attributes)
    close(qkv.attention(*tensors, **options), expected, 2e-6)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("shape", [(7, 9), (2, 1, 7, 9), (2, 4, 7, 9)])
def test_onnx_masks(kind, shape):
    tensors = arrays(4, 4, 7, 9)
    mask = (made(*shape, seed=3) > -0.8).numpy()
    mask[..., 0] = True
    if kind == "float":
        mask = np.where(mask, made(*shape, seed=4).float().numpy(), np.float32(-np.inf))
    close(qkv.attention(*tensors, mask), onnx_attention(*tensors, mask), 2e-6)
