"""Tests of the model inside a page: the written data, and the models that a page rejects."""

import base64
import json
import re
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from models.decoders import gpt2
from models.gguf_files import llama_tensors, write_llama
from models.small_models import CONFIGS, write_small
from models.support import Folder, mask_bert
from qkv.models import Model
from qkv.models.files._gguf import dequantize
from qkv.see.page import engine
from qkv.see.page.engine import engine_part, engine_payload


def folder(path: Path, **changes: Any) -> Path:
    """Make a small BERT that predicts masked words, with changes to its config."""
    path.mkdir(exist_ok=True)
    mask_bert(path)
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))
    return path


def with_rules(path: Path, **changes: Any) -> Path:
    """Make the same small BERT, with changes to its tokenizer.json."""
    file = folder(path) / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return path


@pytest.fixture
def small(tmp_path: Path) -> Model:
    return qkv.load(folder(tmp_path / "small"))


def test_the_payload_holds_every_parameter_in_float16(small: Model) -> None:
    payload = engine_payload(small)
    assert list(payload["parameters"]) == list(small.parameters)
    for name, packed in payload["parameters"].items():
        found = np.frombuffer(base64.b64decode(packed["b64"]), "<f2").reshape(packed["shape"])
        # qkv stores (in, out), and the page stores (out, in)
        linear = name.endswith("_proj.weight")
        expected = np.asarray(small.parameters[name]).astype(np.float16)
        assert (found == (expected.T if linear else expected)).all()
    assert payload["sizes"] == {
        **{"layers": 2, "heads": 3, "kv_heads": 3, "size": 4, "dim": 12, "vocabulary": 30},
        **{"most": 16, "eps": 1e-12, "mask": "[MASK]", "next": False, "bert": True},
        "scales": [["", 0.5], ["", 0.5]],
    }
    assert payload["tokenizer"]["model"]["vocab"]["[MASK]"] == 19


def test_the_payload_says_whether_float16_holds_the_parameters_exactly(small: Model) -> None:
    assert engine_payload(small)["exact"] is False
    halves = {name: array.astype(np.float16) for name, array in small.parameters.items()}
    assert engine_payload(small.with_parameters(halves, np.float32))["exact"] is True
    assert engine_payload(qkv.load())["exact"] is True


def rows_of_int8(model: Model) -> Model:
    """Make a model from int8 matrices with a float16 scale for each row, as in a page."""
    arrays, rng = dict(model.parameters), np.random.default_rng(0)
    for name, array in arrays.items():
        turned = array.T if name.endswith("_proj.weight") else array
        if array.ndim == 1:
            arrays[name] = array.astype(np.float16)
        else:
            whole = rng.integers(-127, 128, turned.shape)
            found = whole * rng.uniform(0.001, 0.01, (len(turned), 1)).astype(np.float16)
            assert (found != found.astype(np.float16)).any()
            arrays[name] = found.T if name.endswith("_proj.weight") else found
    return model.with_parameters(arrays, np.float32)


def test_matrices_of_int8_rows_stay_int8_in_the_payload(small: Model) -> None:
    model = rows_of_int8(small)
    payload = engine_payload(model)
    assert payload["exact"] is True
    for name, packed in payload["parameters"].items():
        data, array = base64.b64decode(packed["b64"]), model.parameters[name]
        assert packed["shape"] == list(
            array.T.shape if name.endswith("_proj.weight") else array.shape
        )
        if array.ndim == 1:
            assert len(data) == 2 * array.size
            continue
        whole = np.frombuffer(data, np.int8).reshape(packed["shape"])
        scales = np.frombuffer(base64.b64decode(packed["scale"]), "<f2")
        found = whole * scales.astype(float)[:, None]
        assert (found == (array.T if name.endswith("_proj.weight") else array)).all()
    arrays = dict(model.parameters)
    arrays["embed.weight"] = arrays["embed.weight"] + np.float32(1e-5)
    payload = engine_payload(model.with_parameters(arrays))
    assert payload["exact"] is False
    assert payload["parameters"]["embed.weight"]["float"] == 16
    assert payload["parameters"]["blocks.0.mlp.up_proj.weight"]["int"] == 8


def test_the_page_of_the_model_that_ships_is_small_enough() -> None:
    assert len(engine_part(engine_payload(qkv.load())).encode()) < 15_900_000


