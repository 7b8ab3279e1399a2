"""Tests of shares: how much each part of a model contributes to a logit.

The shares sum to the logit. A part's share equals the logit minus the logit without the part.
"""

from dataclasses import replace

import numpy as np
import pytest

from models.small_models import WRITERS
from qkv.circuits import attribute_logits

IDS = [3, 7, 1, 9, 4, 7]
KINDS = [*WRITERS, "parallel", "opt_projected"]


def total(found):
    return found["embed"] + found["heads"].sum() + found["mlp"].sum() + found["bias"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", [0, 3, -1])
def test_shares_sum_to_the_logit_before_a_soft_cap(small, kind, position):
    model = small(kind)
    trace = model.trace(IDS, logits=True)
    found = attribute_logits(model, trace, (position, 11))
    logit = trace["logits"][0, position, 11]
    if kind == "gemma2":  # its soft cap is 30
        logit = 30 * np.arctanh(logit / 30)
    np.testing.assert_allclose(total(found), logit, rtol=1e-10)
    assert found["heads"].shape == (model.num_layers, model.num_heads)
    assert found["mlp"].shape == (model.num_layers,)
    assert type(found["embed"]) is type(found["bias"]) is float


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_equals_the_change_without_its_part(small, kind):
    """The share of a part is how much the logit falls without the vector of the part.

    The vector is removed before the final norm. The norm keeps the scale that it had
    in the full run.
    """
    model = small(kind)
    trace = model.trace(IDS, names=[*model.trace(IDS).names(), "result"])
    scales = {name: array for name, array in trace.items() if name == "ln_final.hook_scale"}
    found = attribute_logits(model, trace, (-1, 11))

    def logit(missing):
        """Compute the logit without a part of the last vector; keep the full run's norm scale."""
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
            if kind in ("gemma2", "gemma3_text", "olmo2", "olmo3"):  # an RMSNorm after attention
                weight = model.parameters[f"blocks.{layer}.out_norm1.weight"] + ("gemma" in kind)
                part = part * weight / trace[f"blocks.{layer}.ln1_post.hook_scale"][0, -1]
            share = whole - logit(part * (0.22 if kind == "granite" else 1))
            np.testing.assert_allclose(found["heads"][layer, head], share, rtol=0, atol=1e-9)


def test_a_difference_is_the_difference_of_the_shares(small):
    model = small("gpt2")
    trace = model.trace(IDS)
    one, other = (attribute_logits(model, trace, (-1, token)) for token in (4, 5))
    both = attribute_logits(model, trace, (-1, 4, 5))
    for name, share in both.items():
        np.testing.assert_allclose(share, one[name] - other[name], rtol=0, atol=1e-12)


NEURONS = [kind for kind in KINDS if kind not in ("gpt_oss", "mixtral", "qwen3_moe")]


@pytest.mark.parametrize("kind", NEURONS)
def test_the_share_of_a_neuron_equals_the_change_without_it(small, kind):
    """A share is the change if the last block runs without the neuron, with norm scales kept."""
    model = small(kind)
    trace = model.trace(IDS)
    found = attribute_logits(model, trace, (-2, 11, 4), by="neuron")
    kept = {name: trace[name] for name in trace.names() if name.endswith("hook_scale")}
    whole = model(IDS).logits[0, -2]
    last = model.num_layers - 1
    size = trace["post", last].shape[-1]
    assert found["neurons"].shape == (model.num_layers, size)

    def logits(neurons):
        """Compute the logits of a run in which these neurons of the last block are 0."""

        def silent(post):
            post[:, -2, neurons] = 0
            return post

        return model(IDS, edit={**kept, ("post", last): silent}).logits[0, -2]

    def share(given):
        if kind == "gemma2":  # its soft cap is 30
            given = 30 * np.arctanh(given / 30)
        return given[11] - given[4]

    for neuron in range(0, size, 3):
        expected = share(whole) - share(logits([neuron]))
        np.testing.assert_allclose(found["neurons"][last, neuron], expected, rtol=0, atol=1e-9)
    plain = attribute_logits(model, trace, (-2, 11, 4))
    for name, value in plain.items():
        np.testing.assert_array_equal(found[name], value)
    bias = found["mlp"] - found["neurons"].sum(-1)  # the bias of the output projection
    has_bias = "blocks.0.mlp.down_proj.bias" in model.parameters
    assert (np.abs(bias).max() > 1e-3) == has_bias


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "parallel"])
def test_a_batch_equals_single_texts(small, kind):
    model = small(kind)
    texts, of = [IDS, IDS[3:], IDS[::-1][:5]], [(-1, 4), (0, 3, 5), (-2, 9)]
    trace = model.trace(texts)
    for asked in (of, (-1, 4)):
        found = attribute_logits(model, trace, asked, by="neuron")
        assert found["heads"].shape == (model.num_layers, model.num_heads)
        for number, ids in enumerate(texts):
            one = asked[number] if isinstance(asked, list) else asked
            alone = attribute_logits(model, model.trace(ids), one, by="neuron")
            for name, share in alone.items():
                np.testing.assert_allclose(found[name].pairs[number], share, rtol=0, atol=1e-11)
        for share in found.values():
            np.testing.assert_allclose(share, share.pairs.mean(0), rtol=0, atol=1e-12)


def test_shares_of_an_edited_run_sum_to_its_logit(small):
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


