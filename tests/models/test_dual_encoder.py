"""Tests of CLIP's two encoders: vectors by hand, shared arrays, and refused inputs."""

import json

import numpy as np
import pytest

import qkv
from qkv.models import DualEncoder, Model, load
from qkv.models.vision import VisionModel

from .formulas import layer_norm
from .small_models import CONFIGS, arrays_of, write_small
from .support import refused

CONFIG = CONFIGS["clip"]
PREPROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 8},
    "crop_size": {"height": 8, "width": 8},
    "image_mean": [0.5, 0.4],
    "image_std": [0.5, 0.2],
}
IDS = np.array([[4, 9, 3, 3, 7], [4, 3, 8, 9, 3], [9, 8, 7, 6, 5]])  # 3 is the end token


@pytest.fixture
def model(tmp_path) -> DualEncoder:
    path = write_small(tmp_path / "clip", CONFIG)
    (path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    found = load(path, dtype="float64")
    assert isinstance(found, DualEncoder)
    return found


def pixels(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 2, 8, 8))


def in_files():
    return {name: array.astype(float) for name, array in arrays_of(CONFIG).items()}


def normed(x, name):
    files = in_files()
    return layer_norm(x, files[f"{name}.weight"], files[f"{name}.bias"], 1e-5)


def projected(first):
    """Return the vector of an image, from the last hidden state of its first token."""
    return normed(first, "vision_model.post_layernorm") @ in_files()["visual_projection.weight"].T


def length_one(vectors):
    return vectors / np.sqrt((vectors**2).sum(-1, keepdims=True))


