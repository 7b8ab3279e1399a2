"""Tests of tokenizer rules that lengthen texts: qkv accepts moderate growth and refuses more."""

import base64
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers

from qkv.text import SubwordTokenizer, _tokenizer_limits as module, tokenizer
from qkv.text._tokenizer_limits import growth


def sequence(*rules: Any) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": list(rules)}}


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def table(*entries: str) -> dict[str, Any]:
    """Return a table as SentencePiece writes it, with a trie of four bytes that is never read."""
    raw = (4).to_bytes(4, "little") + b"trie" + b"".join(one.encode() + b"\0" for one in entries)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}


@pytest.mark.parametrize(
    ("rules", "factor"),
    [
        ([], 1),
        ([replace(" ", "▁")], 1),
        ([replace("``", '"'), replace("a", "")], 1),
        ([replace("a", "bb"), replace("b", "ccc")], 6),
        ([replace("", "ab")], 5),
        ([replace(" {2,}", "▁", "Regex")] * 30, 1),
        ([replace(r"\s+|\p{P}", "  ", "Regex")], 2),
        ([replace("a*", "b", "Regex")], 3),
        ([replace(r"\b", "b", "Regex")], 3),
        ([replace("[[:alpha:]]*", "b", "Regex")], 3),
        ([{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")], 2),
        ([{"type": "NFKC"}, {"type": "Lowercase"}], 54),
        ([table("a", "b" * 18, "é")], 18),
        ([{"type": "Sequence", "normalizers": [replace("a", "aa")] * 3}] * 2, 64),
        ([{"pattern": {"String": "a"}, "content": "a" * 5}], 20),  # an old file, without a type
    ],
)
def test_growth_is_the_largest_expansion_factor_of_the_rules(
    rules: list[Any], factor: float
) -> None:
    assert growth(sequence(*rules)) == factor
    assert growth(sequence(*rules), trusted=True) == factor


RULES = [
    *((Regex("a*"), "bc"), (Regex("b|"), "a"), ("a", "bb"), (Regex(" {2,}"), "a"), ("", "c")),
    *((Regex("(?=a)"), "ab"), (Regex(r"\s+"), "  "), ("ab", "a"), (Regex("[^a]"), "aa")),
]


@given(st.lists(st.sampled_from(RULES), max_size=3), st.text("abé \u0130\ufdfa", max_size=12))
def test_no_text_grows_beyond_the_limit(chosen: list[Any], text: str) -> None:
    """The results of the `tokenizers` library are not longer than the limit allows.

    The limit is a multiple of the text's length. An empty text counts as one character, because
    rules may insert characters into it.
    """
    steps = [normalizers.Replace(*one) for one in chosen]
    inner = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    for before in ([], [normalizers.NFKD()], [normalizers.Lowercase()], [normalizers.Prepend("▁")]):
        inner.normalizer = normalizers.Sequence([*before, *steps])
        found = inner.normalizer.normalize_str(text)
        factor = tokenizer.GROWN / SubwordTokenizer(inner)._at_once
        assert len(found) <= 1.01 * factor * max(len(text), 1)


CLS = {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}


def around(single: list[Any], ids: int = 1) -> dict[str, Any]:
    special = {**CLS, "ids": [1] * ids}
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "special_tokens": {"[CLS]": special},
    }
    return {"post_processor": {"type": "Sequence", "processors": [template]}}


FIRST = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (sequence(*[replace("a", "a" * 100)] * 3), "normalizer may turn one character into 1e+06"),
        (sequence(*[replace("a", "a" * 100)] * 999), "normalizer may turn one character into inf"),
        (sequence({"type": "Prepend", "prepend": "a" * 10**7}), "has 10,000,000 characters"),
        (sequence(table("a" * 20_000)), r"normalizer may turn one character into 2e\+04"),
        ({"pre_tokenizer": {"pretokenizers": [{"type": "ByteLevel"}] * 30}}, "pre_tokenizer may"),
        ({"decoder": {"decoders": [replace("a", "a" * 10)] * 3}}, "decoder may turn one character"),
        ({"model": {"unk_token": "a" * 5000}}, "'aaaaaaaaaaaaaaaaaaaa'... has 5,000 characters"),
        ({"model": {"vocab": {"a" * 5000: 1}}}, "has 5,000 characters"),
        ({"added_tokens": [{"content": "a" * 5000}]}, "has 5,000 characters"),
        ({"model": {"max_input_chars_per_word": 10**9}}, "max_input_chars_per_word is 1000000000"),
        (around([FIRST] * 60 + [TEXT], 2), "post_processor makes 121 tokens"),
        (around([FIRST, TEXT], 10**6), "post_processor makes 1,000,001 tokens"),
        (around([TEXT, TEXT]), "post_processor makes 102 tokens"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_tokenizers_with_excessive_growth_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("1e+06", r"1e\+06")):
        growth(values)


def test_tokenizers_with_moderate_growth_are_accepted() -> None:
    growth({"normalizer": None, "post_processor": None, "model": None, "added_tokens": []})
    growth({**around([FIRST, TEXT, FIRST]), "model": {"max_input_chars_per_word": 100}})
    growth({"model": {"merges": [["a" * 5000, "b"]]}})


def test_a_long_text_is_tried_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules allow a text to become too long; only a text that does so is rejected."""
    monkeypatch.setattr(tokenizer, "GROWN", 3000)
    inner = Tokenizer(models.WordPiece({"[UNK]": 0, "b": 1, "##b": 2}, unk_token="[UNK]"))
    inner.normalizer = normalizers.Replace("a", "b" * 60)
    used = SubwordTokenizer(inner)
    assert used._at_once == 50
    texts = ["b" * 30, "a", "", "b" * 80, "b"]
    assert [len(one) for one in used.tokenize_batch(texts)] == [30, 60, 0, 80, 1]
    for call in (used.tokenize, lambda text: used.tokenize_batch(["b", text])):
        with pytest.raises(ValueError, match="it turns 100 characters into 6,000"):
            call("a" * 100)
    assert module.USUAL == 40
    # The 100 characters become one word of 1,870 characters, which is allowed. WordPiece turns a
    # word of more than 100 characters into one unknown token.
    assert len(used.tokenize("b" * 70 + "a" * 30)) == 1
