"""What a tokenizer.json may make of a text: rules that make it far too long are refused unrun."""

from __future__ import annotations

import base64
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

GROWN = 2**24  # characters that the library is to make of texts at once
USUAL = 40  # characters that rules for real texts make of one, of the rarest

_LONGEST = 4096  # characters of a token, a pattern or what stands for it
_ADDED = 100  # special tokens around a text
_WORD = 1000  # characters of a word that is looked up in pieces, each with each
_MOST = {"normalizer": 10_000, "pre_tokenizer": 16, "decoder": 16}  # characters made of one

# The most characters that are made of one: by Unicode's own tables, or of its bytes.
_FACTORS = {
    **{"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 12},
    **{"ByteLevel": 4, "Metaspace": 2},
}
_PARTS = ("normalizers", "pretokenizers", "decoders", "processors")
_ASSERTION = re.compile(r"\(\?[^:]|\\[AbBGKyYzZ]|(?<!\[)\^|\$|\[\[|&&")
_PROPERTY = re.compile(r"\\[pP]\{\^?\w+\}")


def growth(values: Any) -> float:
    """The most characters that the rules of a tokenizer.json make of one, by a rough bound.

    Args:
        values: what the file holds.

    Raises:
        ValueError: they are so many, or so many special tokens stand around a text, or something
            in the file is so long, that it is not made for texts.

    >>> double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    >>> growth({"normalizer": {"type": "Sequence", "normalizers": [double] * 3}})
    8.0
    """
    if not isinstance(values, dict):
        return 1.0
    for text in _texts(values):
        if len(text) > _LONGEST:
            raise ValueError(
                f"{text[:20]!r}... has {len(text):,} characters: {_LONGEST:,} are the most"
            )
    for name, most in _MOST.items():
        factor = _factor(values.get(name))
        if factor > most:
            raise ValueError(
                f"its {name} may make {factor:.3g} characters of one: {most:,} are the most"
            )
    added = sum(map(_added, _flat(values.get("post_processor"))))
    if added > _ADDED:
        raise ValueError(f"its post_processor makes {added:,} pieces: {_ADDED} are the most")
    word = _object(values.get("model")).get("max_input_chars_per_word")
    if isinstance(word, int) and word > _WORD:
        raise ValueError(f"max_input_chars_per_word is {word!r:.40}: {_WORD:,} are the most")
    return _factor(values.get("normalizer"))


def _texts(values: Mapping[str, Any]) -> Iterator[str]:
    """Each string of the file, but for merges, which are of tokens, and tables of characters."""
    waiting: list[Any] = [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            yield from value
            waiting += (
                inner
                for key, inner in value.items()
                if key not in ("merges", "precompiled_charsmap") and not isinstance(inner, int)
            )


def _flat(rule: Any) -> Iterator[Mapping[str, Any]]:
    """A rule, or those that it is a sequence of, in order."""
    waiting = [rule]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, dict):
            continue
        inner = [each for part in _PARTS if isinstance(one.get(part), list) for each in one[part]]
        waiting += inner[::-1]
        if not inner:
            yield one


def _factor(rule: Any) -> float:
    """The most characters that a rule makes of one."""
    factor = 1.0
    for one in _flat(rule):  # by their keys, because the library knows them without a type as well
        if "content" in one:
            factor *= _replacing(one)
        if "prepend" in one:  # stands before each part between two special tokens
            factor *= 1 + len(_text(one["prepend"]))
        if "precompiled_charsmap" in one:
            factor *= _table(_text(one["precompiled_charsmap"]))
        factor *= _FACTORS.get(str(one.get("type")), 1 if "type" in one else 4)
    return factor


def _replacing(rule: Mapping[str, Any]) -> float:
    """The most characters that a rule which replaces a pattern makes of one."""
    pattern, made = rule.get("pattern"), len(_text(rule.get("content")))
    if not isinstance(pattern, dict):
        return 1.0
    if _text(pattern.get("String")):
        return max(1.0, made / len(_text(pattern["String"])))
    if "Regex" in pattern and _takes_something(_text(pattern["Regex"])):
        return max(1.0, made)
    return 1.0 + 2 * made  # between any two as well


def _takes_something(pattern: str) -> bool:
    """Whether a pattern certainly does not match where there is nothing."""
    if _ASSERTION.search(pattern):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(_PROPERTY.sub("x", pattern)).match("") is None
    except (re.error, ValueError, OverflowError, RecursionError, Warning):
        return False


def _table(coded: str) -> float:
    """The longest entry of a SentencePiece table: its size, a trie, and texts that end with NUL."""
    try:
        raw = base64.b64decode(coded)
    except ValueError:
        return 1.0  # the library does not read it either
    entries = raw[4 + int.from_bytes(raw[:4], "little") :].split(b"\0")
    return max(1.0, *(len(entry.decode("utf-8", "replace")) for entry in entries))


def _added(rule: Mapping[str, Any]) -> int:
    """How many tokens a template puts around a text; a second copy of the text is too many."""
    single, special = rule.get("single"), rule.get("special_tokens")
    if not isinstance(single, list) or not isinstance(special, dict):
        return 2
    count = _ADDED * (sum("Sequence" in _object(piece) for piece in single) > 1)
    for piece in single:
        about = _object(_object(piece).get("SpecialToken"))
        known = _object(special.get(str(about.get("id"))))
        lists = [known.get(key) for key in ("ids", "tokens")]
        count += max((len(one) for one in lists if isinstance(one, list)), default=1)
    return count


def _object(value: Any) -> Mapping[str, Any]:
    """A value that should be an object; empty where it is none."""
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    """A value that should be a string; empty where it is none."""
    return value if isinstance(value, str) else ""
