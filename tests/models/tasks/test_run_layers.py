"""Tests of runs that begin at a layer, against the whole run."""

import numpy as np
import pytest

import qkv
from models.small_models import CONFIGS, write_small
from qkv import load

IDS = [[3, 7, 1, 9, 4], [2, 2, 8, 5, 6]]
FAMILIES = ("gpt2", "llama", "gemma2", "modernbert")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "model"
    return load(write_small(folder, CONFIGS[request.param], seed=4), dtype="float64")


def handed_on(trace, layer):
    """Return the output of a layer, which is the input of the next layer."""
    return trace["resid_pre", layer + 1]


def test_run_layers_from_any_layer_matches_the_whole_run(model):
    trace = model.trace(IDS)
    last = trace["resid_post", -1]
    for first in range(model.num_layers):
        found = model.run_layers(trace["resid_pre", first], first)
        np.testing.assert_allclose(found, last, rtol=0, atol=1e-12)
    part = model.run_layers(trace["resid_pre", 0], 0, 1)
    np.testing.assert_allclose(part, handed_on(trace, 0), rtol=0, atol=1e-12)
    none = model.run_layers(last, model.num_layers)
    np.testing.assert_array_equal(none, last)
    np.testing.assert_array_equal(model.run_layers(last, -1, -1), last)


def test_a_post_norm_encoder():
    model = qkv.load("books")
    trace = model.trace("The cat sat.")
    found = model.run_layers(trace["resid_pre", 2], 2)
    np.testing.assert_allclose(found, trace["normalized_resid_post", -1], rtol=0, atol=1e-5)


def test_one_text_has_no_axis_of_texts(model):
    trace = model.trace(IDS[0])
    found = model.run_layers(trace["resid_pre", 1][0], 1)
    assert found.shape == (5, model.dim)
    np.testing.assert_allclose(found, trace["resid_post", -1][0], rtol=0, atol=1e-12)


def test_an_edit_in_run_layers_matches_the_whole_run(model):
    def one_head(z):
        z[1:, :, 0] *= -0.5
        return z

    plain = model.trace(IDS)
    whole = model.trace(IDS, edit={("z", 1): one_head}, batch_size=2)
    found = model.run_layers(plain["resid_pre", 1], 1, edit={("z", 1): one_head})
    np.testing.assert_allclose(found, whole["resid_post", -1], rtol=0, atol=1e-12)
    assert np.abs(found[1] - plain["resid_post", -1][1]).max() > 1e-3
    other = {("attn_out", 1): plain["attn_out", 0]}
    np.testing.assert_allclose(
        model.run_layers(plain["resid_pre", 1], 1, edit=other),
        model.trace(IDS, edit=other)["resid_post", -1],
        **{"rtol": 0, "atol": 1e-12},
    )


def test_run_layers_does_not_modify_its_input(model):
    given = np.array(model.trace(IDS)["resid_pre", 0])
    copy = given.copy()
    model.run_layers(given, 0, edit={("resid_pre", 0): lambda x: x * 0})
    np.testing.assert_array_equal(given, copy)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"resid": np.ones((2, 5, 12), int)}, TypeError, r"is int64; pass floats \(B, T, 12\)"),
        ({"resid": np.ones((2, 5, 11))}, ValueError, r"\(2, 5, 11\), but .* have size 12; pass"),
        ({"first": 3}, ValueError, "`first` is 3, but the model has 2 layers; pass 0 to 2"),
        ({"first": 1, "stop": 0}, ValueError, "`first` is layer 1 and `stop` is 0"),
        ({"edit": {("z", 0): abs}, "first": 1}, ValueError, "attn.hook_z, but only layers 1 to 1"),
        ({"edit": {"hook_embed": abs}}, ValueError, "`edit` has hook_embed, but only layers 0 to"),
        ({"edit": {("z", 0): np.ones((2, 4, 3, 4))}}, ValueError, r"\(2, 5, 3, 4\) here"),
    ],
)
def test_what_cannot_be_run(options, error, words, tmp_path):
    model = load(write_small(tmp_path / "model", CONFIGS["gpt2"]))
    with pytest.raises(error, match=words) as caught:
        model.run_layers(**{"resid": np.ones((2, 5, 12)), "first": 0, **options})
    assert str(caught.value).strip("\"'").startswith("run_layers: ")
    assert "\n" not in str(caught.value)
