"""What a caller gives, checked: token ids with their mask or in the place of texts, a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, as_array
from qkv.models.files.read import ModelError
from qkv.models.network.embedding import Embedding
from qkv.models.network.transformer import Transformer
from qkv.text import Tokenized, Tokenizer

# One text or several, or the ids of their tokens.
Texts = str | Iterable[str] | Sequence[Sequence[int]] | Array


def as_ids(given: Any) -> Any:
    """Integers of another library, a tensor of torch, as an array; all else as it is.

    >>> as_ids(np.array([3, 5])), as_ids("a text")
    (array([3, 5]), 'a text')
    """
    if isinstance(given, np.ndarray | np.generic) or not hasattr(given, "__array__"):
        return given
    array = np.asarray(given)
    return array if array.dtype.kind in "iu" else given


def ids_given(
    texts: Any, *, rows: int, limit: int | None, call: str, first: int = 0
) -> tuple[bool, list[Tokenized]] | None:
    """Whether it is one text, and each text's tokens, where ids are given in the place of texts.

    Errors count the texts from `first`.

    Raises:
        TypeError: a text is not of integers in one row.
        ValueError: it has none, or more than `limit`, or one has no row of the token table.
    """
    texts = as_ids(texts)
    if isinstance(texts, str) or not isinstance(texts, np.ndarray | list | tuple) or not len(texts):
        return None
    one = as_ids(texts[0])
    single = isinstance(one, int | np.integer)
    if not single and not isinstance(one, np.ndarray | list | tuple):
        return None
    found = [np.asarray(as_ids(row)) for row in ([texts] if single else texts)]
    for number, row in enumerate(found, first):
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise TypeError(
                f"{call}: text {number} is {row.dtype} {row.shape}: give strings, or (T,) integers"
            )
        if not 0 < len(row) <= (limit or len(row)):
            raise ValueError(
                f"{call}: text {number} has {len(row)} ids: give 1 to {limit or 'any number'}"
            )
        check_ids(row, rows, call)
    return single, [
        Tokenized(
            ids=row.astype(np.int64),
            tokens=[str(token) for token in row],
            offsets=[(0, 0)] * len(row),
            special=[False] * len(row),
        )
        for row in found
    ]


def named(ids: Array, mask: Array, tokenizer: Tokenizer | None) -> Tokenized:
    """One text's ids (T,) as tokens by their names; what the mask (T,) hides has none."""
    tokens, special = [], []
    for one, there in zip(ids.tolist(), mask.tolist(), strict=True):
        known = tokenizer.token(one) if there and tokenizer is not None else None
        tokens.append((known or str(one)) if there else "")
        special.append(not there or bool(tokenizer and tokenizer.is_special(one)))
    return Tokenized(ids, tokens, [(0, 0)] * len(tokens), special)


def checked_ids(
    embedding: Embedding,
    input_ids: ArrayLike,
    attention_mask: ArrayLike | None,
    side: str = "",
    *,
    counts: bool = True,
) -> tuple[Array, Array]:
    """Ids (B, T), of one text (T,) too, and which are tokens; errors put `side` before names.

    `counts` says whether columns are positions, of which the model has a number.
    """
    name = f"{side}input_ids"
    ids = as_array(input_ids, call="model", name=name)
    if ids.ndim not in (1, 2):
        raise ValueError(f"model: {name} have shape {ids.shape}: give (B, T), or (T,) for one text")
    if ids.dtype.kind not in "iu" and ids.size:
        raise TypeError(f"model: {name} are {ids.dtype}: give integers")
    mask = np.atleast_2d(_checked_mask(attention_mask, ids.shape, side))
    ids = np.atleast_2d(ids)
    most = embedding.max_positions
    if counts and most is not None and ids.shape[1] > most:
        raise ValueError(
            f"model: {name} have {ids.shape[1]} columns and the model {most} positions: cut them"
        )
    check_ids(ids[mask], len(embedding.table), "model")
    return ids, mask


