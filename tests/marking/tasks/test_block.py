"""Tests of the task `block`: what its verdicts say, and right outputs as of qkv's layers."""

import math

import numpy as np
import pytest

from qkv import layers
from qkv_marking import check

from ..written import is_flawless, marked, planted

NORM = "(x - mean) / np.sqrt(var + 1e-5)"
RMS = "centred = x - x.mean(axis=-1, keepdims=True) => centred = x"
ERF = "(1 + np.vectorize(math.erf)(x / math.sqrt(2)))"
TANH = f"{ERF} => (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))"
OF_NORM, OF_GELU = "Its norm is RMSNorm.", "Its GELU is the approximation by tanh."


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("", []),
        (RMS, [OF_NORM]),
        (f"{RMS} ;;  * scale + shift =>  * scale", [OF_NORM]),
        (TANH, [OF_GELU]),
        (f"{RMS} ;; {TANH}", [OF_NORM, OF_GELU]),
    ],
)
def test_a_right_block_gets_all_points(changes, said):
    result = marked("block", changes)
    assert is_flawless(result), str(result)
    assert [style for style in (OF_NORM, OF_GELU) if style in result.message] == said


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
    hidden = norms[1](x) @ p["w_in"] + p["b_in"]
    hidden = hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2))) / 2
    assert np.allclose(x + hidden @ p["w_out"] + p["b_out"], example["right"], rtol=1e-6)


def test_a_mistake_in_rms_norm_is_compared_with_rms_norm():
    result = marked("block/loops", "math.sqrt(mean_square + 1e-5) => (mean_square + 1e-5)")
    wrong, right = "x = x / (var + 1e-5)", "x = x / np.sqrt(var + 1e-5)"
    assert dict(result.diffs) == {"norm-no-root": ((right, wrong),)}


def test_the_diff_omits_lines_that_are_right():
    diff = marked("block/arrays", f"{NORM} => (x - mean)").diffs["norm-no-division"]
    assert diff == (("x = x / np.sqrt(var + 1e-5)", "pass"),)


def test_a_division_by_zero_is_shown_on_zeros():
    result = marked("block/arrays", " + 1e-5 =>")
    assert (result.example["x"] == 0).all(axis=-1).any()


def test_the_example_is_the_smallest_failing_input():
    nothing = marked("block/arrays", "return x + gelu => return x + 0 * gelu")
    assert nothing.example["x"].shape == (1, 2)
    mean, var = (f"x.{name}(axis=-1, keepdims=True) => x.{name}()" for name in ("mean", "var"))
    result = marked("block/arrays", f"{mean} ;; {var}")
    assert result.example["x"].shape == (2, 2)  # one word gives a right result


@pytest.mark.parametrize(
    ("changes", "half"),
    [('h @ p["w_in"] => h @ p["w_in"] ** 2', "the MLP's half"),
     ("(q, k, v)) => (q, k, v**3))", "attention's half")],
)  # fmt: skip
def test_an_unknown_mistake_is_located_in_attention_or_mlp(changes, half):
    result = marked("block", changes)
    assert result.mistakes == ("unknown",)
    said = " ".join(result.message.split())
    assert f"look into {half}" in said
    assert said.count("look into") == 1


def test_a_block_that_takes_a_parameter_away_is_told_so():
    right = planted("block")

    def block(x, parameters):
        rest = dict(parameters)
        parameters.pop("w_o")
        return right(x, rest)

    result = check(block, task="block")
    assert (result.mistakes, result.points) == (("inputs-modified",), 8)
    assert 'writes to its input parameters["w_o"]' in result.message
