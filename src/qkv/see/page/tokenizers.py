"""Which tokenizers a page can use: what its script reads of a tokenizer.json."""
# assets/engine/tokenizer.js and the modules beside it read the same kinds and options.

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qkv.text.tokenizer import Tokenizer

_INSIDE = {  # where a Sequence has its parts
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
_KINDS = {
    "normalizer": (
        *("BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip"),
        *("Replace", "Prepend"),
    ),
    "pre_tokenizer": (
        *("BertPreTokenizer", "WhitespaceSplit", "Punctuation", "Digits", "Split", "ByteLevel"),
        "Metaspace",
    ),
    "post_processor": ("ByteLevel", "BertProcessing", "RobertaProcessing", "TemplateProcessing"),
    "decoder": (
        *("ByteLevel", "WordPiece", "Metaspace", "BPEDecoder", "Replace", "ByteFallback", "Fuse"),
        "Strip",
    ),
    "model": ("WordPiece", "BPE"),
}
_BYTES = [bytes([byte]).decode("latin-1") for byte in range(256)]
_SHOWN = {one for one in _BYTES if re.match("[!-~¡-¬®-ÿ]", one)}  # as they stand for themselves
_LEVELS = _SHOWN | {chr(256 + i) for i in range(256 - len(_SHOWN))}
_FALLBACKS = {f"<0x{byte:02X}>" for byte in range(256)}

# Of Oniguruma's patterns: characters, classes without classes in them, groups and looking around,
# and how often something comes. No anchors, names, references, or what takes back nothing.
_PROPERTY = r"\\[pP]\{(?:[LMNPSZC][a-z]?|Alphabetic|Han|Hiragana|Katakana|Hangul|Thai|Arabic)\}"
_MARK = r"\\[rntfvsSdDwW]|\\u[\da-fA-F]{4}|\\[^\w\s]"
_CLASS = rf"\[\^?(?:(?!\\W)(?:{_PROPERTY}|{_MARK})|[^\\\[\]&]|&(?!&))+\]"
_TIMES = r"(?:[*+?]|\{\d+(?:,\d*)?\})\??(?![*+?{])"
_FOLDED = r"\(\?i:(?![^)]*(?i:ss|st|f[fil]))(?:\[[A-Za-z]+\]|['A-Za-z|])+\)"  # as ß is ss
_ONE = rf"{_FOLDED}|\)|{_PROPERTY}|{_MARK}|{_CLASS}|[^\\\[\]()|*+?{{}}^$]"
_PATTERN = re.compile(rf"(?:(?:{_ONE})(?:{_TIMES})?|\(\?(?:[:=!]|<[=!])|\((?!\?)|\|)*")


def reasons_of_tokenizer(tokenizer: Tokenizer) -> Iterator[str]:
    """Why a page cannot cut texts as a tokenizer does, one clause each; none if it can.

    >>> from qkv.text import WordTokenizer
    >>> list(reasons_of_tokenizer(WordTokenizer("the cat sat")))[-1]
    'has the model WordLevel'
    """
    rules = tokenizer.rules
    model, vocabulary = rules["model"], rules["model"]["vocab"]
    for part, kinds in _KINDS.items():
        for step in _steps(part, rules[part]):
            if step["type"] not in kinds:
                yield f"has the {part} {step['type']}"
            yield from _reasons_of_pattern(part, step)
    yield from _reasons_around(tokenizer, rules["post_processor"])
    if model["type"] in _MODELS:
        yield from _MODELS[model["type"]](model, vocabulary, rules)


def _steps(part: str, rules: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The parts of a normalizer and so on, one behind the other."""
    if rules is None:
        return
    if rules["type"] != "Sequence":
        yield rules
        return
    for step in rules[_INSIDE[part]]:
        yield from _steps(part, step)


def _reasons_of_pattern(part: str, step: Mapping[str, Any]) -> Iterator[str]:
    pattern = step["pattern"].get("Regex") if "pattern" in step else None
    if pattern is None:
        return
    if not _PATTERN.fullmatch(pattern):
        yield f"has a {part} with the pattern {_short(pattern)}"
    if "$" in step.get("content", ""):
        yield f"has a {part} that puts groups of its pattern"


def _reasons_around(tokenizer: Tokenizer, rules: Mapping[str, Any] | None) -> Iterator[str]:
    steps = list(_steps("post_processor", rules))
    framed = False
    for step in steps:
        if framed and step.get("trim_offsets"):
            yield "trims blanks after it has put tokens around a text"
        framed = framed or step["type"] != "ByteLevel"
        if step["type"] == "TemplateProcessing":
            places = [part["Sequence"]["id"] for part in step["single"] if "Sequence" in part]
            if places != ["A"]:
                yield "puts a text in more places than one, or in none"
    if any(map(_puts, steps)) and not len(tokenizer.tokenize("")):
        yield "leaves out the tokens that its file puts around a text"


def _puts(step: Mapping[str, Any]) -> bool:
    """Whether a post-processor puts tokens around a text."""
    return "cls" in step or any("SpecialToken" in part for part in step.get("single", ()))


def _reasons_of_wordpiece(
    model: Mapping[str, Any], vocabulary: Mapping[str, int], _: Mapping[str, Any]
) -> Iterator[str]:
    if model["unk_token"] not in vocabulary:
        yield f"has the unknown token {_short(model['unk_token'])} outside of its vocabulary"


def _reasons_of_bpe(
    model: Mapping[str, Any], vocabulary: Mapping[str, int], rules: Mapping[str, Any]
) -> Iterator[str]:
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model[name]:
            yield f"has a BPE with the {name} {_short(model[name])}"
    bytewise = any(
        step["type"] == "ByteLevel" for step in _steps("pre_tokenizer", rules["pre_tokenizer"])
    )
    if bytewise and vocabulary.keys() >= _LEVELS:
        return  # nothing is unknown to it
    if model["byte_fallback"]:
        if not vocabulary.keys() >= _FALLBACKS:
            yield "has a BPE that falls back on bytes and has no token for some"
    elif model["unk_token"] not in vocabulary:
        yield "has a BPE that drops what it does not know"


_MODELS: dict[str, Callable[..., Iterator[str]]] = {
    "WordPiece": _reasons_of_wordpiece,
    "BPE": _reasons_of_bpe,
}


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
