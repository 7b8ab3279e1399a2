"""Tests of LayerScale: results computed manually, types, and wrong arguments."""

import ml_dtypes
import numpy as np
import pytest

from qkv.layers import MLP, Block, LayerNorm, LayerScale, MultiHeadAttention
from rows import failing

from .support import numbers


def test_by_hand() -> None:
    scale = LayerScale.from_parameters({"weight": np.array([1.0, -2.0, 0.0])})
    x = np.array([[[3.0, 4.0, 5.0]]])
    np.testing.assert_array_equal(scale(x), [[[3.0, -8.0, 0.0]]])
    np.testing.assert_array_equal(x, [[[3.0, 4.0, 5.0]]])
    np.testing.assert_array_equal(LayerScale(2, first=0.5)([2, 4]), [1, 2])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_each_type(dtype: type) -> None:
    scale = LayerScale(3, first=0.5, dtype=dtype)
    assert scale.parameters["weight"].dtype == dtype
    found = scale(np.ones((2, 3), dtype))
    assert found.dtype == dtype
    assert (found == 0.5).all()
    assert scale(np.ones((2, 3), np.int64)).dtype == dtype
    assert scale(np.ones((2, 3), np.float64)).dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_a_fixed_factor(dtype: type) -> None:
    scale = LayerScale.constant(2, 0.5)
    found, saved = scale.run(np.array([[2, 8]], dtype))
    assert found.dtype == dtype
    assert found.tolist() == [[1, 4]]
    assert scale.parameters == {}
    gradient = scale.backward(np.ones((1, 2)), saved)
    assert (gradient.x.tolist(), gradient.parameters) == ([[0.5, 0.5]], {})


def test_layer_scale_in_a_block_equals_scaled_output_projections() -> None:
    attn = MultiHeadAttention(8, 2, seed=0, dtype=np.float64)
    mlp = MLP(8, 12, seed=1, dtype=np.float64)
    norms = LayerNorm(8, dtype=np.float64), LayerNorm(8, dtype=np.float64)
    first, second, x = numbers(8, seed=2), numbers(8, seed=3), numbers(2, 5, 8)
    scales = {
        "scale1": LayerScale.from_parameters({"weight": first}),
        "scale2": LayerScale.from_parameters({"weight": second}),
    }
    block = Block(attn, norms[0], mlp, norms[1], post_norm=False, **scales)
    assert {"scale1.weight", "scale2.weight"} < block.parameters.keys()
    own, wide = attn.parameters | {}, mlp.parameters | {}
    own["out_proj.weight"] = own["out_proj.weight"] * first
    for name in ("down_proj.weight", "down_proj.bias"):
        wide[name] = wide[name] * second
    plain = Block(
        MultiHeadAttention.from_parameters(own, num_heads=2),
        norms[0],
        MLP.from_parameters(wide),
        norms[1],
        post_norm=False,
    )
    close = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(block(x), plain(x), **close)
    for name in ("attn_out", "mlp_out"):
        np.testing.assert_allclose(block.trace(x)[name, 0], plain.trace(x)[name, 0], **close)


def test_invalid_arguments_are_refused() -> None:
    make, one = LayerScale.from_parameters, np.ones(3)
    parts = MultiHeadAttention(8, 2, seed=0), LayerNorm(8), MLP(8, 12, seed=0), LayerNorm(8)
    for call, message in (
        (lambda: LayerScale(0), "LayerScale: dim is 0"),
        (lambda: make({"bias": one}), "LayerScale: weight is missing: the parameters are bias"),
        (lambda: make({"weight": one, "bias": one}), "LayerScale: there is no parameter bias"),
        (lambda: make({"weight": one[:, None]}), r"weight has shape \(3, 1\): it must be \(D\)"),
        (lambda: LayerScale(3)(np.ones(4)), r"x has shape \(4,\), but the layer takes \(..., 3\)"),
        (
            lambda: Block(*parts, post_norm=True, scale1=LayerScale(8)),
            "omit out_norm1, out_norm2, scale1, scale2",
        ),
        (
            lambda: Block(*parts, post_norm=False, scale2=LayerScale(4)),
            "scale2 takes vectors of size 4 and attn takes vectors of size 8",
        ),
    ):
        with failing(message), pytest.raises(ValueError, match=message):
            call()