def test_a_text_vector_comes_from_the_first_end_token(model):
    found = model.text(IDS)
    positions = [2, 1, 0]  # without an end token, the first
    rows = np.stack([row[at] for row, at in zip(found.last_hidden_state, positions, strict=True)])
    expected = rows @ in_files()["text_projection.weight"].T
    np.testing.assert_allclose(found.embeds, expected, atol=1e-12)
    assert found.logits is None
    hidden = model.text(IDS, [[1, 1, 0, 1, 1], [1, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    rows = hidden.last_hidden_state[[0, 1], [3, 4]]
    expected = rows @ in_files()["text_projection.weight"].T
    np.testing.assert_allclose(hidden.embeds[:2], expected, atol=1e-12)
    assert not model.text(IDS[:1], [[0] * 5]).embeds.any()


def test_eos_token_id_2_of_old_configs_means_the_largest_id(tmp_path):
    config = {**CONFIG, "text_config": {**CONFIG["text_config"], "eos_token_id": 2}}
    text = load(write_small(tmp_path, config), dtype="float64").text
    found = text([[2, 9, 11, 11, 7]])
    expected = found.last_hidden_state[:, 2] @ in_files()["text_projection.weight"].T
    np.testing.assert_allclose(found.embeds, expected, atol=1e-12)


def test_an_image_vector_comes_from_its_first_token(model):
    images, trace = pixels(3), model.vision.trace(pixels(3))
    last = trace["resid_post", -1]
    np.testing.assert_array_equal(model.vision(images).last_hidden_state, last)
    expected = projected(last[:, 0])
    found = model.encode_image(images, batch_size=2)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    scaled = model.encode_image(images, normalize_embeddings=True)
    np.testing.assert_allclose(scaled, length_one(expected), atol=1e-12)
    summed = normed(trace["embed"] + trace["pos_embed"], "vision_model.pre_layrnorm")
    np.testing.assert_allclose(trace["full_embed"], summed, atol=1e-12)


def test_logits_are_cosines_times_a_scale(model):
    images, texts = pixels(2), ["the bank", "a river", "the bank of the river"]
    words, looks = length_one(model.encode(texts)), length_one(model.encode_image(images))
    expected = looks @ words.T * np.exp(float(in_files()["logit_scale"]))
    np.testing.assert_allclose(model.logits_per_image(images, texts), expected, atol=1e-12)
    np.testing.assert_allclose(model.logits_per_image(images[:1], texts[0]), expected[:1, :1])
    found = model(IDS, None, images)
    words = length_one(model.text(IDS).embeds)
    np.testing.assert_allclose(found.text_embeds, words, atol=1e-12)
    np.testing.assert_allclose(found.image_embeds, looks, atol=1e-12)
    expected = looks @ words.T * np.exp(model.logit_scale)
    np.testing.assert_allclose(found.logits_per_image, expected, atol=1e-12)
    np.testing.assert_array_equal(found.logits_per_text, found.logits_per_image.T)


def test_encode_accepts_the_options_of_other_models(model):
    texts = ["the bank", "a river", "the bank of the river"]
    whole = model.encode(texts)
    assert whole.shape == (3, 6)
    assert model.get_embedding_dimension() == 6
    assert model.text.get_embedding_dimension() == 6
    np.testing.assert_allclose(model.encode(texts[1]), whole[1], atol=1e-12)
    np.testing.assert_array_equal(model.encode(texts, truncate_dim=4), whole[:, :4])
    np.testing.assert_array_equal(model.text.encode(texts), whole)
    everything = model.encode(texts, output_value=None)
    np.testing.assert_allclose(everything[2]["sentence_embedding"], whole[2], atol=1e-12)
    assert everything[2]["token_embeddings"].shape[1] == 12
    last = ("resid_post", 1)
    doubled = model.encode(texts, edit={last: lambda x: x * 0})
    norm = in_files()["text_model.final_layer_norm.bias"]
    # for an input of zeros, the last layer norm returns its bias
    expected = norm @ in_files()["text_projection.weight"].T
    np.testing.assert_allclose(doubled, np.broadcast_to(expected, (3, 6)), atol=1e-12)


def test_encode_image_accepts_edits_and_masked_patches(model):
    images, own = pixels(3), np.random.default_rng(1).standard_normal((3, 5, 8))
    found = model.encode_image(images, batch_size=2, edit={("resid_post", 0): own})
    np.testing.assert_allclose(found, projected(own[:, 0]), atol=1e-12)
    without = model.encode_image(images, hide=["0,1"], batch_size=2)
    blank = images.copy()
    blank[..., :4, 4:] = 9.0  # the masked patch
    np.testing.assert_allclose(
        model.encode_image(blank, hide=["0,1"]), without, rtol=1e-10, atol=1e-10
    )


def test_the_towers_are_models_on_the_same_arrays(model):
    assert type(model.text) is Model
    assert isinstance(model.vision, VisionModel)
    texts, images = ["the bank", "a river"], pixels(2)
    before = model.encode(texts), model.encode_image(images)
    text, vision, other = model.text, model.vision, model.with_parameters(model.parameters)
    text.parameters["head.out_proj.weight"] = 2 * text.parameters["head.out_proj.weight"]
    vision.parameters["head.out_proj.weight"] = 3 * vision.parameters["head.out_proj.weight"]
    np.testing.assert_allclose(model.encode(texts), 2 * before[0], rtol=1e-12)
    np.testing.assert_allclose(model.encode_image(images), 3 * before[1], rtol=1e-12)
    name = "text.head.out_proj.weight"
    model.parameters[name] = 2 * model.parameters[name]
    np.testing.assert_allclose(text.encode(texts), 4 * before[0], rtol=1e-12)
    np.testing.assert_allclose(other.encode(texts), before[0])
    np.testing.assert_allclose(other.text.encode(texts), before[0])
    np.testing.assert_allclose(other.encode_image(images), before[1])
    model.parameters["logit_scale"] = np.float64(0.5)
    assert model.logit_scale == 0.5
    with pytest.raises(KeyError, match=r"unknown name 'head\.out'"):
        text.parameters["head.out"] = 1.0


def test_traces_are_of_texts_and_of_images(model):
    texts = "the bank of the river"
    trace = model.trace(texts, names=["pattern", "z"])
    for name, array in model.text.trace(texts, names=["pattern", "z"]).items():
        np.testing.assert_array_equal(trace[name], array)
    assert not np.triu(trace["pattern", 1][0, 0], 1).any()
    assert model.vision.trace(pixels(1))["pattern", 0].shape == (1, 2, 5, 5)
    assert model.num_layers == 2
    assert model.vision.num_layers == 1
    scores = qkv.circuits.head_scores(model, [texts], of="previous")
    alone = qkv.circuits.head_scores(model.text, [texts], of="previous")
    np.testing.assert_array_equal(scores["previous"], alone["previous"])


def test_a_walk_is_through_the_tower_for_texts(model):
    steps = qkv.walk("the bank", model=model).steps
    alone = qkv.walk("the bank", model=model.text).steps
    assert [step.name for step in steps] == [step.name for step in alone]
    np.testing.assert_array_equal(steps[0].values, alone[0].values)


def test_saved_and_loaded_again(model, tmp_path):
    texts, images = ["the bank", "a river"], pixels(2)
    model.save(tmp_path / "both")
    again = load(tmp_path / "both")
    assert isinstance(again, DualEncoder)
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], array)
        assert again.parameters[name].shape == array.shape
    model.text.save(tmp_path / "text")
    model.vision.save(tmp_path / "vision")
    text, vision = load(tmp_path / "text"), load(tmp_path / "vision")
    assert type(text) is Model
    assert isinstance(vision, VisionModel)
    np.testing.assert_array_equal(text.encode(texts), model.encode(texts))
    np.testing.assert_array_equal(vision.encode(images), model.encode_image(images))
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 2), np.uint8)
    for one in (again.vision, vision):
        np.testing.assert_array_equal(one.pixels(image), model.vision.pixels(image))


