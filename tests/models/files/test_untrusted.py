"""Tests of malicious files: refused in one line, fast and in little memory, or read correctly."""

import functools
import json
import os
import pickle
import subprocess
import sys
import tracemalloc
import warnings

import numpy as np
import pytest

from qkv.models import ModelError, load
from qkv.models.families import FAMILIES, PUBLISHED
from qkv.models.families._rope import read_rotary
from qkv.models.files._tensors import Tensors
from qkv.models.files.config import Config

from ..fuzzing import ONE_THREAD
from ..small_models import CONFIGS, write_small
from ..support import CONFIG, Folder, refused, tokenizer_json

pytestmark = pytest.mark.attack

IDS = [[2, 4, 5, 6, 3]]
BIAS = "embeddings.LayerNorm.bias"
SHARDS = ("model-1.safetensors", "model-2.safetensors")
SMALL = {"bert": CONFIG, **CONFIGS}
NO_TENSOR = {  # integers that need not be the size of a tensor: large values can be valid
    *("max_position_embeddings", "sliding_window", "local_attention"),
    *("global_attn_every_n_layers", "relative_attention_max_distance", "decoder_start_token_id"),
    *("eos_token_id", "window_size", "no_rope_layer_interval"),
}
NO_SIZE = {  # numbers that may be 0 or a fraction, or that only images need
    *("pad_token_id", "max_window_layers", "query_pre_attn_scalar", "rotary_emb_base"),
    "mm_tokens_per_image",
}


# headers of safetensors


def put_header(path, header, numbers):
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + numbers)


def taken_apart(path):
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def with_entry(folder, name=BIAS, more=b"", **values):
    """Write a model; set values of a tensor in the header, and add bytes; return the folder."""
    path = folder.write() / "model.safetensors"
    header, numbers = taken_apart(path)
    header[name] = {**header.get(name, {}), **values}
    put_header(path, header, numbers + more)
    return folder.path


RANGES = [
    *([48, 0], [0, 0], [-48, 0], [0.0, 48.0], [True, 48], ["0", "48"], [0], [0, 48, 48]),
    *(None, {}, 3, [0, 2**62], [0, 2**63], [2**63, 2**63 + 48], [0, 2**64], [0, 10**30]),
    *([96, 144], [0, 96], [2**64 - 48, 2**64]),
]
DTYPES = ["f32", "F31", "", None, 3, [], "I32\n", "F64", "F16", "F4"]


@pytest.mark.parametrize(
    ("key", "value"),
    [*(("data_offsets", it) for it in RANGES), *(("dtype", it) for it in DTYPES)],
    ids=str,
)
def test_an_invalid_byte_range_or_dtype_is_refused(folder, key, value):
    header, _ = taken_apart(folder.write() / "model.safetensors")
    assert header[BIAS]["data_offsets"] == [0, 48]
    refused(with_entry(folder, **{key: value}), "model.safetensors")


