"""How far two runs part, beside plain loops over two traces of each text."""

import numpy as np
import pytest

import qkv
from models.small_models import CONFIGS, write_small
from qkv.circuits import diff

TEXTS = [[3, 7, 1, 9, 4, 7], [5], [5, 2, 8, 11]]
SITES = {"resid": "resid_post", "attn": "attn_out", "mlp": "mlp_out", "heads": "z"}


def moved(model, seed=0, size=0.3):
    """The same model with other weights."""
    rng = np.random.default_rng(seed)
    parameters = {
        name: array + size * rng.standard_normal(array.shape) * array.std()
        for name, array in model.parameters.items()
    }
    return model.with_parameters(parameters)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "parallel"])
def test_cosines_and_changes_beside_plain_loops(small, kind):
    one, other = small(kind), moved(small(kind))
    found = diff(one, other, iter(TEXTS))
    cosines = {name: [] for name in SITES}
    sizes, kl, same = [], [], []
    for ids in TEXTS:
        a, b = one.trace(ids, logits=True), other.trace(ids, logits=True)
        for name, site in SITES.items():
            if kind == "bert" and name == "resid":
                site = "normalized_resid_post"
            x, y = (np.moveaxis(run.stack(site)[:, 0], 1, 0) for run in (a, b))  # (T, layers, ...)
            lengths = np.sqrt((x * x).sum(-1)) * np.sqrt((y * y).sum(-1))
            cosines[name] += list((x * y).sum(-1) / lengths)
        for x, y in zip(a["logits"][0], b["logits"][0], strict=True):
            p, q = (np.exp(logits) / np.exp(logits).sum() for logits in (x, y))
            sizes.append(np.abs(x - y).mean())
            kl.append(sum(p * np.log(p / q)))
            same.append(np.argmax(p) == np.argmax(q))
    for name, each in cosines.items():
        np.testing.assert_allclose(found[name], np.mean(each, 0), rtol=0, atol=1e-12)
        assert found[name].axes == (("layer", "head") if name == "heads" else ("layer",))
        assert found[name].max() < 0.999
    for name, each in (("logits", sizes), ("kl", kl), ("same", same)):
        np.testing.assert_allclose(found[name], np.mean(each), rtol=1e-10, atol=1e-14)


def test_a_model_and_itself_do_not_part(small):
    found = diff(small("gpt2"), small("gpt2"), TEXTS)
    for name in SITES:
        np.testing.assert_allclose(found[name], 1, rtol=0, atol=1e-12)
    assert (found["logits"], found["same"]) == (0, 1)
    assert abs(found["kl"]) < 1e-12
    ablated = small("gpt2").parameters
    silent = dict(ablated) | {
        "blocks.1.attn.v_proj.weight": 0 * ablated["blocks.1.attn.v_proj.weight"],
        "blocks.1.attn.v_proj.bias": 0 * ablated["blocks.1.attn.v_proj.bias"],
    }
    silent = small("gpt2").with_parameters(silent)
    assert not diff(small("gpt2"), silent, TEXTS)["heads"][1].any()  # beside vectors of 0
    assert (diff(silent, silent, TEXTS)["heads"][1] == 1).all()


def test_however_texts_are_batched(small, monkeypatch):
    one, other = small("gpt2"), moved(small("gpt2"))
    expected = diff(one, other, TEXTS)
    monkeypatch.setattr("qkv.circuits.means.PLACES", 8)
    monkeypatch.setattr("qkv.circuits.inputs.TEXTS", 2)
    for name, value in diff(one, other, TEXTS).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-12)


def test_models_that_cannot_be_compared(small, tmp_path):
    model = small("gpt2")
    with pytest.raises(TypeError, match="diff: model is str"):
        diff(model, "gpt2", TEXTS)
    with pytest.raises(
        ValueError, match=r"diff: .* has 2 layers and .* 1: give models of the same"
    ):
        diff(model, qkv.load("random"), TEXTS)
    with pytest.raises(ValueError, match=r"the blocks of .* and .* have different parts: give mod"):
        diff(small("parallel"), model, TEXTS)
    wide = {**CONFIGS["gpt2"], "vocab_size": 31}
    wide = qkv.load(str(write_small(tmp_path / "wide", wide)), dtype="float64")
    with pytest.raises(ValueError, match=r"has 30 words and .* 31"):
        diff(model, wide, TEXTS)
    with pytest.raises(ValueError, match="diff: texts hold no token: give a text"):
        diff(model, model, [])
    other = moved(model)
    other.max_seq_length = 4
    with pytest.raises(
        ValueError,
        match=r"cuts text 0 into 8 tokens and .* into 4 other tokens: give",
    ):
        diff(model, other, ["the cat sat on the mat"])
