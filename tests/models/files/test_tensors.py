"""Tests of reading weights: types, names, shards, broken files and the digest."""

import copy
import hashlib
import json
import pickle
import re

import ml_dtypes
import numpy as np
import pytest

from qkv.models import ModelError, load
from qkv.models.files._tensors import Tensors
from qkv.ops.packing import is_frozen

from ..support import refused

IDS = [[2, 4, 5, 6, 3]]
SHARDS = [f"model-{number}.safetensors" for number in (1, 2, 3)]


def hidden(path, **options):
    return load(path, **options)([[2, 4, 5, 6, 3]]).last_hidden_state


# values and types


def test_int8_rows_are_multiplied_by_their_scales(folder):
    """Only matrices are in int8, including the token table; vectors keep their type."""
    stored, expected, rng = {}, {}, np.random.default_rng(0)
    for name, array in folder.tensors.items():
        stored[name] = expected[name] = array
        if array.ndim == 2:
            stored[name] = rng.integers(-127, 128, array.shape, np.int8)
            stored[name + "_scale"] = rng.uniform(1e-3, 1e-2, len(array)).astype(np.float16)
            scales = stored[name + "_scale"].astype(np.float32)[:, None]
            expected[name] = stored[name].astype(np.float32) * scales
    folder.tensors = expected
    plain = hidden(folder.write())
    folder.tensors = stored
    model = load(folder.write())
    np.testing.assert_array_equal(model(IDS).last_hidden_state, plain)
    assert {array.dtype for array in model.parameters.values()} == {np.dtype(np.float32)}
    wide = load(folder.path, dtype=np.float64).parameters["embed.weight"]
    np.testing.assert_array_equal(wide, expected["embeddings.word_embeddings.weight"])


@pytest.mark.parametrize(
    ("name", "scales", "said"),
    [
        ("encoder.layer.0.output.dense.weight", np.ones(11, np.float16), "F16 (11,)"),
        ("encoder.layer.0.output.dense.weight", np.ones(12, np.float32), "F32 (12,)"),
        ("encoder.layer.0.output.dense.bias", np.ones(12, np.float16), "is F32 (12,) and"),
    ],
)
def test_scales_that_do_not_fit_are_named(folder, name, scales, said):
    array = folder.tensors[name]
    kind = np.int8 if array.ndim == 2 else array.dtype
    folder.tensors |= {name: array.astype(kind), f"{name}_scale": scales}
    refused(folder.write(), name, f"{name}_scale", said, "its scales must be F16 (rows,)")


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_halves_are_read_exactly_and_computed_in_float32(folder, kind):
    halves = {name: array.astype(kind) for name, array in folder.tensors.items()}
    folder.write()
    if kind is np.float16:
        folder.weights("model.safetensors", halves)
    else:
        write_bfloat16(folder.path / "model.safetensors", halves)
    parameters = load(folder.path).parameters
    assert parameters["embed.weight"].dtype == np.float32
    table = halves["embeddings.word_embeddings.weight"].astype(np.float32)
    np.testing.assert_array_equal(parameters["embed.weight"], table)
    widened = {name: array.astype(np.float32) for name, array in halves.items()}
    folder.weights("model.safetensors", widened)
    found = hidden(folder.path)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, load(folder.path)(IDS).last_hidden_state)


def write_bfloat16(path, tensors):
    """Write a safetensors file by hand, because safetensors for NumPy has no bfloat16."""
    header, parts, place = {}, [], 0
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": array.shape,
            "data_offsets": [place, place + len(raw)],
        }
        parts.append(raw)
        place += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def test_dtype_overrides_the_stored_float_type(folder):
    folder.write()
    assert hidden(folder.path).dtype == np.float32
    assert hidden(folder.path, dtype=np.float64).dtype == np.float64
    doubles = {name: array.astype(np.float64) for name, array in folder.tensors.items()}
    folder.weights("model.safetensors", doubles)
    assert hidden(folder.path).dtype == np.float64
    assert hidden(folder.path, dtype="float32").dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "int64", "nonsense", np.int16])
