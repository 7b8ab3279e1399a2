"""Tests of a network: one array for all parameters, and the gradient of a whole model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.learn import Network, Words, _objectives as objectives_module, fresh_model, words_loss
from qkv.models.network.batch import PackedIds

from .support import BERT, GPT2, network

BATCH = Words(
    ids=np.array([3, 5, 7, 2, 9, 9, 1]),
    cu_lengths=np.array([0, 4, 7]),
    at=np.array([0, 2, 3, 4, 6]),
    targets=np.array([1, 22, 0, 4, 4]),
)
PRIOR = np.array([0, 0, 2, 4]), np.array([3, 7, 2, 9]), 1.5


def test_parameters_are_in_one_array_with_matrices_first() -> None:
    model = fresh_model(GPT2, seed=3)
    net = Network(model)
    assert list(net.parameters) != list(model.parameters)
    assert sorted(net.parameters) == sorted(model.parameters)
    assert net.flat.size == sum(array.size for array in model.parameters.values())
    end = 0
    for name, array in net.parameters.items():
        np.testing.assert_array_equal(array, model.parameters[name])
        np.testing.assert_array_equal(net.flat[end : end + array.size], array.ravel())
        end += array.size
        assert (end <= net.matrices) == (array.ndim > 1)


def test_writing_into_the_array_changes_what_is_computed() -> None:
    net = network()
    batch = PackedIds(np.array([1, 2]), np.array([0, 2]))
    before, _ = net.transformer.run(batch)
    net.parameters["blocks.1.mlp.down_proj.weight"][:] += 1
    assert (net.transformer.run(batch)[0] != before).any()


def test_a_model_is_an_independent_copy_that_can_be_saved(tmp_path) -> None:
    net = network()
    model = net.model()
    assert net.flat.flags.writeable
    net.flat[:] += 1
    assert (model.parameters["embed.weight"] != net.parameters["embed.weight"]).all()
    net.model().save(tmp_path / "saved")
    again = qkv.load(tmp_path / "saved")
    for name, array in net.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], array)
    half = net.model(np.float16)
    assert {array.dtype.name for array in half.parameters.values()} == {"float16"}


def test_gradients_add_up_and_the_tied_head_adds_to_the_embedding() -> None:
    net = network()
    ones = np.ones((23, 8), np.float32)
    net.add({"embed.weight": ones})
    with net.weighted(0.5), net.weighted(4.0):
        net.add({"head.out_proj.weight": 3 * np.arange(184, dtype=np.float32).reshape(8, 23)})
    expected = 1 + 6 * np.arange(184, dtype=np.float32).reshape(8, 23).T
    np.testing.assert_array_equal(net.gradients["embed.weight"], expected)
    assert net.weight == 1
    assert np.count_nonzero(net.gradient) == 184
    with pytest.raises(KeyError):
        net.add({"nobody": ones})


def test_unsupported_models_are_refused() -> None:
    with pytest.raises(TypeError, match="not a single stack of blocks"):
        Network(qkv.load("random"))
    model = fresh_model(GPT2)
    with pytest.raises(TypeError, match="float16: load it as float32"):
        Network(model.with_parameters(model.parameters, np.float16))


@pytest.mark.parametrize("config", [GPT2, BERT], ids=["gpt2", "bert"])
@pytest.mark.parametrize("numbers", [10, pytest.param(100, marks=pytest.mark.attack)])
def test_the_gradient_of_a_whole_model_by_finite_differences(config, numbers, monkeypatch) -> None:
    # the head computes the five rows in three parts, of at most two rows each
    monkeypatch.setattr(objectives_module, "_LOGITS_AT_ONCE", 2 * 23)
    net = network(config, seed=1, dtype=np.float64)
    rng = np.random.default_rng(0)
    net.flat[:] += 0.3 * rng.standard_normal(net.flat.size)  # away from the small first numbers
    words_loss(net, BATCH, PRIOR)
    exact = net.gradient.copy()
    begin = net.flat.copy()
    ways = [np.random.default_rng(seed).standard_normal(net.flat.size) for seed in range(4)]
    for place in rng.choice(net.flat.size, numbers, replace=False):
        ways.append(np.arange(net.flat.size) == place)
    for way in ways:
        losses = []
        for step in (1e-5, -1e-5):
            net.flat[:] = begin + step * way
            losses.append(words_loss(net, BATCH, PRIOR))
        slope = (losses[0] - losses[1]) / 2e-5
        one = {"rel": 1e-5, "abs": 1e-9} if way.dtype == bool else {"rel": 1e-6}
        assert slope == pytest.approx(exact @ way, **one)


@pytest.mark.parametrize("config", [GPT2, BERT], ids=["gpt2", "bert"])
def test_the_loss_is_the_mean_cross_entropy_of_the_models_logits(config) -> None:
    net = network(config, seed=2)
    logits = net.model()(
        [[3, 5, 7, 2], [9, 9, 1, 0]], attention_mask=[[1, 1, 1, 1], [1, 1, 1, 0]]
    ).logits.astype(np.float64)
    rows = np.concatenate([logits[0], logits[1, :3]])[BATCH.at]
    said = rows[np.arange(5), BATCH.targets] - np.log(np.exp(rows).sum(1))
    assert words_loss(net, BATCH) == pytest.approx(-said.mean(), rel=1e-5)
    for number, token in zip(*PRIOR[:2], strict=True):
        rows[number, token] += PRIOR[2]
    said = rows[np.arange(5), BATCH.targets] - np.log(np.exp(rows).sum(1))
    assert words_loss(net, BATCH, PRIOR) == pytest.approx(-said.mean(), rel=1e-5)


def test_soft_targets_give_the_mean_of_their_gradients() -> None:
    net = network(seed=2, dtype=np.float64)
    others = np.array([4, 4, 0, 1, 2])
    soft = np.zeros((5, 23))
    soft[np.arange(5), BATCH.targets] = 0.25
    soft[np.arange(5), others] += 0.75
    gradients = []
    batches = [(BATCH, None), (replace(BATCH, targets=others), None), (BATCH, soft)]
    for batch, given in batches:
        net.gradient[:] = 0
        loss = words_loss(net, batch, PRIOR, given)
        gradients.append(net.gradient.copy())
    assert loss == words_loss(net, BATCH, PRIOR)
    expected = 0.25 * gradients[0] + 0.75 * gradients[1]
    np.testing.assert_allclose(gradients[2], expected, atol=1e-12)
    assert abs(gradients[0] - gradients[1]).max() > 1e-3


def test_without_a_head_there_is_nothing_to_learn() -> None:
    net = network({**BERT, "architectures": ["BertModel"]})
    with pytest.raises(ValueError, match="no LM head"):
        words_loss(net, BATCH)


@pytest.mark.parametrize(
    ("texts", "at", "words"),
    [
        ([[1] * 17], [0], "a text has 17 tokens, but fresh takes at most 16"),
        ([[1], [2, 23]], [0], "ids run from 1 to 23 and fresh has 23 tokens"),
        ([[-1, 2]], [0], "ids run from -1 to 2"),
        ([[1, 2]], [], "there is no target"),
        ([[1, 2, 3]], [2, 0, 2], "`at` lists a row twice"),
    ],
)
def test_a_batch_that_does_not_fit(texts: Any, at: list[int], words: str) -> None:
    ends = np.cumsum([0, *map(len, texts)])
    where = np.array(at, np.int64)
    with pytest.raises(ValueError, match=words):
        words_loss(network(), Words(np.concatenate(texts), ends, where, np.zeros_like(where)))
