"""Texts that are run together: some thousand of them in their order, then those of like length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any

import numpy as np

from qkv.text.tokenizer import check_no_mapping, check_text, check_texts, parts_of

TEXTS = 2048  # that are cut into tokens and sorted at once, or fewer
LETTERS = 2**19  # that have so many characters


def by_length(batch: Sequence[Sized], most: int) -> Iterator[list[int]]:
    """The numbers of texts of like length, which have so many tokens together, or of one text.

    >>> list(by_length(["abc", "a", "abcdef", "ab"], 6))
    [[2], [0, 3, 1]]
    """
    order = sorted(range(len(batch)), key=lambda index: -len(batch[index]))
    places = iter(order)
    for part in parts_of([batch[index] for index in order], most):
        yield list(islice(places, len(part)))


def checked_texts(sentences: Any, call: str) -> Iterable[str]:
    """Texts that are strings; those of a list are looked at before any work is done."""
    check_no_mapping(sentences, call=call)
    if isinstance(sentences, list | tuple | np.ndarray) or not isinstance(sentences, Iterable):
        return check_texts(sentences, call=call)
    if isinstance(sentences, bytes | bytearray | str):
        return [check_text(sentences, call=call, name="text")]
    return (
        check_text(text, call=call, name=f"text {number}") for number, text in enumerate(sentences)
    )


def windows(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts in their order, some thousand at a time."""
    window: list[str] = []
    letters = 0
    for text in texts:
        window.append(text)
        letters += len(text)
        if len(window) == TEXTS or letters >= LETTERS:
            yield window
            window, letters = [], 0
    if window:
        yield window
