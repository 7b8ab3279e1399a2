"""Turn the vocabulary in a GGUF file's metadata into a tokenizer.json that does as llama.cpp."""

import base64
import json
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from qkv.models.files._gguf import Gguf
from qkv.models.files._gguf_config import TABLES, gguf_pooling, section_of, special_ids
from qkv.models.files._tokenizer_config import NAMED
from qkv.models.files.config import Config
from qkv.models.files.read import CONFIG, MODULES
from qkv.models.files.sentence import TOKENIZER_CONFIG, Sentence

# Values of token_type: the unknown token, a special token, a token that a user added, the largest.
_UNKNOWN, _CONTROL, _ADDED, _LAST_TYPE = 2, 3, 4, 6
_LONGEST = 1000  # The maximum number of characters of a token.
_BLANK = "▁"
_START, _TEMPLATE = "tokenizer.ggml.", "tokenizer.chat_template"
_NO_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
Parts = dict[str, Any]  # Parts of a tokenizer.json.


def gguf_tokenizer(file: Gguf) -> Parts | None:
    """Return the contents of a tokenizer.json; None if the file does not hold a tokenizer.

    Raises:
        ModelError: qkv does not support the kind of tokenizer, or a value is invalid.
    """
    section = section_of(file, _START)
    kind = section.value("model", "none")
    if kind in ("none", "no_vocab"):
        return None
    reader = section.choice("model", _KINDS)
    tokens, ids = _tokens(section), special_ids(file)
    types = _numbers(section, "token_type", "iu", len(tokens))
    odd = types[(types < 0) | (types > _LAST_TYPE)]
    section.need(not odd.size, "token_type", odd.tolist(), f"from 0 to {_LAST_TYPE}")
    twice = [token for token, times in Counter(tokens).items() if times > 1]
    section.need(not twice, "tokens", twice, "a list of different strings")
    for name, index in ids.items():
        section.need(index < len(tokens), f"{name}_token_id", index, f"less than {len(tokens)}")
    special = {*np.flatnonzero(np.isin(types, (_UNKNOWN, _CONTROL))).tolist()}
    special = special if types.size else {*ids.values()}
    added = special.union(np.flatnonzero(types == _ADDED).tolist())
    parts = reader(section, tokens, added)
    vocabulary = parts["model"]["vocab"]
    listed = [
        {"id": index, "content": tokens[index], "special": index in special}
        | _flags(file, tokens[index])
        for index in sorted(added)
        if isinstance(vocabulary, list) or vocabulary.get(tokens[index]) == index
    ]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": listed, **parts}


def _flags(file: Gguf, token: str) -> Parts:
    """Return the flags of an added token, some of which depend on the model's name."""
    flags = dict(_NO_FLAGS)
    for row in TABLES["strips"]:
        name = str(file.metadata.get(row["key"], "")).lower()
        if any(part in name for part in row["contains"]):
            flags["lstrip"] |= token in row.get("lstrip", ())
            flags["rstrip"] |= token not in row.get("rstrip_all_but", (token,))
    return flags


def gguf_sentence(file: Gguf) -> Sentence:
    """Return the steps from a text to a vector, including the contents of a tokenizer_config.json.

    The tokenizer_config.json holds the special tokens and the chat templates.
    """
    section, ids = section_of(file, _START), special_ids(file)
    tokens, is_bert = _tokens(section), section.value("model", "") == "bert"
    config: Parts = {"tokenizer_class": "BertTokenizer" if is_bert else "PreTrainedTokenizerFast"}
    config |= {"do_lower_case": _lowers(section, tokens)} if is_bert else {}
    named = {f"{name}_token": index for name, index in ids.items() if index < len(tokens)}
    config |= {name: tokens[index] for name, index in named.items() if name in NAMED}
    templates = {
        key.removeprefix(_TEMPLATE).removeprefix(".") or "default": text
        for key, text in file.metadata.items()
        if key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")
    }
    for name, text in templates.items():
        section.need(isinstance(text, str), f"chat_template {name:.40}", text, "a string")
    if templates:
        several = [{"name": name, "template": text} for name, text in templates.items()]
        config["chat_template"] = templates["default"] if [*templates] == ["default"] else several
    values: dict[str, Any] = {TOKENIZER_CONFIG: config}
    mode = gguf_pooling(file)
    if mode is not None:
        kinds = {"": "Transformer", "1_Pooling": "Pooling"}
        values[MODULES] = [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for n, (path, kind) in enumerate(kinds.items())
        ]
        values[f"1_Pooling/{CONFIG}"] = {"pooling_mode": mode}
    files = {name: json.dumps(value, indent=2).encode() for name, value in values.items()}
    return Sentence(modes=(mode or "mean",), has_pooling=mode is not None, files=files)


