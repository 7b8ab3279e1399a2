"""Encode many texts: sort groups of texts by length, run batches, and restore the order."""

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice, pairwise, takewhile
from operator import length_hint
from typing import Any

import numpy as np

from qkv.arrays import Array, as_array, whole_number
from qkv.edits import Edits
from qkv.models.core import Core
from qkv.models.files.sentence import Sentence
from qkv.models.run.batches import Layout
from qkv.models.run.edit import EditedRun
from qkv.models.run.inputs import check_ids
from qkv.models.run.truncation import MOST, Truncator, callers
from qkv.progress import progress
from qkv.text.tokenizer import check_no_mapping, check_text, check_texts, parts_of
from qkv.trace import Recorder

OPTIONS = (
    *("batch_size", "normalize_embeddings", "output_value"),
    *("prompt_name", "prompt", "truncate_dim", "task"),
)
OUTPUTS = ("sentence_embedding", "token_embeddings", None)
TOKENS = 128  # The number of tokens in a text for which `batch_size` is exact.
TEXTS = 2048  # The maximum number of texts to split into tokens and sort at once.
LETTERS = 2**19  # The maximum number of characters in these texts.


class EmptyText(ValueError):
    """A text is empty: it has no token to pool.

    Attributes:
        number: the index of the text.
        reason: the reason, for the error message.
    """

    def __init__(self, number: int, unread: int, call: str = "encode") -> None:
        where = f"after the prompt's {unread}" if unread else "in it"
        self.number, self.reason = number, f"there is no token {where}"
        super().__init__(f"{call}: text {number} is empty: {self.reason}")