def test_script_end_tags_in_the_payload_are_escaped(tmp_path: Path) -> None:
    added = {"content": "</script><b>", "id": 25, "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    home = folder(tmp_path / "small")
    tokens = json.loads((home / "tokenizer.json").read_text())["added_tokens"]
    payload = engine_payload(qkv.load(with_rules(home, added_tokens=[*tokens, {**added, **flags}])))
    part = engine_part(payload)
    assert part.count("</script>") == 2
    (data,) = re.findall(
        r'<script type="application/json" data-side="encoder">(.*?)</script>', part
    )
    assert json.loads(data) == payload


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architectures": ["BertModel"]}, "has no language-model head"),
        ({"architectures": ["BertForSequenceClassification"]}, "has no language-model head"),
    ],
)
def test_a_model_without_language_model_head_is_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    home = folder(tmp_path / "small", **changes)
    if "Sequence" in changes.get("architectures", [""])[0]:
        made = Folder(home)
        made.config = json.loads((home / "config.json").read_text())
        made.tensors |= {"classifier.weight": np.ones((2, 12), np.float32)}
        made.tensors |= {"classifier.bias": np.ones(2, np.float32)}
        made.tensors |= {"bert.pooler.dense.weight": np.ones((12, 12), np.float32)}
        made.tensors |= {"bert.pooler.dense.bias": np.ones(12, np.float32)}
        made.write()
    with pytest.raises(ValueError, match=rf"small {complaint}: .*`qkv serve --model small`"):
        engine_payload(qkv.load(home))


@pytest.mark.parametrize(
    ("family", "complaint"),
    [
        ("albert", "has layers that share parameters"),
        ("bloom", "has biases by distance"),
        ("gpt_oss", "has experts"),
        ("mpnet", "has biases by distance"),
        ("t5", "is of the family t5"),
    ],
)
def test_an_unsupported_family_is_refused(tmp_path: Path, family: str, complaint: str) -> None:
    model = qkv.load(write_small(tmp_path / "small", CONFIGS[family]))
    with pytest.raises(ValueError, match=f"small {complaint}: a page can run"):
        engine_payload(model)


@pytest.mark.parametrize(
    ("family", "changes", "complaint"),
    [
        ("olmo", {"clip_qkv": 1.0}, "has clipped queries"),
        ("stablelm", {"qk_layernorm": True}, "has a different norm for each head"),
        ("deberta-v2", {"relative_attention": False, "conv_kernel_size": 3}, "has a convolution"),
    ],
)
def test_an_unsupported_part_is_refused(
    tmp_path: Path, family: str, changes: dict[str, Any], complaint: str
) -> None:
    model = qkv.load(write_small(tmp_path / "small", CONFIGS[family] | changes))
    with pytest.raises(ValueError, match=complaint):
        engine_payload(model)


def test_blocks_of_attention_alone_are_refused() -> None:
    with pytest.raises(ValueError, match="random has no language-model head: a page"):
        engine_payload(qkv.load("random"))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"normalizer": {"type": "Nmt"}}, "small has the normalizer Nmt: a page"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "small has the pre_tokenizer Whitespace: a"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}, "model WordLevel"),
    ],
)
def test_an_unsupported_tokenizer_is_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    model = qkv.load(with_rules(tmp_path / "small", **changes))
    with pytest.raises(ValueError, match=complaint):
        engine_payload(model)


def test_the_page_converts_texts_to_lower_case_first_if_the_model_does(tmp_path: Path) -> None:
    lower = Folder(tmp_path / "lower")
    mask_bert(lower.path)
    lower.json("sentence_bert_config.json", {"do_lower_case": True})
    steps = engine_payload(qkv.load(lower.path))["tokenizer"]["normalizer"]["normalizers"]
    assert [step["type"] for step in steps] == ["Lowercase", "BertNormalizer"]


def test_models_with_no_tokenizer_are_refused(tmp_path: Path) -> None:
    home = folder(tmp_path / "small")
    (home / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="small has no tokenizer"):
        engine_payload(qkv.load(home))


@pytest.mark.parametrize("number", [np.nan, np.inf, 70_000.0])
def test_numbers_beyond_float16_are_refused(small: Model, number: float) -> None:
    bias = np.array(small.parameters["head.norm.bias"])
    bias[3] = number
    small.parameters["head.norm.bias"] = bias
    with pytest.raises(ValueError, match=r"numbers in head\.norm\.bias that float16 cannot hold"):
        engine_payload(small)


