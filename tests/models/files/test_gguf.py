"""Tests of GGUF files: blocks, metadata, broken files, and the model in a file."""

import os
import pickle
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from qkv.attend import KVCache
from qkv.circuits import copying_scores
from qkv.models import ModelError, load
from qkv.models.files._gguf import _BLOCKS, dequantize, read_gguf
from qkv.models.network import Linear
from qkv.ops import BlockMatrix, StoredMatrix
from qkv.ops.kernel import VARIANTS, backend, compiled

from ..gguf_files import BYTE_LEVEL, BYTE_TOKENS, TEMPLATE, gguf, write, write_llama

KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
IDS = [[2, 70, 200, 5, 6]]


@pytest.fixture
def path(tmp_path):
    return write_llama(tmp_path / "small.gguf")


def refused(path, *parts, **options):
    """Assert that loading fails with one line that names the file and contains these parts."""
    with pytest.raises(ModelError) as caught:
        load(path, **options)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) <= 2000
    assert message.startswith("load: ")
    for part in (path.name, *parts):
        assert part in message, message


# blocks


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_dequantized_as_by_gguf(kind):
    """Random bytes, with scales that are infinite or NaN, give the same bits."""
    theirs = gguf.GGMLQuantizationType[kind]
    _, size = gguf.GGML_QUANT_SIZES[theirs]
    raw = np.random.default_rng(0).integers(0, 256, (3000, size), np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, theirs).reshape(-1)
    found = dequantize(kind, raw.reshape(-1))
    assert np.isfinite(expected).mean() > 0.9
    odd = np.isnan(expected)
    assert (np.isnan(found) == odd).all()
    np.testing.assert_array_equal(found.view(np.int32)[~odd], expected.view(np.int32)[~odd])


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_a_matrix_of_each_type(tmp_path, kind):
    name = "blk.1.ffn_down.weight"
    path = write_llama(tmp_path / "a.gguf", kinds={name: kind})
    reader = gguf.GGUFReader(path)
    [stored] = [one for one in reader.tensors if one.name == name]
    parameter = load(path).parameters["blocks.1.mlp.down_proj.weight"]
    assert parameter.dtype == np.float32
    np.testing.assert_array_equal(parameter.T, gguf.dequantize(stored.data, stored.tensor_type))


@pytest.mark.parametrize("kind", ["Q2_K", "IQ4_XS", "I32", "MXFP4", "TQ2_0"])
def test_another_type_is_named(path, kind):
    raw = path.read_bytes()
    entry = raw.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 16
    code = int(gguf.GGMLQuantizationType[kind]).to_bytes(4, "little")
    path.write_bytes(raw[:entry] + code + raw[entry + 4 :])
    refused(path, f"token_embd.weight is {kind}, which qkv does not support", "Q4_K")


# metadata


def test_metadata_is_read_as_by_gguf(path):
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    names = {name for name in theirs.fields if not name.startswith("GGUF.")}
    assert set(ours.metadata) == names
    for name in names:
        value = ours.metadata[name]
        value = value.tolist() if isinstance(value, np.ndarray) else value
        assert value == theirs.fields[name].contents(), name
    assert [*ours.tensors] == [one.name for one in theirs.tensors]
    for one in theirs.tensors:
        np.testing.assert_array_equal(ours.tensors[one.name].read(), one.data)


def test_the_model_has_the_files_name_config_tokenizer_and_template(path):
    model = load(path)
    assert model.name == "small"
    assert model.config["architectures"] == ["LlamaForCausalLM"]
    assert model.config["rms_norm_eps"] == float(np.float32(1e-5))
    assert model.tokenizer.chat_template == TEMPLATE
    assert model.eos_ids == {0}
    tokens = model.tokenize("the cat<|turn|> 12<think>é").tokens
    assert tokens == ["th", "e", "Ġcat", "<|turn|>", "Ġ", "1", "2", "<think>", "Ã", "©"]
    assert model.tokenizer.special_ids == {0, 1}


