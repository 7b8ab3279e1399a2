"""Divide texts into batches, and join the results of the batches."""

from collections.abc import Iterable, Iterator, Sized
from itertools import count, islice, pairwise
from typing import Any, TypeVar

import numpy as np

from qkv._argument_errors import type_error
from qkv.arrays import Array, Arrays, is_whole_number, whole_number
from qkv.models.network.batch import Batch
from qkv.models.run.text_reader import as_ids
from qkv.text.tokenizer import check_no_mapping
from qkv.trace.activations import WORDS, activation, axes

Text = TypeVar("Text", bound=Sized)

POSITIONS = 1024  # The default maximum number of positions in a batch, including padding.

LETTERS = 2**19  # The number of characters after which a group of texts ends.


def parts(batch: Batch, batch_size: int | None) -> list[Batch]:
    """Divide a batch into smaller batches, in order.

    A smaller batch has `batch_size` texts. If `batch_size` is None, it has at most `POSITIONS`
    positions.

    >>> from qkv.text import Tokenized
    >>> texts = [Tokenized(np.zeros(n, int), [""] * n, [], []) for n in (500, 500, 500, 10)]
    >>> [[len(part) for part in parts(Batch(texts), size)] for size in (None, 3)]
    [[2, 2], [3, 1]]
    """
    most = POSITIONS if batch_size is None else np.inf
    starts, longest = [0], 0
    for number, text in enumerate(batch.texts):
        longest = max(longest, len(text))
        count = number + 1 - starts[-1]
        if count > 1 and (longest * count > most or count > (batch_size or count)):
            starts.append(number)
            longest = len(text)
    if len(starts) == 1:
        return [batch]
    return [batch[first:end] for first, end in pairwise([*starts, len(batch)])]


class Joined:
    """Joins the arrays of several batches of texts.

    Args:
        batch: all texts.

    Attributes:
        arrays: the joined arrays (B, T, ...), keyed by name. Padding is 0, or -inf in scores.

    >>> from qkv.text import Tokenized
    >>> texts = [Tokenized(np.zeros(n, int), [""] * n, [], []) for n in (3, 2)]
    >>> joined = Joined(Batch(texts))
    >>> joined.add(Batch(texts[:1], [0]), {"hook_embed": np.ones((1, 3, 1))})
    >>> joined.add(Batch(texts[1:], [1]), {"hook_embed": np.full((1, 2, 1), 2.0)})
    >>> joined.arrays["hook_embed"][..., 0].tolist()
    [[1.0, 1.0, 1.0], [2.0, 2.0, 0.0]]
    """

    def __init__(self, batch: Batch) -> None:
        self.arrays: dict[str, Array] = {}
        self._batch = batch
        self._same: dict[str, str] = {}  # Maps each alias to the name of the stored array.

    def add(self, part: Batch, arrays: dict[str, Array]) -> None:
        """Add the arrays of a part of the batch."""
        if part is self._batch:
            self.arrays = arrays
            return
        if not self.arrays:
            self._begin(arrays)
        first = part.numbers[0] - self._batch.numbers[0]
        for name, array in arrays.items():
            if name not in self._same:
                cells = (slice(first, first + len(array)), *map(slice, array.shape[1:]))
                self.arrays[name][cells] = array

    def _begin(self, arrays: Arrays) -> None:
        firsts: dict[int, str] = {}
        for name, array in arrays.items():
            other = firsts.setdefault(id(array), name)
            if other != name:
                self._same[name], self.arrays[name] = other, self.arrays[other]
                continue
            named = zip(axes(name, array.shape), array.shape, strict=True)
            shape = [self._batch.longest if axis in WORDS else size for axis, size in named]
            shape[0] = len(self._batch)
            fill = activation(name).fill
            self.arrays[name] = (
                np.full(shape, fill, array.dtype) if fill else np.zeros(shape, array.dtype)
            )


def windows(texts: Iterable[Text], most: int) -> Iterator[list[Text]]:
    """Yield groups of up to `most` texts, in order; a group also ends at `LETTERS` characters.

    >>> [len(group) for group in windows(["the", "cat", "sat"], 2)]
    [2, 1]
    """
    window: list[Text] = []
    letters = 0
    for text in texts:
        window.append(text)
        letters += len(text)
        if len(window) == most or letters >= LETTERS:
            yield window
            window, letters = [], 0
    if window:
        yield window


def batches(texts: Any, batch_size: Any) -> Iterator[Any]:
    """Yield lists of `batch_size` texts, in order; if `texts` is an array, yield arrays.

    Raises:
        TypeError: `texts` is a single text, or not iterable.
        ValueError: `batch_size` is below 1.
    """
    size = whole_number(batch_size, name="batch_size", least=1)
    check_no_mapping(texts)
    texts = as_ids(texts)
    listed = isinstance(texts, list | tuple | np.ndarray) and len(texts) > 0
    if isinstance(texts, str | bytes | bytearray) or (listed and is_whole_number(texts[0])):
        raise type_error("`texts` is one text; pass a list of texts, or call trace(text)")
    if not isinstance(texts, Iterable):
        raise type_error(f"`texts` is {type(texts).__name__}; pass a list of strings")
    if isinstance(texts, np.ndarray):
        return (texts[first : first + size] for first in range(0, len(texts), size))
    rest = map(_no_number, count(), texts)
    return iter(lambda: list(islice(rest, size)), [])


def _no_number(number: int, text: Any) -> Any:
    """Return `text`, or raise a TypeError if it is a number.

    A number means that the caller gave the ids of a single text instead of a list of texts.
    """
    if is_whole_number(text):
        raise type_error(
            f"text {number} is {type(text).__name__}; pass strings, or integers of shape (T,)"
        )
    return text
