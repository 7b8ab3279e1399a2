"""Divide many texts into batches, and join the arrays of the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

import numpy as np

from qkv.arrays import Array, is_whole_number, whole_number
from qkv.models.run.inputs import as_ids
from qkv.text import Tokenized
from qkv.text.tokenizer import check_no_mapping
from qkv.trace.activations import WORDS, activation, axes

POSITIONS = 1024  # the maximum for a batch, including padding, if no batch size is given


def parts(batch: Sequence[Tokenized], batch_size: int | None) -> list[range]:
    """Return the batches, as ranges of texts: `batch_size` texts, or up to `POSITIONS` positions.

    >>> texts = [Tokenized(np.zeros(n, int), [""] * n, [], []) for n in (500, 500, 500, 10)]
    >>> parts(texts, None), parts(texts, 3)
    ([range(0, 2), range(2, 4)], [range(0, 3), range(3, 4)])
    """
    most = POSITIONS if batch_size is None else np.inf
    ranges, first, longest = [], 0, 0
    for number, text in enumerate(batch):
        longest = max(longest, len(text))
        count = number + 1 - first
        if count > 1 and (longest * count > most or count > (batch_size or count)):
            ranges.append(range(first, number))
            first, longest = number, len(text)
    return [*ranges, range(first, len(batch))]


class Joined:
    """The joined arrays of texts that run in batches.

    Args:
        texts: B, the number of texts.
        longest: T, the number of tokens in the longest text.

    Attributes:
        arrays: by name, (B, T, ...), 0 in the padding, scores -inf.

    >>> joined = Joined(2, 3)
    >>> joined.add(0, {"hook_embed": np.ones((1, 3, 1))})
    >>> joined.add(1, {"hook_embed": np.full((1, 2, 1), 2.0)})
    >>> joined.arrays["hook_embed"][..., 0].tolist()
    [[1.0, 1.0, 1.0], [2.0, 2.0, 0.0]]
    """

    def __init__(self, texts: int, longest: int) -> None:
        self.arrays: dict[str, Array] = {}
        self._texts, self._longest = texts, longest
        self._same: dict[str, str] = {}  # from a name to the first name of the same array

    def add(self, first: int, arrays: Mapping[str, Array]) -> None:
        """Add the arrays of a batch; its first text has the index `first`."""
        if not self.arrays:
            self._begin(arrays)
        for name, array in arrays.items():
            if name not in self._same:
                place = (slice(first, first + len(array)), *map(slice, array.shape[1:]))
                self.arrays[name][place] = array

    def _begin(self, arrays: Mapping[str, Array]) -> None:
        firsts: dict[int, str] = {}
        for name, array in arrays.items():
            other = firsts.setdefault(id(array), name)
            if other != name:
                self._same[name], self.arrays[name] = other, self.arrays[other]
                continue
            named = zip(axes(name, array.shape), array.shape, strict=True)
            shape = [self._longest if axis in WORDS else size for axis, size in named]
            shape[0] = self._texts
            fill = activation(name).fill
            self.arrays[name] = (
                np.full(shape, fill, array.dtype) if fill else np.zeros(shape, array.dtype)
            )


def joined(
    batch: Sequence[Tokenized], batch_size: int | None, run: Callable[[range], dict[str, Array]]
) -> dict[str, Array]:
    """Return the arrays of all texts; `run` returns the arrays of a batch."""
    which = parts(batch, batch_size)
    if len(which) == 1:
        return run(which[0])
    whole = Joined(len(batch), max(map(len, batch)))
    for part in which:
        whole.add(part.start, run(part))
    return whole.arrays


def batches(texts: Any, batch_size: Any) -> Iterator[Any]:
    """Return texts in their order, `batch_size` at a time; an array is split into arrays.

    Raises:
        TypeError: `texts` is a single text, or not iterable.
        ValueError: `batch_size` is below 1.
    """
    call = "trace_stream"
    size = whole_number(batch_size, call=call, name="batch_size", least=1)
    check_no_mapping(texts, call=call)
    texts = as_ids(texts)
    listed = isinstance(texts, list | tuple | np.ndarray) and len(texts) > 0
    if isinstance(texts, str | bytes | bytearray) or (listed and is_whole_number(texts[0])):
        raise TypeError(f"{call}: texts is one text: give a list of texts, or call trace(text)")
    if not isinstance(texts, Iterable):
        raise TypeError(f"{call}: texts is {type(texts).__name__}: give a list of strings")
    if isinstance(texts, np.ndarray):
        return (texts[first : first + size] for first in range(0, len(texts), size))
    rest = map(_no_number, count(), texts)
    return iter(lambda: list(islice(rest, size)), [])


def _no_number(number: int, text: Any) -> Any:
    """Return a text unless it is a number: numbers would be read as the ids of one text."""
    if is_whole_number(text):
        raise TypeError(
            f"trace_stream: text {number} is {type(text).__name__}: give strings, or (T,) integers"
        )
    return text
