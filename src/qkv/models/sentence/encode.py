"""Turn texts into vectors: `Model.encode`, and the choice of a model for queries or documents."""

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice, pairwise
from operator import length_hint
from typing import Any

import numpy as np

from qkv._argument_errors import mark_unnamed, public_call, public_items, type_error, value_error
from qkv._progress import progress
from qkv.arrays import Array, as_array, whole_number
from qkv.edits import Ablate, Edit, Edits, Hide, edits_of
from qkv.extras import need
from qkv.models._model_base import ModelBase
from qkv.models.files.sentence import LAYERS, Sentence
from qkv.models.network.batch import Batch, PackedIds
from qkv.models.network.pooling import to_length_one
from qkv.models.run.batches import parts, windows
from qkv.models.run.check_edits import check
from qkv.models.run.edited_run import EditedRun
from qkv.models.run.text_reader import check_device, check_ids
from qkv.models.run.truncation import MAX_CHARS, Truncator, callers, indices_to_keep
from qkv.models.sentence.vectors import as_tensors, check_precision, quantize
from qkv.text import Tokenizer
from qkv.text.tokenizer import check_no_mapping, check_text, check_texts, parts_of
from qkv.trace.recorder import pad_rows

OPTIONS = (
    *("batch_size", "normalize_embeddings", "output_value"),
    *("prompt_name", "prompt", "truncate_dim", "task"),
)
OUTPUTS = ("sentence_embedding", "token_embeddings", *LAYERS, None)
TOKENS = 128  # A batch has at most `batch_size * TOKENS` tokens; a longer text runs alone.
TEXTS = 2048  # The maximum number of texts that are sorted by length together, as one group.


class EmptyText(ValueError):
    """The error for an empty text, which has no token to pool.

    Attributes:
        number: the index of the empty text.
        reason: the part of the error message that says why the text is empty.
    """

    def __init__(self, number: int, unread: int) -> None:
        where = f"after the prompt's {unread}" if unread else "in it"
        self.number, self.reason = number, f"there is no token {where}"
        super().__init__(f"text {number} is empty: {self.reason}")


