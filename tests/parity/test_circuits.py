"""Tests of patches in qkv.circuits against torch hooks on models of transformers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from qkv.circuits import attribution_patch, patch

from .hooks import edited
from .models import Pair, double, made

V, LAYERS, HEADS = 97, 3, 4
SIZES: dict[str, Any] = {
    **{"vocab_size": V, "hidden_size": 24, "num_hidden_layers": LAYERS},
    **{"num_attention_heads": HEADS, "intermediate_size": 40},
}
GPT2 = {"vocab_size": V, "n_embd": 24, "n_head": HEADS, "n_layer": LAYERS, "n_inner": 40}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", {**SIZES, "num_key_value_heads": 2, "head_dim": 6}),
    "bert": ("BertForMaskedLM", SIZES),
    # both parts of a block read the block's input, through one norm each or a shared norm
    "gpt_neox": ("GPTNeoXForCausalLM", {**SIZES, "rotary_pct": 0.7}),
    "gptj": ("GPTJForCausalLM", {**GPT2, "rotary_dim": 4}),
    "albert": ("AlbertForMaskedLM", {**SIZES, "embedding_size": 16}),  # layers share weights
    "mixtral": (
        "MixtralForCausalLM",
        {**SIZES, "num_key_value_heads": 2, "head_dim": 6, "num_local_experts": 4},
    ),
}
PARALLEL = ("gpt_neox", "gptj")
PLACES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
BY_HEAD = ("z", "pattern", "q", "k", "v")
rng = np.random.default_rng(1)
CLEAN = rng.integers(4, V, 7)
CORRUPTED = np.where(np.arange(7) == 1, CLEAN % 60 + 5, CLEAN)
METRIC = (-2, 11, 40)


PAIRS = [(f, "float32") for f in ("gpt2", "llama", "bert")] + [(f, "float64") for f in FAMILIES]


@pytest.fixture(scope="module", params=PAIRS, ids=" ".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A random model of a family in both libraries."""
    family, dtype = request.param
    kind, config = FAMILIES[family]
    found = made(tmp_path_factory.mktemp(family), kind, config, getattr(torch, dtype))
    found.bound = 1e-10 if found.is_double else 1e-5
    return found


def family_of(pair: Pair) -> str:
    return str(pair.theirs.config.model_type)


def run(pair: Pair, ids: Any, changes: Any = None) -> torch.Tensor:
    """The logits (1, T, V) of transformers' model with hooks."""
    with double(pair.is_double), edited(pair.theirs, family_of(pair), changes or {}):
        logits: torch.Tensor = pair.theirs(torch.tensor(ids)[None]).logits
    return logits


def metric_of(logits: Any) -> Any:
    position, token, other = METRIC
    return logits[0, position, token] - logits[0, position, other]


def seen(pair: Pair, ids: Any, *names: str) -> dict[tuple[str, int], torch.Tensor]:
    """Return torch's named activations of every layer, with gradients retained, and its logits."""
    found: dict[tuple[str, int], torch.Tensor] = {}

    def keep(key: tuple[str, int]) -> Callable[[torch.Tensor], torch.Tensor]:
        def kept(x: torch.Tensor) -> torch.Tensor:
            if x.requires_grad:
                x.retain_grad()
            found[key] = x
            return x

        return kept

    keys = [(name, layer) for name in names for layer in range(LAYERS)]
    found["logits", 0] = run(pair, ids, {key: keep(key) for key in keys})
    return found


@pytest.mark.parametrize("at", [*PLACES, *BY_HEAD])
def test_patches(pair: Pair, at: str) -> None:
    if at == "resid_mid" and family_of(pair) in PARALLEL:
        with pytest.raises(ValueError, match=r"`at` is 'resid_mid', but the layers of .* have no"):
            patch(pair.ours, CLEAN, CORRUPTED, at=at, metric=METRIC)
        return
    with torch.no_grad():
        clean = seen(pair, CLEAN, at)
        low, high = (metric_of(run(pair, ids)) for ids in (CORRUPTED, CLEAN))
        axis = 1 if at in (*PLACES, "pattern") else 2
        count = clean[at, 0].shape[axis]
        expected = np.zeros((LAYERS, count))
        for layer in range(LAYERS):
            for number in range(count):

                def put_in(x: Any, layer: int = layer, number: int = number) -> Any:
                    where = (slice(None),) * axis + (number,)
                    x[where] = clean[at, layer][where]
                    return x

                expected[layer, number] = metric_of(run(pair, CORRUPTED, {(at, layer): put_in}))
    found = patch(pair.ours, CLEAN, CORRUPTED, at=at, metric=METRIC)
    pair.near(found, expected, at)
    shares = patch(pair.ours, CLEAN, CORRUPTED, at=at, metric=metric_of, normalize=True)
    wanted = (expected - float(low)) / float(high - low)
    assert np.abs(shares - wanted).max() < pair.bound * 1e2 / float(abs(high - low))


@pytest.mark.parametrize("at", [*PLACES, *BY_HEAD])
def test_attribution_patches(pair: Pair, at: str) -> None:
    if at == "resid_mid" and family_of(pair) in PARALLEL:
        with pytest.raises(ValueError, match=r"`at` is 'resid_mid', but the layers of .* have no"):
            attribution_patch(pair.ours, CLEAN, CORRUPTED, at=at, metric=METRIC)
        return
    with torch.no_grad():
        clean = seen(pair, CLEAN, at)
    corrupted = seen(pair, CORRUPTED, at)
    low = metric_of(corrupted["logits", 0])
    low.backward()
    axis = 1 if at in (*PLACES, "pattern") else 2
    rows = []
    for layer in range(LAYERS):
        x = corrupted[at, layer]
        if x.grad is None:  # the metric does not depend on it
            x.grad = torch.zeros_like(x)
        slopes = ((clean[at, layer] - x.detach()) * x.grad).movedim(axis, 0)
        rows.append(slopes.flatten(1).sum(1).numpy() + float(low.detach()))
    found = attribution_patch(pair.ours, CLEAN, CORRUPTED, at=at, metric=METRIC)
    pair.near(found, np.array(rows), at)
