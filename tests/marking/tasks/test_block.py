"""Tests of the task `block`: right and wrong blocks in the style of a learner."""

import math

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


def wired(rule):
    """Return a block of correct parts; rule(x, attend, mlp, norm1, norm2) connects these parts."""

    def block(x, parameters, num_heads=1):
        p = parameters
        return rule(
            x,
            lambda x: attend(x, p, num_heads),
            lambda x: mlp(x, p),
            lambda x: layer_norm(x, p["norm1_scale"], p["norm1_shift"]),
            lambda x: layer_norm(x, p["norm2_scale"], p["norm2_shift"]),
        )

    return block


# -- right answers --------------------------------------------------------------------------------


def with_loops(x, parameters):
    """Compute a block with one head in loops over words and numbers."""
    p = parameters

    def norm(row, scale, shift):
        mean = sum(row) / len(row)
        var = sum((n - mean) ** 2 for n in row) / len(row)
        return [
            (n - mean) / math.sqrt(var + 1e-12) * s + t
            for n, s, t in zip(row, scale, shift, strict=True)
        ]

    def times(row, w):
        return [sum(a * w[i][j] for i, a in enumerate(row)) for j in range(len(w[0]))]

    normed = [norm(row, p["norm1_scale"], p["norm1_shift"]) for row in x]
    q, k, v = ([times(row, p[name]) for row in normed] for name in ("w_q", "w_k", "w_v"))
    out = []
    for i, row in enumerate(x):
        scores = [
            sum(a * b for a, b in zip(q[i], key, strict=True)) / math.sqrt(len(key)) for key in k
        ]
        e = [math.exp(s - max(scores)) for s in scores]
        context = [
            sum(w * value[c] for w, value in zip(e, v, strict=True)) / sum(e)
            for c in range(len(v[0]))
        ]
        row = [a + b for a, b in zip(row, times(context, p["w_o"]), strict=True)]
        wide = [
            a + b
            for a, b in zip(
                times(norm(row, p["norm2_scale"], p["norm2_shift"]), p["w_in"]),
                p["b_in"],
                strict=True,
            )
        ]
        wide = [a * (1 + math.erf(a / math.sqrt(2))) / 2 for a in wide]
        out.append(
            [a + b + c for a, b, c in zip(row, times(wide, p["w_out"]), p["b_out"], strict=True)]
        )
    return out


def with_einsum(x, parameters, num_heads=1):
    p, width = parameters, x.shape[1]

    def norm(x, n):
        x = x - np.einsum("td->t", x)[:, None] / width
        x = x / np.sqrt(np.einsum("td,td->t", x, x) / width + 1e-5)[:, None]
        return x * p[f"norm{n}_scale"] + p[f"norm{n}_shift"]

    h = norm(x, 1)
    q, k, v = (
        np.einsum("td,dhe->hte", h, p[name].reshape(width, num_heads, -1))
        for name in ("w_q", "w_k", "w_v")
    )
    weights = softmax(np.einsum("hqe,hke->hqk", q, k) * q.shape[-1] ** -0.5)
    w_o = p["w_o"].reshape(num_heads, -1, width)
    x = x + np.einsum("hqk,hke,hed->qd", weights, v, w_o)
    return x + mlp(norm(x, 2), p)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (built(), []),
        (with_loops, []),
        (with_einsum, []),
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


