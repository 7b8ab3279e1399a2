"""Tests of patches by position, of neurons and of many pairs, against torch hooks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qkv.circuits import attribute_logits, logit_lens, patch

from .hooks import inner
from .models import Pair, made
from .test_circuits import (
    CLEAN,
    CORRUPTED,
    FAMILIES,
    LAYERS,
    METRIC,
    V,
    blocks_of,
    family_of,
    metric_of,
    run,
    seen,
    weights_of,
)

BOUND = 2e-5


@pytest.fixture(scope="module", params=["gpt2", "llama", "gpt_neox"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A random float32 model of a family in both libraries."""
    kind, config = FAMILIES[request.param]
    found = made(tmp_path_factory.mktemp(request.param), kind, config, torch.float32)
    found.bound = BOUND
    return found


def swept(pair: Pair, at: str, axes: tuple[int, ...], clean: Any, corrupted: Any) -> np.ndarray:
    """Patch each cell of `axes` in each layer, one cell per run, and return the metrics."""
    name = "mlp.post" if at == "post" else at
    given = seen(pair, clean, name)
    rows = []
    for layer in range(LAYERS):
        source = given[name, layer].movedim(axes, tuple(range(len(axes))))
        shape = source.shape[: len(axes)]
        row = np.zeros(shape)
        for cell in np.ndindex(*shape):

            def put_in(x: Any, cell: Any = cell, source: Any = source) -> Any:
                x = x.clone()
                x.movedim(axes, tuple(range(len(axes))))[cell] = source[cell]
                return x

            row[cell] = metric_of(run(pair, corrupted, {(name, layer): put_in}))
        rows.append(row)
    return np.array(rows)


@torch.no_grad()
@pytest.mark.parametrize("at", ["z", "pattern", "q", "k", "v"])
def test_heads_by_position(pair: Pair, at: str) -> None:
    axes = (1, 2) if at == "pattern" else (2, 1)
    expected = swept(pair, at, axes, CLEAN, CORRUPTED)
    found = patch(pair.ours, CLEAN, CORRUPTED, at=at, metric=METRIC, by="position")
    assert np.ptp(expected) > 1e-2
    pair.near(found, expected, at)


@torch.no_grad()
def test_neurons(pair: Pair) -> None:
    expected = swept(pair, "post", (2,), CLEAN, CORRUPTED)
    pair.near(patch(pair.ours, CLEAN, CORRUPTED, at="post", metric=METRIC), expected, "post")


@torch.no_grad()
def test_many_pairs(pair: Pair) -> None:
    rng = np.random.default_rng(2)
    ones = [CLEAN, CLEAN[::-1], rng.integers(4, V, 5)]
    others = [CORRUPTED, CORRUPTED[::-1], np.array([*ones[2][:2], 7, *ones[2][3:]])]
    found = patch(pair.ours, ones, others, at="z", metric=METRIC).pairs
    for number, both in enumerate(zip(ones, others, strict=True)):
        expected = swept(pair, "z", (2,), *(np.array(ids) for ids in both))
        pair.near(found[number], expected, f"pair {number}")


def last_norm(pair: Pair) -> torch.nn.Module:
    body = getattr(pair.theirs, pair.theirs.base_model_prefix)
    names = {"gpt2": "ln_f", "gpt_neox": "final_layer_norm", "llama": "norm"}
    norm: torch.nn.Module = getattr(body, names[family_of(pair)])
    return norm


@torch.no_grad()
def test_the_logit_lens_of_several_texts(pair: Pair) -> None:
    texts = [CLEAN, CLEAN[:4]]
    found = logit_lens(pair.ours, pair.ours.trace(texts))
    for number, ids in enumerate(texts):
        given = seen(pair, ids, "resid_pre")
        head = pair.theirs.get_output_embeddings()
        rows = [head(last_norm(pair)(given["resid_pre", layer])) for layer in range(LAYERS)]
        expected = torch.cat([*rows, given["logits", 0]])
        pair.near(found[number, :, : len(ids)], expected, "lens")


@torch.no_grad()
def test_shares_of_neurons_in_several_texts(pair: Pair) -> None:
    family, texts, tokens = family_of(pair), [CLEAN, CLEAN[:4]], (11, 40)
    downs = {"gpt2": "mlp.c_proj", "llama": "mlp.down_proj", "gpt_neox": "mlp.dense_4h_to_h"}
    found = attribute_logits(
        pair.ours, pair.ours.trace(texts), of=[(-1, token) for token in tokens], by="neuron"
    )
    for number, (ids, token) in enumerate(zip(texts, tokens, strict=True)):
        parts = seen(pair, ids, "mlp.post", "resid_post")
        last = parts["resid_post", LAYERS - 1][0, -1]
        norm, head = last_norm(pair), pair.theirs.get_output_embeddings()
        is_centred = isinstance(norm, torch.nn.LayerNorm)
        square = last.var(unbiased=False) if is_centred else last.square().mean()
        eps: Any = norm.eps if is_centred else norm.variance_epsilon
        for layer in range(LAYERS):
            down = inner(blocks_of(pair)[layer], downs[family]).weight
            rows = down if family == "gpt2" else down.T  # (F, D)
            added = parts["mlp.post", layer][0, -1][:, None] * rows
            added = added - added.mean(-1, keepdim=True) if is_centred else added
            shares = added / (square + eps).sqrt() * norm.weight @ head.weight[token]
            pair.near(found["neurons"].pairs[number, layer], shares, f"neurons of layer {layer}")


@torch.no_grad()
def test_weights_of_heads_embedding_and_unembedding(pair: Pair) -> None:
    head, body = pair.theirs.get_output_embeddings(), pair.theirs.get_input_embeddings()
    for layer in range(LAYERS):
        ours, theirs = pair.ours.head_weights(layer), weights_of(pair, layer)
        for name, weight in theirs.items():
            pair.near(getattr(ours, f"W_{name.upper()}"), weight, name)
        pair.near(ours.W_E, body.weight, "W_E")
        assert ours.W_U is not None
        pair.near(ours.W_U, head.weight.T, "W_U")
    attn = blocks_of(pair)[0]
    if family_of(pair) == "gpt2":
        biases = attn.attn.c_attn.bias.reshape(3, 4, 6)
        for name, bias in zip("QKV", biases, strict=True):
            pair.near(getattr(pair.ours.head_weights(0), f"b_{name}"), bias, name)
        pair.near(pair.ours.head_weights(0).b_O, attn.attn.c_proj.bias, "b_O")
    elif family_of(pair) == "llama":
        assert not pair.ours.head_weights(0).b_Q.any()
