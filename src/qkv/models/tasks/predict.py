"""What a model guesses: the likeliest words at the mask tokens of a text, or behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.attend import softmax
from qkv.models.run.edit import CANNOT
from qkv.models.run.inputs import ids_given
from qkv.models.run.truncation import Truncator
from qkv.text import Tokenized, Tokenizer
from qkv.text.tokenized import marks_blanks, plain_tokens
from qkv.text.tokenizer import check_text

# For each place the likeliest words and their probabilities, the likeliest first.
Guesses = list[list[tuple[str, float]]]


def one_text(
    text: Any,
    *,
    name: str,
    need_tokenizer: Callable[[str], Tokenizer],
    prepared: Callable[[str], str],
    rows: int,
    limit: int | None,
    mask: str | None,
    cuts: bool,
) -> Tokenized:
    """The tokens of the one text to guess in, a string or ids.

    Args:
        text: what was given.
        name: of the model.
        need_tokenizer: gives the tokenizer, or an error that names the call.
        prepared: makes of a text what the tokenizer is to have.
        rows: how many the token table has.
        limit: the most tokens of a text, None for no limit.
        mask: what a gap of a text is read as, None where there is none.
        cuts: whether a longer text is cut, with a warning, or refused.

    Raises:
        TypeError: it is neither a string nor integers.
        ValueError: it is empty, too long, or several.
    """
    given = ids_given(text, rows=rows, limit=limit, call="predict")
    if given is not None:
        if len(given[1]) > 1:
            raise ValueError(
                f"predict: there are {len(given[1])} texts: give one, (T,) or (1, T) ids"
            )
        return given[1][0]
    if isinstance(text, list | tuple) and text:
        raise TypeError(f"predict: text is a list of {len(text)}: give one text at a time")
    tokenizer = need_tokenizer("predict")
    text = check_text(text, call="predict", name="text")
    truncator = Truncator(tokenizer, limit if cuts else None, mask)
    [tokens] = truncator([prepared(text)])
    if truncator.cut.gaps and mask not in tokens.tokens:
        raise ValueError(
            f"predict: the gap is beyond the first {limit} tokens, and {name} reads no more of a "
            "text: shorten it"
        )
    truncator.cut.warn()
    if all(tokens.special) and mask not in tokens.tokens:
        raise ValueError("predict: the text is empty: there is no word in it")
    if limit is not None and len(tokens) > limit:
        raise ValueError(
            f"predict: the text has {len(tokens)} tokens and {name} takes texts of at most "
            f"{limit}: shorten it"
        )
    return replace(tokens, text=text[: max(end for _, end in tokens.offsets)])


def mask_places(
    tokens: Tokenized, tokenizer: Tokenizer | None, name: str, call: str = "predict"
) -> list[int]:
    """Where the mask tokens of a text stand; `call` is who is named in an error.

    Raises:
        ValueError: there is none, or the model of this name has none.
    """
    mask = None if tokenizer is None else tokenizer.mask
    if mask is None:
        why = "no tokenizer" if tokenizer is None else "no mask token in its vocabulary"
        raise ValueError(
            f"{call}: {name} fills in words and has {why}, so nothing says where one is missing: "
            "take the logits of model(input_ids)"
        )
    places = [place for place, token in enumerate(tokens.tokens) if token == mask]
    if not places:
        raise ValueError(
            f"{call}: the text has no mask token, and {name} guesses words at these: write {mask} "
            f'where a word is missing, as "I sat on the {mask}.", or _'
        )
    return places


def likeliest(logits: Array, count: int, why: str = CANNOT) -> list[list[tuple[int, float]]]:
    """For each row of logits (n, V) the likeliest ids, with their probabilities in float64.

    Of equal ones the lower id comes first.

    Raises:
        FloatingPointError: logits are not finite.

    >>> found = likeliest(np.log([[0.1, 0.6, 0.3]]), 2)
    >>> [[(one, round(share, 2)) for one, share in row] for row in found]
    [[(1, 0.6), (2, 0.3)]]
    """
    found = []
    for row in logits.astype(np.float64):
        if not np.isfinite(row.max()):
            raise FloatingPointError(f"predict: the model's logits are not finite: {why}")
        shares = softmax(row)
        least = np.partition(shares, -count)[-count]
        ids = np.flatnonzero(shares >= least)
        ids = ids[np.argsort(-shares[ids], kind="stable")][:count]
        found.append(list(zip(ids.tolist(), shares[ids].tolist(), strict=True)))
    return found


def in_words(
    ranked: Sequence[Sequence[tuple[int, float]]],
    before: Sequence[Sequence[str]],
    tokenizer: Tokenizer | None,
) -> Guesses:
    """Ids with their probabilities as words: as a reader knows them, "##" where one continues.

    Without a tokenizer, and of an id that no token has, it is the number.

    Args:
        ranked: for each place.
        before: for each place the token in front of it, if there is one.
        tokenizer: the model's.
    """
    marks = tokenizer is not None and marks_blanks(tokenizer.tokenize("a a").tokens)

    def word(token: int, last: Sequence[str]) -> str:
        name = None if tokenizer is None else tokenizer.token(token)
        if tokenizer is None or name is None:
            return str(token)
        front = ["Ġ"] * marks + list(last)  # so that blanks are known to be marked
        special = [False] * len(front) + [tokenizer.is_special(token)]
        return plain_tokens([*front, name], special)[-1]

    return [
        [(word(token, last), share) for token, share in row]
        for row, last in zip(ranked, before, strict=True)
    ]
