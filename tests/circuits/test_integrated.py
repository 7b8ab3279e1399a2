"""Tests of integrated gradients.

The contributions sum to the logit of the text minus the logit of the baseline. If `of` names two
tokens, the same holds for the difference of their logits.
"""

import warnings

import numpy as np
import pytest

import qkv
from qkv.circuits import _logits as module, integrated_gradients

IDS, OF = [3, 7, 1, 9, 4, 7], (-1, 11, 5)


def margin(model, embed=None):
    """Compute the logit difference `OF`, with `embed` (T, D) in place of the embeddings."""
    edit = None if embed is None else {"embed": embed[None]}
    logits = model.trace(IDS, names=[], logits=True, edit=edit)["logits"][0, -1]
    return logits[11] - logits[5]


@pytest.mark.parametrize(
    "kind", ["gpt2", "bert", pytest.param("parallel", marks=pytest.mark.attack)]
)
def test_shares_sum_to_the_difference(small, kind):
    model = small(kind)
    end = model.trace(IDS)["embed"][0]
    baselines = {"zero": None, "one": end[0] / 2, "each": end[::-1] / 3}
    for name, given in baselines.items():
        start = np.broadcast_to(0 if given is None else given, end.shape)
        expected = margin(model) - margin(model, start)
        found = integrated_gradients(model, IDS, of=OF, baseline=given, steps=300)
        assert found.shape == end.shape
        assert found.dtype == np.float64
        assert found.sum() == pytest.approx(expected, rel=1e-6), name
        assert abs(expected) > 1e-2


@pytest.mark.parametrize(("kind", "size"), [("albert", 8), ("opt_projected", 10)])
def test_shares_of_embeddings_that_are_narrower_than_the_layers(small, kind, size):
    model = small(kind)
    found = integrated_gradients(model, IDS, of=OF, baseline=2, steps=300)
    expected = margin(model) - margin(model, model.trace([2] * len(IDS))["embed"][0])
    assert found.shape == (len(IDS), size)
    assert found.sum() == pytest.approx(expected, rel=5e-3)  # OPT's ReLU has kinks


def test_a_token_equal_to_the_baseline_has_no_share(small):
    """Only one position differs from the baseline, so it has the whole contribution."""
    model = small("gpt2")
    start = model.trace(IDS)["embed"][0].copy()
    start[2] = -start[2]
    found = integrated_gradients(model, IDS, of=OF, baseline=start, steps=100).sum(-1)
    assert found[2] == pytest.approx(margin(model) - margin(model, start), rel=1e-8)
    assert not np.delete(found, 2).any()


def test_a_baseline_may_be_a_token(small, monkeypatch):
    model = small("bert")
    rows = np.repeat(model.parameters["embed.weight"][[9]], len(IDS), 0)
    expected = integrated_gradients(model, IDS, of=OF, baseline=rows)
    monkeypatch.setattr(module, "MOST_POSITIONS", 3 * len(IDS))  # three steps at once
    found = integrated_gradients(model, IDS, of=OF, baseline=9)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert not found[3].any()  # its token is the baseline


def test_a_baseline_may_be_a_word():
    model = qkv.load()
    by_word, by_id = (
        integrated_gradients(model, "The sun [MASK].", of=(3, "the"), baseline=token)
        for token in ("[PAD]", model.tokenizer.vocabulary["[PAD]"])
    )
    np.testing.assert_array_equal(by_word, by_id)


def test_too_few_steps_give_a_warning(small):
    """Near zero vectors, RMSNorm divides by almost 0, so three steps miss the steep slope."""
    with pytest.warns(UserWarning, match=r"the contributions sum to .* than 3, or"):
        integrated_gradients(small("llama"), IDS, of=OF, steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        integrated_gradients(small("llama"), IDS, of=OF, baseline=9, steps=300)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"text": [[3, 7], [1, 9]]}, ValueError, "text is a list of 2 texts; pass one"),
        ({"of": (9, 1)}, ValueError, "`of` has position 9"),
        ({"of": 3}, TypeError, r"`of` is 3; pass \(position, token\)"),
        ({"steps": 0}, ValueError, "steps"),
        ({"baseline": 10**6}, ValueError, "there is no token 1000000"),
        ({"baseline": "king"}, ValueError, "'king' is not in the vocabulary"),
        ({"baseline": [1, 2]}, TypeError, "`baseline` is .*; pass a token, or floats of shape"),
        ({"baseline": np.ones(3)}, ValueError, r"shape \(3,\) and the embeddings have \(6, 12\)"),
    ],
)
def test_invalid_arguments_are_refused(small, options, error, words):
    with pytest.raises(error, match=words) as caught:
        integrated_gradients(small("gpt2"), **{"text": IDS, "of": OF, **options})
    assert str(caught.value).startswith("integrated_gradients: ")


def test_a_model_without_an_lm_head_is_refused(small):
    with pytest.raises(ValueError, match=r"integrated_gradients: .* has no head, so it cannot"):
        integrated_gradients(small("headless"), IDS, of=OF)
