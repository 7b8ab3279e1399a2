"""Cutting texts at a model's limit, and saying so once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from qkv.text import Tokenized


class Cutter:
    """Cuts texts at a limit and counts how many were too long.

    Args:
        limit: the most tokens of a text; None for no limit.

    >>> import numpy as np
    >>> text = Tokenized(np.arange(4), list("^ab$"), [(0, 0)] * 4, [True, False, False, True])
    >>> [text] = Cutter(3)([text])
    >>> text.tokens, text.ids
    (['^', 'a', '$'], array([0, 1, 3]))
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.count = self.total = self.longest = 0

    def __call__(self, batch: Sequence[Tokenized]) -> list[Tokenized]:
        """The same texts, none of them longer than the limit."""
        self.total += len(batch)
        self.longest = max([self.longest, *map(len, batch)])
        if self.limit is None:
            return list(batch)
        self.count += sum(len(text) > self.limit for text in batch)
        return [_cut(text, self.limit) for text in batch]

    def warn(self) -> None:
        """A warning that counts what was cut, if anything was."""
        if not self.count:
            return
        warnings.warn(
            f"{self.count} of {self.total} texts were cut to {self.limit} tokens "
            f"(the longest has {self.longest})"
            if self.total > 1
            else f"1 of 1 text was cut to {self.limit} tokens (it has {self.longest})",
            UserWarning,
            stacklevel=callers(),
        )


def callers() -> int:
    """For a warning: how many calls up the first one is that is not ours."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("qkv."):
        frame, level = frame.f_back, level + 1
    return level


def _cut(text: Tokenized, limit: int) -> Tokenized:
    """The first tokens, with the special ones at the end kept as the last."""
    if len(text) <= limit:
        return text
    tail = 0
    while text.special[-1 - tail]:
        tail += 1
    keep = [*range(limit - tail), *range(len(text) - tail, len(text))]
    return Tokenized(
        ids=text.ids[keep],
        tokens=[text.tokens[place] for place in keep],
        offsets=[text.offsets[place] for place in keep],
        special=[text.special[place] for place in keep],
    )
