"""Replace the gaps in a text with a model's mask token; users may type gaps in several ways."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

MASKS = ("[MASK]", "<mask>")  # mask tokens of trained models
GAP = "___"  # how views draw a mask token
# A gap is "[MASK]" or "[mask]". Underscores are a gap if no letter or digit is next to them, as in
# "a ___ cat". A "?" is a gap if it follows a space and is not at the end of the text. The pattern
# `GAPS` in see/page/assets/engine/gaps.js must match the same gaps.
_TYPED = r"\[MASK\]|\[mask\]|(?<!\w)_+(?!\w)|(?<= )\?(?![ \t\r\n]*\Z)"


@dataclass(frozen=True)
class MaskedText:
    """A text in which each gap is replaced by a mask token.

    Attributes:
        text: the text with the mask token in place of each gap.
        gaps: for each gap, the positions `(start, end)` in the original text.
        starts: the positions of the mask tokens in `text`.
        mask: the mask token.
    """

    text: str
    gaps: list[tuple[int, int]]
    starts: list[int]
    mask: str

    def original_spans(self, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Convert spans of `text` to spans of the original text."""
        return [(self._original(start, 0), self._original(end, 1)) for start, end in spans]

    def _original(self, position: int, side: int) -> int:
        """Convert a position in `text` to the position in the original text.

        For a position inside a mask token, return the gap's start (side 0) or end (side 1).
        """
        number = bisect_right(self.starts, position - side) - 1
        if number < 0:
            return position
        beyond = position - self.starts[number] - len(self.mask)
        return self.gaps[number][1] + beyond if beyond >= 0 else self.gaps[number][side]


def mask_gaps(text: str, mask: str | None) -> MaskedText:
    """Replace the gaps of a text with the mask token; if `mask` is None, do not change the text.

    >>> mask_gaps("The oak is a small ?. Is it ?", "[MASK]").text
    'The oak is a small [MASK]. Is it ?'
    >>> text = mask_gaps("snake_case ___ [mask]", "<mask>")
    >>> text.text, text.original_spans([(11, 17)])
    ('snake_case <mask> <mask>', [(11, 14)])
    """
    if mask is None:
        return MaskedText(text, [], [], "")
    pattern = re.compile(f"{re.escape(mask)}|{_TYPED}")
    gaps = [gap.span() for gap in pattern.finditer(text)]
    starts, shift = [], 0
    for first, end in gaps:
        starts.append(first + shift)
        shift += len(mask) - (end - first)
    return MaskedText(pattern.sub(lambda _: mask, text), gaps, starts, mask)
