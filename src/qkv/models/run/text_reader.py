"""Turn texts or token ids into batches, and check ids, masks, positions and tokenizers."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, type_error, value_error
from qkv.arrays import Array, ArrayLike, as_array
from qkv.models.files.read import TOKENIZER, ModelError, is_whole
from qkv.models.files.sentence import Sentence
from qkv.models.network import Embedding
from qkv.models.network.batch import Batch
from qkv.models.network.transformer import Transformer
from qkv.models.run.truncation import Truncator
from qkv.text import Tokenized, Tokenizer
from qkv.text.tokenized import find_word, plain_tokens, text_of
from qkv.text.tokenizer import check_text, check_texts

# One text or several texts, as strings or as token ids.
Texts = str | Iterable[str] | Sequence[Sequence[int]] | Array


def as_ids(ids: Any) -> Any:
    """Convert a tensor of integers, e.g. from torch, to an array; return other inputs unchanged.

    >>> as_ids(np.array([3, 5])), as_ids("a text")
    (array([3, 5]), 'a text')
    """
    if isinstance(ids, np.ndarray | np.generic) or not hasattr(ids, "__array__"):
        return ids
    array = np.asarray(ids)
    return array if array.dtype.kind in "iu" else ids


def ids_given(
    texts: Any, *, rows: int, limit: int | None, first: int = 0
) -> tuple[bool, list[Tokenized]] | None:
    """Return `(single, tokens)` if `texts` holds ids, else None; `single` is True for one text.

    In error messages, the number of text i is `first + i`.

    Raises:
        TypeError: a text is not a one-dimensional row of integers.
        ValueError: a text has no ids, or more than `limit` ids; or an id has no row in the token
            table.
    """
    texts = as_ids(texts)
    if isinstance(texts, str) or not isinstance(texts, np.ndarray | list | tuple) or not len(texts):
        return None
    item = as_ids(texts[0])
    single = isinstance(item, int | np.integer)
    if not single and not isinstance(item, np.ndarray | list | tuple):
        return None
    rows_of_ids = [np.asarray(as_ids(row)) for row in ([texts] if single else texts)]
    for number, row in enumerate(rows_of_ids, first):
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise type_error(
                f"text {number} is {row.dtype} {row.shape}; pass strings, or integers of shape (T,)"
            )
        if not 0 < len(row) <= (limit or len(row)):
            raise value_error(
                f"text {number} has {len(row)} ids; pass "
                f"{f'1 to {limit}' if limit else 'at least 1'}"
            )
        check_ids(row, rows)
    return single, [
        Tokenized(
            ids=row.astype(np.int64),
            tokens=[str(token) for token in row],
            offsets=[(0, 0)] * len(row),
            special=[False] * len(row),
        )
        for row in rows_of_ids
    ]


def name_tokens(ids: Array, mask: Array, tokenizer: Tokenizer | None) -> Tokenized:
    """Convert a text's ids (T,) to tokens with names; where `mask` is False, the name is ""."""
    tokens, special = [], []
    for token, is_real in zip(ids.tolist(), mask.tolist(), strict=True):
        name = tokenizer.token(token) if is_real and tokenizer is not None else None
        tokens.append((name or str(token)) if is_real else "")
        special.append(not is_real or bool(tokenizer and tokenizer.is_special(token)))
    return Tokenized(ids, tokens, [(0, 0)] * len(tokens), special)


def checked_ids(
    embedding: Embedding, input_ids: Any, attention_mask: Any, side: str = "", counts: bool = True
) -> tuple[Array, Array]:
    """Return ids (B, T) and the mask of tokens (B, T).

    In error messages, `side` (such as "decoder_") precedes the names of arguments. If
    `counts` is True, raise an error if T is larger than the model's number of positions.
    """
    name = f"{side}input_ids"
    ids = as_array(input_ids, name=name)
    if ids.ndim not in (1, 2):
        raise value_error(f"{name} have shape {ids.shape}; pass (B, T), or (T,) for one text")
    if ids.dtype.kind not in "iu" and ids.size:
        raise type_error(f"{name} are {ids.dtype}; pass integers")
    mask = np.atleast_2d(_checked_mask(attention_mask, ids.shape, side))
    ids = np.atleast_2d(ids)
    most = embedding.max_positions
    if counts and most is not None and ids.shape[1] > most:
        raise value_error(
            f"{name} have {ids.shape[1]} columns, but the model has only {most} "
            "positions: shorten the texts"
        )
    check_ids(ids[mask], len(embedding.table))
    return ids, mask