@dataclass
class Encoder:
    """An object that checks the options of `Model.encode` and computes the vectors of texts.

    Attributes:
        model: the model that encodes the texts; with several routes, the model of the chosen route.
        batch_size: as in `Model.encode`.
        normalize_embeddings: as in `Model.encode`.
        output_value: as in `Model.encode`.
        prompt_name: as in `Model.encode`.
        prompt: as in `Model.encode`.
        truncate_dim: as in `Model.encode`.
        task: as in `Model.encode`.
        tokenizer: the model's tokenizer.
        sentence: the settings for texts, read from the model's files, e.g. prompts and pooling.
        limit: the maximum number of tokens in a text.
        dtype: the type of the vectors.
        network: the model's network, which computes the token vectors of texts.
    """

    model: ModelBase
    batch_size: int = 32
    normalize_embeddings: bool | None = None
    output_value: str | None = "sentence_embedding"
    prompt_name: str | None = None
    prompt: str | None = None
    truncate_dim: int | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        model = self.model
        self.tokenizer = model.reader.need_tokenizer()
        self.sentence, self.limit = model.sentence, model.max_seq_length
        if (limit := self.sentence.task_limits.get(self.task or "")) is not None:
            self.limit = min(filter(None, (limit, model.network.embedding.max_positions)))
        self.network, self.dtype = model.network, model.network.dtype
        size = whole_number(self.batch_size, name="batch_size", least=1)
        self.batch_size = size
        if self.truncate_dim is not None:
            self.truncate_dim = whole_number(
                self.truncate_dim, name="truncate_dim", least=1, most=self.width
            )
        if self.output_value not in OUTPUTS:
            raise value_error(
                f"output_value is {self.output_value!r}: choose {' or '.join(map(str, OUTPUTS))}"
            )
        name = LAYERS.get(self.output_value or "")
        is_splade = self.sentence.splade is not None and self.output_value == "sparse"
        if name is not None and self.output_value not in self.sentence.layers and not is_splade:
            raise value_error(
                f'output_value is "{self.output_value}", but {model.name} has no {name}; pass '
                "another output_value, or copy this file of BGE-M3 into the model's folder"
            )
        self._skipped: list[int] | None = None  # for a multi-vector model, ids without a vector
        if self.sentence.skipped is not None:
            if self.output_value != "token_embeddings":
                raise value_error(
                    f"{model.name} has no vector for a whole text; pass "
                    'output_value="token_embeddings" for a vector of each token'
                )
            ids = map(self.tokenizer.id_of, self.sentence.skipped.get(self.task or "document", ()))
            self._skipped = [index for index in ids if index is not None]
        self._expansion = self.sentence.expansion if self.task == "query" else None
        marker, id_of = self.sentence.markers.get(self.task or "", ""), self.tokenizer.id_of
        self._marker = id_of(marker) if id_of(marker) is not None else id_of(marker.strip())
        filler = self._expansion and (self._expansion.token or self.tokenizer.mask)
        most, length = (
            model.network.embedding.max_positions,
            self._expansion and self._expansion.length,
        )
        if length and (id_of(filler or "") is None or length > (most or length)):
            raise value_error(
                f"{model.name} must fill queries with {filler!r} up to {length} tokens, but it has "
                "no such token or too few positions: correct query_expansion in its files"
            )
        self._filler = id_of(filler or "") or 0
        self._one_each = self.output_value == "sentence_embedding"
        if not self._one_each and self.normalize_embeddings:
            raise value_error(
                f"normalize_embeddings is for sentence vectors, but output_value is "
                f"{self.output_value}: omit normalize_embeddings"
            )
        self._before = chosen_prompt(self.sentence, self.prompt, self.prompt_name, name=model.name)
        if self._marker is None:
            self._before = marker + self._before
        elif self.limit is not None:
            self.limit -= 1
        self._unread = 0  # the number of prompt tokens that pooling leaves out
        if self._before and not self.sentence.include_prompt:
            [alone] = self._truncator(model.max_seq_length)(self._whole([""]))
            # as in sentence-transformers, a special or unknown token at the end does not count
            ending = any(_is_unused(self.tokenizer, index) for index in alone.ids[-1:].tolist())
            self._unread = len(alone) - ending

    def all(self, sentences: Any, show: bool | None = None, edits: Edits | None = None) -> Any:
        """Return sentence vectors as one array (n, D), or other outputs as a list, one per text."""
        if edits:
            return self._encode_edited(sentences, show, edits)
        parts = self.windows(sentences, show)
        if not self._one_each:
            return [rows for part in parts for rows in part]
        width = self.truncate_dim or self.width
        if not isinstance(sentences, list | tuple | np.ndarray):
            return np.concatenate([np.empty((0, width), self.dtype), *parts])
        # fill one array, because `np.concatenate` would need memory for two copies of the vectors
        vectors, done = np.empty((len(sentences), width), self.dtype), 0
        for part in parts:
            vectors[done : done + len(part)] = part
            done += len(part)
        return vectors

    def windows(self, sentences: Any, show: bool | None = None) -> Iterator[Any]:
        """Yield the outputs for groups of a few thousand texts."""
        truncator = self._truncator(self.limit)
        total = length_hint(sentences) or None
        with progress("encode", total, show) as advance:
            for texts in windows(checked_texts(sentences), TEXTS):
                first = truncator.cut.total
                batch = self._ids(texts, truncator)
                for number, ids in enumerate(batch, first):
                    self.check(ids, number)
                yield self._vectors(batch, advance)
        truncator.cut.warn()

    def _encode_edited(self, sentences: Any, show: bool | None, edits: Edits) -> Any:
        """Split all texts into tokens, then run the model with edits, and return the outputs."""
        if self._marker is not None or self._expansion is not None:
            raise value_error(
                "a ColBERT model adds tokens that are not counted in the positions of edits; "
                "omit the edits"
            )
        truncator, model = self._truncator(self.limit), self.model
        texts = Batch(truncator(self._whole([*checked_texts(sentences)])))
        for number, text in enumerate(texts):
            self.check(text.ids, number)
        if not texts:
            return self.all([])
        texts, edited = model.check_edits(edits, texts)
        batch = [text.ids for text in texts]
        edited = edited.average_outputs(self.network, self._parts(batch))
        with progress("encode", len(batch), show) as advance:
            vectors = self._vectors(batch, advance, edited)
        truncator.cut.warn()
        return vectors

    @property
    def width(self) -> int:
        """The size of a text's vector before the truncation to `truncate_dim`."""
        return self.sentence.width(self.model.vector_size)

    @property
    def kind(self) -> Hashable:
        """A key: encoders with equal keys can run their texts in one batch."""
        return id(self.network), id(self.sentence), self._unread, self.normalize_embeddings

    def ids(self, texts: Sequence[str], *, whole: bool = False) -> list[Array]:
        """Return the ids (T,) of each text with the prompt, truncated to the limit.

        Raises:
            TypeError: a text is not a string.
            ValueError: a text cannot be split into tokens; or a text has too many tokens, and
                `whole` is True.
        """
        truncator = self._truncator(self.limit)
        batch = self._ids(texts, truncator)
        if whole and (truncator.cut.count or truncator.cut.torn):
            raise value_error(f"it {self._too_long()}")
        return batch

    def _too_long(self) -> str:
        limit = f"{self.limit} tokens" if self.limit else f"{MAX_CHARS:,} characters"
        return f"has more than the {limit} that {self.model.name} reads: shorten it"

    def checked_ids(self, ids: Any, name: str, *, whole: bool = False) -> Array:
        """Check ids (T,) that a user gives instead of a text, and truncate them to the limit.

        The ids include special tokens. `indices_to_keep` says which ids the truncation keeps.

        Args:
            ids: integers in one row.
            name: the name of the ids, for errors.
            whole: whether to raise an error if there are more ids than the limit.

        Raises:
            TypeError: the ids are not a one-dimensional row of integers.
            ValueError: there are no ids; there are too many ids, and `whole` is True; an id has no
                row in the token table; or a prompt is given, although prompts require texts.
        """
        if self.prompt_name is not None and self._before:
            raise ValueError(
                f"{name} consists of token ids, but the prompt {self.prompt_name!r} can only be "
                "put before a text; pass texts"
            )
        row = as_array(ids, name=name)
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise TypeError(
                f"{name} has dtype {row.dtype} and shape {row.shape}; "
                "pass a text, or integers of shape (T,)"
            )
        if not row.size:
            raise ValueError(f"{name} has no ids; pass at least one")
        check_ids(row, self.model.reader.rows, f"{name}: ")
        row = row.astype(np.int64, copy=False)
        if self.limit is None or len(row) <= self.limit:
            return row
        if whole:
            raise ValueError(f"{name} {self._too_long()}")
        special = [*map(self.tokenizer.is_special, row.tolist())]
        return row[indices_to_keep(special, self.limit, self.tokenizer.cuts_left)]

    def check(self, ids: Array, number: int) -> None:
        """Raise an `EmptyText` if the ids of text `number` include no token to pool.

        As in sentence-transformers, a text that has only tokens of the prompt can be pooled (its
        mean is 0), unless the pooling is a maximum.
        """
        least = self._unread if "max" in self.sentence.modes else 0
        if len(ids) <= least and not self.sentence.static:
            raise mark_unnamed(EmptyText(number, least))

    def pool_texts(self, texts: Sequence[Array]) -> Array:
        """Run texts, given as ids; return a pooled vector for each, (n, width), without scaling."""
        batch = PackedIds.of(texts)
        return self._pool(batch, self.network.run(batch)[0])

    def _pool(self, batch: Batch, rows: Array) -> Array:
        """Return a vector for each text, given the packed vectors (total, D) of the tokens."""
        head = self.model.embedder
        if head is not None:
            return head(rows, batch.cu, batch.ids)
        pool, unread, splade = self.sentence.pool, self._unread, self.sentence.splade
        if splade is not None:
            logits = self.model.network.logits  # of one text at a time, because they are large
            return np.array([splade(logits(rows[a:b])) for a, b in pairwise(batch.cu)])
        return np.array([pool(rows[first:last], unread) for first, last in pairwise(batch.cu)])

    def _truncator(self, limit: int | None) -> Truncator:
        return self.model.reader.truncator(limit, fills_gaps=False)

    def _ids(self, texts: Sequence[str], truncator: Truncator) -> list[Array]:
        batch = [text.ids for text in truncator(self._whole(texts))]
        if self._marker is not None:
            batch = [np.insert(ids, 1, self._marker) for ids in batch]
        if self._expansion is None:
            return batch
        missing = [max(0, self._expansion.length - len(ids)) for ids in batch]
        pairs = zip(batch, missing, strict=True)
        return [np.pad(ids, (0, n), constant_values=self._filler) for ids, n in pairs]

    def _parts(self, texts: Sequence[Array]) -> Iterator[PackedIds]:
        """Yield batches of texts of similar length."""
        for numbers in by_length(texts, self.batch_size * TOKENS):
            yield PackedIds.of([texts[index] for index in numbers], numbers=numbers)

    def _vectors(
        self, batch: Sequence[Array], advance: Callable[[int], None], edits: EditedRun | None = None
    ) -> Any:
        """Return the outputs of texts, in their order.

        After each batch, `advance` is called with the number of texts in the batch.
        """
        outputs: list[Any] = [None] * len(batch)
        for part in self._parts(batch):
            for number, vector in zip(part.numbers, self._run_batch(part, edits), strict=True):
                outputs[number] = vector
            advance(len(part))
        if not self._one_each:
            return outputs
        return self.sentence.finish(
            np.array(outputs), normalize=self.normalize_embeddings, truncate_dim=self.truncate_dim
        )

    def _run_batch(self, batch: Batch, edits: EditedRun | None) -> Any:
        """Return the outputs of one batch; sentence vectors are not yet scaled or truncated."""
        if self._expansion is not None and not self._expansion.attend:
            others = batch.ids != self._filler  # fillers before a real token stay visible
            ends = [
                a + int(np.flatnonzero(others[a:b]).max(initial=0)) for a, b in pairwise(batch.cu)
            ]
            real = np.arange(len(others)) <= np.repeat(ends, np.diff(batch.cu))
            batch.keys = pad_rows(real, batch.cu)[:, None, None]
        rows, _ = self.network.run(batch, edits)
        if self._one_each:
            return self._pool(batch, rows)
        if self._skipped is not None:
            rows = self.sentence.finish(rows)
            has_vector = ~np.isin(batch.ids, self._skipped)
            return [rows[a:b][has_vector[a:b]] for a, b in pairwise(batch.cu)]
        if self.output_value in LAYERS:
            return self._by_layer(batch, rows)
        tokens = [rows[first:last].copy() for first, last in pairwise(batch.cu)]
        if self.output_value is not None:
            return tokens
        pooled, texts = self._pool(batch, rows), np.split(batch.ids, batch.cu[1:-1])
        vectors = self.sentence.finish(pooled, truncate_dim=self.truncate_dim)
        return [
            {
                "input_ids": ids.copy(),
                "attention_mask": np.ones_like(ids),
                "token_embeddings": embeddings,
                "sentence_embedding": vector.copy(),
            }
            for ids, embeddings, vector in zip(texts, tokens, vectors, strict=True)
        ]

    def _by_layer(self, batch: Batch, rows: Array) -> list[Any]:
        """Return the outputs "sparse" or "multi_vector" of a batch, given its token vectors.

        Source:
            Chen et al. 2024, "BGE M3-Embedding", section 3.2, and the code of FlagEmbedding.
        """
        if self.sentence.splade is not None:
            pooled = [(np.arange(len(one)), one) for one in self._pool(batch, rows)]
        else:
            vectors, known = self.sentence.layers[str(self.output_value)](rows), self.tokenizer
            texts = [(batch.ids[a:b], vectors[a:b]) for a, b in pairwise(batch.cu)]
            if self.output_value == "multi_vector":
                return [to_length_one(one[1:]) for _, one in texts]
            unused = [n for n in set(batch.ids.tolist()) if _is_unused(known, n)]
            pooled = [(ids, np.where(np.isin(ids, unused), 0, one[:, 0])) for ids, one in texts]
        found: list[dict[int, float]] = []
        for ids, weights in pooled:
            found.append({})
            for index in np.flatnonzero(weights > 0):
                token, weight = int(ids[index]), float(weights[index])
                found[-1][token] = max(weight, found[-1].get(token, 0.0))
        return found

    def _whole(self, texts: Sequence[str]) -> list[str]:
        """Put the prompt before each text."""
        return [self._before + text for text in texts]


