"""Tests of the task `block`: right and wrong blocks in the style of a learner."""

import numpy as np
import pytest

from qkv import layers
from qkv_marking import check

from ..parts import gelu, gelu_tanh, layer_norm, rms_norm


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attend(x, p, num_heads=1):
    tokens, width = x.shape
    q, k, v = (
        (x @ p[name]).reshape(tokens, num_heads, -1).swapaxes(0, 1)
        for name in ("w_q", "w_k", "w_v")
    )
    weights = softmax(q @ k.swapaxes(1, 2) / np.sqrt(width // num_heads))
    return (weights @ v).swapaxes(0, 1).reshape(tokens, width) @ p["w_o"]


def mlp(x, p, activation=gelu):
    return activation(x @ p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"]


def built(norm=layer_norm, attend=attend, mlp=mlp):
    """Return a pre-norm block with this norm, this attention and this MLP."""

    def block(x, parameters, num_heads=1):
        p = parameters
        x = x + attend(norm(x, p["norm1_scale"], p["norm1_shift"]), p, num_heads)
        return x + mlp(norm(x, p["norm2_scale"], p["norm2_shift"]), p)

    return block


# -- right answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (built(), []),
        (built(rms_norm), ["Its norm is RMSNorm."]),
        (
            built(lambda x, scale, shift: rms_norm(x, scale, shift) + shift),
            ["Its norm is RMSNorm."],
        ),
        (built(mlp=lambda x, p: mlp(x, p, gelu_tanh)), ["Its GELU is the approximation by tanh."]),
        (
            built(rms_norm, mlp=lambda x, p: mlp(x, p, gelu_tanh)),
            ["Its norm is RMSNorm.", "Its GELU is the approximation by tanh."],
        ),
    ],
)
def test_a_right_block_gets_all_points(block, said):
    result = check(block, task="block")
    assert (result.passed, result.points) == (True, 10), str(result)
    assert (result.fragile, result.conventions) == ((), ())
    for style in ("Its norm is RMSNorm.", "Its GELU is the approximation by tanh."):
        assert (style in result.message) == (style in said)


def test_the_right_output_equals_the_layers_of_qkv():
    """The right output of the example equals the output of qkv's layers with the same weights."""
    example = check(lambda x, parameters: x, task="block").example
    p = {name.split('"')[1]: a for name, a in example.items() if name.startswith("parameters")}
    attention = layers.MultiHeadAttention.from_weights(p["w_q"], p["w_k"], p["w_v"], p["w_o"])
    norms = []
    for n in (1, 2):
        norm = layers.LayerNorm(2, eps=1e-5, dtype=np.float64)
        norm.parameters.update(weight=p[f"norm{n}_scale"], bias=p[f"norm{n}_shift"])
        norms.append(norm)
    x = example["x"] + attention(norms[0](example["x"])[None])[0]
    assert np.allclose(x + mlp(norms[1](x), p), example["right"], rtol=1e-6)


# -- wrong answers --------------------------------------------------------------------------------


def of_norm(norm):
    return built(lambda x, scale, shift: norm(x) * scale + shift)


def centred(x):
    return x - x.mean(axis=-1, keepdims=True)


def test_a_mistake_in_rms_norm_is_compared_with_rms_norm():
    block = of_norm(lambda x: x / ((x * x).mean(axis=-1, keepdims=True) + 1e-5))
    wrong, right = "x = x / (var + 1e-5)", "x = x / np.sqrt(var + 1e-5)"
    assert dict(check(block, task="block").diffs) == {"norm-no-root": ((right, wrong),)}


def test_the_diff_omits_lines_that_are_right():
    diff = check(of_norm(centred), task="block").diffs["norm-no-division"]
    assert diff == (("x = x / np.sqrt(var + 1e-5)", "pass"),)


def test_a_division_by_zero_is_fragile():
    block = of_norm(lambda x: centred(x) / x.std(axis=-1, keepdims=True))
    result = check(block, task="block")
    assert (result.fragile, result.points) == (("norm-no-eps",), 9), str(result)
    assert (result.example["x"] == 0).all(axis=-1).any()


def test_the_example_is_the_smallest_failing_input():
    assert check(built(mlp=lambda x, p: 0 * x), task="block").example["x"].shape == (1, 2)
    whole = of_norm(lambda x: (x - x.mean()) / np.sqrt(x.var() + 1e-5))
    assert check(whole, task="block").example["x"].shape == (2, 2)  # one word gives a right result


@pytest.mark.parametrize(
    ("block", "half"),
    [
        (built(mlp=lambda x, p: mlp(x, {**p, "w_in": p["w_in"] ** 2})), "the MLP's half"),
        (
            built(attend=lambda x, p, heads: attend(x, {**p, "w_v": p["w_v"] + 1}, heads)),
            "attention's half",
        ),
    ],
)
def test_an_unknown_mistake_is_located_in_attention_or_mlp(block, half):
    result = check(block, task="block")
    assert result.mistakes == ("unknown",)
    said = " ".join(result.message.split())
    assert f"look into {half}" in said
    assert said.count("look into") == 1


def test_a_block_that_takes_a_parameter_away_is_told_so():
    def block(x, parameters):
        rest = dict(parameters)
        parameters.pop("w_o")
        return built()(x, rest)

    result = check(block, task="block")
    assert (result.mistakes, result.points) == (("inputs-modified",), 8)
    assert 'writes to its input parameters["w_o"]' in result.message