def test_an_unsupported_compute_dtype_is_refused(small, dtype):
    with pytest.raises(ValueError, match=r"dtype is .*; pass float32, float64, bfloat16 or int8"):
        load(small, dtype=dtype)


def test_a_header_that_leaves_the_numbers_unaligned(folder):
    expected = hidden(folder.write())
    path = folder.path / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    path.write_bytes(
        (length + 1).to_bytes(8, "little") + raw[8 : 8 + length] + b" " + raw[8 + length :]
    )
    np.testing.assert_array_equal(hidden(folder.path), expected)
    assert all(array.flags.aligned for array in load(folder.path).parameters.values())


def test_replacing_parameters_leaves_the_file_unchanged(folder):
    before = (folder.write() / "model.safetensors").read_bytes()
    model = load(folder.path)
    plain = model(IDS).last_hidden_state
    for name, array in model.parameters.items():  # each new array reaches its layer
        other = array + 1 + np.arange(array.shape[-1], dtype=array.dtype)
        model.parameters[name] = other
        np.testing.assert_array_equal(model.parameters[name], other)
        if name.split(".")[-2] != "k_proj" or name.endswith("weight"):  # softmax ignores key biases
            assert np.abs(model(IDS).last_hidden_state - plain).max() > 1e-4, name
        other[:] = np.nan  # the model has a copy
        model.parameters[name] = array
        np.testing.assert_array_equal(model(IDS).last_hidden_state, plain)
    assert (folder.path / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_parameters_are_frozen(folder, kind):
    folder.tensors = {name: array.astype(kind) for name, array in folder.tensors.items()}
    for dtype in (None, np.float64):
        model = load(folder.write(), dtype=dtype)
        for array in (*model.parameters.values(), *load("random").parameters.values()):
            assert is_frozen(array)
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.setflags(write=True)


def test_parameters_that_do_not_fit(folder):
    parameters = load(folder.write()).parameters
    name = "blocks.0.norm1.bias"
    with pytest.raises(ValueError, match=rf"^parameters: {name} has shape \(13,\).*\(12,\)"):
        parameters[name] = np.zeros(13)
    with pytest.raises(TypeError, match=rf"^parameters: {name} is int64"):
        parameters[name] = np.zeros(12, np.int64)
    with pytest.raises(KeyError, match=f"'blocks.0.norm1.bais'.*{name}"):
        parameters["blocks.0.norm1.bais"] = np.zeros(12)
    with pytest.raises(TypeError, match="cannot be deleted"):
        del parameters[name]
    parameters[name] = np.full(12, 2.0)
    assert parameters[name].dtype == np.float32
    assert len(parameters) == len(list(parameters)) == 37


# names


def test_old_names_of_the_norms(folder):
    expected = hidden(folder.write())
    old = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): array
        for name, array in folder.tensors.items()
    }
    assert "embeddings.LayerNorm.gamma" in old
    folder.weights("model.safetensors", old)
    np.testing.assert_array_equal(hidden(folder.path), expected)


def test_one_tensor_by_two_names(folder):
    name = "bert.embeddings.LayerNorm.bias"
    folder.tensors[name] = np.zeros(12, np.float32)
    refused(folder.write(), name, "are names of the same tensor")


def test_a_missing_tensor_is_named(folder):
    del folder.tensors["encoder.layer.1.attention.self.key.bias"]
    refused(folder.write(), "the tensor encoder.layer.1.attention.self.key.bias is missing")


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder):
    name = "encoder.layer.0.intermediate.dense.weight"
    folder.tensors[name] = np.zeros((12, 20), np.float32)
    refused(folder.write(), name, "(12, 20)", "(20, 12)")


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.bool_])
def test_weights_that_are_not_floats(folder, kind):
    name = "embeddings.LayerNorm.bias"
    folder.tensors[name] = np.zeros(12, kind)
    refused(folder.write(), name, "F32")