def _is_unused(tokenizer: Tokenizer, index: int) -> bool:
    """Return whether a token has no weight in a sparse vector: it is special or unknown."""
    return tokenizer.is_special(index) or tokenizer.token(index) == tokenizer.unknown


def by_length(batch: Sequence[Sized], most: int) -> Iterator[list[int]]:
    """Yield batches of texts of similar length, as lists of indices.

    A batch has at most `most` tokens, except a batch with a single long text.

    >>> list(by_length(["abc", "a", "abcdef", "ab"], 6))
    [[2], [0, 3, 1]]
    """
    order = sorted(range(len(batch)), key=lambda index: -len(batch[index]))
    rest = iter(order)
    for part in parts_of([batch[index] for index in order], most):
        yield list(islice(rest, len(part)))


def checked_texts(sentences: Any) -> Iterable[str]:
    """Check that all texts are strings; check each text of an iterator only when it is read."""
    check_no_mapping(sentences)
    if isinstance(sentences, list | tuple | np.ndarray) or not isinstance(sentences, Iterable):
        return check_texts(sentences)
    if isinstance(sentences, bytes | bytearray | str):
        return [check_text(sentences, name="text")]
    return (check_text(text, name=f"text {number}") for number, text in enumerate(sentences))


def chosen_prompt(
    sentence: Sentence, prompt: str | None, prompt_name: str | None, *, name: str
) -> str:
    """Return `prompt` if given, else the prompt named `prompt_name`, else the default prompt.

    Raises:
        TypeError: the prompt is not a string.
        ValueError: no prompt has the given name.

    >>> chosen_prompt(Sentence(prompts={"query": "find: "}), None, "query", name="x")
    'find: '
    """
    if prompt is not None:
        if prompt_name is not None:
            message = "prompt and prompt_name are both given: prompt_name is not used"
            warnings.warn(message, UserWarning, stacklevel=callers())
        return check_text(prompt, name="prompt")
    wanted = sentence.default_prompt if prompt_name is None else prompt_name
    if wanted is None:
        return ""
    if wanted not in sentence.prompts:
        raise value_error(
            f"unknown prompt {wanted!r:.80}: the prompts of {name} are "
            f"{', '.join(sentence.prompts)}"
        )
    return sentence.prompts[wanted]


