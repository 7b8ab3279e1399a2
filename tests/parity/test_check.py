"""Tests of the marker on attention written in torch."""

import math

import pytest
import torch
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


@pytest.mark.parametrize(
    ("task", "function"),
    [
        ("softmax", softmax_of_torch),
        ("mask", masked_in_torch),
        ("mask", causal_in_torch),
        ("heads", heads_in_torch),
    ],
)
def test_tasks_in_torch_pass(task, function):
    result = mark(function, task)
    assert result.passed, str(result)
    assert (result.points, result.conventions) == (10, ())