@pytest.mark.parametrize(
    "shape",
    [
        *([13], [12, 0], [12, 2], [-12], [12.0], [True], ["12"], None, 12, {}, [[12]]),
        *([2**62], [2**62, 4], [2**32, 2**32], [2**63, 2], [2**64], [2**64 + 12], [10**30]),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [BIAS, "a_head.bias"])
def test_a_shape_that_contradicts_its_byte_range_is_refused(folder, shape, name):
    folder.tensors["a_head.bias"] = np.zeros(12, np.float32)
    refused(with_entry(folder, name, shape=shape), "model.safetensors")


def test_a_header_of_very_many_tensors_is_refused(folder, monkeypatch):
    path = folder.write() / "model.safetensors"
    header, numbers = taken_apart(path)
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    put_header(path, header | {f"t{number}": empty for number in range(200_000)}, numbers)
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("the header was parsed"))
    monkeypatch.setattr("safetensors.safe_open", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(ModelError, match=r"its header has \d+ bytes, but the maximum is.*8388608"):
        Tensors(folder.path)


@pytest.mark.parametrize(
    "shape",
    [
        *([0, 2**62], [2**62, 0, 2**62], [0, 2**63], [0, 2**64 - 1], [0] + [2**32] * 2),
        *([1] * 100, [1] * 65, [1] * 33, [0] * 50, [1] * 100_000),
    ],
    ids=lambda shape: str(shape)[:30],
)
@pytest.mark.parametrize("dtype", ["F32", "F16", "I8", "F8_E4M3", "C64"])
def test_too_many_or_too_large_dimensions_are_refused(folder, shape, dtype):
    """A shape with too many or too large dimensions is refused, although its byte range fits."""
    size = {"F32": 4, "F16": 2, "I8": 1, "F8_E4M3": 1, "C64": 8}[dtype] * (0 not in shape)
    end = sum(array.nbytes for array in folder.tensors.values())
    extra = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
    refused(
        with_entry(folder, "extra", bytes(size), **extra), "model.safetensors", "extra", "shape"
    )


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("dtype", ["F32", "I32"])
def test_one_name_twice_in_a_header(folder, end, dtype):
    """A repeated name is refused, even if both entries have the same byte range."""
    path = folder.write() / "model.safetensors"
    header, numbers = taken_apart(path)
    text = json.dumps(header)
    again = f'"{BIAS}": ' + json.dumps({**header[BIAS], "dtype": dtype})
    put_header(path, f"{text[:-1]}, {again}}}" if end else f"{{{again}, {text[1:]}", numbers)
    refused(folder.path, "model.safetensors", BIAS, "twice")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"shape": [12]', '"shape": [NaN]'),
        ('"shape": [12]', '"shape": [Infinity]'),
        ('"shape": [12]', '"shape": [12], "shape": [12]'),
        ("{", '{"x": NaN, '),
        ("{", '{"x": ' + "[" * 100_000 + "]" * 100_000 + ", "),
        ("{", '{"x": {}, '),
        ("{", '{"x": null, '),
        ("{", '{"__metadata__": {"format": 3}, '),
        ("{", '{"__metadata__": [], '),
        ("{", '{"\\ud800": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, '),
        ("{", "\ufeff{"),
        ("}", "} {}"),
        ("}", "}\0"),
    ],
    ids=lambda text: text[:40],
)
def test_a_header_that_violates_the_format_is_refused(folder, old, new):
    path = folder.write() / "model.safetensors"
    header, numbers = taken_apart(path)
    text = json.dumps(header)
    where = text.rindex(old) if old == "}" else text.index(old)
    put_header(path, text[:where] + new + text[where + len(old) :], numbers)
    refused(folder.path, "model.safetensors")


@pytest.mark.parametrize("place", [0, 48, -1])
def test_bytes_outside_all_tensors_are_refused(folder, place):
    """A gap before, between or after the tensors is refused."""
    path = folder.write() / "model.safetensors"
    header, numbers = taken_apart(path)
    place = len(numbers) if place < 0 else place
    for name, about in header.items():
        if name != "__metadata__":
            start, stop = about["data_offsets"]
            about["data_offsets"] = [start + 4, stop + 4] if start >= place else [start, stop]
    put_header(path, header, numbers[:place] + b"hole" + numbers[place:])
    refused(folder.path, "model.safetensors")


def test_overlapping_tensors_are_refused(folder):
    path = with_entry(folder, "embeddings.LayerNorm.weight", data_offsets=[0, 48])
    refused(path, "model.safetensors")


@pytest.mark.parametrize("name", ["embeddings.\n", "encoder.\x1b[2J", "encoder." + "x" * 10_000])
def test_a_name_that_would_spoil_the_message(folder, name):
    folder.tensors[name] = np.zeros(1, np.float32)
    folder.write()
    refused(folder.path, "model.safetensors", name.split(".")[0])


def test_unusual_but_valid_headers_are_accepted(folder):
    """The header may list unused tensors of other types, and may end with blanks.

    Two of the types are float8 types, which NumPy does not have.
    """
    expected = load(folder.write())(IDS).last_hidden_state
    path = folder.path / "model.safetensors"
    header, numbers = taken_apart(path)
    for number, dtype in enumerate(["F8_E4M3", "F8_E5M2", "U8", "BOOL"]):
        place = [len(numbers) + number, len(numbers) + number + 1]
        header[f"a_head.{dtype}"] = {"dtype": dtype, "shape": [1], "data_offsets": place}
    put_header(path, json.dumps(header) + "   ", numbers + b"\7" * 4)
    np.testing.assert_array_equal(load(folder.path)(IDS).last_hidden_state, expected)


# an index and its shards


@pytest.mark.parametrize("chain", [False, True])
def test_a_shard_that_is_a_link_out_of_the_folder(folder, tmp_path, chain):
    folder.shards(*SHARDS)
    shard, away = folder.path / "model-2.safetensors", tmp_path / "elsewhere.safetensors"
    shard.rename(away)
    if chain:  # `shard` points to `inner`, and `inner` points out of the folder
        (folder.path / "inner").symlink_to(away)
        shard.symlink_to("inner")
    else:
        shard.symlink_to(os.path.relpath(away, folder.path))
    refused(folder.path, "index.json", "model-2.safetensors", "outside the folder")