@public_call("encode")
def encode(
    model: ModelBase,
    inputs: str | Iterable[str],
    *,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
    normalize_embeddings: bool | None = None,
    output_value: str | None = "sentence_embedding",
    prompt_name: str | None = None,
    prompt: str | None = None,
    truncate_dim: int | None = None,
    precision: str | None = "float32",
    convert_to_numpy: bool = True,
    convert_to_tensor: bool = False,
    device: Any = None,
    pool: Any = None,
    chunk_size: int | None = None,
    task: str | None = None,
    ablate: Ablate = (),
    hide: Hide = (),
    edit: Edit = None,
) -> Any:
    """Return a vector for each text or image, pooled and scaled as the model's files say.

    Texts of similar length run together, without padding. A text longer than `max_seq_length` is
    truncated as in `trace`; the model's files may set other limits for queries and documents
    (`task`). White space around a text is kept; the tokenizer decides whether it becomes tokens.

    Args:
        inputs: one text or any iterable of texts. For a model that reads images, one image or
            several images, as in `trace`; the head must compute vectors, as in CLIP.
        batch_size: the number of images in a batch. A batch of texts has at most `128 * batch_size`
            tokens, so it holds `batch_size` texts of 128 tokens, more texts if they are shorter,
            and fewer texts if they are longer. A text with more than `128 * batch_size` tokens runs
            alone.
        show_progress_bar: whether to show a progress bar; if None, a bar appears only on a terminal
            and only if the work takes a long time.
        normalize_embeddings: whether vectors are scaled to length 1; None follows the model's
            files.
        output_value: "sentence_embedding"; "token_embeddings" for the last vectors of all tokens,
            including special tokens; or None for a dict with both. A multi-vector model (ColBERT)
            supports only "token_embeddings": the output of its last module, without the tokens that
            its files skip for this `task` (by default, "document"). The vector of a SPLADE model
            has one number for each word of the vocabulary. "sparse" gives the numbers above 0 as a
            dict {token id: weight}, for SPLADE models and for BGE-M3, and "multi_vector" gives
            BGE-M3's vectors of all tokens after the first, scaled to length 1.
        prompt_name: the name of the prompt to put before each text. The prompts are in the model's
            files. If `prompt_name` is None, the default prompt in these files, if any, is used.
        prompt: the text of a prompt, instead of `prompt_name`.
        truncate_dim: the number of leading dimensions of each vector to keep; None keeps all. If
            the model's files require vectors with norm 1, each vector is scaled first and then
            truncated, as in sentence-transformers. `normalize_embeddings=True` scales the truncated
            vectors. Token vectors are not truncated.
        precision: the format of the vectors. "float32" and None keep the computed floats. "int8"
            and "uint8" divide each dimension's range, from its smallest to its largest number in
            these texts, into 256 steps, so the steps depend on the texts. "binary" and "ubinary"
            keep one bit per number: 1 if the number is positive. In "ubinary", eight bits form a
            uint8; in "binary", 128 is subtracted and the result is an int8.
        convert_to_numpy: False for a list of torch tensors, one per text.
        convert_to_tensor: True for one torch tensor, (n, D).
        device: None or "cpu", the only device.
        pool: a `qkv.models.Pool` of this model, with processes that share the work.
        chunk_size: the number of texts in each request to a process of the pool. By default, each
            process gets about ten requests; a request has at most 5,000 texts.
        task: the use of the texts ("query" or "document"), which selects the route in a model with
            routes; None selects the default route.
        ablate: heads to ablate, as in `trace`. With `ablate`, `hide` or `edit`, all texts are split
            into tokens before the first text is run.
        hide: words, positions and edges to mask, as in `trace`; positions include the prompt.
        edit: activations to change, as in `trace`. If an edit is a function, each call to it
            receives a batch of texts. The texts of a batch may be in any order; `at.texts` has the
            index of each text in `inputs`. If an edit is an array, it has one row per text, in the
            order of `inputs`.

    Returns:
        The vectors (n, D), in the order of the texts; (D,) for one string; (0, D) if there are no
        texts. With "token_embeddings", the result is a list of arrays (T_i, D), or one array (T, D)
        for one string. With `output_value=None`, the result is a list of dicts, or one dict for one
        string. A dict has "input_ids" and "attention_mask" (T_i,), "token_embeddings" (T_i, D), and
        "sentence_embedding" (D,). The dtype of vectors is float64 for a float64 model, and float32
        for other models. `precision` may change this dtype to int8 or uint8. With `truncate_dim`, D
        is `truncate_dim`. With "binary" and "ubinary", a vector has D / 8 numbers, rounded up.

    Raises:
        TypeError: a text is not a string; the texts are a dict; or `trace` does not accept the
            images or the edits.
        ValueError: a text has no tokens; a prompt or route does not exist; `precision` needs
            several texts; an argument is invalid, or does not apply to images; the head for images
            does not compute vectors; or `trace` does not accept the images or the edits.
        ImportError: tensors are requested, but torch is not installed.

    Source:
        For `precision`: `quantize_embeddings` of sentence-transformers.

    >>> import qkv
    >>> qkv.load("random").encode("I love you").shape
    (8,)
    >>> qkv.load("random").encode(["I love you"], truncate_dim=3).shape
    (1, 3)
    >>> qkv.load("random").encode(["I love you"], precision="ubinary").shape
    (1, 1)
    """
    if model.reader.has_images:
        model.reader.refuse_images(inputs)
    check_device(device)
    precision = "float32" if precision is None else precision
    check_precision(precision, output_value=output_value)
    tensors = convert_to_tensor or not convert_to_numpy
    torch = need("torch", "torch") if tensors else None
    options: dict[str, Any] = {"batch_size": batch_size, "truncate_dim": truncate_dim}
    options["normalize_embeddings"] = normalize_embeddings
    of_texts = {"prompt_name": prompt_name, "prompt": prompt, "task": task}
    single, edits = model.reader.is_single(inputs), edits_of(edit, ablate, hide)
    if not model.can("text"):
        whole = output_value == "sentence_embedding"
        others = {"output_value": None if whole else str(output_value), "pool": pool}
        model.refuse(**of_texts, **others, chunk_size=chunk_size)
        vectors: Any = encode_images(model, inputs, edits, show_progress_bar, options)
    else:
        encoder = text_encoder(model, output_value=output_value, **options, **of_texts)
        texts = [inputs] if single else inputs
        check(edits, encoder.model.network, encoder.model.reader)
        if pool is None:
            vectors = encoder.all(texts, show_progress_bar, edits)
        elif pool.model is not model:
            raise value_error(
                f"the pool is for a different model, {pool.model.name}: start a pool for this model"
            )
        elif edits:
            raise value_error("pool cannot be combined with ablate, hide or edit: omit one of them")
        else:
            vectors = pool.encode(encoder, texts, chunk_size, show_progress_bar)
    if precision != "float32":
        vectors = quantize(vectors, precision)
    if torch is not None:
        vectors = as_tensors(vectors, torch, joined=convert_to_tensor)
    return vectors[0] if single else vectors


