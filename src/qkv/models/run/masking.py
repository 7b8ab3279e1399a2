"""Find the words, positions and edges of `hide` in each text."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from qkv.models.run.edit import Masked
from qkv.text import Tokenized
from qkv.text.tokenized import find_pieces, joined_words, plain_tokens


def masked_keys(
    hides: Sequence[Any],
    batch: Sequence[Tokenized],
    limits: Sequence[int],
    subwords: Callable[[str], list[list[str]]] | None,
    call: str,
    first: int = 0,
    absent: set[Any] | None = None,
) -> list[Masked]:
    """Return the masked keys for words, positions and edges; `_of_positions` explains `limits`."""
    words = [value for value in hides if isinstance(value, str)]
    masked = _of_words(words, batch, subwords, call, first, absent) if words else []
    for value in hides:
        if not isinstance(value, str):
            masked += _of_positions(value, [len(text) for text in batch], limits, call, absent)
    return masked


def _of_words(
    words: Sequence[str],
    batch: Sequence[Tokenized],
    subwords: Callable[[str], list[list[str]]] | None,
    call: str,
    first: int,
    absent: set[Any] | None,
) -> list[Masked]:
    """Return the masked keys for each occurrence of these words.

    A word may be a special token such as "[SEP]". If `absent` is None, a word that no text contains
    is an error; otherwise, each word that is found is removed from this set. Errors count the texts
    from `first`.
    """
    if subwords is None:
        raise ValueError(
            f"{call}: hide has {words[0]!r} but the model has no tokenizer to find words: "
            "give positions, such as hide=[3]"
        )
    keys: list[set[int]] = [set() for _ in batch]
    for word in words:
        splits = subwords(word)
        is_found = False
        for text, row in zip(batch, keys, strict=True):
            tokens = plain_tokens(text.tokens, text.special)
            positions = [i for cut in splits for match in find_pieces(tokens, cut) for i in match]
            marks = zip(text.tokens, text.special, strict=True)
            positions += [i for i, (token, mark) in enumerate(marks) if mark and token == word]
            row.update(positions)
            is_found |= bool(positions)
        if absent is not None:
            absent.difference_update([word] * is_found)
        elif not is_found:
            raise ValueError(
                f"{call}: hide has {word!r}, which is in no text: the words are {_listed(batch)}"
            )
    for number, (text, row) in enumerate(zip(batch, keys, strict=True)):
        own = {i for i, special in enumerate(text.special) if not special}
        if own and own <= row:
            which = "the text" if len(batch) == 1 and not first else f"text {first + number}"
            raise ValueError(f"{call}: hide masks every word of {which}: leave one visible")
    return [
        Masked(number, None, position, None, None)
        for number, row in enumerate(keys)
        for position in sorted(row)
    ]


def _of_positions(
    asked: int | tuple[int, ...],
    lengths: Sequence[int],
    limits: Sequence[int],
    call: str,
    absent: set[Any] | None,
) -> list[Masked]:
    """Return the masked key of a position or edge in each text that is long enough.

    Position -1 is the last position. `lengths` holds the lengths of the texts, and `limits` holds
    their lengths after all new tokens were added; `absent` is as in `_of_words`.
    """
    fields: list[Any] = [None, asked] if isinstance(asked, int) else [*asked]
    query, key, layer, head = [*fields, None, None][:4]
    least, most = -max(lengths, default=0), max(limits, default=0)
    outside = [at for at in (query, key) if at is not None and not least <= at < most]
    if outside and absent is None:
        raise ValueError(
            f"{call}: hide has position {outside[0]} but no text has more than {most} tokens: "
            f"give {least} to {most - 1}, or a word"
        )
    if absent is not None:
        absent.difference_update([] if outside else [asked])

    def from_end(at: int | None, length: int) -> int | None:
        return None if at is None else at + length * (at < 0)

    return [
        Masked(number, from_end(query, length), from_end(key, length), layer, head)
        for number, (length, limit) in enumerate(zip(lengths, limits, strict=True))
        if all(at is None or -length <= at < limit for at in (query, key))
    ]


def from_start(number: int, count: int, source: str, what: str, whole: str, call: str) -> int:
    """Return the non-negative number of one of `count` layers or heads; -1 is the last."""
    if not -count <= number < count:
        raise ValueError(
            f"{call}: {source} names {what} {number}, but {whole} has {count}, "
            f"numbered 0 to {count - 1}"
        )
    return number % count


def _listed(batch: Sequence[Tokenized], most: int = 20) -> str:
    """Return a list of the distinct words in texts, with subwords joined."""
    named = (joined_words(plain_tokens(text.tokens, text.special), text.special) for text in batch)
    words = list(dict.fromkeys(chain.from_iterable(named)))
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