def test_special_tokens_outside_the_byte_alphabet(tmp_path):
    tokens = [*BYTE_TOKENS[:-1], "<\uff5cUser\uff5c>"]
    model = load(write_llama(tmp_path / "a.gguf", BYTE_LEVEL | {"tokenizer.ggml.tokens": tokens}))
    assert model.tokenize("cat<\uff5cUser\uff5c>cat").tokens == ["cat", "<\uff5cUser\uff5c>", "cat"]


def test_end_tokens_and_named_templates(tmp_path):
    more = {"tokenizer.ggml.eot_token_id": 1, "tokenizer.chat_template.tools": "x"}
    model = load(write_llama(tmp_path / "a.gguf", {**BYTE_LEVEL, **more}))
    assert model.eos_ids == {0, 1}
    assert model.tokenizer.chat_template == {"default": TEMPLATE, "tools": "x"}


def test_a_saved_model_loads_again(path, tmp_path):
    model = load(path)
    model.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.config["architectures"] == model.config["architectures"]
    assert again.tokenizer.chat_template == TEMPLATE
    assert again.eos_ids == model.eos_ids
    np.testing.assert_array_equal(again(IDS).logits, model(IDS).logits)
    assert again.tokenize("the cat<|turn|>").tokens == model.tokenize("the cat<|turn|>").tokens


def test_a_model_without_a_tokenizer(tmp_path):
    model = load(write_llama(tmp_path / "a.gguf", {"tokenizer.ggml.eos_token_id": 1}))
    assert model.eos_ids == {1}
    assert model.tokenizer is None
    assert model(IDS).logits.shape == (1, 5, len(BYTE_TOKENS))


FACTORS = np.float32([1, 2, 4, 8])


@pytest.mark.parametrize(
    ("values", "slower", "scale"),
    [
        ({"scaling.type": "linear", "scaling.factor": 4.0}, 4, 1),
        ({"scaling.factor": 4.0}, 4, 1),
        ({"scale_linear": 4.0}, 4, 1),
        ({"scaling.factor": 0.0}, 1, 1),
        ({"scaling.type": "none", "scaling.factor": 4.0}, 1, 1),
        ({"scaling.attn_factor": 1.5}, 1, 1.5),
        ({"scaling.factor": 2.0, "scaling.attn_factor": 1.5}, 2, 1.5),
        ({"factors": FACTORS}, FACTORS, 1),
        ({"factors": FACTORS, "scaling.type": "linear", "scaling.factor": 4.0}, 4 * FACTORS, 1),
    ],
    ids=str,
)
def test_the_scaling_of_rotary_positions(tmp_path, values, slower, scale):
    """The logits of each of these files were equal to those of llama.cpp, to 3e-5."""
    values = dict(values)
    factors = values.pop("factors", None)
    tensors = {} if factors is None else {"rope_freqs.weight": factors}
    values = {f"rope.{key}": value for key, value in values.items()}
    rotary = (
        load(write_llama(tmp_path / "a.gguf", tensors=tensors, **values)).design.layers[0].rotary
    )
    speeds, factor = (rotary.scaling or Linear(1.0)).speeds(1e4, 8, 60)
    np.testing.assert_allclose(speeds, 1e4 ** -(np.arange(4) / 4) / slower, rtol=1e-6)
    assert factor == pytest.approx(scale)


def test_unknown_keys_of_rotary_positions_warn(tmp_path):
    path = write_llama(tmp_path / "a.gguf", **{"rope.scaling.odd": 2.0})
    with pytest.warns(UserWarning, match="does not know llama.rope.scaling.odd"):
        load(path)
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}
    refused(write_llama(path, tensors={"rope_freqs.weight": FACTORS}, **yarn), "is 'yarn'")