def test_a_link_within_the_folder(folder):
    expected = load(folder.write())(IDS).last_hidden_state
    folder.shards(*SHARDS)
    (folder.path / "files").mkdir()
    shard = folder.path / "model-2.safetensors"
    shard.rename(folder.path / "files" / "2")
    shard.symlink_to("files/2")
    np.testing.assert_array_equal(load(folder.path)(IDS).last_hidden_state, expected)
    outer = folder.path.parent / "link"
    outer.symlink_to(folder.path)
    np.testing.assert_array_equal(load(outer)(IDS).last_hidden_state, expected)


@pytest.mark.parametrize("shared", [False, True])
def test_links_of_the_hugging_face_cache_are_followed(folder, tmp_path, shared):
    """Links to the repository's blobs are followed, also if the blobs link to a shared store."""
    expected = load(folder.write())(IDS).last_hidden_state
    folder.shards(*SHARDS)
    home = tmp_path / "hub" / "models--some--model"
    snapshot = home / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (home / "blobs").mkdir()
    (tmp_path / "hub" / "blobs" / "ab").mkdir(parents=True)
    for number, path in enumerate(sorted(folder.path.iterdir())):
        blob = home / "blobs" / f"{number}"
        path.rename(tmp_path / "hub" / "blobs" / "ab" / f"{number}" if shared else blob)
        if shared:
            blob.symlink_to(f"../../blobs/ab/{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    np.testing.assert_array_equal(load(snapshot)(IDS).last_hidden_state, expected)


@pytest.mark.parametrize("name", ["special_tokens_map.json", "generation_config.json"])
def test_save_copies_no_file_from_outside_the_folder(folder, tmp_path, name):
    secret = tmp_path / "secret.json"
    secret.write_text('{"password": "swordfish"}')
    folder.write()
    (folder.path / name).symlink_to(secret)
    model = load(folder.path)
    with pytest.raises(ModelError, match=rf"save: .*{name} is a link to a file outside"):
        model.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_shard_that_is_no_file(folder):
    folder.shards(*SHARDS)
    shard = folder.path / "model-2.safetensors"
    shard.unlink()
    shard.symlink_to(shard)  # a link to itself
    refused(folder.path, shard.name)
    shard.unlink()
    shard.mkdir()
    refused(folder.path, shard.name)
    shard.rmdir()
    os.mkfifo(shard)  # opening a pipe would block forever
    refused(folder.path, shard.name)


def test_a_pickle_listed_as_a_shard_is_refused(folder, tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    where = folder.shards(*SHARDS)
    (folder.path / "model-2.bin").write_bytes(pickle.dumps(Trap()))
    where[BIAS] = "model-2.bin"
    folder.json("model.safetensors.index.json", {"weight_map": where})
    refused(folder.path, "model-2.bin", "not a safetensors file")
    assert not (tmp_path / "sprung").exists()


# JSON


@pytest.mark.parametrize(
    "name", ["config.json", "modules.json", "sentence_bert_config.json", "tokenizer.json"]
)
def test_a_huge_file_is_refused_unread(folder, name):
    """A sparse file of 100 GiB is refused without being read."""
    path = folder.write() / name
    with path.open("wb") as file:
        file.truncate(100 * 2**30)
    refused(folder.path, name, "107374182400 bytes long")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_pipe_does_not_block_loading(folder, name):
    folder.shards(*SHARDS)
    (folder.path / name).unlink()
    os.mkfifo(folder.path / name)
    if name == "config.json":
        refused(folder.path, name, "is not a regular file")
    else:  # as if the file were missing
        load(folder.path)


@pytest.mark.parametrize("depth", [50, 500, 900, 1000, 5000, 100_000])
@pytest.mark.parametrize("key", ["hidden_act", "hidden_size", "pruned_heads", "architectures"])
@pytest.mark.parametrize(("left", "right"), ["[]", ('{"a": ', "}")])
def test_deep_nesting(folder, depth, key, left, right):
    nested = left * depth + "1" + right * depth
    text = json.dumps({**CONFIG, key: "here"}).replace('"here"', nested)
    folder.write()
    folder.text("config.json", text)
    if key == "architectures" and depth < 950:
        load(folder.path)
    else:
        refused(folder.path, "config.json")


# sizes


def whole_numbers():
    return [
        (family, key)
        for family, config in SMALL.items()
        for key, value in config.items()
        if isinstance(value, int) and not isinstance(value, bool) and key not in NO_SIZE
    ]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder of small models, one per family; tests overwrite the models' config.json files."""
    home = tmp_path_factory.mktemp("models")
    for name, config in SMALL.items():
        if name == "bert":
            Folder(home / name).write()
        else:
            write_small(home / name, config)
    return home


@functools.cache
def import_all():
    """Load and run a model once, so that the memory of imported modules is not measured."""
    load("books-decoder")(np.zeros((1, 2), int))


def measured(path):
    """Load and run a model; return its ModelError message or None, and the peak memory in bytes."""
    import_all()
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = load(path)
            image = (np.ones((1, 2, 8, 8)),)
            pair = (IDS, None, IDS)
            inputs = {"vit": image, "dinov2": image, "t5": pair, "mt5": pair}
            inputs |= {"clip": (IDS, None, *image), "clip_vision_model": (np.ones((1, 2, 12, 12)),)}
            found = model(*inputs.get(model.config["model_type"], (IDS,)))
        assert np.isfinite(found.last_hidden_state).all()
        return None, tracemalloc.get_traced_memory()[1]
    except ModelError as error:
        return str(error), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("family", "key"), whole_numbers())
def test_an_invalid_size_is_refused(models, family, key):
    path = models / family / "config.json"
    pair = ("image_size", "patch_size")  # a list of two is valid too
    ids = dict.fromkeys(("decoder_start_token_id", "eos_token_id"), (0,))
    ids["position_buckets"] = (-1,)  # a bucket for each distance
    free = {**ids, **dict.fromkeys(pair, ([12],))}.get(key, ())
    for value in (0, -1, -(2**63), 1.5, 12.0, True, False, "12", [], [12], {}, float("nan")):
        if value in free and value is not False:
            continue
        path.write_text(json.dumps({**SMALL[family], key: value}))
        refused(path.parent, key, "config.json")


@pytest.mark.parametrize(("family", "key"), whole_numbers())
def test_an_absurd_size_allocates_little_memory(models, family, key):
    path = models / family / "config.json"
    for value in (2**20, 10**9, 2**31, 2**32, 10**12, 2**62, 2**63, 2**64, 10**30, 10**300):
        path.write_text(json.dumps({**SMALL[family], key: value}))
        error, peak = measured(path.parent)
        assert peak < 20e6, (key, value, peak)
        if family in ("bert", "gpt2") or key not in NO_TENSOR:
            assert error is not None, (key, value)
            assert error.isprintable()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *((float, it) for it in ("0", -1, 0, 10**400, np.nan, np.inf, True, [], {})),
        *((bool, it) for it in (1, 0, "true", 1.0, [], [True], {})),
    ],
)
def test_an_invalid_value_of_a_float_or_of_a_flag_is_refused(models, kind, value):
    for family, config in SMALL.items():
        for key in (key for key in config if isinstance(config[key], kind)):
            path = models / family / "config.json"
            path.write_text(json.dumps({**config, key: value}))
            refused(path.parent, key, "config.json")


