"""Tests of copying scores against the eigenvalues of the full matrix over the vocabulary."""

import numpy as np
import pytest

from qkv.circuits import copying_scores


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2"])
def test_every_head(small, kind):
    model = small(kind)
    found = copying_scores(model)
    assert (found.shape, found.dtype) == ((model.num_layers, model.num_heads), np.float64)
    embed = model.parameters["embed.weight"]
    out = model.parameters["head.out_proj.weight"] if kind == "llama" else embed.T
    for layer, head in np.ndindex(found.shape):
        weights = model.head_weights(layer)
        whole = embed @ weights.W_V[head] @ weights.W_O[head] @ out  # (V, V)
        values = np.linalg.eigvals(whole)
        expected = values.sum().real / np.abs(values).sum()
        assert found[layer, head] == pytest.approx(expected, abs=1e-6)


def test_by_hand(small):
    """A head that copies what it reads scores 1, and a head that negates what it reads scores -1.

    A head that copies one direction and negates another scores 0. A head that writes 0 scores NaN.
    """
    model = small("gpt2")
    parameters = {name: np.zeros_like(array) for name, array in model.parameters.items()}
    size = model.dim // model.num_heads
    parameters["embed.weight"][: model.dim] = np.eye(model.dim)
    for head, signs in enumerate(([1, 1], [-1, -1], [1, -1])):
        for n, sign in enumerate(signs):
            parameters["blocks.0.attn.v_proj.weight"][n, head * size + n] = 1
            parameters["blocks.0.attn.out_proj.weight"][head * size + n, n] = sign
    found = copying_scores(model.with_parameters(parameters))
    np.testing.assert_allclose(found[0], [1, -1, 0], rtol=0, atol=1e-12)
    assert np.isnan(found[1]).all()


def test_models_without_a_linear_lm_head_are_refused(small):
    with pytest.raises(ValueError, match=r"the LM head of .* has a layer before"):
        copying_scores(small("bert"))
    with pytest.raises(ValueError, match=r"copying_scores: .* has no head, so it cannot predict"):
        copying_scores(small("headless"))
    with pytest.raises(TypeError, match="copying_scores: `model` is str"):
        copying_scores("gpt2")
