"""Tests of layers, activations and positions against torch and transformers."""

import math

import numpy as np
import pytest
import torch
from transformers.activations import QuickGELUActivation
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as rotate_pairs
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate_halves

import qkv
from qkv.layers import MLP, Block, LayerNorm, MultiHeadAttention, RMSNorm
from qkv.ops.activation import activate

from .support import close

BOUNDS = {np.float32: 2e-6, np.float64: 1e-12}
both_types = pytest.mark.parametrize("dtype", BOUNDS)


def numbers(*shape, dtype=np.float64, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


@both_types
@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("gelu", torch.nn.functional.gelu),
        ("gelu_tanh", lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        ("silu", torch.nn.functional.silu),
        ("relu", torch.nn.functional.relu),
        ("quick_gelu", QuickGELUActivation()),
    ],
)
def test_activations(name, theirs, dtype):
    x = np.concatenate([np.linspace(-12, 12, 20_001), [-1e4, -40, 40, 1e4, -0.0]]).astype(dtype)
    expected = theirs(torch.tensor(x)).numpy()
    difference = np.abs(activate(x, name) - expected)
    assert (difference <= BOUNDS[dtype] * np.maximum(1, np.abs(x))).all()


@both_types
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_layer_norm(scale, dtype):
    x, weight, bias = (
        numbers(5, 7, 33, dtype=dtype, scale=scale),
        *numbers(2, 33, dtype=dtype, seed=1),
    )
    ours = LayerNorm.from_parameters({"weight": weight, "bias": bias}, eps=1e-12)
    theirs = torch.nn.functional.layer_norm(
        torch.tensor(x + 3), (33,), torch.tensor(weight), torch.tensor(bias), 1e-12
    )
    # in both libraries, the rounding error of `x + 3` grows by the factor `3 / scale`
    close(ours(x + 3), theirs, BOUNDS[dtype] * max(1, 3 / scale))


@both_types
def test_rms_norm(dtype):
    x, weight = numbers(5, 7, 33, dtype=dtype), numbers(33, dtype=dtype, seed=1)
    theirs = torch.nn.functional.rms_norm(torch.tensor(x), (33,), torch.tensor(weight), 1e-6)
    close(RMSNorm.from_parameters({"weight": weight}, eps=1e-6)(x), theirs, BOUNDS[dtype])


def angles(positions, dims, base):
    """Return the angles of each position, (L, dims / 2)."""
    return np.outer(positions, base ** (-np.arange(0, dims, 2) / dims))


@both_types
@pytest.mark.parametrize("dims", [None, 8])
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_rotary_in_halves_is_that_of_llama(dims, base, dtype):
    x, positions = numbers(2, 3, 10, 16, dtype=dtype), np.arange(10) + 3
    size = dims or 16
    turns = torch.tensor(angles(positions, size, base)).repeat(1, 2)  # (L, dims)
    part = torch.tensor(x[..., :size])
    turned, _ = rotate_halves(part, part, turns.cos()[None], turns.sin()[None])
    found = qkv.apply_rotary(x, positions, base=base, dims=dims)
    assert found.dtype == dtype
    close(found[..., :size], turned, BOUNDS[dtype])
    np.testing.assert_array_equal(found[..., size:], x[..., size:])


@both_types
def test_rotary_in_pairs_is_that_of_gptj(dtype):
    x, positions = numbers(2, 3, 10, 16, dtype=dtype), np.arange(10) + 3
    turns = torch.tensor(angles(positions, 16, 10000.0))[None]  # (1, L, d / 2)
    # in GPT-J the axis of heads follows that of positions
    turned = rotate_pairs(torch.tensor(x).transpose(1, 2), turns.sin(), turns.cos()).transpose(1, 2)
    close(qkv.apply_rotary(x, positions, interleaved=True), turned, BOUNDS[dtype])


@pytest.mark.parametrize("num_heads", [1, 2, 3, 8, 12, 16, 71])
def test_alibi_slopes_are_those_of_bloom(num_heads):
    theirs = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)[
        :, 0, 1
    ]  # at distance 1
    close(qkv.alibi_slopes(num_heads), theirs, 1e-6)


