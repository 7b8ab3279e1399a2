"""Tests of models whose linear layers compute in int8."""

import pickle
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import qkv
from qkv.models import load
from qkv.models.files.names import Storage
from qkv.ops import StoredMatrix
from qkv.ops.kernel import FLOAT32, INT8, ONE_DIGIT, VARIANTS
from qkv.ops.packing import weight_kind

from .small_models import CONFIGS, write_small
from .test_bfloat16 import config_of, cosines, numbers_of

packing_module = sys.modules["qkv.ops.packing"]
TEXTS = ["the bank of the river", "the bank", "a river and the bank of a river and a bank"]


@pytest.fixture(scope="module")
def pair():
    return load("books"), load("books", dtype="int8")


@pytest.fixture(scope="module")
def decoders():
    return load("books-decoder"), load("books-decoder", dtype="int8")


def is_in_int8(array):
    return isinstance(array, StoredMatrix) and array.in_int8


def marked(model):
    arrays = model._weights.parameters
    return {name for name, array in arrays.items() if is_in_int8(array)}


def test_vectors_are_near_those_of_float32(pair):
    one, other = (model.encode(TEXTS) for model in pair)
    assert other.dtype == np.float32
    assert (one != other).any()
    assert cosines(one, other).min() > 0.998


def test_parameters_and_digest_are_those_of_float32(pair):
    one, other = pair
    assert one.sha256 == other.sha256
    for name, array in one.parameters.items():
        found = other.parameters[name]
        assert type(found) is np.ndarray
        assert not found.flags.writeable
        np.testing.assert_array_equal(found, array)


def test_layers_in_blocks_and_the_output_matrix_compute_in_int8(pair, decoders):
    for _, model in (pair, decoders):
        expected = {name for name in model.parameters if name.endswith("_proj.weight")}
        tied = {"embed.weight"} if model.design.head.tied else set()
        assert marked(model) == expected - {"head.dense_proj.weight"} | tied


@pytest.mark.parametrize("name", CONFIGS)
def test_each_family_is_close_to_itself_in_float32(name, tmp_path):
    path = write_small(tmp_path / "model", config_of(name), spread=0.25)
    expected, found = (numbers_of(load(path, dtype=kind)) for kind in (None, "int8"))
    assert found.dtype == np.float32
    largest = np.abs(expected).max()
    allowed = 0.25 if name in ("clip", "mt5") else 0.08  # sums of a few large terms
    assert 0 < np.abs(found - expected).max() < allowed * largest


@pytest.mark.parametrize("name", VARIANTS or [None])
def test_all_products_are_in_int8(pair, monkeypatch, name):
    if name is None:
        pytest.skip("the kernel was not built")
    monkeypatch.setenv("QKV_BACKEND", name)
    seen, packed = [], packing_module.pack

    def spy(weight, here, kind, threads):
        seen.append(kind)
        return packed(weight, here, kind, threads)

    monkeypatch.setattr(packing_module, "pack", spy)
    _, model = pair
    model.encode(TEXTS)
    assert len(seen) == 6 * model.num_layers
    assert set(seen) == {ONE_DIGIT}  # the file is in int8


def test_the_weights_of_heads_are_plain_arrays(pair):
    found = [model.head_weights(0) for model in pair]
    for name in ("W_Q", "W_K", "W_V", "W_O", "W_E"):
        float32, int8 = (getattr(weights, name) for weights in found)
        assert type(int8) is np.ndarray
        np.testing.assert_array_equal(int8, float32)


def test_a_trace_shows_what_encode_computes(pair):
    _, model = pair
    trace = model.trace(TEXTS[0])
    edited = model.trace(TEXTS[0], edit={("z", 0): lambda z: z})
    last = ("resid_post", model.num_layers - 1)
    np.testing.assert_array_equal(trace[last], edited[last])
    float32 = pair[0].trace(TEXTS[0])
    assert trace[last].shape == float32[last].shape
    assert (trace[last] != float32[last]).any()


def test_a_text_does_not_depend_on_the_batch(pair):
    _, model = pair
    alone = np.concatenate([model.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(model.encode(TEXTS), alone, atol=1e-6)


def test_decoders_generate_and_score(decoders):
    one, other = decoders
    text = "the king of the north"
    assert abs(one.losses(text).mean() - other.losses(text).mean()) < 0.05
    found = other.generate(text, max_new_tokens=6, temperature=0)
    assert found == other.generate(text, max_new_tokens=6, temperature=0)


def test_gradients_use_the_float_parameters(decoders):
    target = {"text": "the king of the north", "of": (-1, 5)}
    ours, theirs = (model.gradient(**target)["embed"].ravel() for model in decoders)
    assert cosines(ours, theirs) > 0.98


def test_saving_writes_the_float_parameters(pair, tmp_path):
    pair[1].save(tmp_path)
    np.testing.assert_array_equal(load(tmp_path).encode(TEXTS), pair[0].encode(TEXTS))


def test_new_parameters_and_copies_compute_in_int8(pair):
    _, model = pair
    same = model.with_parameters(dict(model.parameters))
    copied = pickle.loads(pickle.dumps(model._weights))
    assert isinstance(copied, Storage)
    assert {k for k, v in copied.parameters.items() if is_in_int8(v)} == marked(model)
    np.testing.assert_array_equal(same.encode(TEXTS), model.encode(TEXTS))
    name = "blocks.0.attn.out_proj.weight"
    same.parameters[name] = 2 * model.parameters[name]
    assert marked(same) == marked(model)
    assert (same.encode(TEXTS) != model.encode(TEXTS)).any()


@pytest.mark.skipif(not VARIANTS, reason="the kernel was not built")
@pytest.mark.parametrize(
    ("name", "tensor", "number", "kind"),
    [
        ("llama", "layers.0.self_attn.o_proj.weight", -127, ONE_DIGIT),
        ("llama", "layers.0.self_attn.o_proj.weight", -128, INT8),
        ("gpt2", "h.0.attn.c_proj.weight", -127, INT8),  # (in, out) in the file
    ],
)
def test_a_column_that_is_a_row_of_an_int8_file_needs_no_second_digits(
    name, tensor, number, kind, tmp_path, monkeypatch
):
    monkeypatch.delenv("QKV_BACKEND", raising=False)
    float_model = load(write_small(tmp_path / "model", config_of(name), spread=0.25))
    float_model.save(tmp_path / "int8", dtype="int8")
    path = tmp_path / "int8" / "model.safetensors"
    arrays = load_file(path)
    arrays[tensor][:, 1] = number
    save_file(arrays, path, {"format": "pt"})
    model = load(path.parent, dtype="int8")
    weight = model._weights.parameters["blocks.0.attn.out_proj.weight"]
    assert weight_kind(weight, FLOAT32) == kind
    assert weight_kind(pickle.loads(pickle.dumps(weight)), FLOAT32) == kind
    same = model.with_parameters(dict(model.parameters))  # packed with second digits
    assert weight_kind(same._weights.parameters["blocks.0.attn.out_proj.weight"], FLOAT32) == INT8
    np.testing.assert_array_equal(numbers_of(model), numbers_of(same))


def test_models_without_linear_layers(pair):
    with pytest.raises(ValueError, match="load: the model 'random' cannot compute in int8"):
        qkv.load("random", dtype="int8")