def test_a_file_without_the_ending(path):
    other = path.with_name("sha256-0123")
    path.rename(other)
    assert load(other).name == "sha256-0123"
    with pytest.raises(ValueError, match="is a file and has no revisions"):
        load(other, revision="main")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"general.architecture": "mamba"}, "the architecture is 'mamba', which qkv does not"),
        ({"general.alignment": 3}, "general.alignment is 3"),
        ({"block_count": 0}, "block_count is 0"),
        ({"block_count": 3}, "layers.2.self_attn.q_proj.weight is missing"),
        ({"block_count": None}, "block_count is None"),
        ({"embedding_length": "32"}, "embedding_length is '32'"),
        ({"attention.head_count": 5}, "num_attention_heads is 5"),
        ({"attention.head_count_kv": [2, 2]}, "num_key_value_heads is [2, 2]"),
        ({"general.architecture": "bloom"}, "attention.head_count_kv is 2"),
        ({"attention.value_length": 4}, "attention.value_length is 4"),
        ({"rope.scaling.type": "odd", "rope.scaling.factor": 2.0}, "type is 'odd', which qkv"),
        ({"tokenizer.ggml.model": "rwkv"}, "model is 'rwkv', which qkv does not support"),
        ({"tokenizer.ggml.pre": "odd"}, "pre is 'odd', which qkv does not support"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "bos_token_id is 1000000"),
        ({"tokenizer.ggml.merges": ["abc"]}, "merges"),
        ({"tokenizer.ggml.merges": ["abc d"]}, "tokenizer"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokens"),
        (
            {"tokenizer.ggml.tokens": [*BYTE_TOKENS[:-1], "th"]},
            "tokens is ['th']; it must be a list",
        ),
        (
            {"tokenizer.ggml.token_type": [*[1] * 265, 9]},
            "token_type is [9]; it must be from 0 to 6",
        ),
        ({"general.alignment": True}, "general.alignment is True"),
        ({"tokenizer.ggml.bos_token_id": True}, "bos_token_id is True"),
        (
            {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [float("nan")] * 266},
            "scores",
        ),
        ({"split.count": 3}, "one of 3 parts"),
        ({"tokenizer.ggml.model": "t5"}, "it must be a list of 266 numbers"),
        ({"tokenizer.ggml.model": "bert"}, "it must be with [CLS] and [SEP]"),
        ({"tokenizer.chat_template": 3}, "chat_template"),
    ],
    ids=str,
)
def test_invalid_metadata_is_refused(tmp_path, values, said):
    architecture = values.pop("general.architecture", None)
    path = write_llama(tmp_path / "a.gguf", {**BYTE_LEVEL, **values})
    if architecture:
        raw = path.read_bytes()
        path.write_bytes(raw.replace(b"llama", architecture.encode()))
    refused(path, said)


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("blk.0.ssm_in.weight", np.ones((4, 4)), "blk.0.ssm_in.weight does not belong to a llama"),
        ("blk.7.attn_q.weight", np.ones((32, 32)), "layers.7"),
        ("blk.0.attn_q.weight", np.ones((36, 32)), "36 rows"),
        ("blk.0.attn_v.weight", np.ones((32, 16)), "has shape (32, 16), but must have (16, 32)"),
        ("a\nb\x1b[2J", np.ones(3), "\\n"),
    ],
    ids=str,
)
def test_wrong_tensors_are_refused(tmp_path, name, array, said):
    path = write_llama(tmp_path / "a.gguf", tensors={name: array})
    refused(path, said)


