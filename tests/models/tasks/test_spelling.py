"""Tests of the text of new tokens, with tokenizers that spell a character with several tokens."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from qkv.models.tasks._spelling import Spelling

TEXT = "\u4e16\u00e9\U0001f389 \u4e16\u4e16\u4e16\u4e16b"


def tokenizer_of(kind: str) -> Any:
    """Return a tokenizer whose ids are bytes."""
    if kind == "byte fallback":  # as in Llama 2 and Gemma
        tokenizer = Tokenizer(models.BPE({f"<0x{byte:02X}>": byte for byte in range(256)}, []))
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        return tokenizer
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]  # as in GPT-2
    others = [byte for byte in range(256) if byte not in printed]
    letters = {chr(byte): byte for byte in printed}
    letters |= {chr(256 + number): byte for number, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
@pytest.mark.parametrize("count", range(len(TEXT.encode())))
def test_the_new_text_begins_with_the_character_that_the_prompt_begins(
    kind: str, count: int
) -> None:
    ids = list(TEXT.encode())
    spelling = Spelling(tokenizer_of(kind).decode, ids[:count])
    pieces = [spelling.add(token) for token in ids[count:]]
    prompt = TEXT.encode()[:count].decode(errors="ignore")
    assert "".join(pieces) + spelling.finish() == TEXT.removeprefix(prompt)
    is_cut = prompt.encode() != TEXT.encode()[:count]
    assert spelling.prompt == (prompt if is_cut else None)
    # each token has the span of the character to which its byte belongs
    characters = [number for number, mark in enumerate(TEXT) for _ in mark.encode()][count:]
    assert spelling.spans == [(n - len(prompt), n - len(prompt) + 1) for n in characters]


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_a_replacement_character_in_the_prompt_is_not_repeated(kind: str) -> None:
    decode = tokenizer_of(kind).decode
    spelling = Spelling(decode, list("\ufffd".encode()))
    assert [spelling.add(ord(letter)) for letter in "ab"] == ["a", "b"]
    spelling = Spelling(decode, [*"\ufffd".encode(), 0xC3])
    assert (spelling.add(0xA9), spelling.prompt) == ("\u00e9", "\ufffd")