@pytest.mark.parametrize(
    "name", ["encoder.layer.2.output.dense.bias", "embeddings.distance_embedding.weight"]
)
def test_a_body_tensor_unknown_to_the_config_is_refused(folder, name):
    folder.tensors[name] = np.zeros(12, np.float32)
    refused(folder.write(), name, "does not belong to the bert model")


# shards


def test_shards_are_one_model(folder):
    expected = hidden(folder.write())
    folder.shards(*SHARDS)
    np.testing.assert_array_equal(hidden(folder.path), expected)
    (folder.path / "model.safetensors.index.json").unlink()
    np.testing.assert_array_equal(hidden(folder.path), expected)


def test_a_missing_shard(folder):
    folder.shards(*SHARDS)
    (folder.path / SHARDS[1]).unlink()
    refused(folder.path, f"the shard {SHARDS[1]} is not in the folder")


def test_a_tensor_in_two_shards(folder):
    where = folder.shards(*SHARDS)
    name, file = next(iter(where.items()))
    other = next(value for value in where.values() if value != file)
    kept = {n: folder.tensors[n] for n, f in where.items() if f == other}
    folder.weights(other, {**kept, name: folder.tensors[name]})
    refused(folder.path, name, "is also in")


def test_an_index_that_names_wrong_files_gives_a_warning(folder):
    expected = hidden(folder.write())
    where = folder.shards(*SHARDS)
    name, file = next(iter(where.items()))
    where[name] = next(value for value in where.values() if value != file)
    names = {"cls.predictions.decoder.weight": file, "embeddings.position_ids": file}
    folder.json("model.safetensors.index.json", {"weight_map": {**where, **names}})
    with pytest.warns(UserWarning, match=f"wrong file for {', '.join([name, *names])}: qkv reads"):
        found = hidden(folder.path)
    np.testing.assert_array_equal(found, expected)


def test_a_needed_tensor_that_only_the_index_names_is_an_error(folder):
    where = folder.shards(*SHARDS)
    name, file = next(iter(where.items()))
    folder.weights(
        file, {n: folder.tensors[n] for n, f in where.items() if f == file and n != name}
    )
    with (
        pytest.raises(ModelError, match=f"the tensor {name} is missing"),
        pytest.warns(UserWarning, match=f"wrong file for {name}: "),
    ):
        load(folder.path)


@pytest.mark.parametrize(
    "file", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "c:\\x", "..\\x", "..", ""]
)
def test_an_index_that_leads_out_of_its_folder(folder, file):
    where = folder.shards(*SHARDS)
    where[next(iter(where))] = file
    folder.json("model.safetensors.index.json", {"weight_map": where})
    refused(folder.path, "is not the name of a file in the same folder")


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}])
def test_an_invalid_index_is_refused(folder, index):
    folder.shards(*SHARDS)
    folder.json("model.safetensors.index.json", index)
    refused(folder.path, "no weight_map")


# broken files


@pytest.mark.parametrize(
    "content",
    [
        *(slice(kept) for kept in (0, 4, 8, 60, 2000, -1)),  # of a file that is cut
        b"not safetensors at all, but long enough",
        (100 * 2**30).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"\xff\xfe{}",
        pickle.dumps({"a": 1}),
    ],
)
def test_a_file_that_is_not_safetensors_is_refused(folder, content):
    path = folder.write() / "model.safetensors"
    path.write_bytes(path.read_bytes()[content] if isinstance(content, slice) else content)
    refused(folder.path, str(path), "the file is truncated or not a safetensors")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_are_never_opened(folder, name, tmp_path):
    """Unpickling would create a file; instead, the error says how to convert the pickle."""

    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    folder.write()
    (folder.path / "model.safetensors").unlink()
    (folder.path / name).write_bytes(pickle.dumps(Trap()))
    refused(folder.path, name, "pickle", "save_pretrained")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("architectures", "expected"),
    [
        (["LlamaForCausalLM"], "LlamaForCausalLM"),
        (["BertForMaskedLM", "BertModel"], "BertForMaskedLM"),
        (None, "AutoModel"),
        ([3], "AutoModel"),
        (["os.system('x'); A"], "AutoModel"),
        (["\u0410utoModel"], "AutoModel"),
        (["A" * 81], "AutoModel"),
    ],
)
def test_pickles_are_converted_with_their_head(folder, architectures, expected):
    # AutoModel would drop the head, which no other tensor can replace
    folder.write()
    (folder.path / "model.safetensors").unlink()
    (folder.path / "pytorch_model.bin").write_bytes(b"")
    folder.json("config.json", {"architectures": architectures})
    said = re.escape(f" {expected}.from_pretrained(folder).save_pretrained(folder)")
    with pytest.raises(ModelError, match=said):
        Tensors(folder.path)


