"""Patches by position, of neurons and of many pairs, against torch hooks in transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qkv.circuits import patch

from .models import Pair, made
from .test_circuits import (
    CLEAN,
    CORRUPTED,
    FAMILIES,
    LAYERS,
    METRIC,
    V,
    metric_of,
    run,
    seen,
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
    """The metric of a run with hooks for each cell of these axes of the activation (1, ...)."""
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
    found = patch(pair.ours, ones, others, at="z", metric=METRIC)
    for number, both in enumerate(zip(ones, others, strict=True)):
        expected = swept(pair, "z", (2,), *(np.array(ids) for ids in both))
        pair.near(found[number], expected, f"pair {number}")
