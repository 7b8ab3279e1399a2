"""Texts as they come, cut into tokens, and those of like length together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.models.model import Model
from qkv.models.run.inputs import as_ids, ids_given
from qkv.models.run.truncation import Truncator
from qkv.text.tokenizer import check_text

TEXTS, LETTERS = 4096, 2**19  # that are read and sorted at once, or fewer
PLACES = 2**11  # that are run at once, padding included, or one text


class Read(NamedTuple):
    """One text that was read."""

    number: int  # counted from 0
    given: str | Array  # a string, or the ids of its tokens
    ids: Array  # (T,), cut as in `trace`


class _Reader:
    """Texts, or the ids of their tokens, as ids (T,), cut as in `trace`."""

    def __init__(self, model: Model, call: str, empty: bool) -> None:
        self.model, self.call, self.empty = model, call, empty
        self.truncator = model.tokenizer and Truncator(
            model.tokenizer, model.max_seq_length, model.mask
        )

    def checked(self, text: Any, number: int) -> str | Array:
        """A text that can be read, or ids that are the model's."""
        model, name, text = self.model, f"text {number}", as_ids(text)
        if not isinstance(text, np.ndarray | list | tuple):
            if self.truncator is None:
                raise ValueError(
                    f"{self.call}: {name} is no list of ids and {model.name} has no "
                    "tokenizer: give the ids of tokens"
                )
            return check_text(text, call=self.call, name=name)
        rows, limit = len(model.embedding.table), model.max_seq_length
        found = ids_given([text], rows=rows, limit=limit, call=self.call, first=number)
        assert found is not None
        return found[1][0].ids

    def __call__(self, window: Sequence[str | Array], first: int) -> list[Read]:
        """The tokens of texts that were checked."""
        strings = [self.model.prepared(text) for text in window if isinstance(text, str)]
        cut = iter(self.truncator(strings) if self.truncator else ())
        found = [
            Read(number, text, next(cut).ids if isinstance(text, str) else text)
            for number, text in enumerate(window, first)
        ]
        return [text for text in found if len(text.ids) or self.empty]


def windows(model: Model, texts: Any, call: str, *, empty: bool = False) -> Iterator[list[Read]]:
    """Texts as they come, some hundred at a time; at the end a warning if some were cut.

    Args:
        model: whose tokens they are cut into.
        texts: any iterable of texts, or of the ids of their tokens; or one of these.
        call: who is named in an error.
        empty: whether texts without a token are there too.

    Raises:
        TypeError: `texts` cannot be gone through, or a text is neither a string nor ids.
        ValueError: ids are not the model's, or a text is a string and the model has no tokenizer.
    """
    texts = as_ids(texts)
    if isinstance(texts, str) or _is_ids(texts):
        texts = [texts]
    if not isinstance(texts, Iterable):
        kind = type(texts).__name__
        raise TypeError(f"{call}: texts is {kind}: give strings, or the ids of their tokens")
    read = _Reader(model, call, empty)
    window: list[str | Array] = []
    size = first = 0
    for number, text in enumerate(texts):
        window.append(read.checked(text, number))
        size += len(window[-1])
        if len(window) == TEXTS or size >= LETTERS:
            yield read(window, first)
            window, size, first = [], 0, number + 1
    yield read(window, first)
    if read.truncator:
        read.truncator.cut.warn()


def _is_ids(texts: Any) -> bool:
    """Whether it is the ids of one text."""
    if isinstance(texts, np.ndarray):
        return texts.ndim == 1 and texts.dtype.kind in "iu"
    return isinstance(texts, list | tuple) and isinstance(next(iter(texts), None), int | np.integer)


def batches(window: Sequence[Read], most: int) -> Iterator[list[Read]]:
    """Texts of like length together, of at most so many weights a head and `PLACES`, or one.

    Half of these are enough where the next text is shorter: texts of one length need no padding.

    >>> texts = [Read(n, "", np.zeros(length)) for n, length in enumerate((2, 5, 3, 1))]
    >>> [[len(text.ids) for text in batch] for batch in batches(texts, 30)]
    [[5], [3, 2, 1]]
    >>> alike = [Read(n, "", np.zeros(length)) for n, length in enumerate([9] * 120 + [8] * 70)]
    >>> [[len(batch), len(batch[0].ids)] for batch in batches(alike, 9**6)]
    [[120, 9], [70, 8]]
    """
    batch: list[Read] = []
    for text in sorted(window, key=lambda text: -len(text.ids)):
        longest = len((batch or [text])[0].ids)
        places = (1 + len(batch)) * longest
        shorter = len(text.ids) < longest and 2 * places > PLACES
        if batch and (shorter or places > PLACES or places * longest > most):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch
