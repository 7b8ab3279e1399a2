"""Tests of DINOv2, which reads images of any size: accepted and refused inputs."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import qkv
from qkv.models import ModelError, load
from qkv.models.vision import VisionModel

from .small_models import CONFIGS, arrays_of

PREPROCESSOR = {
    "image_processor_type": "BitImageProcessor",
    "size": {"shortest_edge": 10},
    "crop_size": {"height": 8, "width": 9},
    "image_mean": [0.5, 0.4],
    "image_std": [0.5, 0.2],
}


def dinov2(folder, preprocessor=None, **config):
    config = {**CONFIGS["dinov2"], **config}
    (folder / "config.json").write_text(json.dumps(config))
    if preprocessor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    save_file(arrays_of(config), folder / "model.safetensors", {"format": "pt"})
    found = load(folder, dtype="float64")
    assert isinstance(found, VisionModel)
    return found


def test_an_image_of_another_size_has_another_grid(tmp_path):
    model, rng = dinov2(tmp_path), np.random.default_rng(0)
    assert model.grid == (2, 2)
    image = rng.standard_normal((1, 2, 13, 8))
    trace = model.trace(image)
    assert trace.tokens == ["[CLS]", "0,0", "0,1", "1,0", "1,1", "2,0", "2,1"]
    assert trace["pattern", 0].shape == (1, 3, 7, 7)
    np.testing.assert_allclose(trace["pattern", 0].sum(-1), 1)
    again = trace["resid_mid", 1] + trace["mlp_out", 1]
    np.testing.assert_allclose(trace["resid_post", 1], again, atol=1e-12)
    hidden = model.trace(image, hide=["2,1"])
    assert (hidden["pattern", 0][..., -1] == 0).all()
    first = model(image[:, :, :12]).last_hidden_state  # the last row is no whole patch
    np.testing.assert_array_equal(model(image).last_hidden_state, first)


def test_what_is_refused(tmp_path):
    model = dinov2(tmp_path)
    with pytest.raises(ValueError, match=r"with at least one patch: \(2, 4, 8\)"):
        model(np.zeros((1, 2, 3, 8)))
    with pytest.raises(ValueError, match=r"shape \(3, 8, 8\), but all .* the same shape"):
        model(np.zeros((1, 3, 8, 8)))
    message = "2 x 3 patches; the numbers of rows and columns must be equal"
    with pytest.raises(ModelError, match=message):
        dinov2(tmp_path, image_size=[8, 12])


def test_the_middle_of_an_image(tmp_path):
    model = dinov2(tmp_path, PREPROCESSOR | {"do_resize": False})
    image = np.random.default_rng(0).integers(0, 256, (11, 14, 2), np.uint8)
    expected = (image[1:9, 2:11] / 255 - [0.5, 0.4]) / [0.5, 0.2]
    found = model.pixels(image)
    np.testing.assert_allclose(found[0], np.moveaxis(expected, -1, 0), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="the image is 7 x 14, too small to be cropped to 8 x 9"):
        model.pixels(image[:7])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"size": {"shortest_edge": 8}}, "crop_size is 8 x 9 and images are resized to 8"),
        ({"size": {"longest_edge": 8}}, "size has longest_edge"),
        ({"crop_size": {"shortest_edge": 8}}, "crop_size has shortest_edge"),
        ({"do_center_crop": 1}, "do_center_crop is 1"),
        ({"do_pad": True}, "do_pad is True"),
    ],
)
def test_a_preprocessor_that_is_not_supported(tmp_path, changed, message):
    with pytest.raises(ModelError, match=message):
        dinov2(tmp_path, PREPROCESSOR | changed)


def test_a_walk_takes_activations_after_layer_scale_from_the_trace(tmp_path):
    model = dinov2(tmp_path)
    trace = model.trace(np.random.default_rng(0).standard_normal((1, 2, 8, 8)))
    compared = qkv.walk(trace, layer=0, head=1, model=model).walk.compared
    assert [name for _, name, _ in compared] == ["blocks.0.attn.hook_z"]
