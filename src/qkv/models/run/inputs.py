"""Check inputs (token ids, masks, positions), tokenizers and end tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, as_array
from qkv.models.files.read import ModelError, is_whole
from qkv.models.network.embedding import Embedding
from qkv.models.network.transformer import Transformer
from qkv.text import Tokenized, Tokenizer

# One text or several texts, as strings or as token ids.
Texts = str | Iterable[str] | Sequence[Sequence[int]] | Array


def as_ids(ids: Any) -> Any:
    """Convert integers of another library, such as a torch tensor, to an array; keep other inputs.

    >>> as_ids(np.array([3, 5])), as_ids("a text")
    (array([3, 5]), 'a text')
    """
    if isinstance(ids, np.ndarray | np.generic) or not hasattr(ids, "__array__"):
        return ids
    array = np.asarray(ids)
    return array if array.dtype.kind in "iu" else ids


def ids_given(
    texts: Any, *, rows: int, limit: int | None, call: str, first: int = 0
) -> tuple[bool, list[Tokenized]] | None:
    """Return `(single, tokens)`: whether the input is one text, and its tokens; None without ids.

    Errors number the texts from `first`.

    Raises:
        TypeError: a text is not a row of integers.
        ValueError: a text has no ids, or more than `limit`, or an id has no row in the token table.
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
        for row in rows_of_ids
    ]


def named(ids: Array, mask: Array, tokenizer: Tokenizer | None) -> Tokenized:
    """Return a text's ids (T,) as tokens with names; ids outside the mask (T,) get no name."""
    tokens, special = [], []
    for token, is_real in zip(ids.tolist(), mask.tolist(), strict=True):
        name = tokenizer.token(token) if is_real and tokenizer is not None else None
        tokens.append((name or str(token)) if is_real else "")
        special.append(not is_real or bool(tokenizer and tokenizer.is_special(token)))
    return Tokenized(ids, tokens, [(0, 0)] * len(tokens), special)


def checked_ids(
    embedding: Embedding,
    input_ids: ArrayLike,
    attention_mask: ArrayLike | None,
    side: str = "",
    *,
    counts: bool = True,
) -> tuple[Array, Array]:
    """Return ids (B, T) and which are tokens; errors put `side` before the arguments' names.

    `counts` says whether columns are positions, whose number the model limits.
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
            f"model: {name} have {ids.shape[1]} columns, but the model has only {most} "
            "positions: shorten the texts"
        )
    check_ids(ids[mask], len(embedding.table), "model")
    return ids, mask


def _checked_mask(attention_mask: Any, shape: tuple[int, ...], side: str) -> Array:
    """Return which ids are tokens, (B, T) bool; by default, all ids are."""
    if attention_mask is None:
        return np.ones(shape, bool)
    name = f"{side}attention_mask"
    mask = as_array(attention_mask, call="model", name=name)
    if mask.shape != shape:
        raise ValueError(
            f"model: {name} has shape {mask.shape}, but {side}input_ids have shape {shape}: give "
            "the same shape"
        )
    if mask.dtype.kind not in "biu" and mask.size:
        raise TypeError(
            f"model: {name} is {mask.dtype}: write True or 1 where there is a token, "
            "False or 0 where there is padding"
        )
    if not np.isin(mask, (0, 1)).all():
        raise ValueError(f"model: {name} holds numbers other than 0 and 1: give only 0 and 1")
    return mask.astype(bool)


def checked_positions(
    body: Transformer, position_ids: ArrayLike | None, mask: Array, name: str
) -> Any:
    """Return the positions of tokens, (B, T), counted from 0; None if none are given.

    Args:
        body: the network.
        position_ids: (B, T), or (1, T) for all texts, as transformers counts them.
        mask: (B, T), which ids are tokens; positions of other ids are not read.
        name: the name of the model.

    Raises:
        TypeError: the positions are not integers.
        ValueError: the positions have another shape, the model does not have one of the positions,
            or the model has neither learned nor rotary positions.
    """
    if position_ids is None:
        return None
    embedding = body.embedding
    if embedding.positions is None and not any(layer.attn.rotary for layer in body.layers):
        raise ValueError(
            f"model: position_ids are given, but {name} has neither learned nor rotary "
            "positions: omit position_ids"
        )
    positions = as_array(position_ids, call="model", name="position_ids")
    if positions.dtype.kind not in "iu" and positions.size:
        raise TypeError(f"model: position_ids are {positions.dtype}: give integers")
    shape, both = positions.shape, mask.shape
    if np.atleast_2d(positions).shape not in (both, (1, both[1])):
        raise ValueError(
            f"model: position_ids have shape {shape}, but input_ids have shape {both}: give "
            f"{both}, or {(1, both[1])} for the same positions in every text"
        )
    positions = np.broadcast_to(positions, both)
    rows = embedding.max_positions
    most = 2**31 if rows is None else rows + embedding.first_id
    outside = positions[mask & ((positions < 0) | (positions >= most))]
    if outside.size:
        raise ValueError(
            f"model: position_ids have {outside[0]} at a token, but the positions of {name} are 0 "
            f"to {most - 1}: give only these positions"
        )
    return np.where(mask, positions, 0).astype(np.int64) - embedding.first_id


def check_ids(ids: Array, rows: int, call: str) -> None:
    """Raise a ValueError unless each id has a row in the token table."""
    outside = ids[(ids < 0) | (ids >= rows)]
    if outside.size:
        raise ValueError(
            f"{call}: there is no token {outside[0]}: the ids run from 0 to {rows - 1}"
        )


def check_tokenizer(tokenizer: Tokenizer, rows: int, limit: int | None, name: str) -> None:
    """Raise a ModelError unless all ids have a row, and special tokens leave room for a text."""
    if len(tokenizer) > rows:
        raise ModelError(
            f"load: the tokenizer of {name} has ids up to {len(tokenizer) - 1} and its token table "
            f"has {rows} rows: they do not belong together"
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
            f"load: {name} takes texts of up to {limit} tokens, and its tokenizer adds {around} to "
            "each: no room is left for words"
        )


def end_ids(config: Mapping[str, Any], generation: Mapping[str, Any], name: str) -> frozenset[int]:
    """Return the ids that end a text: those of generation_config.json, else of config.json."""
    entry = generation.get("eos_token_id")
    if entry is None:
        entry = config.get("eos_token_id")
    ids = entry if isinstance(entry, list) else [] if entry is None else [entry]
    for token in ids:
        if not is_whole(token):
            raise ModelError(
                f"generate: eos_token_id of {name} is {entry!r:.40}: it must be a whole number, "
                "or a list of whole numbers"
            )
    return frozenset(ids)


def check_device(device: Any, call: str) -> None:
    """Raise a ValueError for another device than the CPU.

    >>> check_device("cuda", "encode")
    Traceback (most recent call last):
    ValueError: encode: device is cuda: qkv computes on the CPU: omit device
    """
    if isinstance(device, list | tuple):
        raise ValueError(
            f"{call}: device is a list of {len(device)}: make `with qkv.models.Pool(model, "
            f"{len(device)}) as pool`, and encode(texts, pool=pool)"
        )
    if device is not None and str(device).partition(":")[0] != "cpu":
        raise ValueError(f"{call}: device is {device!s:.40}: qkv computes on the CPU: omit device")
