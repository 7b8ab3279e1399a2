"""Tests of models in bfloat16: weights, and vectors between layers, stay in bfloat16."""

import mmap
import os
import sys

import ml_dtypes
import numpy as np
import pytest

from qkv.models import load
from qkv.models.files._tensors import Tensors
from qkv.ops.kernel import BACKENDS, VARIANTS
from qkv.trace import Trace

from .files.test_tensors import write_bfloat16
from .sizes import IMAGES, MIXED
from .small_models import CONFIGS, WRITERS, write_small
from .support import CONFIG, plain_bert

packing_module = sys.modules["qkv.ops.packing"]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TEXTS = ["the bank of the river", "the bank", "a river and the bank of a river and a bank"]


def rounded(tensors):
    return {name: array.astype(BFLOAT16) for name, array in tensors.items()}


@pytest.fixture
def halves(folder):
    """A folder with bfloat16 weights, and these weights."""
    folder.write()
    tensors = rounded(folder.tensors)
    write_bfloat16(folder.path / "model.safetensors", tensors)
    return folder.path, tensors


def is_mapped(array):
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def cosines(one, other):
    one, other = one.astype(np.float64), other.astype(np.float64)
    return (one * other).sum(-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)


def test_weights_of_the_file_stay_in_the_file(halves):
    path, tensors = halves
    model = load(path, dtype="bfloat16")
    for name, array in model.parameters.items():
        assert array.dtype == BFLOAT16, name
        assert is_mapped(array) == (array.ndim > 1), name
    theirs = tensors["encoder.layer.1.output.dense.weight"]
    ours = model.parameters["blocks.1.mlp.down_proj.weight"]
    np.testing.assert_array_equal(ours.view(np.uint16), theirs.T.view(np.uint16))


def test_a_float32_file_is_mapped_as_float32(folder):
    parameters = load(folder.write()).parameters
    for array in parameters.values():
        assert array.dtype == np.float32
        assert is_mapped(array) == (array.ndim > 1)


