"""Tests of composition scores against norms of explicit matrix products."""

import numpy as np
import pytest

from qkv.circuits import composition


@pytest.mark.parametrize("kind", ["q", "k", "v"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_every_pair_of_heads(small, family, kind):
    model = small(family)
    found = composition(model, kind)
    heads = model.num_heads
    assert found.shape == (2, heads, 2, heads)
    assert found.dtype == np.float64
    assert not found[0, :, 0].any()
    assert not found[1].any()
    early, later = model.head_weights(0), model.head_weights(1)
    for h in range(heads):
        writes = early.W_V[h] @ early.W_O[h]
        for n in range(heads):
            reads = {
                "q": later.W_Q[n] @ later.W_K[n].T,
                "k": later.W_K[n] @ later.W_Q[n].T,
                "v": later.W_V[n] @ later.W_O[n],
            }[kind]
            size = np.sqrt(((writes @ reads) ** 2).sum())
            size /= np.sqrt((writes**2).sum()) * np.sqrt((reads**2).sum())
            assert found[0, h, 1, n] == pytest.approx(size, abs=1e-12)


def test_a_head_that_writes_nothing_is_read_by_none(small):
    model = small("gpt2")
    parameters = {name: np.array(array) for name, array in model.parameters.items()}
    parameters["blocks.0.attn.v_proj.weight"][:, 4:8] = 0  # head 1 of 3
    found = composition(model.with_parameters(parameters), "q")
    assert not found[0, 1].any()
    assert (found[0, [0, 2], 1] > 0).all()


def test_by_hand(small):
    """A head that reads the output direction of head 0 scores 1; the other head scores 0."""
    model = small("gpt2")
    parameters = {name: np.zeros_like(array) for name, array in model.parameters.items()}
    parameters["blocks.0.attn.v_proj.weight"][3, 0] = 2.0  # head 0 reads direction 3 ...
    parameters["blocks.0.attn.out_proj.weight"][0, 5] = 1.5  # ... and writes direction 5
    for head, direction in ((0, 5), (1, 6)):
        parameters["blocks.1.attn.q_proj.weight"][direction, 4 * head] = 1.0
        parameters["blocks.1.attn.k_proj.weight"][direction, 4 * head] = 1.0
    found = composition(model.with_parameters(parameters), "k")
    expected = np.zeros((2, 3, 2, 3))
    expected[0, 0, 1, 0] = 1.0
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_composition_refuses_invalid_kinds_and_models(small):
    with pytest.raises(ValueError, match="composition: `kind` is 'qk': choose among q, k and v"):
        composition(small("gpt2"), "qk")
    with pytest.raises(ValueError, match=r"composition: .* reads one text and writes another"):
        composition(small("t5"), "q")
    with pytest.raises(TypeError, match="composition: `model` is str"):
        composition("gpt2", "q")