def test_no_weights_at_all(folder):
    folder.write()
    (folder.path / "model.safetensors").unlink()
    refused(folder.path, "holds no *.safetensors file")


# the digest


def by_hand(*paths):
    """Compute the digest of files without qkv's reader.

    The function follows the definition of the digest.
    """
    tensors = {}
    for path in paths:
        raw = path.read_bytes()
        begin = 8 + int.from_bytes(raw[:8], "little")
        for name, about in json.loads(raw[8:begin]).items():
            if name != "__metadata__":
                first, last = about["data_offsets"]
                tensors[name] = about["dtype"], about["shape"], raw[begin + first : begin + last]
    found = hashlib.sha256()
    for name, (kind, shape, content) in sorted(tensors.items()):
        sizes = ",".join(map(str, shape))
        found.update(f"{name}\0{kind}\0{sizes}\0".encode() + content)
    return found.hexdigest()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", "int8"])
def test_the_digest_hashes_the_stored_tensors(folder, tmp_path, dtype):
    load(folder.write()).save(tmp_path / "saved", dtype=dtype)
    models = [load(tmp_path / "saved", dtype=kind) for kind in (None, "float64", "bfloat16")]
    expected = by_hand(tmp_path / "saved" / "model.safetensors")
    assert [model.sha256 for model in models] == [expected] * 3
    twins = [copy.deepcopy(models[0]), pickle.loads(pickle.dumps(models[0]))]
    assert [twin.sha256 for twin in twins] == [expected] * 2
    assert twins[1]._weights.stored == expected  # the files are not read again


def test_shards_and_one_file_have_the_same_digest(folder):
    whole = load(folder.write()).sha256
    folder.shards(*SHARDS)
    assert load(folder.path).sha256 == whole == by_hand(*(folder.path / name for name in SHARDS))


def test_the_digest_changes_with_tensors_shapes_and_parameters(folder):
    model = load(folder.write())
    known = {model.sha256}
    name = "encoder.layer.0.output.dense.bias"
    bits = folder.tensors[name].view(np.uint32)
    bits[3] ^= 1
    known.add(load(folder.write()).sha256)
    folder.tensors["pooler.dense.bias"] = np.zeros(12, np.float32)
    known.add(load(folder.write()).sha256)
    folder.tensors["pooler.dense.bias"] = np.zeros((1, 12), np.float32)
    known.add(load(folder.write()).sha256)
    other = model.with_parameters(dict(model.parameters))
    other.parameters["embed.weight"] = other.parameters["embed.weight"] * 2
    known.add(other.sha256)
    assert len(known) == 5
    known.add(model.sha256)
    assert len(known) == 5
    model.parameters["embed.weight"] = model.parameters["embed.weight"] * 2
    assert model.sha256 == other.sha256


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_changed_parameters_have_the_digest_of_their_saved_file(folder, tmp_path, dtype):
    model = load(folder.write(), dtype=dtype)
    model.parameters["embed.weight"] = np.asarray(model.parameters["embed.weight"], np.float32) / 2
    model.save(tmp_path / "saved")
    assert model.sha256 == by_hand(tmp_path / "saved" / "model.safetensors")
    assert model.sha256 == load(tmp_path / "saved").sha256