def test_a_model_for_sentence_vectors(tmp_path):
    """`pooling_type` chooses the pooling, also in the saved folder; a reranker is refused."""
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (7, 12), "position_embd": (9, 12), "token_types": (2, 12)}
    shapes |= {f"blk.0.attn_{name}": (12, 12) for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_up": (20, 12), "blk.0.ffn_down": (12, 20)}
    biases = {name: (shape[0],) for name, shape in shapes.items() if name.startswith("blk")}
    norms = ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm")
    biases |= {name: (12,) for name in norms}
    shapes |= {name: (12,) for name in norms}
    tensors = {f"{name}.weight": rng.normal(size=shape) for name, shape in shapes.items()}
    tensors |= {f"{name}.bias": rng.normal(size=shape) for name, shape in biases.items()}
    values = {"block_count": 1, "context_length": 9, "embedding_length": 12}
    values |= {"feed_forward_length": 20, "attention.head_count": 3, "attention.causal": False}
    values["tokenizer.ggml.model"] = "bert"
    values["tokenizer.ggml.tokens"] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁cat", "s", "▁the"]
    ids = {"cls": 2, "seperator": 3, "unknown": 1, "padding": 0}
    values |= {f"tokenizer.ggml.{name}_token_id": number for name, number in ids.items()}
    for kind, mode in enumerate(["mean", "mean", "cls", "lasttoken"]):
        path = write(tmp_path / "bert.gguf", "bert", {**values, "pooling_type": kind}, tensors)
        model = load(path)
        assert model.tokenize("The cats").tokens == ["[CLS]", "the", "cat", "##s", "[SEP]"]
        assert model.sentence.modes == (mode,)
        rows = model.encode(["the cats"], output_value="token_embeddings")[0]
        expected = {"mean": rows.mean(axis=0), "cls": rows[0], "lasttoken": rows[-1]}[mode]
        np.testing.assert_allclose(model.encode("the cats"), expected, rtol=1e-5, atol=1e-6)
        model.save(tmp_path / "saved")
        again = load(tmp_path / "saved")
        np.testing.assert_array_equal(again.encode("the cats"), model.encode("the cats"))
    refused(write(tmp_path / "rank.gguf", "bert", {**values, "pooling_type": 4}, tensors), "rerank")


# hostile files


def whole(number, size=8):
    return number.to_bytes(size, "little")


HUGE = [2**16 + 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]


@pytest.mark.attack
@pytest.mark.parametrize("number", HUGE, ids=hex)
def test_lying_counts_and_sizes_are_refused(path, number):
    """Each count, size and offset in the file is replaced by a huge number."""
    raw = path.read_bytes()
    text = b"tokenizer.ggml.merges"
    tensor = b"blk.0.attn_q.weight"
    merges, query = raw.index(text) + len(text), raw.index(tensor) + len(tensor)
    places = {
        "tensor count": 8,
        "metadata count": 16,
        "length of a key": 24,
        "length of a list": merges + 8,
        "length of a string": merges + 16,
        "columns": query + 4,
        "rows": query + 12,
        "offset": query + 24,
        "length of a tensor's name": query - len(tensor) - 8,
    }
    for at in places.values():
        path.write_bytes(raw[:at] + whole(number) + raw[at + 8 :])
        refused(path)


@pytest.mark.attack
def test_truncated_files_are_refused(path):
    """A file is cut after each of its first bytes, and at random places."""
    raw = path.read_bytes()
    cuts = np.random.default_rng(0).integers(0, len(raw), 300)
    for cut in (*range(0, 400), *cuts, len(raw) - 1):
        path.write_bytes(raw[:cut])
        refused(path)


@pytest.mark.attack
def test_flipped_bytes_are_refused_or_read(path):
    """Each file with three random bytes in its header gives one clear error, or a model."""
    raw = bytearray(path.read_bytes())
    end = raw.index(b"blk.1.attn_v.weight") + 60
    rng, loaded, messages = np.random.default_rng(0), 0, []
    for _ in range(600):
        broken = bytearray(raw)
        for at in rng.integers(0, end, 3):
            broken[at] = rng.integers(256)
        path.write_bytes(broken)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = load(path)
            except ModelError as error:
                messages.append(str(error))
                continue
            loaded += 1
            if model.tokenizer is not None:
                model.tokenizer.tokenize("the cat")
    assert all(text.isprintable() and len(text) <= 2000 for text in messages)
    assert loaded > 0
    assert len(set(messages)) > 100


@pytest.mark.attack
def test_overlapping_tensors_are_refused(path):
    raw = path.read_bytes()
    first, second = (
        raw.index(name) + len(name) for name in (b"blk.0.attn_q.weight", b"blk.1.attn_q.weight")
    )
    place = raw[first + 24 : first + 32]
    path.write_bytes(raw[: second + 24] + place + raw[second + 32 :])
    refused(path, "inside another tensor")


@pytest.mark.attack
@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\1\0\0\0", b"GGUF\0\0\0\3", b"GGML" * 20])
def test_a_file_that_is_no_gguf(path, content):
    path.write_bytes(content)
    refused(path)


@pytest.mark.attack
@pytest.mark.parametrize("twice", ["tokenizer.ggml.model", "blk.0.attn_q.weight"])
def test_a_name_that_occurs_twice_is_refused(path, twice):
    other = {"tokenizer.ggml.model": "llama.block_count\0\0\0"}.get(twice, "blk.1.attn_q.weight")
    raw = path.read_bytes()
    source = b"tokenizer.chat_template" if "\0" in other else other.encode()
    target = twice.encode()
    if len(source) != len(target):  # give the other key the same length
        at = raw.index(source) - 8
        raw = raw[:at] + whole(len(target)) + target + raw[at + 8 + len(source) :]
    else:
        raw = raw.replace(source, target)
    path.write_bytes(raw)
    refused(path, f"{twice} occurs twice")


def test_a_fifo_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises((ValueError, OSError), match=r"does not exist|not a known model"):
        load(tmp_path / "model.gguf")


# matrices that stay in blocks

IN_BLOCKS = ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"]


def write_in_blocks(path, kind):
    """Write a small Llama whose matrices are blocks of random bytes of one type."""
    rng, block = np.random.default_rng(1), _BLOCKS[kind]
    sizes = {"attn_q": (256, 256), "attn_k": (64, 256), "attn_v": (64, 256), "ffn_up": (512, 256)}
    sizes |= {"attn_output": (256, 256), "ffn_down": (256, 512), "ffn_gate": (512, 256)}
    shapes = {f"blk.{n}.{part}.weight": shape for n in range(2) for part, shape in sizes.items()}
    shapes["token_embd.weight"] = len(BYTE_TOKENS), 256
    names = ["output_norm", *(f"blk.{n}.{part}_norm" for n in range(2) for part in ("attn", "ffn"))]
    tensors = {f"{name}.weight": np.ones(256, np.float32) for name in names}
    for name, (rows, width) in shapes.items():
        raw = rng.integers(0, 256, (rows, width // block.size * block.dtype.itemsize), np.uint8)
        fields = raw.view(block.dtype)
        largest = {"Q8_0": 128, "Q6_K": 4096, "Q4_K": 1024}.get(kind, 16)
        for field in {"d", "m"} & set(block.dtype.names):
            fields[field] = rng.uniform(0.5, 1, fields.shape) / (16 if field == "m" else largest)
        tensors[name] = raw
    sizes = {"embedding_length": 256, "feed_forward_length": 512, "attention.head_count": 8}
    sizes |= {"rope.dimension_count": 32}
    return write_llama(path, kinds=dict.fromkeys(shapes, kind), tensors=tensors, **sizes)


def matrices(model):
    return [array for array in model._weights.parameters.values() if hasattr(array, "packed")]


@pytest.mark.parametrize("kind", IN_BLOCKS)
def test_matrices_stay_in_blocks(tmp_path, kind):
    path = write_in_blocks(tmp_path / "a.gguf", kind)
    plain, model = load(path), load(path, dtype="int8")
    assert len(matrices(model)) == 15
    assert sum(one.packed.nbytes for one in matrices(model)) < 1.1 * path.stat().st_size
    assert model.sha256 == plain.sha256
    for name, array in plain.parameters.items():
        found = model.parameters[name]
        np.testing.assert_array_equal(found, array)
        assert not found.flags.writeable
    found, expected = model(IDS).logits, plain(IDS).logits
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())
    assert backend() == "numpy" or (found != expected).any()
    new, other = (one.generate([[3, 70, 9]], max_new_tokens=8)[0].ids for one in (model, plain))
    assert new == other


def test_forward_passes_read_no_whole_matrix(tmp_path, monkeypatch):
    model = load(write_in_blocks(tmp_path / "a.gguf", "Q4_1"), dtype="int8")
    expected = model(IDS).logits
    if backend() == "numpy":
        pytest.skip("NumPy multiplies float32 values")
    monkeypatch.setattr(BlockMatrix, "read", None)
    np.testing.assert_array_equal(model(IDS).logits, expected)
    model.generate([[3, 70, 9]], max_new_tokens=3)


@pytest.mark.skipif(not VARIANTS, reason="the kernel was not built")
def test_a_step_multiplies_matrices_of_the_same_input_at_once(tmp_path, monkeypatch):
    packing, products = sys.modules["qkv.ops.packing"], []

    def count(*arguments):
        products.append(arguments)
        compiled.multiply_blocks(*arguments)

    monkeypatch.delenv("QKV_BACKEND", raising=False)
    counting = SimpleNamespace(**{**vars(compiled), "multiply_blocks": count})
    monkeypatch.setattr(packing, "compiled", counting)
    monkeypatch.setattr(packing, "_packed", packing._PackedCopies())  # begin a new array
    network = load(write_in_blocks(tmp_path / "a.gguf", "Q4_1"), dtype="int8").network
    caches = [KVCache() for _ in network.layers]
    network.step(np.array(IDS), caches)
    products.clear()
    network.step(np.array([[5]]), caches)
    assert len(products) == 2 * 4  # query, key and value; out; gate and up; down


def test_what_else_a_model_in_blocks_does(tmp_path):
    path = write_in_blocks(tmp_path / "a.gguf", "Q4_1")
    plain, model = load(path), load(path, dtype="int8")

    def close(found, expected):
        np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())

    text, edits = "the cat 12", {"ablate": [(0, 1)]}
    close(*(one.trace(text, **edits).pattern(1, 2) for one in (model, plain)))
    gradients = [one.gradient(IDS[0], of=(-1, 5), at=[("z", 0)]) for one in (model, plain)]
    close(*(next(iter(gradient.values())) for gradient in gradients))
    close(*(copying_scores(one) for one in (model, plain)))
    model.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    for name, array in plain.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], array)
    close(pickle.loads(pickle.dumps(model))(IDS).logits, plain(IDS).logits)
    for name in ("embed.weight", "blocks.0.mlp.up_proj.weight"):
        for one in (model, plain):
            one.parameters[name] = one.parameters[name] / 2
        close(model(IDS).logits, plain(IDS).logits)
        assert model.sha256 == plain.sha256
    close(model.with_parameters(plain.parameters)(IDS).logits, plain(IDS).logits)


