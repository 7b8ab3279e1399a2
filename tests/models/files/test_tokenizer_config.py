"""Tests of tokenizer_config.json: keys that change a tokenizer, warnings, and invalid values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers

import qkv
from qkv.models.run import truncation
from qkv.models.sentence.encode import text_encoder

from ..small_models import CONFIGS, write_small
from ..support import Folder, mask_bert, tokenizer_json


def with_config(path: Path, values: dict[str, Any], **files: Any) -> qkv.Model:
    """Load a small BERT with this tokenizer_config.json."""
    folder = Folder(path)
    folder.write()
    folder.json("tokenizer_config.json", values)
    for name, content in files.items():
        folder.json(f"{name}.json", content)
    return qkv.load(path)


def test_an_option_of_the_class_wins(tmp_path: Path) -> None:
    assert with_config(tmp_path / "plain", {}).tokenize("CAT").tokens == ["[CLS]", "cat", "[SEP]"]
    cased = with_config(tmp_path / "cased", {"do_lower_case": False})
    assert cased.tokenize("CAT cat").tokens == ["[CLS]", "[UNK]", "cat", "[SEP]"]
    values = {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}
    other = with_config(tmp_path / "other", values)
    assert other.tokenize("CAT").tokens == ["[CLS]", "cat", "[SEP]"]


def test_added_tokens_without_a_row_give_a_warning(tmp_path: Path) -> None:
    extra = [f"<{number}>" for number in range(14)]
    with pytest.warns(UserWarning, match="ids up to 32, but the token table has only 30 rows"):
        model = with_config(tmp_path, {"additional_special_tokens": extra})
    assert model.tokenize("cat<0>").tokens == ["[CLS]", "cat", "<0>", "[SEP]"]
    with pytest.raises(ValueError, match="the token '<13>' has the id 32, but the token table has"):
        model.encode("cat<13>")


@pytest.mark.parametrize("key", ["cls_token", "sep_token"])
def test_a_token_that_is_not_around_texts_is_named(tmp_path: Path, key: str) -> None:
    with pytest.warns(
        UserWarning, match=f"tokenizer_config.json: qkv does not apply {key}: the ids"
    ):
        with_config(tmp_path, {"tokenizer_class": "BertTokenizer", key: "[UNK]"})


def test_lower_case_that_the_tokenizer_does_not_have_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write()
    tokenizer = Tokenizer.from_str(tokenizer_json())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    values = {"tokenizer_class": "AlbertTokenizer", "do_lower_case": True}
    folder.json("tokenizer_config.json", values)
    qkv.load(tmp_path)  # a warning is an error
    folder.json("tokenizer_config.json", {**values, "do_lower_case": False})
    with pytest.warns(UserWarning, match="qkv does not apply do_lower_case: the ids of texts may"):
        qkv.load(tmp_path)


def test_a_space_before_the_texts_of_a_llama_is_named(tmp_path: Path) -> None:
    write_small(tmp_path, CONFIGS["llama"])
    tokenizer = Tokenizer(models.BPE({"▁": 0, "a": 1, "<s>": 2}, []))
    tokenizer.normalizer = normalizers.Prepend("▁")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    values = {"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(values))
    qkv.load(tmp_path)  # a warning is an error
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**values, "add_prefix_space": False})
    )
    with pytest.warns(UserWarning, match="qkv does not apply add_prefix_space: the ids of texts"):
        qkv.load(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("do_lower_case", value) for value in ("yes", 1, [])),
        ("strip_accents", "x"),
        *(("split_special_tokens", value) for value in ("yes", 1)),
        *(("truncation_side", value) for value in ("middle", 1, True)),
        *(("additional_special_tokens", value) for value in (3, [3], [""], [{}], "")),
        *(("added_tokens_decoder", value) for value in ([], {"x": {}}, {"3": 4}, {"3": {}})),
        *(("cls_token", value) for value in (3, {"content": 3})),
    ],
)
def test_an_invalid_value_gives_an_error_that_names_its_key(
    tmp_path: Path, key: str, value: Any
) -> None:
    with pytest.raises(qkv.ModelError, match=rf"tokenizer_config\.json: {key} is "):
        with_config(tmp_path, {key: value})


def test_invalid_added_tokens_give_an_error(tmp_path: Path) -> None:
    with pytest.raises(qkv.ModelError, match=r"added_tokens\.json: x is 'y'"):
        with_config(tmp_path, {}, added_tokens={"x": "y"})


def test_a_text_is_truncated_on_the_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_config(tmp_path / "left", {"truncation_side": "left"})
    plain = with_config(tmp_path / "right", {})
    for one in (model, plain):
        one.max_seq_length = 5
    text = "the cat sat on the mat"
    with pytest.warns(UserWarning, match="cut to 5 tokens"):
        trace = model.trace(text)
    assert trace.tokens == ["[CLS]", "on", "the", "mat", "[SEP]"]
    with pytest.warns(UserWarning, match="cut to 5 tokens"):
        found = model.encode(text)
    np.testing.assert_array_equal(found, plain.encode("on the mat"))
    ids = model.tokenize(text).ids
    found = text_encoder(model).checked_ids(ids, "ids")
    np.testing.assert_array_equal(found, ids[[0, 4, 5, 6, 7]])
    monkeypatch.setattr(truncation, "MAX_CHARS", 40)
    long = f"{'dog ' * 30}the cat on the mat"
    with pytest.warns(UserWarning, match="cut to 5 tokens"):
        trace = model.trace(long)
    assert [long[a:b] for a, b in trace.offsets[1:-1]] == ["on", "the", "mat"]


def test_a_gap_at_the_start_is_lost_on_the_left(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    mask_bert(tmp_path)
    folder.json("tokenizer_config.json", {"truncation_side": "left"})
    model = qkv.load(tmp_path)
    model.max_seq_length = 5
    with pytest.raises(ValueError, match="the gap is beyond the last 5 tokens"):
        model.predict("[MASK] cat sat on the mat")
    with pytest.warns(UserWarning, match="cut to 5 tokens"):
        assert model.predict("the cat sat on the [MASK]")
    with pytest.raises(ValueError, match="or truncates texts on the left"):
        qkv.play(model=model)
