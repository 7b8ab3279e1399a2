"""The words of a text: which tokens make one up, and which of them carry content."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence

import numpy as np

from qkv.arrays import Array
from qkv.text.tokenized import is_piece

Span = tuple[int, int, str]

_SPECIAL = re.compile(r"\[(CLS|SEP|PAD|MASK|BOS|EOS)\]|<\|.+\|>|</?(s|pad|bos|eos|mask|cls|sep)>")
_WORD_STARTS = ("Ġ", "▁")


def is_punctuation(token: str) -> bool:
    """Whether a token is made of punctuation marks and ASCII symbols only.

    >>> [is_punctuation(token) for token in ("river", ".", "##ing", "...", "€5", "+", "Ġ,", "▁")]
    [False, True, False, True, False, True, True, True]
    """
    text = bare(token)
    return bool(text) and all(
        mark in _WORD_STARTS or mark in string.punctuation or unicodedata.category(mark)[0] == "P"
        for mark in text
    )


def is_special(token: str) -> bool:
    """Whether a token looks like one that a tokenizer added: for tokens that come without a word.

    >>> [is_special(token) for token in ("[CLS]", "<s>", "<|endoftext|>", "[UNK]", "<3")]
    [True, True, True, False, False]
    """
    return bool(_SPECIAL.fullmatch(token))


def bare(token: str) -> str:
    """A token without the marks that tokenizers put on it.

    >>> [bare(token) for token in ("Ġriver", "▁river", "river</w>", "##ing")]
    ['river', 'river', 'river', 'ing']
    """
    token = token.removesuffix("</w>") or token
    return token[2:] if is_piece(token) else token.lstrip("".join(_WORD_STARTS)) or token


def content(tokens: Sequence[str], special: Sequence[bool]) -> Array:
    """Which tokens carry content, bool: neither special nor punctuation."""
    pairs = zip(tokens, special, strict=True)
    return np.array([not flag and not is_punctuation(token) for token, flag in pairs], dtype=bool)


def word_spans(tokens: Sequence[str], special: Sequence[bool]) -> list[Span] | None:
    """The words that pieces make up, as (first, last + 1, word); None where no token is a piece.

    Read from the marks of WordPiece ("##ing" goes on), of byte-level BPE and SentencePiece ("Ġa",
    "▁a" begin a word) and of older BPE ("a</w>" ends one). A mark of punctuation is a word.

    >>> word_spans(["i", "walk", "##ing", "."], [False] * 4)
    [(0, 1, 'i'), (1, 3, 'walking'), (3, 4, '.')]
    >>> word_spans(["I", "Ġwalk", "ing", "."], [False] * 4)
    [(0, 1, 'I'), (1, 3, 'walking'), (3, 4, '.')]
    """
    starts = any(token.startswith(_WORD_STARTS) for token in tokens)
    ends = any(token.endswith("</w>") for token in tokens)
    groups: list[list[int]] = []
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else ""
        goes_on = is_piece(token) or (starts and not token.startswith(_WORD_STARTS))
        goes_on = goes_on or (ends and not before.endswith("</w>"))
        apart = special[place] or is_punctuation(token) or not place
        if apart or special[place - 1] or is_punctuation(before) or not goes_on:
            groups.append([place])
        else:
            groups[-1].append(place)
    if len(groups) == len(tokens):
        return None
    return [
        (group[0], group[-1] + 1, "".join(bare(tokens[place]) for place in group))
        if len(group) > 1
        else (group[0], group[0] + 1, tokens[group[0]])
        for group in groups
    ]