def test_large_pages_draw_a_warning_and_huge_pages_are_refused(
    small: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = sum(len(one["b64"]) for one in engine_payload(small)["parameters"].values())
    monkeypatch.setattr(engine, "LARGE", letters - 1)
    expected = "a page that contains small would be .* MB, which opens slowly"
    with pytest.warns(UserWarning, match=expected):
        engine_payload(small)
    monkeypatch.setattr(engine, "MAX_CHARS", letters - 1)
    expected = (
        r"a page that contains small would be .* MB, but a browser can load at most .* MB: "
        r"`qkv serve --model small`"
    )
    with pytest.raises(ValueError, match=expected):
        engine_payload(small)
    monkeypatch.setattr(engine, "MAX_CHARS", letters // 3)
    with pytest.raises(ValueError, match=expected):
        engine.need_engine(small)


def test_a_model_in_blocks_is_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces hold the JSON, then the parameters; the bytes of blocks are transposed."""
    names = [name for name in llama_tensors() if "norm" not in name]
    kinds = dict.fromkeys(names, "Q4_1") | {"token_embd.weight": "Q8_0", names[1]: "F16"}
    model = qkv.load(write_llama(tmp_path / "small.gguf", kinds=kinds))
    part = engine_part(engine_payload(model))
    sizes = json.loads(re.search(r'data-side="decoder" data-pieces>(.*?)</script>', part)[1])
    packed = bytearray()
    pieces = re.findall(rf'{engine.PIECES}="decoder">(.*?)</script>', part, re.DOTALL)
    units = np.frombuffer("".join(pieces).encode("utf-16-le"), "<u2")
    assert len(pieces) == 1
    assert not np.isin(units, (0, 13, 60)).any()
    while len(units):
        count, mask = units[0] >> 5, (units[0] & 31) << 11
        packed += (units[1 : count + 1] ^ mask).astype("<u2").tobytes()
        units = units[count + 1 :]
    assert len(packed) - sizes["bytes"] in (0, 1)
    data = zlib.decompress(packed[: sizes["bytes"]], -15)
    written, at = json.loads(data[: sizes["described"]]), sizes["described"]
    assert written["sizes"]["kv_heads"] == 2
    for name, about in written["parameters"].items():
        expected = np.asarray(model.parameters[name])
        expected = (expected.T if name.endswith("_proj.weight") else expected).ravel()
        per = {"Q4_1": 20, "Q8_0": 34}.get(about["kind"])
        size = about["size"] * per // 32 if per else about["size"] * int(about["kind"][1:]) // 8
        raw = np.frombuffer(data, np.uint8, size, at)
        if per:
            found = dequantize(about["kind"], raw.reshape(per, -1).T.ravel())
        else:
            found = raw.view(about["kind"].replace("F32", "<f4").replace("F16", "<f2"))
        np.testing.assert_array_equal(found, expected, err_msg=name)
        at += size
    assert at == len(data)
    monkeypatch.setattr(engine, "MAX_DATA", 10_000)
    with pytest.raises(ValueError, match=r"small would hold 0 MB of parameters, but a page can h"):
        engine.need_engine(model)


@pytest.mark.parametrize("high", range(32))
def test_each_byte_can_be_written_in_a_page(high: int) -> None:
    """Groups of characters with every possible beginning have no mask, and are halved."""
    every = np.arange(high << 11, (high + 1) << 11).astype("<u2")
    other = (np.arange(32, dtype="<u2") << 11).repeat(3)
    for units in (every, np.random.default_rng(high).permutation(other)):
        (text,) = engine._write_pieces(units.tobytes())
        found, at = list[int](), 0
        letters = [ord(letter) for letter in text]
        assert not {0, 13, 60} & set(letters)
        assert not any(0xD800 <= letter < 0xE000 for letter in letters)
        while at < len(letters):
            end = at + 1 + (letters[at] >> 5)
            found += [one ^ (letters[at] & 31) << 11 for one in letters[at + 1 : end]]
            at = end
        assert found == units.tolist()


def test_the_page_names_the_rules_that_it_ignores(tmp_path: Path) -> None:
    model = gpt2(tmp_path, seed=2, generation={"repetition_penalty": 1.3, "min_length": 4})
    with pytest.warns(UserWarning, match="^the page ignores repetition_penalty, min_length "):
        engine_payload(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine_payload(qkv.load("books-decoder"))


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (64_600_000, "65 MB"),
        (500_000_000, "500 MB"),
        (500_000_001, "500 MB, but a browser can load at most 500 MB: "),
        (1_234_000_000, "1,234 MB, but a browser can load at most 500 MB: "),
    ],
)
def test_messages_give_the_size_of_a_page_in_megabytes(small: Model, size: int, said: str) -> None:
    try:
        described = engine._describe_size(small, size)
    except ValueError as error:
        described = str(error)
        said += "`qkv serve --model small` shows this page and runs the model"
    assert described == f"a page that contains small would be {said}"


def test_a_page_takes_at_least_four_letters_for_three_parameters(
    small: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    least = sum(array.size for array in small.parameters.values()) * 4 // 3  # base64 of int8
    monkeypatch.setattr(engine, "MAX_CHARS", least)
    engine.need_engine(small)
    monkeypatch.setattr(engine, "MAX_CHARS", least - 1)
    with pytest.raises(ValueError, match="a browser can load at most"):
        engine.need_engine(small)