def encode_images(
    model: ModelBase, images: Any, edits: Edits, show: bool | None, options: Mapping[str, Any]
) -> Array:
    """Return a vector for each image, (n, width); `options` holds options of `encode`."""
    model.need("encode")
    head, size, most = model.head, options["batch_size"], options["truncate_dim"]
    assert head is not None  # a model that can encode has a head
    size = whole_number(size, name="batch_size", least=1)
    if most is not None:
        width = head.steps.outputs
        most = whole_number(most, name="truncate_dim", least=1, most=width)
    batch, edited = model.check_edits(edits, model.read(images))
    edited = model.with_means(edited, batch, size)
    vectors = []
    with progress("encode", len(batch), show) as advance:
        for part in parts(batch, size):
            vectors.append(head(model.network.run(part, edited)[0], part.cu))
            advance(len(part))
    whole, normalize = np.concatenate(vectors), options["normalize_embeddings"]
    return model.sentence.finish(whole, normalize=normalize, truncate_dim=most)


@public_call("encode")
def encode_query(
    model: ModelBase,
    inputs: str | Iterable[str],
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    **options: Any,
) -> Any:
    """Encode queries with the task "query" and, by default, the prompt "query".

    Args:
        inputs: one text or any iterable of texts.
        prompt_name: as in `encode`.
        prompt: as in `encode`.
        options: the other options of `encode`.

    Returns:
        The result of `encode`.
        For a model without prompts or routes, the task and the prompt have no effect.

    Raises:
        TypeError: as in `encode`.
        ValueError: as in `encode`.

    >>> import qkv
    >>> qkv.load("random").encode_query("I love you").shape
    (8,)
    """
    prompt_name = "query" if prompt is None and prompt_name is None else prompt_name
    return encode(model, inputs, prompt_name=prompt_name, prompt=prompt, task="query", **options)


