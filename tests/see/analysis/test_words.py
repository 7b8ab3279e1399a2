"""Tests of the tokens of each word, and of content words."""

import pytest

from qkv.models import Model
from qkv.see.analysis._words import content, explain_tokens, is_punctuation, word_spans, words_of

from ..support import BANK, TOKENS


@pytest.mark.parametrize(
    "token", [".", ",", "...", "!?", "$", "+", "`", "¿", "—", "。", "«", "##.", "~"]
)
def test_punctuation(token: str) -> None:
    assert is_punctuation(token)


@pytest.mark.parametrize("token", ["a", "##s", "[UNK]", "3", "don't", "€5", "😀", "你", "é", "##1"])
def test_tokens_that_are_not_punctuation(token: str) -> None:
    assert not is_punctuation(token)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["[CLS]", "to", "##ken", "##s", ".", "[SEP]"], ["[CLS]", "tokens", ".", "[SEP]"]),
        (["The", "Ġri", "ver", ",", "Ġbank"], ["The", "river", ",", "Ġbank"]),
        (["▁the", "▁ri", "ver", ".", "</s>"], ["▁the", "river", ".", "</s>"]),
        (["the</w>", "ri", "ver</w>", ".</w>"], ["the</w>", "river", ".</w>"]),
        (["Ġ(", "see", "ing", "Ġit"], ["Ġ(", "seeing", "Ġit"]),
        # Chinese has no spaces between words
        (["▁今天", "天气", "很", "▁GPT", "s"], ["▁今天", "天气", "很", "GPTs"]),
        (["[CLS]", "##ing"], None),  # without subwords, there is nothing to join
        (["a", "b"], None),
        ([], None),
    ],
)
def test_subwords_form_words(tokens: list[str], words: list[str] | None) -> None:
    special = [token in ("[CLS]", "[SEP]", "</s>") for token in tokens]
    spans = word_spans(tokens, special)
    assert (spans and [word for _, _, word in spans]) == words
    if spans:
        assert [first for first, _, _ in spans] == [0, *(end for _, end, _ in spans[:-1])]
        assert spans[-1][1] == len(tokens)


def test_only_a_text_with_split_words_has_word_spans(minilm: Model) -> None:
    trace = minilm.trace(BANK)
    assert word_spans(trace.tokens, trace.special) is None
    trace = minilm.trace("Tokenization helps")
    spans = word_spans(trace.tokens, trace.special)
    assert [word for _, _, word in spans] == ["[CLS]", "tokenization", "helps", "[SEP]"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[CLS] she fed the cats . [SEP]", "fed cats"),
        ("[CLS] un ##believ ##able news [UNK] [SEP]", "un ##believ ##able news"),
        ("the Ġold Ġman Ġwas Ġnot Ġtired", "Ġold Ġman Ġtired"),
        # there is no list of German function words, so every word counts
        ("sie füttert die katzen .", "sie füttert die katzen"),
        ("the king ' s men don ' t see s", "king men see s"),
        ("i am you", "i am you"),  # without content words, every word counts
        ("dogs are dogs", "dogs are dogs"),  # one content word is too few: every word counts
        ("[CLS] . [SEP]", ""),
    ],
)
def test_content_words_mean_something_by_themselves(text: str, expected: str) -> None:
    tokens = text.split()
    flags, _ = content(tokens, [token in ("[CLS]", "[SEP]") for token in tokens])
    assert [token for token, flag in zip(tokens, flags, strict=True) if flag] == expected.split()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "the fish ##erm ##an sat down on the bank .",
            ["fisherman is cut into fish ##erm ##an: ##"],
        ),
        (
            "a fish ##erm ##an sat",
            ["fisherman is", "Read this view with care: 2 of 5 tokens are parts"],
        ),
        ("un ##kind walk ##s are few", ["unkind is cut into un ##kind, and 1 more", "Read this"]),
        ("the [UNK] sat on the mat", ["[UNK] stands for a word for which the model"]),
        ("[UNK] [UNK] [UNK]", ["[UNK] stands", "Read this view with care: 3 of 3 tokens"]),
        ("ĠI Ġwalk ing Ġon Ġthe Ġway", ["walking is cut into walk ##ing: ##"]),
        ("the cat sat", []),
        ("", []),
    ],
)
def test_subwords_and_unknown_words_are_explained(text: str, said: list[str]) -> None:
    tokens = text.split()
    lines = explain_tokens(tokens, [False] * len(tokens))
    assert len(lines) == len(said)
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))
    assert explain_tokens(tokens, [False] * len(tokens), "A") == [f"A: {line}" for line in lines]


def test_words_are_joined_from_subwords_and_listed_once() -> None:
    special = [token in ("[CLS]", "[SEP]") for token in TOKENS]
    assert words_of(TOKENS, special) == ["the", "banker"]
    assert words_of(TOKENS[1:5] * 2, [False] * 8) == ["the", "banker"]
    assert words_of([*TOKENS[1:5], "cat"], [False] * 5, only_content=True) == ["banker", "cat"]
