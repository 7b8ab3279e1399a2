"""Tests of metrics by hand, by central differences, and in every function that takes a metric."""

import math

import numpy as np
import pytest

from circuits.test_edge_effects import looped as every_edge
from circuits.test_patching import CLEAN, CORRUPTED, LOGIT, difference
from qkv.circuits import (
    attribute_logits,
    attribution_patch,
    discover,
    edges,
    integrated_gradients,
    metrics,
    patch,
)

SIX = np.array([7, 1, -100, 4, 7, 11])  # targets, of which one does not count
LOGITS = np.log(np.array([[[1, 2, 1], [3, 1, 4]]])) + 5  # probabilities 1/4, 1/2, ..., 1/2


class Square:
    """A metric of a user: the square of a difference of logits."""

    def value(self, logits):
        return float(difference(logits)) ** 2

    def gradient(self, logits):
        slope = np.zeros_like(logits)
        slope[0, -1, 11], slope[0, -1, 5] = 2 * difference(logits), -2 * difference(logits)
        return slope


def log_softmax(logits):
    wide = np.asarray(logits, np.float64)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


REFERENCE = np.random.default_rng(3).standard_normal((6, 30))
# Each metric, and the same number by formula.
KINDS = {
    "difference": (metrics.logit_difference(11, 5), difference),
    "earlier": (
        metrics.logit_difference(11, 5, position=-3),
        lambda logits: logits[0, -3, 11] - logits[0, -3, 5],
    ),
    "probability": (metrics.log_probability(11), lambda logits: log_softmax(logits)[0, -1, 11]),
    "loss": (
        metrics.loss(SIX),
        lambda logits: -log_softmax(logits)[0, [0, 1, 3, 4, 5], SIX[SIX >= 0]].mean(),
    ),
    "kl": (
        metrics.kl(REFERENCE),
        lambda logits: (
            (np.exp(log_softmax(REFERENCE)) * (log_softmax(REFERENCE) - log_softmax(logits[0])))
            .sum(-1)
            .mean()
        ),
    ),
    "kl at one position": (
        metrics.kl(REFERENCE[None], position=2),
        lambda logits: (
            np.exp(log_softmax(REFERENCE)) * (log_softmax(REFERENCE) - log_softmax(logits[0]))
        )[2].sum(),
    ),
    "own": (Square(), lambda logits: difference(logits) ** 2),
}


def test_by_hand():
    """The probabilities are 1/4, 1/2, 1/4 at position 0, and 3/8, 1/8, 1/2 at position 1."""
    assert metrics.logit_difference(2, 0).value(LOGITS) == pytest.approx(math.log(4 / 3))
    assert metrics.log_probability(1, position=0).value(LOGITS) == pytest.approx(math.log(1 / 2))
    slope = metrics.log_probability(1, position=0).gradient(LOGITS)
    np.testing.assert_allclose(slope, [[[-1 / 4, 1 / 2, -1 / 4], [0, 0, 0]]])
    loss = metrics.loss([1, 2])
    assert loss.value(LOGITS) == pytest.approx(math.log(2))
    expected = [[1 / 8, -1 / 4, 1 / 8], [3 / 16, 1 / 16, -1 / 4]]
    np.testing.assert_allclose(loss.gradient(LOGITS)[0], expected)
    uniform = np.zeros((2, 3))
    kl = metrics.kl(uniform, position=1)
    parts = [math.log(1 / 3 / p) / 3 for p in (3 / 8, 1 / 8, 1 / 2)]
    assert kl.value(LOGITS) == pytest.approx(sum(parts))
    np.testing.assert_allclose(
        kl.gradient(LOGITS)[0], [[0, 0, 0], [3 / 8 - 1 / 3, 1 / 8 - 1 / 3, 1 / 2 - 1 / 3]]
    )
    assert metrics.kl(LOGITS).value(LOGITS) == pytest.approx(0, abs=1e-15)
    without = np.array([[0, -np.inf, 0.0], [0, 0, 0]])  # the probability 0 adds nothing
    assert metrics.kl(without, position=0).value(LOGITS) == pytest.approx(math.log(2))


