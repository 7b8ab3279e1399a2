"""Tests of ViT against a plain ViT in loops, of preprocessing, and of refused inputs."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

import qkv
from qkv.cli import main
from qkv.models import load
from qkv.models.vision import VisionModel, grid_of, patch_names
from rows import failing

from .formulas import attend, layer_norm
from .small_models import CONFIGS, arrays_of
from .support import refused

CONFIG = {
    **CONFIGS["vit"],
    **{"image_size": [9, 13], "patch_size": [3, 4], "num_channels": 3, "layer_norm_eps": 1e-6},
    **{"hidden_act": "relu", "id2label": {"0": "a", "1": "b", "2": "c", "3": "d"}},
}
PREPROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 9, "width": 13},
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.5, 0.2, 0.25],
}


def vit(folder, *, config=None, preprocessor=PREPROCESSOR, tensors=None):
    config = {**CONFIG, **(config or {})}
    (folder / "config.json").write_text(json.dumps(config))
    if preprocessor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    save_file(tensors or arrays_of(config), folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture
def model(tmp_path) -> VisionModel:
    found = load(vit(tmp_path), dtype="float64")
    assert isinstance(found, VisionModel)
    return found


def plain_vit(tensors, image):
    """Run a plain ViT on one image (C, H, W), one patch and one head at a time."""
    p = {name.removeprefix("vit."): array.astype(float) for name, array in tensors.items()}
    rows = [p["embeddings.cls_token"][0, 0]]
    kernel = p["embeddings.patch_embeddings.projection.weight"]
    for y in range(0, 9, 3):
        for x in range(0, 12, 4):
            piece = image[:, y : y + 3, x : x + 4]
            rows.append(
                np.array([(piece * one).sum() for one in kernel])
                + p["embeddings.patch_embeddings.projection.bias"]
            )
    h = np.stack(rows) + p["embeddings.position_embeddings"][0]

    def norm(x, name):
        return layer_norm(x, p[f"{name}.weight"], p[f"{name}.bias"], 1e-6)

    def dense(x, name):
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    weights = []
    for layer in range(2):
        here = f"encoder.layer.{layer}."
        x = norm(h, f"{here}layernorm_before")
        q, k, v = (
            dense(x, f"{here}attention.attention.{part}") for part in ("query", "key", "value")
        )
        out, shares = attend(q, k, v, 3)
        weights.extend(shares)
        h = h + dense(out, f"{here}attention.output.dense")
        x = norm(h, f"{here}layernorm_after")
        x = np.maximum(dense(x, f"{here}intermediate.dense"), 0)
        h = h + dense(x, f"{here}output.dense")
    last = norm(h, "layernorm")
    return h, last, weights, dense(last[0], "classifier")


def images(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 9, 13, 3), np.uint8)


def test_a_plain_vit_gives_the_same(model):
    given = images(2)
    pixels = model.pixels(given)
    trace = model.trace(given)
    found = model(pixels)
    for number in range(2):
        expected = (given[number] / 255 - [0.5, 0.4, 0.3]) / [0.5, 0.2, 0.25]
        np.testing.assert_allclose(pixels[number], np.moveaxis(expected, -1, 0), atol=2e-6)
        before, last, weights, logits = plain_vit(arrays_of(CONFIG), pixels[number].astype(float))
        np.testing.assert_allclose(found.last_hidden_state[number], last, atol=1e-9)
        np.testing.assert_allclose(found.logits[number], logits, atol=1e-9)
        np.testing.assert_allclose(trace.hidden_states[-1][number], before, atol=1e-9)
        np.testing.assert_allclose(trace["ln_final.hook_normalized"][number], last, atol=1e-9)
        pattern = np.concatenate([part[number] for part in trace.attentions])
        np.testing.assert_allclose(pattern, weights, atol=1e-12)


def test_a_trace_is_like_that_of_a_text(model, tmp_path):
    (image,) = images(1)
    trace = model.trace(image)
    assert model.grid == (3, 3)
    assert trace.tokens == patch_names(3, 3)
    assert trace.special == [True] + [False] * 9
    assert len(trace) == 1
    both = model.trace([image, image[::-1]])
    assert both.tokens == [patch_names(3, 3)] * 2
    # a batch has matrix products of other sizes, which BLAS may sum in another order
    np.testing.assert_allclose(both[0].pattern(0, 1), trace.pattern(0, 1), rtol=1e-12)
    np.testing.assert_allclose(both[0].hidden_states[-1], trace.hidden_states[-1], rtol=1e-12)
    np.testing.assert_array_equal(
        model.trace(model.pixels(image)).pattern(1, 0), trace.pattern(1, 0)
    )
    again = qkv.attention(**trace.attention_inputs(-1), return_weights=True)[1]
    np.testing.assert_allclose(again, trace["pattern", -1], atol=1e-12)
    trace.save(tmp_path / "trace.safetensors")
    loaded = qkv.Trace.load(tmp_path / "trace.safetensors")
    for one, two in zip(loaded.hidden_states, trace.hidden_states, strict=True):
        np.testing.assert_array_equal(one, two)
    embedded = trace["embed"] + trace["pos_embed"]
    np.testing.assert_allclose(trace["full_embed"], embedded, atol=1e-12)
    short = model.trace(image, top_k=2, names="z", layers=0)
    assert short["top_weights", 0].shape == (1, 3, 10, 2)
    assert ("z", 1) not in short


def test_images_are_run_in_parts_and_in_a_stream(model):
    pixels = np.random.default_rng(0).standard_normal((5, 3, 9, 13))
    whole = model.trace(pixels, batch_size=5)
    for name, array in model.trace(pixels, batch_size=2).items():
        np.testing.assert_allclose(array, whole[name], atol=1e-5, err_msg=name)
    stream = list(model.trace_stream(pixels, batch_size=2, names="resid_post"))
    assert [len(trace) for trace in stream] == [2, 2, 1]
    found = np.concatenate([trace["resid_post", -1] for trace in stream])
    np.testing.assert_allclose(found, whole["resid_post", -1], atol=1e-5)


def test_heads_and_patches_can_be_left_out(model):
    (image,) = images(1)
    trace = model.trace(image, hide=["1,2", "[CLS]"], ablate=[(0, 1)])
    assert not trace.pattern(1, 0)[:, [0, 6]].any()
    assert not trace["z", 0][:, :, 1].any()
    assert trace.changed == {"ablate": [(0, 1)], "hide": ["1,2", "[CLS]"]}
    with pytest.raises(ValueError, match=r"`hide` has '9,9'"):
        model.trace(image, hide="9,9")


def test_pixels_beyond_the_last_whole_patch_are_ignored(model):
    pixels = model.pixels(images(1))
    other = pixels.copy()
    other[..., 12:] = 7  # 13 columns are three patches of 4 and one column
    found = [model(one).last_hidden_state for one in (pixels, other)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("tokens", [[], ["[CLS]"], ["[CLS]", "a,b"], ["0,0"], ["[CLS]", "1,1"]])
def test_tokens_that_are_no_patches(tokens):
    assert grid_of(tokens) is None


def test_images_of_another_size_are_resized(model):
    from PIL import Image

    large = np.random.default_rng(0).integers(0, 256, (40, 31, 3), np.uint8)
    small = np.asarray(Image.fromarray(large).resize((13, 9), resample=2))
    for given in (large, Image.fromarray(large), [large], large[None]):
        np.testing.assert_array_equal(model.pixels(given), model.pixels(small))


def test_without_pillow_the_size_must_be_right(model, monkeypatch):
    def no_pillow(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="PIL")

    monkeypatch.setattr("importlib.import_module", no_pillow)
    assert model.pixels(images(1)).shape == (1, 3, 9, 13)
    with pytest.raises(ImportError, match=r"40 x 31 and the model takes 9 x 13.*\[plot\]"):
        model.pixels(np.zeros((40, 31, 3), np.uint8))


def test_saved_and_loaded_again(model, tmp_path):
    (image,) = images(1)
    model.save(tmp_path / "copy")
    again = load(tmp_path / "copy")
    np.testing.assert_array_equal(
        again(again.pixels(image)).logits, model(model.pixels(image)).logits
    )
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]
    (tmp_path / "without").mkdir()
    load(vit(tmp_path / "without", preprocessor=None)).save(tmp_path / "copy")
    assert not (tmp_path / "copy" / "preprocessor_config.json").exists()


def test_a_head_that_is_not_computed_is_kept(tmp_path):
    config = {**CONFIG, "architectures": ["ViTModel"]}
    extra = {
        "pooler.dense.weight": np.ones((12, 12), np.float32),
        "embeddings.mask_token": np.ones((1, 1, 12), np.float32),
    }
    body = {name.removeprefix("vit."): array for name, array in arrays_of(config).items()}
    model = load(vit(tmp_path, config=config, tensors={**body, **extra}))
    assert model(model.pixels(images(1))).logits is None
    model.save(tmp_path / "copy")
    from safetensors import safe_open

    with safe_open(tmp_path / "copy" / "model.safetensors", framework="numpy") as file:
        assert set(extra) < set(file.keys())


def test_pixel_values_that_do_not_fit(model):
    for given, error, message in (
        (np.zeros((1, 3, 9, 13), np.uint8), TypeError, r"uint8; pass floats, as model\.pixels"),
        (np.zeros((3, 9, 13)), ValueError, r"\(3, 9, 13\); pass \(B, 3, 9, 13\)"),
        (np.zeros((2, 3, 13, 9)), ValueError, r"\(3, 13, 9\), but the model takes \(3, 9, 13\)"),
    ):
        with failing(given, error, message), pytest.raises(error, match=message):
            model(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((9, 13, 3)), r"float64 \(9, 13, 3\); pass uint8 \(H, W, 3\)"),
        (np.zeros((9, 13), np.uint8), r"uint8 \(9, 13\)"),
        (np.zeros((3, 9, 13), np.uint8), r"uint8 \(3, 9, 13\); pass uint8 \(H, W, 3\)"),
        ([], "no image is given"),
    ],
)
def test_images_that_do_not_fit(model, given, message):
    with pytest.raises(ValueError, match=message):
        model.pixels(given)
    with pytest.raises(ValueError, match=message):
        model.trace(given)


@pytest.mark.parametrize("preprocessor", [PREPROCESSOR, None])
def test_text_is_no_image(tmp_path, preprocessor):
    model = load(vit(tmp_path, preprocessor=preprocessor))
    said = r"reads images, and .* is not an image; pass a uint8 array \(H, W, 3\)"
    for given in ("x.png", b"x.png", tmp_path / "x.png", ["a", "b"]):
        with pytest.raises(TypeError, match=said):
            model.trace(given)
    with pytest.raises(ValueError, match=r"walk: .* reads images, not text"):
        qkv.walk("I sat", model=model)
    found = CliRunner().invoke(main, ["walk", "I sat", "--model", str(tmp_path)])
    assert found.exit_code != 0
    said = " ".join(found.output.split())
    assert "reads images, not text: in Python, call qkv.image_view(" in said


def test_no_image_gives_no_row(model):
    assert model(np.zeros((0, 3, 9, 13))).last_hidden_state.shape == (0, 10, 12)


def test_without_a_preprocessor_only_pixels_are_accepted(tmp_path):
    model = load(vit(tmp_path, preprocessor=None))
    with pytest.raises(ValueError, match=r"no preprocessor_config\.json.*\(B, 3, 9, 13\)"):
        model.trace(images(1))
    assert model.trace(np.zeros((1, 3, 9, 13), np.float32)).tokens == patch_names(3, 3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"size": {"height": 9, "width": 14}}, "size is 9 x 14 and the model takes images of 9 x"),
        ({"size": {"shortest_edge": 9}}, "size has shortest_edge"),
        ({"size": 10**9}, "size is 1000000000 x"),
        ({"do_center_crop": True}, "do_center_crop is True"),
        ({"image_processor_type": "DetrImageProcessor"}, "CLIPImageProcessor"),
        ({"image_mean": [0.5]}, "image_mean is"),
        ({"image_std": [0.5, 0, 0.5]}, "no number may be 0"),
        ({"rescale_factor": 1e300}, "rescale_factor is 1e"),
        ({"resample": 9}, "resample is 9"),
        ({"do_resize": "yes"}, "do_resize is 'yes'"),
    ],
)
def test_a_preprocessor_that_is_not_supported(tmp_path, changed, message):
    refused(vit(tmp_path, preprocessor={**PREPROCESSOR, **changed}), message)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("image_size", value) for value in (0, -3, 2, [9], [9, 13, 1], [9, "13"], None, True)),
        *(("patch_size", value) for value in (0, [3, 0], [10, 4], [3, 14], 2.5, 10**12)),
        *(("image_size", [10**12, 10**12]), ("num_channels", 0), ("num_channels", 10**12)),
        *(("num_attention_heads", 5), ("qkv_bias", 1), ("head_dim", 7), ("hidden_act", "x")),
    ],
)
def test_sizes_that_make_no_sense(tmp_path, key, value):
    refused(vit(tmp_path, config={key: value}, tensors=arrays_of(CONFIG)))
