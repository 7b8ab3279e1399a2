"""Shares of a logit: their sum, and each beside a run without its part, the norms held still."""

from dataclasses import replace

import numpy as np
import pytest

from models.small_models import WRITERS
from qkv.circuits import attribute_logits

IDS = [3, 7, 1, 9, 4, 7]
KINDS = [*WRITERS, "parallel"]


def total(found):
    return found["embed"] + found["heads"].sum() + found["mlp"].sum() + found["bias"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, 3, -1])
def test_shares_sum_to_the_logit_before_a_soft_cap(small, kind, place):
    model = small(kind)
    trace = model.trace(IDS, logits=True)
    found = attribute_logits(model, trace, (place, 11))
    logit = trace["logits"][0, place, 11]
    if kind == "gemma2":  # its soft cap is 30
        logit = 30 * np.arctanh(logit / 30)
    np.testing.assert_allclose(total(found), logit, rtol=1e-10)
    assert found["heads"].shape == (model.num_layers, model.num_heads)
    assert found["mlp"].shape == (model.num_layers,)
    assert type(found["embed"]) is type(found["bias"]) is float


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_is_what_is_missing_where_norms_are_held_still(small, kind):
    """The part's vector is taken out of what the final norm is given, its scale put back."""
    model = small(kind)
    trace = model.trace(IDS, names=[*model.trace(IDS).names(), "result"])
    scales = {name: array for name, array in trace.items() if name == "ln_final.hook_scale"}
    found = attribute_logits(model, trace, (-1, 11))

    def logit(missing):
        """From the last vector without one part, and with the scale of the whole run."""
        without = trace["resid_post", -1].copy()
        without[0, -1] -= missing
        last = model.num_layers - 1
        edit = {("resid_post", last): without, **scales}
        given = model(IDS, edit=edit).logits[0, -1, 11]
        return 30 * np.arctanh(given / 30) if kind == "gemma2" else given

    whole = logit(0)
    embed = whole - logit(trace["full_embed"][0, -1])
    np.testing.assert_allclose(found["embed"], embed, rtol=0, atol=1e-9)
    for layer in range(model.num_layers):
        mlp = whole - logit(trace["mlp_out", layer][0, -1])
        np.testing.assert_allclose(found["mlp"][layer], mlp, rtol=0, atol=1e-9)
        for head in range(model.num_heads):
            part = trace["result", layer][0, -1, head]
            if kind in ("gemma2", "gemma3_text", "olmo2"):  # a norm of its own, without a mean
                weight = model.parameters[f"blocks.{layer}.out_norm1.weight"] + (kind != "olmo2")
                part = part * weight / trace[f"blocks.{layer}.ln1_post.hook_scale"][0, -1]
            share = whole - logit(part)
            np.testing.assert_allclose(found["heads"][layer, head], share, rtol=0, atol=1e-9)


def test_a_difference_is_the_difference_of_the_shares(small):
    model = small("gpt2")
    trace = model.trace(IDS)
    one, other = (attribute_logits(model, trace, (-1, token)) for token in (4, 5))
    both = attribute_logits(model, trace, (-1, 4, 5))
    for name, share in both.items():
        np.testing.assert_allclose(share, one[name] - other[name], rtol=0, atol=1e-12)


def test_of_an_edited_run_the_shares_are_of_that_run(small):
    model = small("gpt2")
    edit = {("result", 0): lambda x: x * 3}
    names = [*model.trace(IDS).names(), "result"]
    trace = model.trace(IDS, edit=edit, names=names, logits=True)
    found = attribute_logits(model, trace, (-1, 4))
    np.testing.assert_allclose(total(found), trace["logits"][0, -1, 4], rtol=1e-10)
    ablated = model.trace(IDS, ablate=[(1, 2)], logits=True)
    found = attribute_logits(model, ablated, (-1, 4))
    assert found["heads"][1, 2] == 0
    np.testing.assert_allclose(total(found), ablated["logits"][0, -1, 4], rtol=1e-10)


def test_what_has_no_shares(small):
    model = small("gpt2")
    trace = model.trace(IDS)
    for kind in ("bert", "modernbert"):
        one = small(kind)
        with pytest.raises(ValueError, match=r"the head of .* has a layer of its own .* take a de"):
            attribute_logits(one, one.trace(IDS), (-1, 4))
    with pytest.raises(ValueError, match="place 6 and the text has 6 tokens: give -6 to 5"):
        attribute_logits(model, trace, (6, 4))
    with pytest.raises(ValueError, match="no token 30: the ids run from 0 to 29"):
        attribute_logits(model, trace, (0, 30))
    with pytest.raises(ValueError, match=r"attribute_logits: 'the cat' is 2 tokens of"):
        attribute_logits(model, trace, (0, "the cat"))
    with pytest.raises(TypeError, match=r"attribute_logits: of has the token 0\.5: give an id"):
        attribute_logits(model, trace, (0, 0.5))
    with pytest.raises(TypeError, match=r"of is 4: give \(place, token\) or"):
        attribute_logits(model, trace, 4)
    with pytest.raises(KeyError, match=r"no 'ln_final.hook_scale': trace all, or with 'ln_final"):
        attribute_logits(model, model.trace(IDS, names=["embed", "full_embed"]), (-1, 4))
    with pytest.raises(KeyError, match=r"no \('z', 0\): trace all, or with 'z' among names="):
        attribute_logits(model, model.trace(IDS, names=["full_embed", "ln_final.scale"]), (-1, 4))


def test_norms_behind_the_parts_are_refused_where_the_head_would_do(small):
    """No family has both: the head of the small BERT without what stands before its matrix."""
    bert = small("bert")
    head = replace(bert.design.head, dense=False, activation=None, norm=False)
    plain = bert.with_parameters(dict(bert.parameters))
    plain.design = replace(bert.design, head=head)
    with pytest.raises(ValueError, match=r"the norms of .* stand behind its parts"):
        attribute_logits(plain, bert.trace(IDS), (-1, 4))