def _tokens(section: Config, key: str = "tokens") -> list[str]:
    """Return a list of strings."""
    value = section.value(key, [])
    fine = isinstance(value, list) and max(map(len, value), default=0) <= _LONGEST
    section.need(fine, key, value, f"a list of strings of at most {_LONGEST} characters")
    return [token or f"[EMPTY_{index}]" for index, token in enumerate(value)]


def _numbers(section: Config, key: str, kinds: str, count: int) -> Any:
    """Return an array of `count` numbers, or an empty array if the file has none."""
    value = section.value(key, np.empty(0, np.int32))
    fine = isinstance(value, np.ndarray) and value.dtype.kind in kinds
    section.need(fine and len(value) in (0, count), key, value, f"a list of {count} numbers")
    return value


def _scores(section: Config, tokens: Sequence[str]) -> list[float]:
    """Return the score of each token."""
    scores: list[float] = _numbers(section, "scores", "f", len(tokens)).tolist()
    fine = len(scores) == len(tokens) and np.isfinite(scores).all()
    section.need(bool(fine), "scores", scores, f"a list of {len(tokens)} finite numbers")
    return scores


def _byte_level(section: Config, tokens: Sequence[str], added: set[int]) -> Parts:
    """Return the parts of a byte-level BPE, such as GPT-2's."""
    spelled = {token: index for index, token in enumerate(tokens)}
    ways = {name: way for way, names in TABLES["pre"].items() for name in names}
    patterns = TABLES["split"][section.choice("pre", ways, "default")]
    whole, begins = (
        section.value("pre", "") in TABLES["flags"][flag] for flag in ("ignore_merges", "add_bos")
    )
    first, last = _ends(section, len(tokens), (11, 11), bos=begins)
    rule = {"type": "Split", "behavior": "Isolated", "invert": False}
    steps = [{**rule, "pattern": {"Regex": pattern}} for pattern in patterns]
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    model = {"type": "BPE", "ignore_merges": whole, "vocab": spelled, "merges": _pairs(section)}
    return {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*steps, {**step, "use_regex": False}],
        },
        "post_processor": _frame(tokens, first, last, first),
        "decoder": {**step, "use_regex": True},
        "model": model,
    }