def _checked_mask(attention_mask: Any, shape: tuple[int, ...], side: str) -> Array:
    """Return the mask of tokens, (B, T) bool; by default, all ids are tokens."""
    if attention_mask is None:
        return np.ones(shape, bool)
    name = f"{side}attention_mask"
    mask = as_array(attention_mask, name=name)
    if mask.shape != shape:
        raise value_error(
            f"{name} has shape {mask.shape}, but {side}input_ids have shape {shape}; pass "
            "the same shape"
        )
    if mask.dtype.kind not in "biu" and mask.size:
        raise type_error(
            f"{name} is {mask.dtype}; pass True or 1 for tokens, False or 0 for padding"
        )
    if not np.isin(mask, (0, 1)).all():
        raise value_error(f"{name} holds numbers other than 0 and 1; pass only 0 and 1")
    return mask.astype(bool)


def checked_positions(
    network: Transformer, position_ids: ArrayLike | None, mask: Array, name: str
) -> Any:
    """Return the positions of tokens, (B, T), counted from 0; None if no positions are given.

    Args:
        network: the network.
        position_ids: (B, T), or (1, T) for all texts, numbered as in the library transformers. For
            example, the first position of RoBERTa is 2.
        mask: (B, T), the mask of tokens; positions are ignored where the mask is False.
        name: the name of the model.

    Raises:
        TypeError: the positions are not integers.
        ValueError: the positions have the wrong shape; the model lacks one of the positions; or the
            model has neither learned nor rotary positions.
    """
    if position_ids is None:
        return None
    embedding = network.embedding
    if embedding.positions is None and not any(layer.attn.rotary for layer in network.layers):
        raise value_error(
            f"position_ids are given, but {name} has neither learned nor rotary "
            "positions: omit position_ids"
        )
    positions = as_array(position_ids, name="position_ids")
    if positions.dtype.kind not in "iu" and positions.size:
        raise type_error(f"position_ids are {positions.dtype}; pass integers")
    shape, both = positions.shape, mask.shape
    if np.atleast_2d(positions).shape not in (both, (1, both[1])):
        raise value_error(
            f"position_ids have shape {shape}, but input_ids have shape {both}; pass "
            f"{both}, or {(1, both[1])} for the same positions in every text"
        )
    positions = np.broadcast_to(positions, both)
    rows = embedding.max_positions
    most = 2**31 if rows is None else rows + embedding.first_id
    outside = positions[mask & ((positions < 0) | (positions >= most))]
    if outside.size:
        raise value_error(
            f"position_ids contain {outside[0]} for a token, but the positions of {name} "
            f"are 0 to {most - 1}; pass only these positions"
        )
    return np.where(mask, positions, 0).astype(np.int64) - embedding.first_id


def check_ids(ids: Array, rows: int, where: str = "") -> None:
    """Raise a ValueError if an id has no row in the token table; `where` begins the message."""
    outside = ids[(ids < 0) | (ids >= rows)]
    if outside.size:
        raise value_error(
            f"{where}there is no token {outside[0]}: the ids run from 0 to {rows - 1}"
        )