@dataclass
class Encoder:
    """The computation of `Model.encode`, with checked options.

    Attributes:
        model: the model of the route that the texts take.
        batch_size: an option of `Model.encode`, like the next six attributes.
        call: the name of the public call, for errors.
        tokenizer: the model's tokenizer.
        sentence: the settings for texts and their vectors, read from the model's files.
        limit: the maximum number of tokens in a text.
        dtype: the type of the vectors.
        run: `Transformer.packed`, which returns the token vectors of texts, given their ids.
    """

    model: Core
    batch_size: int = 32
    normalize_embeddings: bool | None = None
    output_value: str | None = "sentence_embedding"
    prompt_name: str | None = None
    prompt: str | None = None
    truncate_dim: int | None = None
    task: str | None = None
    call: str = "encode"

    def __post_init__(self) -> None:
        model = self.model
        self.tokenizer = model.reader.need_tokenizer(self.call)
        self.sentence, self.limit = model.sentence, model.max_seq_length
        self.run, self.dtype = model.network.packed, model.network.dtype
        size = whole_number(self.batch_size, call=self.call, name="batch_size", least=1)
        self.batch_size = size
        if self.truncate_dim is not None:
            self.truncate_dim = whole_number(
                self.truncate_dim, call=self.call, name="truncate_dim", least=1, most=self.width
            )
        if self.output_value not in OUTPUTS:
            raise ValueError(
                f"{self.call}: output_value is {self.output_value!r}: choose "
                f"{' or '.join(map(str, OUTPUTS))}"
            )
        self._one_each = self.output_value == "sentence_embedding"
        if not self._one_each and self.normalize_embeddings:
            raise ValueError(
                f"{self.call}: normalize_embeddings is for sentence vectors, but output_value is "
                f"{self.output_value}: omit normalize_embeddings"
            )
        self._before = chosen_prompt(
            self.sentence, self.prompt, self.prompt_name, name=model.name, call=self.call
        )
        self._unread = 0  # the number of prompt tokens that pooling leaves out
        if self._before and not self.sentence.include_prompt:
            [alone] = self.tokenizer.tokenize_batch(self._whole([""]))
            ending = len(alone) > 0 and self.tokenizer.is_special(int(alone.ids[-1]))
            self._unread = len(alone) - ending

    def all(self, sentences: Any, show: bool | None = None, edits: Edits | None = None) -> Any:
        """Return all vectors at once, (n, D), or the other outputs of each text."""
        if edits:
            return self._edited(sentences, show, edits)
        parts = self.windows(sentences, show)
        if not self._one_each:
            return [rows for part in parts for rows in part]
        width = self.truncate_dim or self.width
        if not isinstance(sentences, list | tuple | np.ndarray):
            return np.concatenate([np.empty((0, width), self.dtype), *parts])
        # fill one array if the number of texts is known: joining parts needs twice the memory
        vectors, done = np.empty((len(sentences), width), self.dtype), 0
        for part in parts:
            vectors[done : done + len(part)] = part
            done += len(part)
        return vectors

    def windows(self, sentences: Any, show: bool | None = None) -> Iterator[Any]:
        """Yield the outputs for groups of a few thousand texts."""
        truncator = Truncator(self.tokenizer, self.limit)
        total = length_hint(sentences) or None
        with progress("encode", total, show) as advance:
            for texts in windows(checked_texts(sentences, self.call)):
                first = truncator.cut.total
                batch = self._ids(texts, truncator)
                for number, ids in enumerate(batch, first):
                    self.check(ids, number)
                yield self._vectors(batch, advance)
        truncator.cut.warn()

    def _edited(self, sentences: Any, show: bool | None, edits: Edits) -> Any:
        """Return the outputs of a run with edits; edits need all texts at once."""
        truncator, model = Truncator(self.tokenizer, self.limit), self.model
        texts = truncator(self._whole([*checked_texts(sentences, self.call)]))
        for number, text in enumerate(texts):
            self.check(text.ids, number)
        if not texts:
            return self.all([])
        texts, edited = model._fit(edits, texts)
        batch = [text.ids for text in texts]

        def run(recorder: Callable[[Layout], Recorder]) -> None:
            for numbers in self._parts(batch):
                self.run([batch[i] for i in numbers], record=recorder(Layout(numbers)))

        edited = edited.averaged(sum(map(len, batch)), run)
        with progress("encode", len(batch), show) as advance:
            vectors = self._vectors(batch, advance, edited)
        truncator.cut.warn()
        return vectors

    @property
    def width(self) -> int:
        """The size of a text's vector before it is truncated to `truncate_dim`."""
        return self.sentence.width(self.model._vector_size)

    @property
    def kind(self) -> Hashable:
        """The key of this encoder; encoders with equal keys can run and pool texts together."""
        return self.run, id(self.sentence), self._unread

    def ids(self, texts: Sequence[str], *, whole: bool = False) -> list[Array]:
        """Return the ids (T,) of each text with the prompt, truncated to the limit.

        Raises:
            TypeError: a text is not a string.
            ValueError: a text cannot be split into tokens or, with `whole`, has too many tokens.
        """
        truncator = Truncator(self.tokenizer, self.limit)
        batch = self._ids(texts, truncator)
        if whole and (truncator.cut.count or truncator.cut.torn):
            raise ValueError(f"{self.call}: it {self._too_long()}")
        return batch

    def _too_long(self) -> str:
        limit = f"{self.limit} tokens" if self.limit else f"{MOST:,} characters"
        return f"has more than the {limit} that {self.model.name} reads: shorten it"

    def given(self, ids: Any, name: str, *, whole: bool = False) -> Array:
        """Check ids (T,) that a user gives instead of a text, and truncate them to the limit.

        The ids include special tokens. Truncation keeps the special tokens at the end.

        Args:
            ids: integers in one row.
            name: the name of the ids in errors.
            whole: whether to raise an error instead of truncating.

        Raises:
            TypeError: the ids are not a one-dimensional row of integers.
            ValueError: there are no ids or too many, an id has no row in the token table, or a
                prompt is given, although prompts require texts.
        """
        if self.prompt_name is not None and self._before:
            raise ValueError(
                f"{name} is ids, and the prompt {self.prompt_name!r} goes before texts: give texts"
            )
        row = as_array(ids, call=self.call, name=name)
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise TypeError(f"{name} is {row.dtype} {row.shape}: give a text, or (T,) integers")
        if not row.size:
            raise ValueError(f"{name} has no ids: give at least one")
        check_ids(row, self.model.reader.rows, name)
        row = row.astype(np.int64, copy=False)
        if self.limit is None or len(row) <= self.limit:
            return row
        if whole:
            raise ValueError(f"{name} {self._too_long()}")
        tail = takewhile(self.tokenizer.is_special, reversed(row[-self.limit :].tolist()))
        kept = sum(1 for _ in tail)
        return np.concatenate([row[: self.limit - kept], row[len(row) - kept :]])

    def check(self, ids: Array, number: int) -> None:
        """Raise an `EmptyText` if the ids of text `number` include no token to pool."""
        if len(ids) <= self._unread and not self.sentence.static:
            raise EmptyText(number, self._unread, self.call)

    def pooled(self, batch: Sequence[Array], **options: Any) -> Array:
        """Run one batch of ids, and return the input (n, width) of `Sentence.finish`.

        The options are those of `Transformer.run`.
        """
        rows, cu_lengths = self.run(batch, **options)
        return self._pooled(batch, rows, cu_lengths)

    def _pooled(self, batch: Sequence[Array], rows: Array, cu_lengths: Array) -> Array:
        """Return a vector for each text, given the packed vectors (total, D) of the tokens."""
        head = self.model._embedder
        if head is not None:
            return head(rows, cu_lengths, np.concatenate(batch))
        pool, unread = self.sentence.pool, self._unread
        return np.array([pool(rows[first:last], unread) for first, last in pairwise(cu_lengths)])

    def _ids(self, texts: Sequence[str], truncator: Truncator) -> list[Array]:
        return [text.ids for text in truncator(self._whole(texts))]

    def _parts(self, batch: Sequence[Array]) -> Iterator[list[int]]:
        """Yield the indices of the texts in each batch."""
        return by_length(batch, self.batch_size * TOKENS)

    def _vectors(
        self, batch: Sequence[Array], advance: Callable[[int], None], edits: EditedRun | None = None
    ) -> Any:
        """Return the outputs of texts, in their order; `advance` gets the number of texts done."""
        outputs: list[Any] = [None] * len(batch)
        for numbers in self._parts(batch):
            part = [batch[index] for index in numbers]
            options = {} if edits is None else edits.packed(numbers, part)
            vectors = self._wanted(part, **options)
            for number, vector in zip(numbers, vectors, strict=True):
                outputs[number] = vector
            advance(len(part))
        if not self._one_each:
            return outputs
        return self.sentence.finish(
            np.array(outputs), normalize=self.normalize_embeddings, truncate_dim=self.truncate_dim
        )

    def _wanted(self, batch: Sequence[Array], **options: Any) -> Any:
        """Return the outputs of texts, given as ids; `Sentence.finish` is not yet applied."""
        if self._one_each:
            return self.pooled(batch, **options)
        rows, cu_lengths = self.run(batch, **options)
        tokens = [rows[first:last].copy() for first, last in pairwise(cu_lengths)]
        if self.output_value is not None:
            return tokens
        pooled = self._pooled(batch, rows, cu_lengths)
        vectors = self.sentence.finish(pooled, truncate_dim=self.truncate_dim)
        return [
            {
                "input_ids": ids.copy(),
                "attention_mask": np.ones_like(ids),
                "token_embeddings": own,
                "sentence_embedding": vector.copy(),
            }
            for ids, own, vector in zip(batch, tokens, vectors, strict=True)
        ]

    def _whole(self, texts: Sequence[str]) -> list[str]:
        """Put the prompt before the texts, and remove white space around the results."""
        sentence = self.sentence
        return [sentence.prepared(sentence.stripped(self._before + text)) for text in texts]