def _sentence_piece(section: Config, tokens: Sequence[str], added: set[int]) -> Parts:
    """Return the parts of a SentencePiece BPE, as in Llama, Phi-3 or Gemma."""
    before = section.flag("add_space_prefix", True)
    decoders: list[Parts] = [_replace(_BLANK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    decoders += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * before
    model = {"type": "BPE", "fuse_unk": True, "byte_fallback": True, "unk_token": None}
    model["vocab"] = {token: index for index, token in enumerate(tokens)}
    model["merges"] = _pairs_of(section, tokens)
    first, last = _ends(section, len(tokens), (1, 2), bos=True)
    return {
        "normalizer": _normalizer(before=before),
        "pre_tokenizer": None,
        "post_processor": _frame(tokens, first, last, first),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _unigram(section: Config, tokens: Sequence[str], added: set[int]) -> Parts:
    """Return the parts of a SentencePiece Unigram model, as for T5 and XLM-R."""
    table = _numbers(
        section, "precompiled_charsmap", "iu", len(section.value("precompiled_charsmap", ()))
    )
    coded = base64.b64encode(table.astype(np.uint8).tobytes()).decode()
    steps: list[Parts] = [{"type": "Precompiled", "precompiled_charsmap": coded}] if coded else []
    merged = section.flag("remove_extra_whitespaces", False)
    if merged:
        steps += [_replace(r"\A +| +\z", "", "Regex"), _replace(" {2,}", " ", "Regex")]
    before = section.flag("add_space_prefix", False) or merged
    first, last = _ends(section, len(tokens), (None, 1), eos=True)
    mark = {"type": "Metaspace", "replacement": _BLANK, "prepend_scheme": "always", "split": True}
    scores = _scores(section, tokens)
    return {
        "normalizer": _normalizer(*steps, before=before),
        "pre_tokenizer": None,
        "post_processor": _frame(tokens, first, last, first),
        "decoder": mark,
        "model": {
            "type": "Unigram",
            "unk_id": section.whole("unknown_token_id", 2),
            "vocab": [list(pair) for pair in zip(tokens, scores, strict=True)],
            "byte_fallback": False,
        },
    }


def _normalizer(*steps: Parts, before: bool) -> Parts:
    """Return SentencePiece's normalizer: `steps`, a blank `before` the text, and visible blanks."""
    start = [{"type": "Prepend", "prepend": " "}] * before
    return {"type": "Sequence", "normalizers": [*steps, *start, _replace(" ", _BLANK)]}


def _replace(old: str, new: str, kind: str = "String") -> Parts:
    """Return the step that replaces each match of `old`."""
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def _word_piece(section: Config, tokens: Sequence[str], added: set[int]) -> Parts:
    """Return the parts of BERT's WordPiece.

    The GGUF file marks tokens that begin a word; a tokenizer.json marks all others. The GGUF file
    does not say whether texts are converted to lower case; qkv converts texts if no token has a
    capital letter.
    """
    spelled = {}
    for index, token in enumerate(tokens):
        named = token.startswith("[") and token.endswith("]")
        word = token.removeprefix(_BLANK) if token.startswith(_BLANK) else f"##{token}"
        spelled[token if named or index in added else word] = index
    lower = _lowers(section, tokens)
    accents = section.flag("normalizer.strip_accents", lower)
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    first = section.value("cls_token_id", section.value("bos_token_id", spelled.get("[CLS]")))
    last = section.value("seperator_token_id", spelled.get("[SEP]"))
    section.need(first is not None and last is not None, "tokens", tokens, "with [CLS] and [SEP]")
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    return {
        "normalizer": {**normalizer, "strip_accents": accents, "lowercase": lower},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _frame(tokens, first, last, None),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {**model, "max_input_chars_per_word": 100, "vocab": spelled},
    }


def _lowers(section: Config, tokens: Sequence[str]) -> bool:
    """Return whether a WordPiece tokenizer converts texts to lower case."""
    cased = any(token != token.lower() for token in tokens if not token.startswith("["))
    return section.flag("normalizer.lowercase", not cased)


_KINDS: dict[str, Callable[[Config, Sequence[str], set[int]], Parts]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
    "t5": _unigram,
    "bert": _word_piece,
}


def _pairs(section: Config) -> list[list[str]]:
    """Return the merges of the file: two tokens each."""
    pairs = [merge.split(" ") for merge in _tokens(section, "merges")]
    section.need(all(len(pair) == 2 for pair in pairs), "merges", pairs, "pairs of tokens")
    return pairs


def _pairs_of(section: Config, tokens: Sequence[str]) -> list[list[str]]:
    """Return the merges that a vocabulary implies: each way to cut a token into two tokens."""
    ids = {token: index for index, token in enumerate(tokens)}
    found: list[tuple[float, int, int, list[str]]] = []
    for token, score in zip(tokens, _scores(section, tokens), strict=True):
        cuts = range(1, len(token))
        pairs = [[left, token[cut:]] for cut in cuts if (left := token[:cut]) in ids]
        pairs = [pair for pair in pairs if pair[1] in ids]
        pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += [(score, len(pair[0]), len(pair[1]), pair) for pair in pairs]
    found.sort(key=itemgetter(0, 1, 2), reverse=True)
    made = {"".join(pair): score for score, *_, pair in found}
    equal = len(made) > 1 and 2 * max(Counter(made.values()).values()) > len(made)
    why = "different numbers, because they order the merges: use the model's tokenizer.json"
    section.need(not equal, "scores", [score for score, *_ in found], why)
    return [pair for *_, pair in found]


def _ends(
    section: Config,
    count: int,
    usual: tuple[int | None, int | None],
    *,
    bos: bool = False,
    eos: bool = False,
) -> tuple[int | None, int | None]:
    """Return the ids of the tokens around each text; `usual`, `bos` and `eos` are defaults."""
    found: list[int | None] = []
    for name, wanted, default in zip(("bos", "eos"), (bos, eos), usual, strict=True):
        key = f"{name}_token_id"
        index = section.whole(key) if key in section.values else default
        is_there = index is not None and index < count
        found.append(index if section.flag(f"add_{name}_token", wanted) and is_there else None)
    return found[0], found[1]


def _frame(tokens: Sequence[str], first: int | None, last: int | None, again: int | None) -> Parts:
    """Return the template that puts tokens around a text; a second text begins with `again`."""

    def special(index: int | None, segment: int) -> list[Parts]:
        return (
            [{"SpecialToken": {"id": tokens[index], "type_id": segment}}]
            if index is not None
            else []
        )

    def text(name: str, begin: int | None, segment: int) -> list[Parts]:
        sequence = {"Sequence": {"id": name, "type_id": segment}}
        return [*special(begin, segment), sequence, *special(last, segment)]

    listed = {tokens[index]: index for index in (first, last) if index is not None}
    return {
        "type": "TemplateProcessing",
        "single": text("A", first, 0),
        "pair": [*text("A", first, 0), *text("B", again, 1)],
        "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in listed.items()},
    }