def check_tokenizer(tokenizer: Tokenizer, rows: int, limit: int | None, name: str) -> None:
    """Warn about tokens without a row in the token table; check that `limit` leaves room for words.

    `limit` is the maximum number of tokens of a text. The special tokens that the tokenizer adds
    to a text must be fewer than `limit`.
    """
    added = tokenizer.tokenize("")
    around = len(added)
    if len(added.ids) != around:
        raise invalid(
            ModelError,
            f"the tokenizer of {name} adds {around} tokens to a text, but gives them "
            f"{len(added.ids)} ids: each token needs one id",
        )
    if added.ids.max(initial=0) >= rows:
        raise invalid(
            ModelError,
            f"the tokenizer of {name} adds the id {added.ids.max()} to each text, but the "
            f"token table has only {rows} rows: use the tokenizer and the table of the same model",
        )
    if limit is not None and limit <= around:
        raise invalid(
            ModelError,
            f"{name} reads at most {limit} tokens of a text, and its tokenizer adds {around} "
            "tokens to each text: no room is left for words",
        )
    if len(tokenizer) > rows and tokenizer.rows is None:
        tokenizer.rows = rows
        warnings.warn(
            f"load: the tokenizer of {name} has ids up to {len(tokenizer) - 1}, but the token "
            f"table has only {rows} rows: texts with ids from {rows} on raise an error",
            UserWarning,
            stacklevel=2,
        )


def end_ids(config: Mapping[str, Any], generation: Mapping[str, Any], name: str) -> frozenset[int]:
    """Return the ids that end a text, from generation_config.json or else from config.json."""
    entry = generation.get("eos_token_id")
    if entry is None:
        entry = config.get("eos_token_id")
    ids = entry if isinstance(entry, list) else [] if entry is None else [entry]
    for token in ids:
        if not is_whole(token):
            raise invalid(
                ModelError,
                f"eos_token_id of {name} is {entry!r:.40}: it must be a whole number, "
                "or a list of whole numbers",
            )
    return frozenset(ids)


def check_device(device: Any) -> None:
    """Raise a ValueError for any device except the CPU.

    >>> check_device("cuda")
    Traceback (most recent call last):
    ValueError: device is cuda, but qkv computes on the CPU: omit device
    """
    if isinstance(device, list | tuple):
        raise value_error(
            f"device is a list of length {len(device)}: use `with qkv.models.Pool(model, "
            f"{len(device)}) as pool:`, and call encode(texts, pool=pool)"
        )
    if device is not None and str(device).partition(":")[0] != "cpu":
        raise value_error(f"device is {device!s:.40}, but qkv computes on the CPU: omit device")