def test_several_texts_have_their_own_values():
    logits = np.concatenate([LOGITS, LOGITS[:, ::-1]])
    metric = metrics.logit_difference([2, 1], [0, 0], position=[1, 1])
    expected = [math.log(4 / 3), math.log(2)]
    assert metric.value(logits) == pytest.approx(np.mean(expected))
    slope = metric.gradient(logits)
    np.testing.assert_allclose(slope[:, 1], [[-0.5, 0, 0.5], [-0.5, 0.5, 0]])
    assert not slope[:, 0].any()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_central_differences(small, kind):
    model, (metric, plain) = small("gpt2"), KINDS[kind]
    logits = model(CLEAN).logits
    np.testing.assert_allclose(metric.value(logits), plain(logits), rtol=1e-12)
    rng, step = np.random.default_rng(1), 1e-5
    way = rng.standard_normal(logits.shape)
    slope = (plain(logits + step * way) - plain(logits - step * way)) / (2 * step)
    np.testing.assert_allclose((metric.gradient(logits) * way).sum(), slope, rtol=1e-6)
    found = model.gradient(CLEAN, of=metric, at=["full_embed", ("z", 1)])
    by_array = model.gradient(CLEAN, of=metric.gradient(logits), at=["full_embed", ("z", 1)])
    for name, array in by_array.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_patches_and_edges_take_every_metric(small, kind):
    model, (metric, plain) = small("gpt2"), KINDS[kind]
    expected = patch(model, CLEAN, CORRUPTED, at="z", metric=plain)
    found = patch(model, CLEAN, CORRUPTED, at="z", metric=metric)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)
    exact = every_edge(model, CLEAN, CORRUPTED, plain)
    graph = edges(model, CLEAN, CORRUPTED, metric=metric)
    assert {pair: graph.score(*pair) for pair in exact} == pytest.approx(exact, abs=1e-10)
    step = 1e-4
    near, far = (every_edge(model, CLEAN, CORRUPTED, plain, sign * step) for sign in (1, -1))
    graph = edges(model, CLEAN, CORRUPTED, metric=metric, method="eap")
    slopes = {pair: (near[pair] - far[pair]) / (2 * step) for pair in near}
    found = {pair: graph.score(*pair) for pair in near}
    assert found == pytest.approx(slopes, rel=1e-4, abs=1e-7)
    circuit = discover(model, CLEAN, CORRUPTED, metric=metric, threshold=0, method="eap-ig")
    assert circuit.faithfulness == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
def test_attributions_take_every_metric(small, kind):
    model, (metric, plain) = small("gpt2"), KINDS[kind]
    clean, corrupted = model.trace(CLEAN), model.trace(CORRUPTED)
    found = attribution_patch(model, CLEAN, CORRUPTED, at="mlp_out", metric=metric)
    low, step, other = plain(model(CORRUPTED).logits), 1e-5, corrupted["mlp_out", 0]
    for position in range(6):
        ends = []
        for way in (step, -step):
            moved = other.copy()
            moved[0, position] += way * (clean["mlp_out", 0] - other)[0, position]
            ends.append(plain(model(CORRUPTED, edit={("mlp_out", 0): moved}).logits))
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(found[0, position] - low, slope, rtol=1e-5, atol=1e-6)
    shares = integrated_gradients(model, CLEAN, of=metric, baseline=9, steps=80)
    baseline = model.trace([9] * 6)["embed"]
    start = model(CLEAN, edit={"embed": baseline}).logits
    total = plain(model(CLEAN).logits) - plain(start)
    np.testing.assert_allclose(shares.sum(), total, rtol=1e-3, atol=1e-4)