@pytest.mark.parametrize(
    ("block", "key"),
    [
        (wired(lambda x, a, m, n1, n2: m(n2(a(n1(x))))), "block-no-residual"),
        (wired(lambda x, a, m, n1, n2: (h := a(n1(x))) + m(n2(h))), "block-no-residual"),
        (wired(lambda x, a, m, n1, n2: m(n2(x + a(n1(x))))), "block-no-residual"),
        (
            wired(lambda x, a, m, n1, n2: (h := n2((n := n1(x)) + a(n))) + m(h)),
            "block-normed-stream",
        ),
        (
            wired(lambda x, a, m, n1, n2: (h := (n := n1(x)) + a(n)) + m(n2(h))),
            "block-normed-stream",
        ),
        (wired(lambda x, a, m, n1, n2: x + m(n2(x + a(n1(x))))), "block-from-start"),
        (wired(lambda x, a, m, n1, n2: (h := x + m(n2(x))) + a(n1(h))), "block-mlp-first"),
        (wired(lambda x, a, m, n1, n2: (h := x + a(x)) + m(h)), "block-no-norm"),
        (wired(lambda x, a, m, n1, n2: (h := x + a(n1(x))) + m(h)), "block-no-norm"),
        (wired(lambda x, a, m, n1, n2: x + a(h := n1(x)) + m(h)), "block-norm-kept"),
        (wired(lambda x, a, m, n1, n2: (h := x + a(n2(x))) + m(n1(h))), "block-norms-exchanged"),
        (of_norm(lambda x: (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)), "norm-tokens"),
        (of_norm(lambda x: (x - x.mean()) / np.sqrt(x.var() + 1e-5)), "norm-whole"),
        (of_norm(lambda x: centred(x) / (x.var(axis=-1, keepdims=True) + 1e-5)), "norm-no-root"),
        (
            of_norm(lambda x: centred(x) / np.sqrt(x.var(axis=-1, ddof=1, keepdims=True) + 1e-5)),
            "norm-ddof",
        ),
        (of_norm(lambda x: x / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)), "norm-no-mean"),
        (of_norm(centred), "norm-no-division"),
        (built(lambda x, scale, shift: layer_norm(x, 1, 0)), "norm-affine"),
        (built(lambda x, scale, shift: layer_norm(x, scale, 0)), "norm-affine"),
        (built(lambda x, scale, shift: layer_norm(x, 1, shift)), "norm-affine"),
        (built(mlp=lambda x, p: mlp(x, p, lambda x: x)), "mlp-no-activation"),
        (
            built(mlp=lambda x, p: gelu((x @ p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"])),
            "mlp-activation-late",
        ),
        (built(mlp=lambda x, p: gelu(mlp(x, p))), "mlp-activation-twice"),
        (built(mlp=lambda x, p: gelu(x @ p["w_in"]) @ p["w_out"]), "mlp-no-bias"),
        (
            built(attend=lambda x, p, heads: attend(x, {**p, "w_o": np.eye(len(p["w_o"]))}, heads)),
            "block-no-output-projection",
        ),
        (
            built(
                attend=lambda x, p, heads: attend(
                    x, {**p, "w_q": p["w_q"] * (x.shape[1] // heads) ** 0.5}, heads
                )
            ),
            "no-scaling",
        ),
        (built(attend=lambda x, p, heads: attend(x, p)), "heads-ignored"),
    ],
)
def test_a_mistake_is_told_by_its_name(block, key):
    result = check(block, task="block")
    assert result.mistakes == (key,), str(result)
    assert result.points <= 8
    assert len(result.hint) == 3
    assert all(result.hint)


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
@pytest.mark.parametrize(("one", "other"), [(1, 2), (2, 1)])
def test_a_norm_that_is_used_twice(norm, one, other):
    def block(x, parameters):
        p = dict(parameters)
        for part in ("scale", "shift"):
            p[f"norm{other}_{part}"] = p[f"norm{one}_{part}"]
        return built(norm)(x, p)

    result = check(block, task="block")
    assert result.mistakes == ("norm-shared",)
    assert "one norm is used twice: norm1 replaces norm2, or" in result.message


def test_a_mistake_in_rms_norm_is_compared_with_rms_norm():
    block = of_norm(lambda x: x / ((x * x).mean(axis=-1, keepdims=True) + 1e-5))
    wrong, right = "x = x / (var + 1e-5)", "x = x / np.sqrt(var + 1e-5)"
    assert dict(check(block, task="block").diffs) == {"norm-no-root": ((right, wrong),)}


def test_the_diff_omits_lines_that_are_right():
    diff = check(of_norm(centred), task="block").diffs["norm-no-division"]
    assert diff == (("x = x / np.sqrt(var + 1e-5)", "pass"),)


def test_two_mistakes_are_told_apart():
    block = built(
        lambda x, scale, shift: (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) * scale + shift,
        mlp=lambda x, p: mlp(x, p, lambda x: x),
    )
    assert {*check(block, task="block").mistakes} == {"norm-tokens", "mlp-no-activation"}


@pytest.mark.parametrize(
    ("block", "key"),
    [
        (wired(lambda x, a, m, n1, n2: n2((h := n1(x + a(x))) + m(h))), "block-post-norm"),
        (wired(lambda x, a, m, n1, n2: (h := x + n1(a(x))) + n2(m(h))), "block-norm-of-part"),
        (wired(lambda x, a, m, n1, n2: x + a(n1(x)) + m(n2(x))), "block-parallel"),
        (built(mlp=lambda x, p: mlp(x, p, lambda x: np.maximum(x, 0))), "mlp-other-activation"),
    ],
)
def test_blocks_of_other_architectures_are_wrong(block, key):
    result = check(block, task="block")
    assert (result.mistakes, result.fragile) == ((key,), ()), str(result)
    assert "task asks for" in " ".join(result.message.split())


def test_a_block_that_returns_a_tuple_has_the_wrong_type():
    result = check(lambda x, parameters: (built()(x, parameters), None), task="block")
    assert result.mistakes == ("wrong-type",)
    assert "a tuple of 2" in result.message


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


def test_a_block_that_writes_to_x_is_told_so():
    def block(x, parameters):
        x += built()(x, parameters) - x
        return x

    assert check(block, task="block").mistakes == ("inputs-modified",)


def test_a_block_that_takes_a_parameter_away_is_told_so():
    def block(x, parameters):
        rest = dict(parameters)
        parameters.pop("w_o")
        return built()(x, rest)

    result = check(block, task="block")
    assert (result.mistakes, result.points) == (("inputs-modified",), 8)
    assert 'writes to its input parameters["w_o"]' in result.message


def test_an_unknown_parameter_name_is_a_named_mistake():
    result = check(lambda x, parameters: x @ parameters["W_Q"], task="block")
    assert result.mistakes == ("key-unknown",)
    assert "KeyError: 'W_Q'" in result.message