def _checked_mask(given: Any, shape: tuple[int, ...], side: str) -> Array:
    """Which ids are tokens, (B, T) bool; all of them unless given."""
    if given is None:
        return np.ones(shape, bool)
    name = f"{side}attention_mask"
    mask = as_array(given, call="model", name=name)
    if mask.shape != shape:
        raise ValueError(
            f"model: {name} has shape {mask.shape} and {side}input_ids {shape}: "
            "they must be the same"
        )
    if mask.dtype.kind not in "biu" and mask.size:
        raise TypeError(
            f"model: {name} is {mask.dtype}: write True or 1 where there is a token, "
            "False or 0 where there is padding"
        )
    if not np.isin(mask, (0, 1)).all():
        raise ValueError(f"model: {name} holds other numbers than 0 and 1")
    return mask.astype(bool)


def checked_positions(body: Transformer, given: ArrayLike | None, mask: Array, name: str) -> Any:
    """Where tokens stand, (B, T), counted from 0; None if it is not given.

    Args:
        body: the model.
        given: (B, T), or (1, T) for all texts, as transformers counts them.
        mask: (B, T), which are tokens; the positions of others are not read.
        name: of the model.

    Raises:
        TypeError: they are no integers.
        ValueError: they have another shape, or one is outside of what the model has, or the model
            has neither learned nor rotary positions.
    """
    if given is None:
        return None
    embedding = body.embedding
    if embedding.positions is None and not any(layer.attn.rotary for layer in body.layers):
        raise ValueError(
            f"model: position_ids are given and {name} has neither learned nor rotary positions, "
            "which they are for: leave them out"
        )
    found = as_array(given, call="model", name="position_ids")
    if found.dtype.kind not in "iu" and found.size:
        raise TypeError(f"model: position_ids are {found.dtype}: give integers")
    shape, both = found.shape, mask.shape
    if np.atleast_2d(found).shape not in (both, (1, both[1])):
        raise ValueError(
            f"model: position_ids have shape {shape} and input_ids {both}: give {both}, or "
            f"{(1, both[1])} for the same in every text"
        )
    found = np.broadcast_to(found, both)
    rows = embedding.max_positions
    most = 2**31 if rows is None else rows + embedding.first_id
    outside = found[mask & ((found < 0) | (found >= most))]
    if outside.size:
        raise ValueError(
            f"model: position_ids have {outside[0]} at a token and {name} has positions 0 to "
            f"{most - 1}: give these"
        )
    return np.where(mask, found, 0).astype(np.int64) - embedding.first_id


def check_ids(ids: Array, rows: int, call: str) -> None:
    """An error unless each id has a row of the token table."""
    outside = ids[(ids < 0) | (ids >= rows)]
    if outside.size:
        raise ValueError(
            f"{call}: there is no token {outside[0]}: the ids run from 0 to {rows - 1}"
        )


def check_tokenizer(tokenizer: Tokenizer, rows: int, limit: int | None, name: str) -> None:
    """An error unless all ids have a row, and a text has room beside what is added to it."""
    if len(tokenizer) > rows:
        raise ModelError(
            f"load: the tokenizer of {name} has ids up to {len(tokenizer) - 1} and its token table "
            f"{rows} rows: they do not belong together"
        )
    added = tokenizer.tokenize("")
    around = len(added)
    if len(added.ids) != around:
        raise ModelError(
            f"load: the tokenizer of {name} adds {around} tokens with {len(added.ids)} ids to a "
            "text: they do not fit each other"
        )
    if added.ids.max(initial=0) >= rows:
        raise ModelError(
            f"load: the tokenizer of {name} adds the id {added.ids.max()} to each text and its "
            f"token table has {rows} rows: they do not belong together"
        )
    if limit is not None and limit <= around:
        raise ModelError(
            f"load: {name} takes texts of {limit} tokens and its tokenizer adds {around} to each: "
            "no room is left for words"
        )


def check_device(device: Any, call: str) -> None:
    """An error where somebody asks for another device than the processor.

    >>> check_device("cuda", "encode")
    Traceback (most recent call last):
    ValueError: encode: device is cuda: qkv computes on the CPU: leave it out
    """
    if isinstance(device, list | tuple):
        raise ValueError(
            f"{call}: device is a list of {len(device)}: make `with qkv.models.Pool(model, "
            f"{len(device)}) as pool`, and encode(texts, pool=pool)"
        )
    if device is not None and str(device).partition(":")[0] != "cpu":
        raise ValueError(f"{call}: device is {device!s:.40}: qkv computes on the CPU: leave it out")
