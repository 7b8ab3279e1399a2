"""Tests of activations on disk, of scans of activations, and of differences between two models.

The expected values come from torch hooks.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from qkv.circuits import cache, diff, scan

from .models import Pair, made
from .test_circuits import CLEAN, CORRUPTED, FAMILIES, HEADS, LAYERS, seen

TEXTS = [CLEAN, CORRUPTED[:5], CLEAN[::-1].copy()]


@pytest.fixture(scope="module", params=["gpt2", "llama", "gpt_neox"])
def pairs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    """Two random float32 models of a family in both libraries."""
    kind, config = FAMILIES[request.param]
    found = []
    for number in range(2):
        torch.manual_seed(number)
        found.append(made(tmp_path_factory.mktemp(request.param), kind, config, torch.float32))
        found[-1].bound = 2e-5
    return found


@torch.no_grad()
def test_rows_on_the_disk(pairs: list[Pair], tmp_path: Path) -> None:
    pair = pairs[0]
    found = cache(pair.ours, TEXTS, tmp_path, names=["resid_post", ("z", 1)])
    for number, ids in enumerate(TEXTS):
        expected = seen(pair, ids, "resid_post", "z")
        for layer in range(LAYERS):
            rows = found[number]["resid_post", layer]
            pair.near(rows, expected["resid_post", layer], "resid_post")
        pair.near(found[number]["z", 1], expected["z", 1], "z")


@torch.no_grad()
def test_top_activating_examples_of_a_neuron(pairs: list[Pair]) -> None:
    pair = pairs[0]
    each = [seen(pair, ids, "mlp.post")["mlp.post", 1][0].numpy() for ids in TEXTS]
    found = scan(pair.ours, TEXTS, of=("post", 1), top=3)
    pair.near(found.mean, np.concatenate(each).mean(0), "mean")
    for neuron in range(each[0].shape[1]):
        best = sorted(((-text[:, neuron].max(), n) for n, text in enumerate(each)))
        values = [-value for value, _ in best if value < 0]
        examples = found.examples(neuron)
        pair.near(np.array([one.value for one in examples]), np.array(values), "values")
        for one in examples:
            pair.near(one.activations, each[one.number][:, neuron], "activations")


@torch.no_grad()
def test_differences_between_two_models(pairs: list[Pair]) -> None:
    found = diff(pairs[0].ours, pairs[1].ours, TEXTS)
    sites = {"resid": "resid_post", "attn": "attn_out", "mlp": "mlp_out", "heads": "z"}
    each: dict[str, list[Any]] = {name: [] for name in (*sites, "logits", "kl")}
    for ids in TEXTS:
        runs = [seen(pair, ids, *sites.values()) for pair in pairs]
        for name, site in sites.items():
            rows = [torch.stack([run[site, layer][0] for layer in range(LAYERS)]) for run in runs]
            each[name].append(cosine_similarity(*rows, dim=-1).movedim(1, 0))
        logits = [run["logits", 0][0].double() for run in runs]
        each["logits"].append((logits[0] - logits[1]).abs().mean(-1))
        logs = [one.log_softmax(-1) for one in logits]
        each["kl"].append((logs[0].exp() * (logs[0] - logs[1])).sum(-1))
    for name, values in each.items():
        expected = torch.cat(values).mean(0).numpy()
        assert np.shape(found[name]) == expected.shape
        assert np.abs(np.asarray(found[name]) - expected).max() < 2e-5, name
    assert np.shape(found["heads"]) == (LAYERS, HEADS)
