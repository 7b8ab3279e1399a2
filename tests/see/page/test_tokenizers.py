"""Tests of the tokenizers that a page rejects, and of the reasons that it gives."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from qkv.see.page.engine import reasons_of_tokenizer
from qkv.text import SubwordTokenizer, WordTokenizer
from qkv.text.tokenizer import BareTokenizer

ALPHABET = {one: i for i, one in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
UNKNOWN = {"a": 0, "b": 1, "ab": 2, "<unk>": 3}
BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}


def bpe(vocabulary: dict[str, int] | None = None, **options: Any) -> Tokenizer:
    """Make a BPE; it has an unknown token unless a vocabulary is given."""
    options |= {"unk_token": "<unk>"} if vocabulary is None else {}
    return Tokenizer(models.BPE(vocabulary or UNKNOWN, [], **options))


def reasons(made: Tokenizer, **parts: Any) -> list[str]:
    for name, part in parts.items():
        setattr(made, name, part)
    return list(reasons_of_tokenizer(SubwordTokenizer(made)))


def template(single: str) -> Any:
    return processors.TemplateProcessing(single=single, special_tokens=[("a", 0)])


LEVEL = processors.ByteLevel(trim_offsets=True)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"normalizer": normalizers.Nmt()}, "has the normalizer Nmt"),
        ({"pre_tokenizer": pre_tokenizers.Whitespace()}, "has the pre_tokenizer Whitespace"),
        (
            {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts()])},
            "has the pre_tokenizer UnicodeScripts",
        ),
        ({"decoder": decoders.CTC()}, "has the decoder CTC"),
        (
            {"post_processor": processors.Sequence([template("a $A"), LEVEL])},
            "trims blanks after it has put tokens around a text",
        ),
        (
            {"post_processor": template("a")},
            "has a post_processor that inserts the text several times or never",
        ),
    ],
)
def test_unsupported_tokenizer_parts_are_refused(parts: dict[str, Any], expected: str) -> None:
    assert reasons(bpe(), **parts) == [expected]


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"a++", r"a{2}+", r"(?>a)", r"^a", r"a$", r"\ba", r"\h", r"\Aa", r"[a[bc]]", r"[a&&b]"),
        *(r"[\W]", r"(?i)a", r"(?i:ss)", r"(?i:é)", r"(?i:[a-z])", r"(a)\1", r"\p{^L}", r"\p{Old}"),
        *(r"[[:alpha:]]", r"(?<name>a)", r"(?m:.)", r"\K", r"\x{41}", r"\G", r"\R", r"\X"),
    ],
)
def test_unsupported_regex_patterns_are_refused(pattern: str) -> None:
    rules = json.loads(bpe().to_str())
    rules["normalizer"] = {"type": "Replace", "pattern": {"Regex": pattern}, "content": " "}
    try:
        made = Tokenizer.from_str(json.dumps(rules))
    except Exception:  # the tokenizers library rejects this file too
        return
    assert reasons(made) == [f"has a normalizer with the pattern {pattern!r}"]


def test_group_references_in_replacements_are_refused() -> None:
    rules = json.loads(bpe().to_str())
    rules["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(a)"}, "content": "$1"}
    made = Tokenizer.from_str(json.dumps(rules))
    assert reasons(made) == ["has a normalizer that inserts the matched groups of its pattern"]
    rules["normalizer"]["pattern"] = {"String": "(a)"}
    assert reasons(Tokenizer.from_str(json.dumps(rules))) == []


def test_unsupported_tokenizer_models_are_refused() -> None:
    assert reasons(Tokenizer(models.WordLevel(UNKNOWN, unk_token="<unk>"))) == [
        "has the model WordLevel"
    ]
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0, byte_fallback=False))
    assert reasons(unigram) == ["has the model Unigram"]
    assert "has the model WordLevel" in reasons_of_tokenizer(WordTokenizer("the cat sat"))


def test_unsupported_options_of_tokenizer_models_are_refused() -> None:
    drops = "has a BPE that drops unknown characters"
    level = pre_tokenizers.ByteLevel()
    assert reasons(bpe({"a": 0})) == [drops]
    assert reasons(bpe(ALPHABET)) == [drops]
    assert reasons(bpe(ALPHABET), pre_tokenizer=level) == []
    fewer = {one: i for one, i in ALPHABET.items() if one != "Ġ"}
    assert reasons(bpe(fewer), pre_tokenizer=level) == [drops]
    rare = {one: i for one, i in ALPHABET.items() if one not in "Ą\xc0\xf1"}  # 04, C0 and F1
    assert reasons(bpe(rare), pre_tokenizer=level) == []
    assert reasons(bpe(BYTES, byte_fallback=True)) == []
    assert reasons(bpe(byte_fallback=True)) == [
        "has a BPE that falls back on bytes, but has no token for some bytes"
    ]
    assert reasons(bpe(end_of_word_suffix="</w>")) == [
        "has a BPE with the end_of_word_suffix '</w>'"
    ]
    assert reasons(bpe(continuing_subword_prefix="##")) == [
        "has a BPE with the continuing_subword_prefix '##'"
    ]
    assert reasons(bpe(end_of_word_suffix="", continuing_subword_prefix="")) == []
    pieces = Tokenizer(models.WordPiece({"a": 0}, unk_token="[UNK]"))
    assert reasons(pieces) == ["has the unknown token '[UNK]' outside its vocabulary"]


def test_a_tokenizer_that_omits_its_post_processor_is_refused() -> None:
    made = bpe()
    assert list(reasons_of_tokenizer(BareTokenizer(made))) == []
    made.post_processor = template("a $A")
    assert list(reasons_of_tokenizer(BareTokenizer(made))) == [
        "omits the tokens that its tokenizer.json adds around a text"
    ]
    assert reasons(made) == []
