"""The gradient of logits for activations: what is asked for, and what it adds up to."""

import numpy as np
import pytest

import qkv
from qkv.models import load

from ..small_models import CONFIGS, write_small

TEXTS = ["the cat sat on the mat", "a dog ran"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradient") / "llama"
    return load(write_small(folder, CONFIGS["llama"]), dtype=np.float64)


def logit(model, text, of, name=None):
    """What the gradient is of, by the logits of a run."""
    found = model.trace(text, names="embed", logits=True)["logits"][0, of[0]]
    return found[of[1]] - (found[of[2]] if len(of) == 3 else 0)


def test_a_row_of_the_token_table_moves_the_logit_by_its_gradient(decoder):
    """Central differences of one token's row, where the head has a table of its own."""
    assert "head.out_proj.weight" in decoder.parameters
    ids, of = [3, 7, 5, 9], (-1, 6, 2)
    grad = decoder.gradient(ids, of=of)["embed"]
    assert grad.shape == (1, 4, decoder.dim)
    step = 1e-5
    for place, column in ((0, 0), (1, 3), (3, 1)):
        ends = []
        for sign in (1, -1):
            table = decoder.parameters["embed.weight"].copy()
            table[ids[place], column] += sign * step
            moved = decoder.with_parameters({**decoder.parameters, "embed.weight": table})
            ends.append(logit(moved, ids, of))
        slope = (ends[0] - ends[1]) / (2 * step)
        assert grad[0, place, column] == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_integrated_gradients_sum_to_the_difference(decoder):
    """Sundararajan, Taly and Yan 2017, proposition 1, from a twentieth of the rows to the rows."""
    ids, of = [3, 7, 5, 9], (-1, 6, 2)
    table = decoder.parameters["embed.weight"]

    def scaled(share):
        return decoder.with_parameters({**decoder.parameters, "embed.weight": share * table})

    rows = decoder.trace(ids, names="embed")["embed"]
    nodes, weights = np.polynomial.legendre.leggauss(100)
    first = 0.05  # at 0 RMSNorm has nothing but its epsilon to divide by
    shares = first + (1 - first) * (nodes + 1) / 2
    grads = [scaled(share).gradient(ids, of=of)["embed"] for share in shares]
    mean = sum(w * grad for w, grad in zip(weights, grads, strict=True)) * (1 - first) / 2
    whole = logit(decoder, ids, of) - logit(scaled(first), ids, of)
    assert abs(whole) > 0.01
    assert (rows * mean).sum() == pytest.approx(whole, rel=1e-8)


def test_texts_of_unequal_lengths_are_as_each_alone(decoder):
    asked = ["embed", ("q", 0), ("resid_post", -1), "blocks.0.mlp.hook_post"]
    batch = decoder.gradient(TEXTS, of=(-1, 5), at=asked)
    trace = decoder.trace(TEXTS)
    assert list(batch) == asked
    for number, text in enumerate(TEXTS):
        alone = decoder.gradient(text, of=(-1, 5), at=asked)
        size = len(trace[number].tokens)
        for name in asked:
            assert batch[name].shape == trace[name].shape
            np.testing.assert_allclose(batch[name][number, :size], alone[name][0], atol=1e-12)
            assert not batch[name][number, size:].any()


def test_a_name_without_a_layer_is_that_of_all(decoder):
    found = decoder.gradient(TEXTS, of=(-1, 5), at=["z", "embed", "mlp.post"])
    assert list(found) == ["z", "embed", "mlp.post"]
    assert found["embed"].ndim == 3
    for name in ("z", "mlp.post"):
        layers = [(name, layer) for layer in range(decoder.num_layers)]
        each = decoder.gradient(TEXTS, of=(-1, 5), at=layers)
        np.testing.assert_array_equal(found[name], [each[layer] for layer in layers])
        assert found[name].shape == decoder.trace(TEXTS).stack(name).shape


def test_embeddings_can_be_others(decoder):
    """As with a table that has these rows; each text with its own."""
    table, ids = decoder.parameters["embed.weight"], [[3, 7, 5], [9, 4]]
    scaled = decoder.with_parameters({**decoder.parameters, "embed.weight": 0.3 * table})
    at = ["embed", ("q", 1)]
    expected = scaled.gradient(ids, of=(-1, 6, 2), at=at)
    rows = np.zeros((2, 3, decoder.dim))
    rows[0], rows[1, :2] = 0.3 * table[ids[0]], 0.3 * table[ids[1]]
    for embed in (rows, lambda x: 0.3 * x):
        found = decoder.gradient(ids, of=(-1, 6, 2), at=at, edit={"embed": embed})
        for name in at:
            np.testing.assert_allclose(found[name], expected[name], atol=1e-13)
    assert abs(expected["embed"] - decoder.gradient(ids, of=(-1, 6, 2))["embed"]).max() > 1e-3


def test_a_pair_is_a_weight_for_each_logit(decoder):
    up = np.zeros((2, 8, decoder.design.vocabulary))
    lengths = decoder.trace(TEXTS).lengths
    assert lengths.tolist() == [8, 5]
    for number, length in enumerate(lengths):
        up[number, length - 2, 8], up[number, length - 2, 4] = 1, -1
    at = [("z", 0), "full_embed"]
    by_array = decoder.gradient(TEXTS, of=up, at=at)
    by_pair = decoder.gradient(TEXTS, of=(-2, 8, 4), at=at)
    for name in at:
        np.testing.assert_allclose(by_array[name], by_pair[name], atol=1e-13)


def test_a_token_may_be_a_string(decoder):
    cat = int(decoder.tokenize("cat").ids[1])  # behind [CLS]
    for at in ("embed", ["embed"], ("resid_pre", 0)):
        found = decoder.gradient("the dog", of=(-1, "cat"), at=at)
        expected = decoder.gradient("the dog", of=(-1, cat), at=at)
        (name,) = found
        np.testing.assert_array_equal(found[name], expected[name])


def test_an_encoder_at_its_mask():
    model = qkv.load()
    text = "The cat sat on the [MASK]."
    found = model.gradient(text, of=(-3, "the"), at=[("resid_pre", 0)])
    assert found["resid_pre", 0].shape == model.trace(text)["resid_pre", 0].shape
    assert found["resid_pre", 0].dtype == np.float32


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"at": ("pattern", 0)}, ValueError, "no gradient of .*never forms: ask for hook_embed"),
        ({"at": ["attn_scores"]}, ValueError, "no gradient of 'attn_scores', which the backward"),
        ({"at": ["blocks.0.attn.hook_result"]}, ValueError, r"attn\.hook_z"),
        (
            {"edit": {("resid_post", 0): np.tanh}},
            ValueError,
            r"edit has blocks\.0\.hook_resid_post, .* change embeddings alone, hook_embed",
        ),
        ({"edit": {"full_embed": np.tanh}}, ValueError, "edit has hook_full_embed, and what lies"),
        ({"edit": {"embed": np.ones((1, 2, 3))}}, ValueError, r"\(1, 2, 3\) for hook_embed"),
        ({"at": [("resid_post", 9)]}, KeyError, "the layers are 0 to 1"),
        ({"at": ["resid_pots"]}, KeyError, "nearest are resid_post"),
        ({"at": [3]}, TypeError, "at has 3: give names"),
        ({"at": 3}, TypeError, r"at is 3: give names, as \['embed', \('resid_post', 3\)\]"),
        ({"at": None}, TypeError, "at is None: give names"),
        ({"of": 3}, TypeError, r"of is 3: give \(place, token\)"),
        ({"of": "cat"}, TypeError, "of is 'cat'"),
        ({"of": (9, 1)}, ValueError, "place 9 and the text has 4 tokens: give -4 to 3"),
        ({"of": (-1, 10**6)}, ValueError, "no token 1000000: the ids run from 0 to"),
        ({"of": (-1, -1)}, ValueError, "no token -1"),
        ({"of": (-1, 1.5)}, TypeError, r"the token 1\.5: give an id, or a string"),
        ({"of": (-1, "xyzzy")}, ValueError, "'xyzzy' is a word it does not know of"),
        ({"of": (-1, "the cat")}, ValueError, r"'the cat' is 2 tokens of .* \(the cat\)"),
        ({"of": np.ones((1, 2, 3))}, ValueError, r"shape \(1, 2, 3\) and the logits have \(1, 4,"),
        ({"of": np.ones((1, 2, 3), int)}, TypeError, "an array of floats"),
    ],
)
def test_what_cannot_be_asked_for(decoder, options, error, words):
    with pytest.raises(error, match=words) as caught:
        decoder.gradient("the cat", **{"of": (-1, 1), **options})
    assert str(caught.value).strip("\"'").startswith("gradient: ")
    assert "\n" not in str(caught.value)


def test_models_that_have_none(tmp_path):
    short = load(write_small(tmp_path / "llama", CONFIGS["llama"]), dtype="bfloat16")
    with pytest.raises(TypeError, match=r"is bfloat16 and gradients .*dtype=np\.float32"):
        short.gradient("the cat", of=(-1, 1))
    with pytest.raises(ValueError, match="gradient: random has no head"):
        qkv.load("random").gradient("the cat", of=(-1, 1))
    pair = load(write_small(tmp_path / "t5", CONFIGS["t5"]))
    with pytest.raises(ValueError, match=r"gradient: .* reads one text and writes another"):
        pair.gradient("the cat", of=(-1, 1))
