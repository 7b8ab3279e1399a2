"""Apply tokenizer_config.json to the tokenizer of a tokenizer.json, as transformers does."""

import json
import re
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv._argument_errors import value_error
from qkv.models.files.config import Config
from qkv.models.files.read import (
    ADDED,
    MOST_JSON,
    TEMPLATE,
    TEMPLATES,
    ModelError,
    need_file,
    stays,
)
from qkv.text import SubwordTokenizer, Tokenizer

_OPTIONS = tomllib.loads(Path(__file__).with_name("tokenizer_config.toml").read_text("utf-8"))
NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
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
    tokenizer.chat_template = _chat_template(config, home)
    tokenizer.named_tokens = _named_tokens(config, home)
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


def _chat_template(config: Config, home: Path) -> str | dict[str, str] | None:
    """Return the chat template, or several by name; separate files take precedence."""
    files = {path.stem: path for path in sorted(home.glob(f"{TEMPLATES}/*.jinja"))}
    if (home / TEMPLATE).is_file():
        files["default"] = home / TEMPLATE
    templates = {}
    for name, path in files.items():
        need_file(path, MOST_JSON)
        if not stays(path, home):
            raise ModelError(
                f"{path} is a link to a file outside the folder; copy the file into it"
            )
        templates[name] = path.read_text("utf-8", errors="replace")
    if not templates:
        given = config.value("chat_template", None)
        listed = given if isinstance(given, list) else [{"name": "default", "template": given}]
        fine = all(isinstance(row, dict) and isinstance(row.get("name"), str) for row in listed)
        fine = fine and all(isinstance(row.get("template"), str) for row in listed)
        needed = 'a template, or a list of objects with "name" and "template"'
        config.need(given is None or fine, "chat_template", given, needed)
        templates = {} if given is None else {row["name"]: row["template"] for row in listed}
    return templates["default"] if [*templates] == ["default"] else templates or None


def _named_tokens(config: Config, home: Path) -> dict[str, str]:
    """Return the tokens that have a name, such as {"bos_token": "<s>"}, as in transformers."""
    older, named = home / "special_tokens_map.json", dict[str, str]()
    has_older = older.is_file() and not config.values.get("added_tokens_decoder")
    for source in [Config.read(older), config] if has_older else [config]:
        for key in NAMED:
            for token in _tokens(source, key):
                named[key] = token["content"]
    return named


def chat_files(tokenizer: Tokenizer, *, configured: bool) -> dict[str, bytes]:
    """Return the files of a tokenizer's chat templates.

    Unless a tokenizer_config.json has already `configured` the tokenizer, the files include a new
    one, which holds the tokenizer's `named_tokens`.
    """
    given = tokenizer.chat_template
    templates = {"default": given} if isinstance(given, str) else given or {}
    files = {}
    for name, template in templates.items():
        if not re.fullmatch(r"[\w-][\w.-]*", name):
            raise value_error(
                f"the name of the chat template {name!r:.80} cannot be a file name: rename "
                "the template"
            )
        path = TEMPLATE if name == "default" else f"{TEMPLATES}/{name}.jinja"
        files[path] = template.encode("utf-8")
    if tokenizer.named_tokens and not configured:
        files["tokenizer_config.json"] = json.dumps(dict(tokenizer.named_tokens)).encode()
    return files


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
    special = [token for key in NAMED for token in _tokens(config, key)]
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
