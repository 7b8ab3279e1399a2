"""Check that the rules of a tokenizer.json do not turn a short text into a very long text."""

import base64
import re
import warnings
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

GROWN = 2**24  # The maximum number of characters that the library may write in one call.
USUAL = 40  # A long text is refused if the rules multiply its length by more than this.

_LONGEST = 4096  # The maximum number of characters of a token, a pattern or a replacement.
_ADDED = 100  # The maximum number of special tokens around a text.
_WORD = 1000  # The maximum number of characters in a word. Splitting long words is slow.
# For each kind of rule, the maximum number of characters that may replace one character.
_MAX_FACTORS = {"normalizer": 10_000, "pre_tokenizer": 16, "decoder": 16}

# For each rule, the maximum number of characters that replace one character. Most of these
# numbers come from the Unicode tables. ByteLevel has the number 4, because a character has at
# most four bytes in UTF-8.
_FACTORS = {
    **{"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 12},
    **{"ByteLevel": 4, "Metaspace": 2},
}
_PARTS = ("normalizers", "pretokenizers", "decoders", "processors")
_ASSERTION = re.compile(r"\(\?[^:]|\\[AbBGKyYzZ]|(?<!\[)\^|\$|\[\[|&&")
_PROPERTY = re.compile(r"\\[pP]\{\^?\w+\}")


def growth(values: Any, *, trusted: bool = False) -> float:
    """Return the maximum number of characters that a normalizer can write for one character.

    Args:
        values: the contents of the file.
        trusted: whether the file comes with qkv; if so, its rules are not checked.

    Raises:
        ValueError: the rules write too many characters or special tokens, or a string in the file
            is too long.

    >>> double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    >>> growth({"normalizer": {"type": "Sequence", "normalizers": [double] * 3}})
    8.0
    """
    if not isinstance(values, dict):
        return 1.0
    if not trusted:
        _check(values)
    return _factor(values.get("normalizer"))


def _check(values: Mapping[str, Any]) -> None:
    """Raise an error for rules and strings above the limits; see `growth`."""
    for text in _texts(values):
        if len(text) > _LONGEST:
            raise ValueError(
                f"{text[:20]!r}... has {len(text):,} characters: the limit is {_LONGEST:,}"
            )
    for name, most in _MAX_FACTORS.items():
        factor = _factor(values.get(name))
        if factor > most:
            raise ValueError(
                f"its {name} may turn one character into {factor:.3g} characters: the limit is "
                f"{most:,}"
            )
    added = sum(map(_count_added, _flat(values.get("post_processor"))))
    if added > _ADDED:
        raise ValueError(f"its post_processor makes {added:,} tokens: the limit is {_ADDED}")
    word = _object(values.get("model")).get("max_input_chars_per_word")
    if isinstance(word, int) and word > _WORD:
        raise ValueError(f"max_input_chars_per_word is {word!r:.40}: the limit is {_WORD:,}")


def _texts(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield all strings in the file except character maps and merges."""
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
    """Yield `rule` or, if `rule` is a sequence of rules, each rule of the sequence."""
    waiting = [rule]
    while waiting:
        rule = waiting.pop()
        if not isinstance(rule, dict):
            continue
        lists = [rule[part] for part in _PARTS if isinstance(rule.get(part), list)]
        inner = [*chain.from_iterable(lists)]
        waiting += inner[::-1]
        if not inner:
            yield rule


def _factor(rule: Any) -> float:
    """Return the maximum number of characters that a rule writes for one character."""
    factor = 1.0
    # The kind of a rule is read from its keys, because `tokenizers` accepts rules without a type.
    for part in _flat(rule):
        if "content" in part:
            factor *= _replacing(part)
        if "prepend" in part:  # the prefix may come before every character
            factor *= 1 + len(_text(part["prepend"]))
        if "precompiled_charsmap" in part:
            factor *= _table(_text(part["precompiled_charsmap"]))
        factor *= _FACTORS.get(str(part.get("type")), 1 if "type" in part else 4)
    return factor


def _replacing(rule: Mapping[str, Any]) -> float:
    """Return the maximum number of characters that a replacement rule writes for one character."""
    pattern, made = rule.get("pattern"), len(_text(rule.get("content")))
    if not isinstance(pattern, dict):
        return 1.0
    if _text(pattern.get("String")):
        return max(1.0, made / len(_text(pattern["String"])))
    if "Regex" in pattern and _takes_something(_text(pattern["Regex"])):
        return max(1.0, made)
    return 1.0 + 2 * made  # an empty match is possible between any two characters


def _takes_something(pattern: str) -> bool:
    """Return True only if it is certain that a pattern cannot match the empty string."""
    if _ASSERTION.search(pattern):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(_PROPERTY.sub("x", pattern)).match("") is None
    except (re.error, ValueError, OverflowError, RecursionError, Warning):
        return False


def _table(coded: str) -> float:
    """Return the length of the longest text in a SentencePiece table.

    The table has three parts: the number of bytes of a trie, the trie itself, and the texts.
    """
    try:
        raw = base64.b64decode(coded)
    except ValueError:
        return 1.0  # `tokenizers` rejects the file if the table is not base64
    entries = raw[4 + int.from_bytes(raw[:4], "little") :].split(b"\0")
    return max(1.0, *(len(entry.decode("utf-8", "replace")) for entry in entries))


def _count_added(rule: Mapping[str, Any]) -> int:
    """Return the number of tokens that a template adds to a text.

    If the template inserts the text twice, return a number above the limit `_ADDED`.
    """
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
    """Return a value if it is an object, otherwise an empty object."""
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    """Return a value if it is a string, otherwise an empty string."""
    return value if isinstance(value, str) else ""
