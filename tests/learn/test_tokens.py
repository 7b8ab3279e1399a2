"""Tokenizers trained on a text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qkv.learn import train_tokenizer
from qkv.text import SubwordTokenizer

LINES = ["The cat sat on the mat.\n", "A dog ran to the caf\u00e9 \u4e16\u754c!\n", "\n"] * 30


def test_wordpieces(tmp_path) -> None:
    tokenizer = train_tokenizer(LINES, "wordpiece", 120)
    assert 40 < len(tokenizer) <= 120
    names = list(tokenizer.vocabulary)[:5]
    assert names == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    cut = tokenizer("The CAT \u2603")
    assert cut.tokens == ["[CLS]", "the", "cat", "[UNK]", "[SEP]"]
    assert cut.special == [True, False, False, False, True]
    assert tokenizer.decode(cut.ids[:3]) == "the cat"
    tokenizer.save(tmp_path / "tokenizer.json")
    again = SubwordTokenizer.from_file(tmp_path / "tokenizer.json")
    assert again.vocabulary == tokenizer.vocabulary


def test_bytes_give_the_text_back_whatever_it_is() -> None:
    tokenizer = train_tokenizer(LINES, "bytes", 300)
    assert 256 < len(tokenizer) <= 300
    assert tokenizer.vocabulary["<|endoftext|>"] == 0
    for text in ("The cat sat.", "\u2603 not seen\n\n  twice ", "caf\u00e9"):
        assert tokenizer.decode(tokenizer(text).ids) == text
    assert len(tokenizer("The cat sat on the mat.")) < 12


def test_the_same_text_gives_the_same_tokens_in_another_process() -> None:
    text = Path(train_tokenizer.__code__.co_filename).read_text(encoding="utf-8")
    program = (
        "import sys; from qkv.learn import train_tokenizer\n"
        "lines = sys.stdin.read().splitlines(keepends=True)\n"
        "for kind in ('wordpiece', 'bytes'):\n"
        "    print(train_tokenizer(lines, kind, 400).vocabulary)"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program], input=text.encode(), capture_output=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(answers) == 1


def test_letters_beyond_the_limit_are_unknown() -> None:
    rare = [chr(0x400 + k) for k in range(100)]
    tokenizer = train_tokenizer([*["the cat sat\n"] * 200, *rare], "wordpiece", 60)
    assert len(tokenizer) <= 60
    assert tokenizer("the cat").tokens[1:-1] == ["the", "cat"]
    assert tokenizer(rare[-1]).tokens[1:-1] == ["[UNK]"]


def test_a_kind_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="choose wordpiece or bytes"):
        train_tokenizer(LINES, "words", 300)