@dataclass(frozen=True)
class TextReader:
    """Converts texts or token ids to batches for a network.

    Attributes:
        name: the model's name, for errors.
        tokenizer: splits a text into tokens; None if the model's folder has no tokenizer.
        sentence: the settings for texts, read from the model's files.
        limit: the maximum number of tokens in a text, including special tokens; None for no limit.
        rows: the number of rows in the token table.
        fills_gaps: whether the mask token replaces each "[MASK]" or "___" in a text; True if the
            model predicts masked words.
        has_images: whether the model also reads images; if so, errors say how to pass images.
    """

    name: str
    tokenizer: Tokenizer | None
    sentence: Sentence
    limit: int | None = None
    rows: int = 0
    fills_gaps: bool = True
    has_images: bool = False

    @property
    def mask(self) -> str | None:
        """The mask token that replaces "[MASK]" or "___" in a text; None if nothing is replaced."""
        return self.tokenizer.mask if self.fills_gaps and self.tokenizer is not None else None

    @property
    def knows_words(self) -> bool:
        """Whether the reader can find the tokens of a word."""
        return self.tokenizer is not None

    @property
    def known_ids(self) -> Callable[[str], Array] | None:
        """The method `TextReader.ids`, or None if the model has no tokenizer."""
        return None if self.tokenizer is None else self.ids

    def is_single(self, inputs: Any) -> bool:
        """Return whether the input is one text instead of several."""
        return isinstance(inputs, str)

    def need_tokenizer(self) -> Tokenizer:
        """Return the tokenizer.

        Raises:
            ValueError: the model has no tokenizer.
        """
        if self.tokenizer is None:
            raise value_error(
                f"{self.name} has no {TOKENIZER}, so it cannot read text: call model(input_ids)"
            )
        return self.tokenizer

    def truncator(self, limit: int | None, *, fills_gaps: bool = True) -> Truncator:
        """Return the function that splits texts into tokens, up to a limit.

        Raises:
            ValueError: the model has no tokenizer.
        """
        return Truncator(self.need_tokenizer(), limit, self.mask if fills_gaps else None)

    def tokenize(self, text: str) -> Tokenized:
        """Return the tokens of a whole text, as `Model.tokenize` does."""
        text = check_text(text, name="text")
        truncator = self.truncator(None)
        [tokens] = truncator([text])
        truncator.cut.warn()
        return tokens

    def split(self, texts: Any, first: int = 0) -> tuple[bool, list[str], list[Tokenized]]:
        """Separate strings from ids: return `(single, strings, tokens)`.

        If `texts` holds strings, `tokens` is empty. If `texts` holds ids, `strings` is empty.
        `single` is True for one text. In error messages, the number of text i is `first + i`.
        `texts` may also be the tokens of one text.
        """
        if isinstance(texts, Tokenized):
            ids_given(texts.ids, rows=self.rows, limit=self.limit, first=first)
            return True, [], [texts]
        if self.has_images:
            self.refuse_images(texts)
        ids = ids_given(texts, rows=self.rows, limit=self.limit, first=first)
        if ids is not None:
            return ids[0], [], ids[1]
        self.need_tokenizer()
        if isinstance(texts, str):
            return True, [check_text(texts, name="text")], []
        return False, check_texts(texts, first=first), []

    def read(self, texts: Any, first: int = 0) -> Batch:
        """Return the batch of one text or several, truncated to the limit.

        Texts given as ids are not truncated. In error messages, the number of text i is
        `first + i`.
        """
        single, strings, batch = self.split(texts, first)
        if strings:
            truncator = self.truncator(self.limit)
            batch = truncator(strings)
            for number, tokens in enumerate(batch, first):
                if all(tokens.special):
                    where = "the text" if single else f"text {number}"
                    raise value_error(f"{where} is empty; pass a text with at least one word")
            truncator.cut.warn()
            batch = [
                replace(tokens, text=text[: max(end for _, end in tokens.offsets)])
                for tokens, text in zip(batch, strings, strict=True)
            ]
        if not batch:
            raise value_error("no text is given; pass at least one")
        return Batch(batch, single=single)

    def ids(self, text: str) -> Array:
        """Return the ids of one text, (T,)."""
        return self.read(text).texts[0].ids

    def with_names(self, text: Tokenized) -> Tokenized:
        """Return the text with its tokens' names; if the text holds only ids, look up the names."""
        if text.text or any(text.special) or text.tokens != [str(token) for token in text.ids]:
            return text
        return name_tokens(text.ids, np.ones(len(text), bool), self.tokenizer)

    def subwords(self, word: str) -> list[list[str]]:
        """Return the ways to split a word into subwords, as `Model.subwords` does."""
        tokenizer = self.need_tokenizer()
        unknown, before = tokenizer.unknown, ["Ġ"] * bool(tokenizer.blank)
        splits = []
        for text in (word, f" {word}"):
            tokens = self.tokenize(text)
            pairs = zip(tokens.tokens, tokens.special, strict=True)
            words = [token for token, is_special in pairs if not is_special]
            flags = [True] * len(before) + [False] * len(words)
            names = plain_tokens([*before, *words], flags)[len(before) :]
            if names and unknown not in words and names not in splits:
                splits.append(names)
        return splits

    def finder(self, word: str) -> Callable[..., list[list[int]]]:
        """Return `find_word` for a word: a function of the tokens of a text."""
        marks = self.tokenizer is not None and bool(self.tokenizer.blank)
        splits = self.subwords(text_of(word).strip(" "))
        return partial(find_word, word, splits=splits, marks=marks)

    def refuse_images(self, texts: Any) -> None:
        """Raise a TypeError if images are given instead of texts."""
        first = texts[0] if isinstance(texts, list | tuple) and texts else texts
        if hasattr(first, "convert") or getattr(first, "ndim", 0) > 2:
            raise type_error(
                f"{self.name} reads texts here, not images: call encode_image(images), or "
                "model.vision, for example model.vision.trace(image)"
            )
