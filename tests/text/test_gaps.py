"""Tests of the ways to write a missing word, and of the characters that each gap takes."""

import pytest

from qkv.text.gaps import mask_gaps
from text.odd_gaps import ODD


@pytest.mark.parametrize(("text", "gaps"), ODD)
def test_odd_texts(text: str, gaps: list[tuple[int, int]]) -> None:
    found = mask_gaps(text, "<m>")
    assert found.gaps == gaps
    pieces, last = [], 0
    for start, end in gaps:
        pieces += [text[last:start], "<m>"]
        last = end
    assert found.text == "".join([*pieces, text[last:]])


def test_spans_map_back_to_the_original_text() -> None:
    found = mask_gaps("ab ___ cd ?. ef", "[MASK]")
    assert found.text == "ab [MASK] cd [MASK]. ef"
    assert found.original_spans((i, i + 1) for i in (0, 2, 9, 19, 22)) == [
        (0, 1), (2, 3), (6, 7), (11, 12), (14, 15),
    ]  # fmt: skip
    assert found.original_spans([(3, 9)]) == [(3, 6)]
    # a part of the mask token maps to the whole gap
    assert found.original_spans([(4, 6)]) == [(3, 6)]
    assert found.original_spans([(13, 19)]) == [(10, 11)]
    assert mask_gaps("a _", None).text == "a _"