def by_length(batch: Sequence[Sized], most: int) -> Iterator[list[int]]:
    """Yield the indices of texts of similar length: one text, or several with up to `most` tokens.

    >>> list(by_length(["abc", "a", "abcdef", "ab"], 6))
    [[2], [0, 3, 1]]
    """
    order = sorted(range(len(batch)), key=lambda index: -len(batch[index]))
    rest = iter(order)
    for part in parts_of([batch[index] for index in order], most):
        yield list(islice(rest, len(part)))


def checked_texts(sentences: Any, call: str) -> Iterable[str]:
    """Check that all texts are strings: a list at once, other iterables text by text."""
    check_no_mapping(sentences, call=call)
    if isinstance(sentences, list | tuple | np.ndarray) or not isinstance(sentences, Iterable):
        return check_texts(sentences, call=call)
    if isinstance(sentences, bytes | bytearray | str):
        return [check_text(sentences, call=call, name="text")]
    return (
        check_text(text, call=call, name=f"text {number}") for number, text in enumerate(sentences)
    )


def windows(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield groups of a few thousand texts, in order."""
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


def chosen_prompt(
    sentence: Sentence, prompt: str | None, prompt_name: str | None, *, name: str, call: str
) -> str:
    """Return the given prompt, the prompt with this name, or the default prompt.

    Raises:
        TypeError: the prompt is not a string.
        ValueError: no prompt has this name.

    >>> chosen_prompt(Sentence(prompts={"query": "find: "}), None, "query", name="x", call="encode")
    'find: '
    """
    if prompt is not None:
        if prompt_name is not None:
            message = f"{call}: prompt and prompt_name are both given: prompt_name is not used"
            warnings.warn(message, UserWarning, stacklevel=callers())
        return check_text(prompt, call=call, name="prompt")
    wanted = sentence.default_prompt if prompt_name is None else prompt_name
    if wanted is None:
        return ""
    if wanted not in sentence.prompts:
        raise ValueError(
            f"{call}: unknown prompt {wanted!r:.80}: {name} has {', '.join(sentence.prompts)}"
        )
    return sentence.prompts[wanted]