ROPE = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {
        **{"factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 32.0},
        **{"beta_slow": 1.0, "attention_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "longrope": {"factor": 2.0, "short_factor": [1.0] * 2, "long_factor": [2.0] * 2},
    "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "proportional": {"factor": 2.0, "partial_rotary_factor": 0.5},
}
ABSURD = [10**31, 10**309, 10**400, 1e31, 1e39, 1e308, 1e-31, 5e-324]
TOO_LARGE = [2**31, 2**63, 2**64]  # for keys that must be integers
FREE = {"architectures"}  # any value is accepted


def names_it(read, values, key):
    """Return whether reading the values fails with an error that names the key."""
    try:
        read(values)
    except ModelError as error:
        return key in str(error)
    return False


@pytest.mark.parametrize("family", FAMILIES)
def test_absurd_numbers_are_refused_for_every_key(family):
    """Every key that the family reads is checked, including keys with a default value."""

    def read(values):
        config = FAMILIES[family].config(values, "config.json")
        FAMILIES[family].design(config)
        config.finish(FAMILIES[family].harmless)
        return config

    small = SMALL.get(family, {})  # missing keys have the family's defaults
    for key in read(small).used - FREE:
        counted = names_it(read, {**small, key: 1.5}, key)
        for value in ABSURD + TOO_LARGE * counted:
            assert names_it(read, {**small, key: value}, key), (key, value)


@pytest.mark.parametrize("kind", ROPE)
def test_absurd_numbers_are_refused_for_every_rope_key(kind):
    table = {"rope_type": kind, **ROPE[kind]}

    def read(values):
        config = {"rope_parameters": values, "max_position_embeddings": 16}
        return read_rotary(Config(config, "config.json"), 4)

    read(table)
    for key in [*ROPE[kind], "rope_theta"]:
        for value in ABSURD:
            wrong = [value] * 2 if isinstance(table.get(key), list) else value
            assert names_it(read, {**table, key: wrong}, key), (key, value)


# tokenizers


def changed(folder, *path, value):
    """Write a model whose tokenizer has one value changed, and return its folder."""
    values = json.loads(tokenizer_json())
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    folder.write()
    folder.json("tokenizer.json", values)
    return folder.path


@pytest.mark.parametrize("number", [30, 10**6, 2**32 - 1])
def test_an_id_beyond_the_table(folder, number):
    path = changed(folder, "model", "vocab", "cat", value=number)
    with pytest.warns(UserWarning, match=f"ids up to {number}, but the token table has only 30 "):
        model = load(path)
    with pytest.raises(ValueError, match=f"the token 'cat' has the id {number}, but the token tab"):
        model.encode("the cat")
    ids = ("post_processor", "special_tokens", "[CLS]", "ids")
    refused(changed(folder, *ids, value=[number]), str(number), "30 rows")


@pytest.mark.parametrize("number", [-1, 2**32, 2**64, 1.5, "3", None])
def test_an_invalid_token_id_is_refused(folder, number):
    refused(changed(folder, "model", "vocab", "cat", value=number), "tokenizer.json")


def test_more_ids_than_tokens(folder):
    ids = ("post_processor", "special_tokens", "[CLS]", "ids")
    refused(changed(folder, *ids, value=[2, 2, 2]), "2 tokens to a text, but gives them 4 ids")


@pytest.mark.parametrize("pattern", ["((", "[", "(?<!a*)b", "*", "a{1000000}"])
def test_an_invalid_regex_is_refused(folder, pattern):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": 0}
    refused(changed(folder, "pre_tokenizer", value=split), "tokenizer.json")


def test_a_pattern_that_takes_for_ever(folder, capfd):
    """A panic of the tokenizers library becomes a ValueError; the model still works afterwards."""
    split = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated"}
    model = load(changed(folder, "pre_tokenizer", value={**split, "invert": False}))
    for call in (model.encode, model.trace, model.tokenize):
        with pytest.raises(ValueError, match="the tokenizer's own rules do not work") as caught:
            call("a" * 60 + "b")
        assert "\n" not in str(caught.value)
    assert model.encode("a").shape == (12,)


BOMB = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30,) * 2)
from qkv.models import ModelError, load
try:
    load(sys.argv[1])
