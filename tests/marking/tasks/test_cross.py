"""Tests of the tasks with two texts: what their verdicts say, and right outputs as of qkv."""

import numpy as np
import pytest

import qkv
from qkv_marking import check

from ..formulas import softmax
from ..written import is_flawless, marked, planted

# -- cross-attention ------------------------------------------------------------------------------


def with_einsum(x, context, w_q, w_k, w_v, mask):
    scores = np.einsum("...ld,de,fe,...sf->...ls", x, w_q, w_k, context) * w_q.shape[1] ** -0.5
    powers = np.exp(scores - scores.max(-1, keepdims=True)) * mask[..., np.newaxis, :]
    weights = powers / np.einsum("...ls->...l", powers)[..., None]
    return np.einsum("...ls,...sd,de->...le", weights, context, w_v)


def added(x, context, w_q, w_k, w_v, mask):
    """Compute transposed scores in float32, and add a mask of 0 and -1e30."""
    x, context, w_q, w_k, w_v = (a.astype(np.float32) for a in (x, context, w_q, w_k, w_v))
    bias = np.where(np.expand_dims(mask, -1), 0, -1e30)  # (..., S, 1)
    scores = (context @ w_k) @ np.swapaxes(x @ w_q, -1, -2) / np.sqrt(w_q.shape[1])  # (..., S, L)
    return np.swapaxes(softmax(scores + bias, axis=-2), -1, -2) @ (context @ w_v)


@pytest.mark.parametrize("function", [planted("cross-attention"), with_einsum, added])
def test_right_cross_attention_gets_all_points(function):
    for seed in (0, 7):
        result = check(function, task="cross-attention", seed=seed)
        assert is_flawless(result), str(result)
        assert "batches" in result.message


def test_the_right_output_equals_qkv_attention():
    """The right output of the example equals qkv.attention with keys and values of the context."""
    a = marked("cross-attention", "context @ w_k => x @ w_k").example
    x, context = a["x"] @ a["w_q"], a["context"] @ a["w_k"]
    visible = np.broadcast_to(a["mask"], (len(x), len(context)))
    right = qkv.attention(x, context, a["context"] @ a["w_v"], visible)
    assert np.allclose(right, a["right"], rtol=1e-12)


def test_a_causal_mask_aligned_to_the_end_is_named():
    ends = "scores = np.where(np.tri(L, S, S - L, dtype=bool), scores, -np.inf)"
    change = f"    e = np.exp =>     L, S = scores.shape[-2:]\\n    {ends}\\n    e = np.exp"
    result = marked("cross-attention", change)
    assert "cross-causal" in result.mistakes, str(result)


def test_a_function_without_batches_is_named():
    def one(x, context, w_q, w_k, w_v, mask):
        (rows, _), (words, _) = x.shape, context.shape
        scores = (x @ w_q) @ (context @ w_k).T / np.sqrt(w_q.shape[1])
        return softmax(np.where(mask, scores.reshape(rows, words), -np.inf)) @ (context @ w_v)

    assert check(one, task="cross-attention").mistakes == ("one-text-only",)


# -- decoder blocks -------------------------------------------------------------------------------

RMS = "centred = x - x.mean(axis=-1, keepdims=True) => centred = x ;;  + shift\\n => \\n"
ERF = "(1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))"
TANH = f"{ERF} => (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("", ""),
        (RMS, "Its norm is RMSNorm."),
        (TANH, "Its GELU is the approximation by tanh."),
        ("return x + => return np.float32(1) * x +", ""),
    ],
)
def test_a_right_block_gets_all_points(changes, said):
    for seed in (0, 7):
        result = marked("decoder-block", changes, seed=seed)
        assert is_flawless(result), str(result)
        assert said in result.message


def test_zeros_locate_the_part_with_an_unknown_mistake():
    part = 'attention(h @ p["cross_q"], k, v, mask[..., None, :]) @ p["cross_o"]'
    result = marked("decoder-block", f"{part} => ({part}) ** 3")
    assert result.mistakes == ("unknown",)
    assert "the output is right if cross_o are all zeros: look into cross-attention" in " ".join(
        result.message.split()
    )


# -- writing steps --------------------------------------------------------------------------------


class Buffers:
    """Hold keys and values in arrays of a fixed size, and count the used rows."""

    def __init__(self, width):
        self.rows, self.count, self.source = np.zeros((2, 50, width)), 0, None


def attend(q, k, v, visible=True):
    return softmax(np.where(visible, q @ k.T / np.sqrt(q.shape[-1]), -np.inf)) @ v


def with_buffers(x, context, cache, parameters):
    p, width = parameters, x.shape[1]
    cache = cache or Buffers(width)
    if cache.source is None:
        cache.source = np.stack([context @ p["cross_k"], context @ p["cross_v"]])
    end = cache.count + len(x)
    cache.rows[:, cache.count : end] = x @ p["self_k"], x @ p["self_v"]
    visible = np.arange(end) <= np.arange(cache.count, end)[:, None]
    cache.count = end
    x = x + attend(x @ p["self_q"], *cache.rows[:, :end], visible)
    return [x + attend(x @ p["cross_q"], *cache.source), cache]


@pytest.mark.parametrize("step", [planted("writing-step"), with_buffers])
def test_a_right_step_gets_all_points(step):
    for seed in (0, 7):
        result = check(step, task="writing-step", seed=seed)
        assert (result.passed, result.points) == (True, 10), str(result)
    assert "keys and values of earlier calls" in result.message


def test_steps_give_what_one_call_gives():
    """The right output of the example equals one call of qkv.attention for the whole text."""
    a = marked("writing-step", ' + attention(y @ p["cross_q"], ck, cv) =>').example
    p = {name.split('"')[1]: array for name, array in a.items() if name.startswith("parameters")}
    x = a["x"]
    x = x + qkv.attention(x @ p["self_q"], x @ p["self_k"], x @ p["self_v"], is_causal=True)
    context = a["context"]
    right = x + qkv.attention(x @ p["cross_q"], context @ p["cross_k"], context @ p["cross_v"])
    assert np.allclose(right, a["right"], rtol=1e-12)


def test_changed_weights_reveal_recomputed_projections():
    again = 'ck, cv = context @ p["cross_k"], context @ p["cross_v"]'
    result = marked("writing-step", f"    return y =>     {again}\\n    return y")
    assert 'parameters["cross_k"] from the second call on' in result.example
    assert "100,000 keys" in result.message