@pytest.mark.parametrize("dtype", ["bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)])
def test_a_float32_file_is_rounded_to_bfloat16_on_request(folder, dtype):
    model = load(folder.write(), dtype=dtype)
    for array in model.parameters.values():
        assert array.dtype == BFLOAT16
    theirs = folder.tensors["embeddings.word_embeddings.weight"].astype(BFLOAT16)
    np.testing.assert_array_equal(model.parameters["embed.weight"], theirs)


@pytest.mark.parametrize("name", BACKENDS)
def test_it_is_close_to_the_plain_bert_of_the_same_weights(halves, monkeypatch, name):
    monkeypatch.setenv("QKV_BACKEND", name)
    path, tensors = halves
    model = load(path, dtype="bfloat16")
    ids = np.array([2, 4, 5, 6, 3])
    out = model(ids[None]).last_hidden_state
    assert out.dtype == np.float32
    expected = plain_bert(tensors, CONFIG, ids)[0][-1]
    np.testing.assert_allclose(out[0].astype(np.float64), expected, atol=0.03, rtol=0.03)
    assert cosines(out[0], expected).min() > 0.9995


def config_of(name):
    """Return the config of a family; each token uses all experts, so rounding changes no choice."""
    config = CONFIGS[name]
    if name not in MIXED:
        return config
    count = config.get("num_local_experts", config.get("num_experts"))
    return {**config, "num_experts_per_tok": count}


def numbers_of(model):
    """Return the logits or embeddings of a model for fixed ids or images."""
    kind = model.config["model_type"]
    rng, looks = np.random.default_rng(0), getattr(model, "vision", model).design
    if kind in IMAGES:
        shape = (2, looks.channels, *looks.image)
        images = rng.standard_normal(shape).astype(np.float32)
    ids = np.array([[2, 4, 5, 6, 3, 0], [5, 7, 8, 9, 1, 4]])
    mask = np.array([[1, 1, 1, 1, 1, 0], [1] * 6])
    if kind == "clip":
        return model(ids, mask, images).logits_per_image
    more = {"decoder_input_ids": [[2, 5, 7], [2, 8, 1]]} if kind in ("t5", "mt5") else {}
    found = model(images) if kind in IMAGES else model(ids, mask, **more)
    return found.embeds if found.logits is None else found.logits


@pytest.mark.parametrize("name", CONFIGS)
def test_each_family_is_close_to_itself_in_float32(name, tmp_path, monkeypatch):
    path = write_small(tmp_path / "model", config_of(name), spread=0.25)
    short, wide = load(path, dtype="bfloat16"), load(path)
    for parameter, array in short.parameters.items():
        wide.parameters[parameter] = array
    packed, kinds = packing_module.pack, set()
    monkeypatch.setattr(
        packing_module,
        "pack",
        lambda weight, here, kind, threads: kinds.add(kind) or packed(weight, here, kind, threads),
    )
    found = numbers_of(short)
    if os.environ.get("QKV_BACKEND") != "numpy" and VARIANTS:
        exact = {*IMAGES, *MIXED}  # patches and the choice of experts use float32
        assert kinds == {BFLOAT16, *([np.dtype(np.uint16)] if name in exact else [])}
    expected = numbers_of(wide)
    assert found.dtype == np.float32
    largest = np.abs(expected).max()
    assert 0.01 < largest < 1e4
    allowed = 0.08 if name.startswith("gemma") else 0.04  # sharp softmaxes
    assert np.abs(found - expected).max() < allowed * largest


@pytest.mark.parametrize("name", WRITERS)
def test_generation_with_a_cache_matches_runs_without(name, tmp_path):
    path = write_small(tmp_path / "model", config_of(name))
    model = load(path, dtype="bfloat16")
    ids = [2, 4, 5]
    generated = model.generate(ids, max_new_tokens=6).ids
    for count in range(6):
        logits = model([ids + generated[:count]]).logits[0, -1]
        # the cache can change the last digit of a logit: accept every token close to the best
        assert logits[generated[count]] > logits.max() - 0.02 * np.abs(logits).max()


def test_vectors_are_float32_and_pooled_in_float32(halves):
    model = load(halves[0], dtype="bfloat16")
    vectors = model.encode(TEXTS)
    assert vectors.dtype == np.float32
    for vector, rows in zip(
        vectors, model.encode(TEXTS, output_value="token_embeddings"), strict=True
    ):
        assert rows.dtype == np.float32
        np.testing.assert_allclose(vector, rows.astype(np.float64).mean(0), rtol=2e-6, atol=2e-7)


def test_a_trace_is_of_float32_and_can_be_saved(halves, tmp_path):
    trace = load(halves[0], dtype="bfloat16").trace(TEXTS)
    assert {trace[name].dtype for name in trace.names()} == {np.dtype(np.float32)}
    trace.save(tmp_path / "trace.safetensors")
    again = Trace.load(tmp_path / "trace.safetensors")
    np.testing.assert_array_equal(again["resid_post", 1], trace["resid_post", 1])


def test_it_is_saved_as_bfloat16(halves, tmp_path):
    path, tensors = halves
    model = load(path, dtype="bfloat16")
    model.save(tmp_path / "copy")
    stored = Tensors(tmp_path / "copy")
    assert {tensor.kind for tensor in stored.values()} == {"BF16"}
    for name, array in tensors.items():
        np.testing.assert_array_equal(stored[name].read().view(np.uint16), array.view(np.uint16))
    again = load(tmp_path / "copy", dtype="bfloat16")
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))


def test_a_parameter_that_is_replaced_is_rounded(halves):
    model = load(halves[0], dtype="bfloat16")
    before = model.encode(TEXTS)
    weight = model.parameters["blocks.0.mlp.up_proj.weight"]
    model.parameters["blocks.0.mlp.up_proj.weight"] = weight.astype(np.float64) * 1.5
    assert model.parameters["blocks.0.mlp.up_proj.weight"].dtype == BFLOAT16
    assert np.abs(model.encode(TEXTS) - before).max() > 1e-3


def test_the_sentence_vectors_of_a_trained_model_hardly_change():
    sentences = [
        *("The cat sat on the mat.", "x", "I sat on the bank of the river.", "Ω"),
        "The bank raised its interest rates by a quarter of a percent, which nobody expected.",
        " ".join(f"number {n} of a list that goes on and on," for n in range(20)),
    ]
    wide, short = load("minilm").encode(sentences), load("minilm", dtype="bfloat16")
    assert cosines(wide, short.encode(sentences)).min() > 0.9999
