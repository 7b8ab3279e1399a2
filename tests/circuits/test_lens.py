"""Tests of the logit lens against models that end after a layer."""

import numpy as np
import pytest

import qkv
from models.small_models import WRITERS
from qkv.circuits import logit_lens

IDS = [3, 7, 1, 9, 4, 7]


@pytest.mark.parametrize("kind", [*WRITERS, "parallel"])
def test_each_row_equals_the_logits_without_the_later_layers(small, kind):
    model = small(kind)
    found = logit_lens(model, model.trace(IDS))
    assert found.shape == (model.num_layers + 1, len(IDS), len(model.parameters["embed.weight"]))
    assert found.dtype == np.float64
    for layer in range(model.num_layers + 1):
        silent = {
            (part, later): np.zeros_like
            for part in ("attn_out", "mlp_out")
            for later in range(layer, model.num_layers)
        }
        ends_here = model(IDS, edit=silent).logits[0]
        np.testing.assert_allclose(found[layer], ends_here, rtol=0, atol=1e-12)


def test_each_row_of_bert_passes_through_the_whole_head(small):
    model = small("bert")
    trace = model.trace(IDS, logits=True)
    found = logit_lens(model, trace)
    np.testing.assert_allclose(found[-1], trace["logits"][0], rtol=0, atol=1e-12)
    for layer in range(model.num_layers):
        given = model.unembed(trace["resid_pre", layer][0])
        np.testing.assert_allclose(found[layer], given, rtol=0, atol=1e-12)
    assert np.abs(found[0] - found[1]).max() > 0.1


def test_a_trace_without_duplicate_residuals_is_enough(small):
    model = small("gpt2")
    whole = logit_lens(model, model.trace(IDS))
    few = model.trace(IDS, names=[("resid_pre", 0), "resid_post"])
    np.testing.assert_array_equal(logit_lens(model, few), whole)
    others = model.trace(IDS, names=["resid_pre", ("resid_post", -1)])
    np.testing.assert_array_equal(logit_lens(model, others), whole)
    two = model.trace([IDS, IDS[:4]])
    np.testing.assert_allclose(logit_lens(model, two[1]), whole[:, :4], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_batch_equals_single_texts_and_is_0_in_the_padding(small, kind):
    model = small(kind)
    texts = [IDS, IDS[2:], IDS[::-1][:5]]
    found = logit_lens(model, model.trace(texts))
    assert found.shape[:3] == (3, model.num_layers + 1, 6)
    for text, ids in zip(found, texts, strict=True):
        alone = logit_lens(model, model.trace(ids))
        np.testing.assert_allclose(text[:, : len(ids)], alone, rtol=0, atol=1e-12)
        assert not text[:, len(ids) :].any()
    assert logit_lens(model, model.trace([IDS])).shape == alone.shape[:1] + found.shape[2:]


def test_unsupported_models_and_traces_are_refused(small):
    model = small("gpt2")
    trace = model.trace(IDS)
    with pytest.raises(ValueError, match=r"logit_lens: .* has no head, so it cannot predict"):
        logit_lens(small("headless"), trace)
    with pytest.raises(ValueError, match=r"logit_lens: .* has a head for [0-9]+ classes"):
        logit_lens(small("classes"), trace)
    with pytest.raises(ValueError, match=r"logit_lens: .* reads one text and writes another"):
        logit_lens(small("t5"), trace)
    with pytest.raises(ValueError, match=r"logit_lens: .* reads images"):
        logit_lens(small("vit"), trace)
    with pytest.raises(TypeError, match=r"logit_lens: `model` is str; pass a model"):
        logit_lens("gpt2", trace)
    with pytest.raises(TypeError, match=r"logit_lens: `trace` is dict; pass a trace"):
        logit_lens(model, dict(trace))
    with pytest.raises(ValueError, match=r"`trace` has 1 layers and .* has 2: trace the text with"):
        logit_lens(model, qkv.load("random").trace("the cat"))
    with pytest.raises(KeyError, match=r"no \('resid_post', 0\): call trace\(\) without names="):
        logit_lens(model, model.trace(IDS, names=[("resid_pre", 0)]))


def test_the_last_row_holds_the_logits_of_an_edited_run(small):
    for kind, name in (("gpt2", "ln_final.hook_normalized"), ("opt_projected", "final_proj")):
        model = small(kind)
        trace = model.trace([3, 7, 1, 9], edit={name: lambda x: 2 * x}, logits=True)
        found, plain = logit_lens(model, trace), logit_lens(model, model.trace([3, 7, 1, 9]))
        np.testing.assert_allclose(found[-1], trace["logits"][0], rtol=0, atol=1e-12)
        np.testing.assert_array_equal(found[:-1], plain[:-1])
