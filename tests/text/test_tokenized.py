"""Tests of tokens in a readable form that is the same for all tokenizers."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from qkv.text.tokenized import find_pieces, plain_tokens
from qkv.trace import Trace

TEXT = "The café's owner said: naïve, isn't it?\nYes 東京"


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 5, trainer)
    return tokenizer


def test_byte_level_subwords_spell_the_words_of_the_text() -> None:
    encoding = byte_level().encode("The café's owner said")
    names = plain_tokens(encoding.tokens, [False] * len(encoding.tokens))
    words = "".join(n[2:] if n.startswith("##") else f" {n}" for n in names)
    assert words.replace(" '", "'").replace(" s ", "s ").split() == [
        "The",
        "café's",
        "owner",
        "said",
    ]


def test_a_partial_character_keeps_its_vocabulary_form() -> None:
    assert plain_tokens(["Ġa", "æĿ"], [False, False]) == ["a", "##æĿ"]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["ðŁ", "ĻĤ"], ["🙂 1/2", "🙂 2/2"]),  # the only tokens of a text
        (["Ġso", "ĠðŁ", "Ļ", "Ĥ", "ly"], ["so", "🙂 1/3", "🙂 2/3", "🙂 3/3", "ly"]),
        (["▁so", "▁", "<0xC3>", "<0xA9>"], ["so", "▁", "é 1/2", "é 2/2"]),
        (["▁so", "Ã", "©"], ["so", "##Ã", "©"]),  # letters of a text, not bytes
        (["ĠÃ", "Ġ©"], ["ĠÃ", "Ġ©"]),  # a space between two bytes
    ],
)
def test_the_tokens_of_a_character_are_named_after_it(
    tokens: list[str], expected: list[str]
) -> None:
    assert plain_tokens(tokens, [False] * len(tokens)) == expected


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["I", "Ġwalk", "ing", "."], ["I", "walk", "##ing", "."]),
        (["▁I", "▁walk", "ing", "!"], ["I", "walk", "##ing", "!"]),
        (["a", "Ċ", "b"], ["a", "⏎", "b"]),
        (["Ġ", "Ġa"], [" ", "a"]),
        (["the", "##ing", "x"], ["the", "##ing", "x"]),
    ],
)
def test_by_hand(tokens: list[str], expected: list[str]) -> None:
    assert plain_tokens(tokens, [False] * len(tokens)) == expected


def test_special_tokens_stay_and_nothing_continues_them() -> None:
    tokens = ["<s>", "The", "Ġcat", "</s>", "ly"]
    names = plain_tokens(tokens, [True, False, False, True, False])
    assert names == ["<s>", "The", "cat", "</s>", "ly"]


def test_a_word_is_found_by_its_plain_subwords() -> None:
    names = plain_tokens(["The", "Ġbank", "er", "Ġat", "Ġthe", "Ġbank"], [False] * 6)
    assert find_pieces(names, ["bank"]) == [[5]]
    assert find_pieces(names, ["bank", "##er"]) == [[1, 2]]


def test_a_word_is_found_whole_or_not_at_all() -> None:
    tokens = ["bank", "##er", "bank", "un", "##bank", "bank"]
    assert find_pieces(tokens, ["bank"]) == [[2], [5]]
    assert find_pieces(tokens, ["bank", "##er"]) == [[0, 1]]
    assert find_pieces(tokens, ["un"]) == []
    assert find_pieces(tokens, ["river"]) == []


def test_with_tokens_renames_the_tokens_of_a_trace() -> None:
    trace = Trace({}, tokens=[["Ġa", "Ġb"], ["Ġc"]], single=False)
    renamed = trace.with_tokens([["a", "b"], ["c"]])
    assert (renamed.tokens, trace.tokens) == ([["a", "b"], ["c"]], [["Ġa", "Ġb"], ["Ġc"]])
    with pytest.raises(ValueError, match=r"\[2, 1\] tokens, but \[1\] names"):
        trace.with_tokens([["a"]])
