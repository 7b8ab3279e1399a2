"""Apply tokenizer_config.json to the tokenizer of a tokenizer.json, as transformers does."""

import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv.models.files.config import Config
from qkv.models.files.read import ADDED
from qkv.text import SubwordTokenizer

_OPTIONS = tomllib.loads(Path(__file__).with_name("tokenizer_config.toml").read_text("utf-8"))
_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def configure(tokenizer: SubwordTokenizer, config: Config, home: Path, family: str) -> None:
    """Change a tokenizer as a tokenizer_config.json requires; warn about keys that have no effect.

    Args:
        tokenizer: the tokenizer of the tokenizer.json.
        config: the contents of the tokenizer_config.json.
        home: the folder of the files.
        family: the `model_type` of the model.

    Raises:
        ModelError: a value is invalid.
    """
    values, inner = config.values, tokenizer.inner
    kind = str(values.get("tokenizer_class") or family).removesuffix("Fast")
    kind = kind.removesuffix("Tokenizer").lower().replace("-", "").replace("_", "")
    options, left_out = _OPTIONS.get(_OPTIONS["like"].get(kind, kind), {}), []
    for key in (key for key in options if key in values):
        value, name = values[key], options[key]
        if value is None and key != "strip_accents":
            continue
        config.need(value is None or isinstance(value, bool), key, value, "true or false")
        both = (*_steps(inner.normalizer), *_steps(inner.pre_tokenizer))
        steps = [step for step in both if hasattr(step, name)]
        for step in steps:
            spelled = "always" if value else "never"
            setattr(step, name, spelled if name == "prepend_scheme" else value)
        if not steps and (
            key != "do_lower_case" or value != ("Lowercase()" in str(inner.normalizer))
        ):
            left_out.append(key)
    begun = "".join(inner.encode("a", add_special_tokens=False).tokens).startswith("▁")
    if kind == family == "llama" and values.get("add_prefix_space") is False and begun:
        left_out.append("add_prefix_space")
    inner.encode_special_tokens = config.flag("split_special_tokens", False)
    sides = {"left": True, "right": False}
    tokenizer.cuts_left = config.choice(
        "truncation_side", sides, "left" if tokenizer.cuts_left else "right"
    )
    tokenizer.add_tokens(_added_tokens(tokenizer, config, home))
    tokenizer.chat_template = _templates(config)
    around = tokenizer.tokenize("").tokens
    for key in ("cls_token", "sep_token") if options and around else ():
        left_out += [key for token in _tokens(config, key) if token["content"] not in around]
    if left_out:
        warnings.warn(
            f"{config.source}: qkv does not apply {', '.join(left_out)}: the ids of texts may "
            "differ from those of transformers",
            UserWarning,
            stacklevel=2,
        )


def _templates(config: Config) -> str | dict[str, str] | None:
    """Return the chat template, or several templates by name."""
    key = "chat_template"
    value = config.values.get(key)
    if isinstance(value, list):  # [{"name": ..., "template": ...}, ...]
        tables = [one if isinstance(one, dict) else {} for one in value]
        value = {one.get("name"): one.get("template") for one in tables}
    both = [*value, *value.values()] if isinstance(value, dict) else [value or ""]
    config.need(all(isinstance(one, str) for one in both), key, value, "a string, or named strings")
    return value


def _steps(part: Any) -> Iterator[Any]:
    """Yield a step of a tokenizer; yield the steps of a sequence one by one."""
    if type(part).__name__ != "Sequence":
        yield part
    else:
        for step in part:
            yield from _steps(step)


def _added_tokens(tokenizer: SubwordTokenizer, config: Config, home: Path) -> list[dict[str, Any]]:
    """Return the tokens that the files add to the vocabulary, or whose options they change."""
    decoder = config.table("added_tokens_decoder")
    fine = all(key.isdecimal() for key in decoder)
    config.need(fine, "added_tokens_decoder", decoder, "an object whose names are ids")
    tokens = _tokens(config, "added_tokens_decoder", [decoder[n] for n in sorted(decoder, key=int)])
    extra = "extra_special_tokens" if config.value("extra_special_tokens", []) else ""
    special = [token for key in _NAMED for token in _tokens(config, key)]
    special += _tokens(config, extra or "additional_special_tokens")
    names = {token["content"] for token in special}
    more = []
    if not decoder and (home / ADDED).is_file():
        listed = Config.read(home / ADDED)
        ids = sorted((listed.whole(token), token) for token in listed.values)
        more = [{"content": t, "normalized": t not in names, "special": t in names} for _, t in ids]
    known = {token.content for token in tokenizer.inner.get_added_tokens_decoder().values()}
    known |= {token["content"] for token in tokens}
    for token in (*more, *({**token, "special": True} for token in special)):
        if token["content"] not in known:
            known.add(token["content"])
            tokens.append(token)
    return tokens


def _tokens(config: Config, key: str, value: Any = None) -> list[dict[str, Any]]:
    """Return the tokens of a key as arguments of `AddedToken`; a token may be a string."""
    value = config.value(key, []) if value is None else value
    listed = (
        [*value.values()] if key == "extra_special_tokens" and isinstance(value, dict) else value
    )
    tokens = []
    for token in listed if isinstance(listed, list) else [listed]:
        entry = token if isinstance(token, dict) else {"content": token}
        fine = isinstance(entry.get("content"), str) and entry["content"] != ""
        config.need(fine, key, token, "a token, or tokens")
        flags = {flag: bool(entry[flag]) for flag in _FLAGS if flag in entry}
        tokens.append({"content": entry["content"], **flags})
    return tokens