def test_other_tensors_become_float32(tmp_path):
    kinds = {"blk.0.ffn_up.weight": "Q5_0", "blk.1.ffn_up.weight": "F16"}
    path = write_llama(tmp_path / "a.gguf", kinds={**kinds, "blk.0.ffn_down.weight": "Q8_0"})
    model = load(path, dtype=np.int8)
    assert len(matrices(model)) == 1
    others = [x for x in model._weights.parameters.values() if not hasattr(x, "packed")]
    kinds = {np.ndarray, StoredMatrix} if VARIANTS else {np.ndarray}
    assert {(type(x), x.dtype) for x in others} == {(kind, np.dtype("f4")) for kind in kinds}


def test_a_file_without_blocks_is_computed_in_int8_like_a_folder(tmp_path):
    path = write_llama(tmp_path / "a.gguf", kinds={"blk.0.ffn_up.weight": "Q5_0"})
    load(path).save(tmp_path / "saved")
    found = load(path, dtype="int8")(IDS).logits
    np.testing.assert_array_equal(found, load(tmp_path / "saved", dtype="int8")(IDS).logits)
    assert 0 < np.abs(found - load(path)(IDS).logits).max() < 2


def test_damaged_blocks_are_refused(tmp_path):
    path = write_in_blocks(tmp_path / "a.gguf", "Q4_K")
    raw = path.read_bytes()
    path.write_bytes(raw[:-1000])
    refused(path, "truncated or damaged", dtype="int8")
    path.write_bytes(raw.replace(b"token_embd.weight", b"token_embd.weighs"))
    refused(path, "token_embd", dtype="int8")