def test_each_text_has_its_own_metric(small):
    model = small("gpt2")
    texts, several = [CLEAN, CLEAN[:4]], [(-1, 3), metrics.log_probability(5)]
    found = model.gradient(texts, of=several)["embed"]
    for number, (text, one) in enumerate(zip(texts, several, strict=True)):
        alone = model.gradient(text, of=one)["embed"][0]
        np.testing.assert_allclose(found[number, : len(text)], alone, rtol=0, atol=1e-12)
    joined = metrics.log_probability([3, 5], position=[0, -1])
    found = model.gradient(texts, of=joined)["embed"]
    for number, (text, one) in enumerate(zip(texts, [(0, 3), (-1, 5)], strict=True)):
        alone = metrics.log_probability(one[1], position=one[0])
        alone = model.gradient(text, of=alone)["embed"][0]
        np.testing.assert_allclose(found[number, : len(text)], alone, rtol=0, atol=1e-12)


def test_a_difference_of_logits_is_a_tuple(small):
    model, metric = small("gpt2"), metrics.logit_difference("cat", "dog")
    ids = [int(model.tokenize(word).ids[1]) for word in ("cat", "dog")]
    trace = model.trace(CLEAN)
    one, other = (attribute_logits(model, trace, of) for of in (metric, (-1, *ids)))
    np.testing.assert_array_equal(one["heads"], other["heads"])


class Wrong(Square):
    def gradient(self, logits):
        return logits[0]


@pytest.mark.parametrize(
    ("metric", "error", "words"),
    [
        (metrics.logit_difference([1, 2, 3], 4), ValueError, "has 3 values of `answers` for 1"),
        (metrics.logit_difference(1, 99), ValueError, "no token 99: the ids run"),
        (metrics.log_probability(1, position=6), ValueError, "position 6, but the text has 6 tok"),
        (metrics.loss([1, 2]), ValueError, "has 2 targets and the text has 6 tokens; pass one"),
        (metrics.kl(np.zeros((3, 30))), ValueError, "reference logits of 3 tokens and the text"),
        (Wrong(), ValueError, r"returned a gradient of shape \(6, 30\) .* for logits of shape"),
        (difference, TypeError, "is a function, whose gradient is unknown; pass"),
    ],
)
def test_invalid_metrics_are_refused(small, metric, error, words):
    with pytest.raises(error, match=rf"^edges: .*{words}") as caught:
        edges(small("gpt2"), CLEAN, CORRUPTED, metric=metric, method="eap")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: metrics.loss("cat"), TypeError, "loss: `targets` has 'cat'; pass the tar"),
        (lambda: metrics.loss([-100]), TypeError, "loss: `targets` has .*with at least one id"),
        (lambda: metrics.kl([1, 2]), TypeError, "kl: `reference` has an array of int64 with"),
        (
            lambda: metrics.log_probability(1, position="end"),
            TypeError,
            "log_probability: `position` is 'end'; pass a whole number",
        ),
        (
            lambda: metrics.log_probability("cat").value(LOGITS),
            ValueError,
            "value: log_probability has the token 'cat'; pass token ids from 0 to 2",
        ),
        (
            lambda: metrics.log_probability(1).value(LOGITS[0]),
            TypeError,
            r"value: `logits` is an array of float64 with shape \(2, 3\); pass floats \(B, T, V\)",
        ),
    ],
)
def test_invalid_arguments_are_refused(call, error, words):
    with pytest.raises(error, match=f"^{words}") as caught:
        call()
    assert "\n" not in str(caught.value)


def test_direct_contributions_need_a_logit(small):
    model = small("gpt2")
    with pytest.raises(TypeError, match=r"^attribute_logits: `of` is neither a logit nor a logit"):
        attribute_logits(model, model.trace(CLEAN), of=metrics.log_probability(3))
    with pytest.raises(ValueError, match=r"^gradient: `of` is a list of length 3, but there are 2"):
        model.gradient([CLEAN, CLEAN], of=[LOGIT] * 3)