@public_call("encode")
def encode_document(
    model: ModelBase,
    inputs: str | Iterable[str],
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    **options: Any,
) -> Any:
    """Encode documents with the task "document" and, by default, the prompt "document".

    Args:
        inputs: one text or any iterable of texts.
        prompt_name: as in `encode`.
        prompt: as in `encode`.
        options: the other options of `encode`.

    Returns:
        The result of `encode`.
        For a model without prompts or routes, the task and the prompt have no effect.

    Raises:
        TypeError: as in `encode`.
        ValueError: as in `encode`.

    >>> import qkv
    >>> qkv.load("random").encode_document(["I love you"]).shape
    (1, 8)
    """
    prompt_name = "document" if prompt is None and prompt_name is None else prompt_name
    return encode(model, inputs, prompt_name=prompt_name, prompt=prompt, task="document", **options)


@public_call("encode_stream")
def encode_stream(
    model: ModelBase,
    sentences: Iterable[str],
    *,
    show_progress_bar: bool | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Encode any number of texts, in groups of a few thousand texts.

    The options `ablate`, `hide` and `edit` need all texts at once and are not supported here.

    Args:
        sentences: any iterable of texts, which is read as the returned iterator advances.
        show_progress_bar: as in `encode`.
        options: other options of `encode`, except `ablate`, `hide` and `edit`.

    Returns:
        An iterator; each item is the result of `encode` for one group of consecutive texts.

    >>> import qkv
    >>> texts = (f"the cat sat {n} times" for n in range(5000))
    >>> sum(len(vectors) for vectors in qkv.load("random").encode_stream(texts))
    5000
    """
    for name in options:
        if name in ("ablate", "hide", "edit"):
            raise type_error(f"{name} needs all texts at once: call encode(texts, {name}=...)")
        if name not in OPTIONS:
            raise type_error(f"unknown argument {name!r}: choose from {', '.join(OPTIONS)}")
    encoder = text_encoder(model, **options)
    return public_items("encode_stream", encoder.windows(sentences, show_progress_bar))


@public_call("encode")
def text_encoder(model: ModelBase, *, task: str | None = None, **options: Any) -> Encoder:
    """Return the `Encoder` for the options of `encode`.

    A server uses the `Encoder` to run the texts of several users in one batch.

    Args:
        model: the model.
        task: as in `encode`.
        options: the options of `encode`.
    """
    route_model = model_for(model, task)
    return Encoder(route_model, task=task, **options)


def model_for(model: ModelBase, task: str | None) -> ModelBase:
    """Return the model that encodes texts with this task.

    In a model with routes, the task selects a route, and each route has its own model.

    Raises:
        TypeError: the task is not a string.
        ValueError: this task has no route.
    """
    if task is not None and not isinstance(task, str):
        raise type_error(f"task is {type(task).__name__}; pass a string, or None")
    routing = model.routing
    if not routing.is_choice:
        return model
    route = routing.way(task)
    if route is None:
        tasks = {name for name, _ in routing.chosen if name is not None}
        known = ", ".join(dict.fromkeys([*routing.ways, *sorted(tasks)]))
        problem = f"no task is given, and {model.name} has no default route"
        if task is not None:
            problem = f"there is no route for the task {task!r:.80} in {model.name}"
        raise value_error(
            f"{problem}; pass task as one of {known}, or call encode_query or encode_document"
        )
    return model.routes[route]
