"""Tests of rollout and weighted values, by hand and against loops over a trace."""

import numpy as np
import pytest

import qkv
from qkv.circuits import rollout, value_weighted

IDS = [3, 7, 1, 9, 4]


def test_rollout_by_hand():
    first = np.array([[[1.0, 0.0], [0.2, 0.8]], [[1.0, 0.0], [0.6, 0.4]]])  # two heads
    second = np.array([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    arrays = {f"blocks.{n}.attn.hook_pattern": x[None] for n, x in enumerate((first, second))}
    found = rollout(qkv.Trace(arrays, tokens=[["a", "b"]]))
    # means [[1, 0], [.4, .6]] and [[1, 0], [.5, .5]]; half of each is the residual connection
    np.testing.assert_allclose(found[0], [[1, 0], [0.2, 0.8]], rtol=0, atol=1e-15)
    np.testing.assert_allclose(found[1], [[1, 0], [0.25 + 0.75 * 0.2, 0.75 * 0.8]], atol=1e-15)


def test_rollout_equals_plain_loops(small):
    for kind in ("bert", "gpt2", "llama"):
        trace = small(kind).trace(IDS)
        found = rollout(trace)
        assert found.shape == (2, 5, 5)
        assert found.dtype == np.float64
        so_far = np.eye(5)
        for layer, weights in enumerate(trace.attentions):
            now = np.zeros((5, 5))
            for i in range(5):
                row = np.mean([head[i] for head in weights[0]], axis=0) + np.eye(5)[i]
                for j in range(5):
                    now[i] += row[j] / row.sum() * so_far[j]
            so_far = now
            np.testing.assert_allclose(found[layer], so_far, rtol=0, atol=1e-12)


def test_a_row_that_does_not_sum_to_one_is_scaled(small):
    """A query that sees no key keeps its own vector."""
    trace = small("gpt2").trace(IDS, hide=[0])
    found = rollout(trace)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found[:, 0], np.tile([1, 0, 0, 0, 0], (2, 1)))


@pytest.mark.parametrize("kind", ["bert", "llama"])  # separate key heads, and shared key heads
def test_value_weighted_equals_plain_loops(small, kind):
    model = small(kind)
    trace = model.trace(IDS)
    heads = model.head_weights(1)
    plain, added = value_weighted(trace, -1), value_weighted(trace, 1, model=model)
    assert plain.shape == added.shape == (model.num_heads, 5, 5)
    shared = model.num_heads // trace["v", 1].shape[2]
    for h in range(model.num_heads):
        for i in range(5):
            for j in range(5):
                value = trace["pattern", 1][0, h, i, j] * trace["v", 1][0, j, h // shared]
                assert plain[h, i, j] == pytest.approx(np.sqrt((value**2).sum()), abs=1e-12)
                there = value @ heads.W_O[h]
                assert added[h, i, j] == pytest.approx(np.sqrt((there**2).sum()), abs=1e-12)


def test_invalid_traces_layers_and_models_are_refused(small):
    model = small("gpt2")
    trace, two = model.trace(IDS), model.trace([IDS, IDS[:3]])
    with pytest.raises(TypeError, match="rollout: `trace` is list"):
        rollout([trace])
    with pytest.raises(ValueError, match="rollout: `trace` holds 2 texts"):
        rollout(two)
    with pytest.raises(KeyError, match=r"rollout: `trace` has no \('pattern', 0\): call trace\(\)"):
        rollout(model.trace(IDS, layers=[1]))
    odd = qkv.Trace({"blocks.0.attn.hook_pattern": np.ones((1, 1, 2, 3)) / 3})
    with pytest.raises(ValueError, match="layer 0 has 2 queries and 3 keys"):
        rollout(odd)
    with pytest.raises(ValueError, match="value_weighted: there is no layer 2; pass 0 to 1"):
        value_weighted(trace, 2)
    with pytest.raises(TypeError, match="value_weighted: layer is '1'; pass a whole number"):
        value_weighted(trace, "1")
    with pytest.raises(KeyError, match=r"value_weighted: `trace` has no \('v', 0\)"):
        value_weighted(model.trace(IDS, names="pattern"), 0)
    with pytest.raises(TypeError, match="value_weighted: `model` is int"):
        value_weighted(trace, 0, model=3)
    with pytest.raises(ValueError, match="`trace` has 2 layers and random has 1"):
        value_weighted(trace, 0, model=qkv.load("random"))