except ModelError as error:
    print(str(error)[:300])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what a process may take is limited there")
def test_rules_that_would_fill_the_memory_are_not_run(folder):
    """Use a subprocess with 3 GiB of memory, because running the rules would exhaust it.

    The library applies the normalizer to added tokens while it reads the file.
    """
    longer = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}
    added = {**dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False), "id": 19}
    changed(folder, "normalizer", value={"type": "Sequence", "normalizers": [longer] * 6})
    values = json.loads((folder.path / "tokenizer.json").read_text())
    tokens = [{**added, "content": "a", "normalized": True}]
    folder.json("tokenizer.json", {**values, "added_tokens": tokens})
    done = subprocess.run(
        [sys.executable, "-c", BOMB, str(folder.path)],
        env={**os.environ, **ONE_THREAD},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = f"load: {folder.path}/tokenizer.json does not work as a tokenizer: "
    assert done.stdout.startswith(said)
    assert "normalizer may turn one character into 1e+12" in done.stdout


def test_a_vocabulary_without_its_unknown_word(folder):
    model = load(changed(folder, "model", "unk_token", value="[NONE]"))
    with pytest.raises(ValueError, match=r"rules do not work on this text: .*\[UNK\]"):
        model.encode("zebra")
    assert model.encode("a cat").shape == (12,)


# files of sentence-transformers


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b"3", b"[" * 100_000, b"\xff", b'{"a": ', b'{"a": 1e5'],
)
@pytest.mark.parametrize(
    "name",
    [
        *("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"),
        "config_sentence_transformers.json",
    ],
)
def test_invalid_sentence_transformers_files_are_refused(folder, name, content):
    folder.write()
    folder.sentence({"pooling_mode": "mean"}, limit=10)
    folder.text(name, "")
    (folder.path / name).write_bytes(content)
    refused(folder.path, name)


def test_small_configs_cover_exactly_the_published_families():
    assert set(SMALL) == set(PUBLISHED)