@pytest.mark.parametrize("dim", [8, 64])
def test_sinusoidal_positions_are_those_of_distilbert(dim):
    theirs = torch.empty(50, dim)
    create_sinusoidal_embeddings(50, dim, theirs)
    close(qkv.sinusoidal_positions(50, dim), theirs, 1e-6)


def torch_weights(theirs, heads):
    """Convert a torch.nn.MultiheadAttention to ours, with separate weights (in, out)."""
    q, k, v = theirs.in_proj_weight.detach().numpy().reshape(3, theirs.embed_dim, -1)
    found = {"q_proj.weight": q.T, "k_proj.weight": k.T, "v_proj.weight": v.T}
    biases = theirs.in_proj_bias.detach().numpy().reshape(3, -1)
    found |= {f"{n}_proj.bias": bias for n, bias in zip("qkv", biases, strict=True)}
    found["out_proj.weight"] = theirs.out_proj.weight.detach().numpy().T
    found["out_proj.bias"] = theirs.out_proj.bias.detach().numpy()
    return MultiHeadAttention.from_parameters(found, num_heads=heads)


def shaken(module):
    """Move every parameter far from its initial value."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter) * 0.3)
    return module.eval()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
def test_multi_head_attention_is_that_of_torch(heads, causal):
    theirs = shaken(torch.nn.MultiheadAttention(12, heads, batch_first=True, dtype=torch.float64))
    x, context = numbers(2, 5, 12), numbers(2, 5, 12, seed=1)
    hidden = torch.ones(5, 5).triu(1).bool() if causal else None  # in torch, True means masked
    rows = [torch.tensor(part) for part in (x, context, context)]
    expected, weights = theirs(*rows, attn_mask=hidden, average_attn_weights=False)
    ours = torch_weights(theirs, heads)
    found, found_weights = ours(x, context, is_causal=causal, return_weights=True)
    close(found, expected.detach(), 1e-12)
    close(found_weights, weights.detach(), 1e-12)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_a_block_is_an_encoder_layer_of_torch(norm_first, activation):
    theirs = shaken(
        torch.nn.TransformerEncoderLayer(
            12, 3, 20, 0.0, activation, norm_first=norm_first, batch_first=True, dtype=torch.float64
        )
    )

    def array(parameter):
        return parameter.detach().numpy()

    def norm(layer):
        found = {"weight": array(layer.weight), "bias": array(layer.bias)}
        return LayerNorm.from_parameters(found, eps=layer.eps)

    mlp = MLP.from_parameters(
        {
            "up_proj.weight": array(theirs.linear1.weight).T,
            "up_proj.bias": array(theirs.linear1.bias),
            "down_proj.weight": array(theirs.linear2.weight).T,
            "down_proj.bias": array(theirs.linear2.bias),
        },
        activation=activation,
    )
    attn = torch_weights(theirs.self_attn, 3)
    ours = Block(attn, norm(theirs.norm1), mlp, norm(theirs.norm2), post_norm=not norm_first)
    x = numbers(4, 7, 12)
    lengths = np.array([7, 3, 1, 5])
    hidden = torch.arange(7)[None] >= torch.tensor(lengths)[:, None]
    expected = theirs(torch.tensor(x), src_key_padding_mask=hidden).detach().numpy()
    found = ours(x, key_lengths=lengths)
    rows = np.concatenate([x[number, :length] for number, length in enumerate(lengths)])
    packed = ours(rows, cu_lengths=np.concatenate([[0], np.cumsum(lengths)]))
    for number, length in enumerate(lengths):
        close(found[number, :length], expected[number, :length], 1e-12)
        start = lengths[:number].sum()
        close(packed[start : start + length], expected[number, :length], 1e-12)


def test_softmax_is_that_of_torch():
    x = numbers(3, 4, 50, scale=30)
    close(qkv.softmax(x), torch.softmax(torch.tensor(x), -1), 1e-14)
    close(qkv.softmax(x, axis=0), torch.softmax(torch.tensor(x), 0), 1e-14)
    assert math.isclose(qkv.softmax(x).sum(), 12)