def test_invalid_models_traces_and_arguments_are_refused(small):
    model = small("gpt2")
    trace = model.trace(IDS)
    for kind in ("bert", "modernbert"):
        one = small(kind)
        with pytest.raises(ValueError, match=r"the LM head of .* has a layer before .* use a de"):
            attribute_logits(one, one.trace(IDS), (-1, 4))
    with pytest.raises(ValueError, match="position 6, but the text has 6 tokens; pass -6 to 5"):
        attribute_logits(model, trace, (6, 4))
    with pytest.raises(ValueError, match="no token 30: the ids run from 0 to 29"):
        attribute_logits(model, trace, (0, 30))
    with pytest.raises(ValueError, match=r"attribute_logits: 'the cat' is 2 tokens of"):
        attribute_logits(model, trace, (0, "the cat"))
    with pytest.raises(TypeError, match=r"attribute_logits: `of` has the token 0\.5; pass an id"):
        attribute_logits(model, trace, (0, 0.5))
    said = r"attribute_logits: `by` is 'head'; pass 'neuron', or omit"
    with pytest.raises(ValueError, match=said):
        attribute_logits(model, trace, (0, 4), by="head")
    with pytest.raises(ValueError, match=r"`by` is 'neuron', but a block of .* a mixture of"):
        attribute_logits(small("mixtral"), small("mixtral").trace(IDS), (0, 4), by="neuron")
    two = model.trace([IDS, IDS[:2]])
    with pytest.raises(ValueError, match="`of` is a list of length 3, but there are 2 texts"):
        attribute_logits(model, two, [(0, 4)] * 3)
    with pytest.raises(ValueError, match="`of` of text 1 has position 2, but the text has 2"):
        attribute_logits(model, two, (2, 4))
    with pytest.raises(TypeError, match=r"`of` is 4; pass \(position, token\) or"):
        attribute_logits(model, trace, 4)
    with pytest.raises(KeyError, match=r"no 'ln_final.hook_scale': call trace\(\) without names="):
        attribute_logits(model, model.trace(IDS, names=["embed", "full_embed"]), (-1, 4))
    with pytest.raises(KeyError, match=r"no \('z', 0\): call trace\(\) without names=, or add 'z'"):
        attribute_logits(model, model.trace(IDS, names=["full_embed", "ln_final.scale"]), (-1, 4))


def test_norms_after_the_parts_are_refused_even_with_a_linear_head(small):
    """A model with norms after its parts is refused, even if its head is only a matrix.

    No family of models has such norms and such a head. So the test takes the small BERT, which has
    norms after its parts. The test reduces the head of this BERT to its output matrix.
    """
    bert = small("bert")
    head = replace(bert.design.head, dense=False, activation=None, norm=False)
    plain = bert.with_parameters(dict(bert.parameters))
    plain.design = replace(bert.design, head=head)
    with pytest.raises(ValueError, match=r"has norms after its parts, so each norm rescales"):
        attribute_logits(plain, bert.trace(IDS), (-1, 4))


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "parallel", "gpt_oss", "opt_projected"])
@pytest.mark.parametrize(
    "at", ["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "ln_final", "head"]
)
def test_the_share_of_edits_is_what_they_add(small, kind, at):
    """What an edit adds to the stream, times the direction of the logit, is the share "edit"."""
    model = small(kind)
    last = model.num_layers - 1
    if at == "resid_mid" and ("resid_mid", last) not in model.trace(IDS):
        return
    vector = np.random.default_rng(1).standard_normal(model.dim)
    name = {"ln_final": "ln_final.hook_normalized", "head": ("z", last)}.get(at, (at, last))
    edit = {name: (lambda z: 2 * z) if at == "head" else (lambda x: x + vector)}
    trace = model.trace(IDS, logits=True, edit=edit)
    found = attribute_logits(model, trace, (-1, 11))
    logit = trace["logits"][0, -1, 11]
    if kind == "gemma2":  # its soft cap is 30
        logit = 30 * np.arctanh(logit / 30)
    np.testing.assert_allclose(total(found) + found["edit"], logit, rtol=1e-10)
    # the direction of the logit, by differences at the frozen scale of the final norm
    frozen = {"ln_final.hook_scale": trace["ln_final.hook_scale"]}
    if at in ("ln_final", "head"):
        expected = 0 if at == "head" else None
    else:
        before = trace["resid_post", last]
        pairs = (before, before - vector)
        one, other = (
            model(IDS, edit={("resid_post", last): x, **frozen}).logits[0, -1, 11] for x in pairs
        )
        if kind == "gemma2":
            one, other = (30 * np.arctanh(x / 30) for x in (one, other))
        expected = one - other
    if expected is not None:
        np.testing.assert_allclose(found["edit"], expected, rtol=0, atol=1e-9)
    assert "edit" not in attribute_logits(model, model.trace(IDS), (-1, 11))


def test_shares_of_several_edited_texts(small):
    model, edits = small("gpt2"), {"edit": {("resid_post", 0): lambda x: x + 1}, "hide": [1]}
    texts = [IDS, IDS[:3]]
    trace = model.trace(texts, logits=True, ablate=[(0, 1)], **edits)
    found = attribute_logits(model, trace, (-1, 11), by="neuron")
    logits = [trace[number]["logits"][0, -1, 11] for number in (0, 1)]
    each = {name: np.asarray(share.pairs) for name, share in found.items()}
    parts = [each["embed"], each["heads"].sum((1, 2)), each["mlp"].sum(1), each["bias"]]
    np.testing.assert_allclose(sum(parts) + each["edit"], logits, rtol=1e-10)
    assert not each["heads"][:, 0, 1].any()
    trace = model.trace(IDS, hide=[1])
    assert attribute_logits(model, trace, (-1, 11))["edit"] == pytest.approx(0, abs=1e-12)
