"""Texts to vectors, however many: in windows, sorted and packed in each, in their order outside."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import length_hint
from typing import Any

import numpy as np

from qkv.arrays import Array, whole_number
from qkv.models.files.sentence import Sentence
from qkv.models.tasks.truncation import Truncator, callers
from qkv.progress import progress
from qkv.text import Tokenized, Tokenizer
from qkv.text.tokenizer import check_text, check_texts, parts_of

OUTPUTS = ("sentence_embedding", "token_embeddings")
TEXTS = 2048  # that are cut into tokens and sorted at once, or fewer
LETTERS = 2**19  # that have so many characters
TOKENS = 128  # of a text as `batch_size` counts it


class EmptyText(ValueError):
    """A text has no token to make a vector of.

    Attributes:
        number: which text it is, counted from 0.
        reason: what is missing.
    """

    def __init__(self, number: int, unread: int) -> None:
        where = f"behind the prompt's {unread}" if unread else "in it"
        self.number, self.reason = number, f"there is no token {where}"
        super().__init__(f"encode: text {number} is empty: {self.reason}")


@dataclass
class Encoder:
    """What `Model.encode` does, with its options checked; it says what they are.

    Attributes:
        name: the model's, for errors.
        tokenizer: the model's.
        sentence: what its files say about texts and their vectors.
        limit: the most tokens of a text.
        dim: D, of a token's vector.
        dtype: that of its vectors.
        run: from texts to the vectors of their tokens, end to end, and where each text begins.
        batch_size: and so on, the options of `Model.encode`.
    """

    name: str
    tokenizer: Tokenizer
    sentence: Sentence
    limit: int | None
    dim: int
    dtype: np.dtype[Any]
    run: Callable[[Sequence[Tokenized]], tuple[Array, Array]]
    batch_size: int = 32
    normalize_embeddings: bool | None = None
    output_value: str = "sentence_embedding"
    prompt_name: str | None = None
    prompt: str | None = None

    def __post_init__(self) -> None:
        size = whole_number(self.batch_size, call="encode", name="batch_size", least=1)
        self.batch_size = size
        if self.output_value not in OUTPUTS:
            raise ValueError(
                f"encode: output_value is {self.output_value!r}: choose {' or '.join(OUTPUTS)}"
            )
        self._tokens_wanted = self.output_value == "token_embeddings"
        if self._tokens_wanted and self.normalize_embeddings:
            raise ValueError(
                "encode: normalize_embeddings is for sentence vectors and output_value is "
                "token_embeddings: leave it out"
            )
        self._before = self._chosen_prompt()
        self._unread = 0  # tokens of the prompt that are left out when a text's are pooled
        if self._before and not self.sentence.include_prompt:
            [alone] = self.tokenizer.tokenize_batch(self._whole([""]))
            ending = len(alone) > 0 and self.tokenizer.is_special(int(alone.ids[-1]))
            self._unread = len(alone) - ending

    def all(self, sentences: Any, show: bool | None = None) -> Any:
        """All vectors at once, (n, D), or those of the tokens of each text."""
        parts = self.windows(sentences, show)
        if self._tokens_wanted:
            return [rows for part in parts for rows in part]
        width = self.sentence.width(self.dim)
        if not isinstance(sentences, list | tuple | np.ndarray):
            return np.concatenate([np.empty((0, width), self.dtype), *parts])
        # of known number: joined at the end, they would need their memory twice
        vectors, done = np.empty((len(sentences), width), self.dtype), 0
        for part in parts:
            vectors[done : done + len(part)] = part
            done += len(part)
        return vectors

    def windows(self, sentences: Any, show: bool | None = None) -> Iterator[Any]:
        """The same, some thousand texts at a time."""
        truncator = Truncator(self.tokenizer, self.limit)
        total = length_hint(sentences) or None
        with progress("encode", total, show) as advance:
            for texts in _windows(_checked(sentences)):
                first = truncator.total
                batch = truncator(self._whole(texts))
                for number, text in enumerate(batch, first):
                    if len(text) <= self._unread:
                        raise EmptyText(number, self._unread)
                yield self._vectors(batch, advance)
        truncator.warn()

    def _vectors(self, batch: Sequence[Tokenized], advance: Callable[[int], None]) -> Any:
        """What is wanted of texts, in their order; `advance` is told how many are done.

        Those of like length are run together, of `batch_size * TOKENS` tokens at most.
        """
        found: list[Any] = [None] * len(batch)
        order = sorted(range(len(batch)), key=lambda index: -len(batch[index]))
        places = iter(order)
        for part in parts_of([batch[index] for index in order], self.batch_size * TOKENS):
            rows, cu_lengths = self.run(part)
            for first, last in pairwise(cu_lengths):
                text = rows[first:last]
                found[next(places)] = (
                    text.copy() if self._tokens_wanted else self.sentence.pool(text, self._unread)
                )
            advance(len(part))
        if self._tokens_wanted:
            return found
        given = self.normalize_embeddings
        normalize = self.sentence.normalize if given is None else given
        return self.sentence.finish(np.array(found), normalize=normalize)

    def _whole(self, texts: Sequence[str]) -> list[str]:
        """Texts behind the prompt; blanks around one are no part of it."""
        return [self.sentence.prepared((self._before + text).strip()) for text in texts]

    def _chosen_prompt(self) -> str:
        """What goes before each text."""
        prompts, name = self.sentence.prompts, self.prompt_name
        if self.prompt is not None:
            if name is not None:
                message = "encode: prompt and prompt_name are both given: prompt_name is not used"
                warnings.warn(message, UserWarning, stacklevel=callers())
            return check_text(self.prompt, call="encode", name="prompt")
        name = self.sentence.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in prompts:
            raise ValueError(
                f"encode: there is no prompt {name!r:.80}: {self.name} has {', '.join(prompts)}"
            )
        return prompts[name]


def _checked(sentences: Any) -> Iterable[str]:
    """Texts that are strings; those of a list are looked at before any work is done."""
    if isinstance(sentences, list | tuple | np.ndarray) or not isinstance(sentences, Iterable):
        return check_texts(sentences, call="encode")
    if isinstance(sentences, bytes | bytearray | str):
        return [check_text(sentences, call="encode", name="text")]
    return (
        check_text(text, call="encode", name=f"text {number}")
        for number, text in enumerate(sentences)
    )


def _windows(texts: Iterable[str]) -> Iterator[list[str]]:
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
