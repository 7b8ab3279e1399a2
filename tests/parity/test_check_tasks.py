"""Tests of the marker on attention and on solutions of its tasks that are written in torch."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from qkv import check
from qkv_marking._outcome import takes_tensors
from qkv_marking.tasks import TASKS


def mark(function, task="attention"):
    """Mark a function whose numbers are tested here; `check` gives torch's attention no points."""
    chosen = TASKS[task]
    return chosen.mark(takes_tensors(function), chosen.ways[0])


def of_torch(q, k, v, attn_mask=None, is_causal=False):
    q, k, v = map(torch.as_tensor, (q, k, v))
    mask = None if attn_mask is None else torch.as_tensor(attn_mask)
    return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)


def annotated(query, key, value, mask=None):
    """Compute attention as the Annotated Transformer does, with -1e9 for masked scores."""
    query, key, value = map(torch.as_tensor, (query, key, value))
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(torch.as_tensor(mask) == 0, -1e9)
    weights = scores.softmax(dim=-1)
    return weights @ value, weights


def with_added_mask(query, key, value, attention_mask=None):
    """Add the mask, as BERT in transformers does; the result has a gradient function."""
    query, key, value = map(torch.as_tensor, (query, key, value))
    query = query.clone().requires_grad_() if query.is_floating_point() else query.double()
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if attention_mask is not None:
        scores = scores + torch.as_tensor(attention_mask)
    return scores.softmax(dim=-1) @ value


@pytest.mark.parametrize(
    ("function", "fragile"), [(of_torch, ()), (annotated, ("masked-row-uniform",))]
)
def test_attention_in_torch_passes(function, fragile):
    result = mark(function)
    assert result.passed, str(result)
    assert (result.fragile, result.conventions) == (fragile, ())


def test_a_boolean_mask_that_is_added_fails_in_torch_too():
    assert check(with_added_mask).mistake == "mask-added"


def softmax_of_torch(x, axis=-1):
    x = torch.as_tensor(x)
    return functional.softmax(x if x.is_floating_point() else x.double(), dim=axis)


def masked_in_torch(query, key, value, mask):
    query, key, value = map(torch.as_tensor, (query, key, value))
    return functional.scaled_dot_product_attention(query, key, value, torch.as_tensor(mask))


def causal_in_torch(length):
    return torch.ones(length, length).tril().bool()


def heads_in_torch(x, w_q, w_k, w_v, w_o, num_heads, mask=None):
    x, w_q, w_k, w_v, w_o = map(torch.as_tensor, (x, w_q, w_k, w_v, w_o))
    q, k, v = (
        (x @ w).unflatten(-1, (num_heads, -1)).transpose(-3, -2) for w in (w_q, w_k, w_v)
    )  # (H, T, d)
    mask = None if mask is None else torch.as_tensor(mask)
    out = functional.scaled_dot_product_attention(q, k, v, mask)
    return out.transpose(-3, -2).flatten(-2) @ w_o


def positions(length, dim):
    position = torch.arange(length, dtype=torch.float64)[:, None]
    speed = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    table = torch.zeros(length, dim, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * speed)
    table[:, 1::2] = torch.cos(position * speed)[:, : dim // 2]
    return table


def block(x, parameters, num_heads=1):
    """Compute a block from tensors only: functions of torch refuse arrays.

    Only tensors have `unflatten`, and only arrays have `astype`.
    """
    p, width = parameters, x.shape[-1]
    h = functional.layer_norm(x, (width,), p["norm1_scale"], p["norm1_shift"])
    q, k, v = (
        (h @ p[name]).unflatten(-1, (num_heads, -1)).transpose(0, 1)
        for name in ("w_q", "w_k", "w_v")
    )
    x = x + functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(-2) @ p["w_o"]
    h = functional.layer_norm(x, (width,), p["norm2_scale"], p["norm2_shift"])
    return x + functional.gelu(h @ p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"]


def step(x, cache, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    if cache is not None:
        k, v = torch.cat([cache[0], k]), torch.cat([cache[1], v])
    visible = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
    return functional.scaled_dot_product_attention(q, k, v, visible), (k, v)


def decoder(ids, weights, config):
    """Compute a decoder as transformers does: batched ids, doubled cosines, rotate_half."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    ids = ids[None]

    def turned(x):
        d = x.shape[-1]
        angle = torch.outer(
            torch.arange(x.shape[-2]).double(), config["rope_theta"] ** (-torch.arange(0, d, 2) / d)
        )
        angle = torch.cat([angle, angle], dim=-1)
        a, b = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat([-b, a], dim=-1) * angle.sin()

    def norm(x, weight):
        return functional.rms_norm(x, x.shape[-1:], weight, config["rms_norm_eps"])

    x = functional.embedding(ids, weights["model.embed_tokens.weight"])
    for layer in range(config["num_hidden_layers"]):

        def linear(x, name, layer=layer):
            return functional.linear(x, weights[f"model.layers.{layer}.{name}_proj.weight"])

        h = norm(x, weights[f"model.layers.{layer}.input_layernorm.weight"])
        q, k, v = (
            linear(h, f"self_attn.{name}").unflatten(-1, (n, -1)).transpose(1, 2)
            for name, n in (("q", heads), ("k", groups), ("v", groups))
        )
        out = functional.scaled_dot_product_attention(
            turned(q), turned(k), v, is_causal=True, enable_gqa=True
        )
        x = x + linear(out.transpose(1, 2).flatten(-2), "self_attn.o")
        h = norm(x, weights[f"model.layers.{layer}.post_attention_layernorm.weight"])
        x = x + linear(functional.silu(linear(h, "mlp.gate")) * linear(h, "mlp.up"), "mlp.down")
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return functional.linear(norm(x, weights["model.norm.weight"]), head)


class SelfAttention(nn.Module):
    """Self-attention with one linear layer each for query, key and value, a dropout and a mask."""

    def __init__(self, embed_dim, num_heads, *, bias=False):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError("embed_dim must divide by num_heads")
        self.num_heads = num_heads
        self.query, self.key, self.value = (
            nn.Linear(embed_dim, embed_dim, bias=bias) for _ in range(3)
        )
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("tril", torch.ones(8, 8).tril())

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)
            for layer in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(-1, -2) / self.divisor(x, q)).softmax(dim=-1)
        return self.proj((self.dropout(weights) @ v).transpose(-3, -2).flatten(-2))

    def divisor(self, x, q):
        return math.sqrt(q.shape[-1])


class WithBiases(SelfAttention):
    def __init__(self, embed_dim, num_heads):
        super().__init__(embed_dim, num_heads, bias=True)


class Fused(nn.Module):
    """Self-attention with one linear layer for query, key and value, as in GPT-2; batches only."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        assert embed_dim % num_heads == 0
        self.num_heads = num_heads
        self.c_attn, self.c_proj = (
            nn.Linear(embed_dim, 3 * embed_dim),
            nn.Linear(embed_dim, embed_dim),
        )

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (
            a.view(batch, tokens, self.num_heads, -1).transpose(1, 2)
            for a in self.c_attn(x).split(width, dim=2)
        )
        out = functional.scaled_dot_product_attention(q, k, v)
        return self.c_proj(out.transpose(1, 2).reshape(batch, tokens, width))


class OfTorch(nn.Module):
    """torch's `MultiheadAttention`, whose parameters are in_proj_weight and out_proj."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.inner = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, average_attn_weights=False)


@pytest.mark.parametrize(
    ("task", "right"),
    [
        ("softmax", softmax_of_torch),
        ("mask", masked_in_torch),
        ("mask", causal_in_torch),
        ("heads", heads_in_torch),
        ("positions", positions),
        ("block", block),
        ("kv-cache", step),
        ("decoder", decoder),
        ("decoder", lambda ids, weights, config: decoder(ids, weights, config)[0]),
        ("self-attention-class", SelfAttention),
        ("self-attention-class", WithBiases),
        ("self-attention-class", Fused),
        ("self-attention-class", OfTorch),
    ],
)
def test_right_solutions_in_torch_get_all_points(task, right):
    result = mark(right, task)
    assert (result.passed, result.points) == (True, 10), str(result)
    assert (result.fragile, result.conventions) == ((), ())


class NoScale(SelfAttention):
    def divisor(self, x, q):
        return 1


class ByTheWidth(SelfAttention):
    """Self-attention that wrongly scales scores by the width of all heads, not of one."""

    def divisor(self, x, q):
        return math.sqrt(x.shape[-1])


@pytest.mark.parametrize(
    ("task", "wrong", "key"),
    [
        ("self-attention-class", NoScale, "no-scaling"),
        ("self-attention-class", ByTheWidth, "heads-scale"),
        (
            "kv-cache",
            lambda *given: (step(*given)[0], step(given[0], None, *given[2:])[1]),
            "cache-overwritten",
        ),
        ("positions", lambda length, dim: positions(length + 1, dim)[1:], "positions-from-one"),
    ],
)
def test_a_mistake_in_torch_is_told_by_its_name(task, wrong, key):
    result = mark(wrong, task)
    assert result.mistakes == (key,), str(result)


def test_the_error_on_arrays_is_reported_if_tensors_fail_too():
    result = check(lambda length, dim: np.zeros(2).no_such_method(), task="positions")
    assert result.mistakes == ("raises",)
    assert "no_such_method" in result.message