def test_image_preprocessing_is_read_from_processor_config(model, tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 2), np.uint8)
    path = tmp_path / "clip"
    (path / "preprocessor_config.json").unlink()
    values = {"image_processor": PREPROCESSOR, "processor_class": "CLIPProcessor"}
    (path / "processor_config.json").write_text(json.dumps(values))
    np.testing.assert_array_equal(load(path).vision.pixels(image), model.vision.pixels(image))
    values["image_processor"] = {**PREPROCESSOR, "crop_size": 7}
    (path / "processor_config.json").write_text(json.dumps(values))
    refused(path, "crop_size is 7 x 7")


class Picture:
    def convert(self, mode):
        raise AssertionError(mode)


@pytest.mark.parametrize("call", ["encode", "trace"])
@pytest.mark.parametrize(
    "given",
    [Picture(), [Picture()], np.zeros((8, 8, 2), np.uint8), pixels(1)],
    ids=["picture", "pictures", "array", "pixels"],
)
def test_images_are_no_texts(model, call, given):
    with pytest.raises(TypeError, match=rf"^{call}: clip reads texts here, not images: .*vision"):
        getattr(model, call)(given)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda m: m.encode_image("a cat"), TypeError, r"clip\.vision reads images, and.*'a cat'"),
        (lambda m: m.encode_image(pixels(1)[:, :, :7]), ValueError, r"\(2, 7, 8\), but the model"),
        (lambda m: m.encode_image(pixels(0)), ValueError, "no image is given"),
        (lambda m: m.encode_image(pixels(1), hide="9,9"), ValueError, "`hide` has '9,9'"),
        (lambda m: m(IDS), ValueError, r"pixel_values are missing: .*model\.text\("),
        (lambda m: m.text.predict("a"), ValueError, "a head for vectors, so it cannot predict"),
        (lambda m: m.text.rank("a", ["b"]), ValueError, "a head for vectors and does not rank:"),
        (lambda m: m.vision.trace("a cat"), TypeError, "reads images, and 'a cat' is not an image"),
    ],
)
def test_what_is_refused(model, ask, error, message):
    with pytest.raises(error, match=message) as caught:
        ask(model)
    assert "\n" not in str(caught.value)


def changed(side, **others):
    return {**CONFIG, f"{side}_config": {**CONFIG[f"{side}_config"], **others}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed("text", eos_token_id=[3, 4]), "text_config: eos_token_id is [3, 4]"),
        (changed("text", hidden_size=13), "text_config: hidden_size is 13 and num_attention_heads"),
        (changed("text", model_type="bert"), "text_config: model_type is 'bert'"),
        (changed("vision", patch_size=9), "patch_size must not be larger than image_size"),
        (changed("vision", projection_dim=9, layer_norm_eps=0), "vision_config: layer_norm_eps"),
        ({**CONFIG, "projection_dim": 0}, "projection_dim is 0"),
        ({**CONFIG, "text_config": 3}, "text_config is 3; it must be a JSON object"),
        ({**CONFIG, "architectures": ["CLIPForMaskedLM"]}, "architectures is ['CLIPForMaskedLM'"),
    ],
)
def test_configs_that_are_refused(tmp_path, config, message):
    path = write_small(tmp_path, CONFIG)
    (path / "config.json").write_text(json.dumps(config))
    refused(path, message)


def test_a_warning_names_an_unknown_config_key_of_a_tower(tmp_path):
    path = write_small(tmp_path, CONFIG)
    (path / "config.json").write_text(json.dumps(changed("vision", odd=1)))
    with pytest.warns(UserWarning, match="vision_config: qkv does not know odd"):
        load(path)


def test_a_tower_without_its_projection_is_refused(tmp_path):
    from safetensors.numpy import save_file

    path = write_small(tmp_path, CONFIG)
    load(path).text.save(tmp_path / "text")
    arrays = arrays_of(CONFIG)
    kept = {name: one for name, one in arrays.items() if name.startswith("text_model.")}
    save_file(kept, tmp_path / "text" / "model.safetensors")
    refused(tmp_path / "text", "the tensor text_projection.weight is missing")
