"""Read a model's files: file names, `ModelError`, JSON, and the list of shards."""

import json
import math
import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeGuard

from qkv._visible import visible

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
GENERATION = "generation_config.json"
PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # The settings for texts and for images.
MODULES = "modules.json"
ROUTER = "router_config.json"
SENTENCE = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADDED = "added_tokens.json"
TEMPLATE = "chat_template.jinja"
TEMPLATES = "additional_chat_templates"  # A folder of further templates.
ADAPTER = "adapter_config.json"  # The settings of a PEFT adapter, such as a LoRA.
CARD = "README.md"
LICENCES = ("LICEN[CS]E*", "NOTICE*", "COPYING*")

_FILES = (
    *(CONFIG, TOKENIZER, GENERATION, PREPROCESSOR, PROCESSOR, MODULES, ROUTER, SENTENCE, PROMPTS),
    *(INDEX, "*.safetensors", "tokenizer_config.json", "special_tokens_map.json"),
    *("*sentence_*_config.json", ADAPTER, ADDED, TEMPLATE, "sparse_linear.pt"),
)
_INNER = (*(f"*/{name}" for name in _FILES), f"{TEMPLATES}/*.jinja")
NEEDED = [*_FILES, *_INNER, CARD, *LICENCES]  # files to download

MOST_JSON = 64 * 2**20  # In bytes. The index of a very large model has about 10 MB.
MOST_TOKENIZER = 512 * 2**20


class ModelError(ValueError):
    """A model's files are broken or inconsistent, or need a feature that qkv lacks."""


def shards(folder: Path) -> dict[str, str] | None:
    """Read the folder's index, and return a dict that maps each tensor's name to its file's name.

    If the folder has no index, return None.

    Raises:
        ModelError: the index is broken, or names a file outside the folder.
    """
    index = folder / INDEX
    if not index.is_file() or (folder / WEIGHTS).is_file():
        return None
    names: Any = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise ModelError(f"{index} has no weight_map, which must name the file of each tensor")
    for file in set(names.values()):
        beside = PurePosixPath(file).name == file == PureWindowsPath(file).name
        odd = not file.isprintable() or len(file.encode()) > 255
        if not beside or file in ("", ".", "..") or odd:
            raise ModelError(
                f"{index}: the shard {file!r:.80} is not the name of a file in the same folder"
            )
        if not stays(folder / file):
            raise ModelError(
                f"{index}: the shard {file} is a link to a file outside the folder; "
                "copy the file into it"
            )
    return dict(names)


def stays(path: Path, folder: Path | None = None) -> bool:
    """Return whether a path's target is in `folder` (by default the path's own) or in the cache."""
    real, home = (Path(os.path.realpath(one)) for one in (path, folder or path.parent))
    roots = [home]
    for above in home.parents:
        if above.name == "snapshots":  # A snapshot's files are links into the folder "blobs".
            roots += [above.parent / "blobs", above.parent.parent / "blobs"]
    return any(real.is_relative_to(root) for root in roots)


def need_file(path: Path, most: float = math.inf) -> None:
    """Check that a path is a regular file of at most `most` bytes, before it is opened.

    Raises:
        ModelError: the file is missing, too large, or not a regular file.
    """
    try:
        about = path.stat()
    except (OSError, ValueError):
        raise ModelError(f"{path}: the file is missing") from None
    if not stat.S_ISREG(about.st_mode):
        raise ModelError(f"{path}: it is not a regular file")
    if about.st_size > most:
        raise ModelError(
            f"{path}: it is {about.st_size} bytes long, but the maximum for this file is "
            f"{most} bytes"
        )


def read_json(path: Path, kind: type[Any] = dict) -> Any:
    """Return the JSON object or list that a file contains.

    Raises:
        ModelError: the file is missing, is not valid JSON, or does not hold a value of type `kind`.
    """
    need_file(path, MOST_JSON)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {first_line(error)}") from error
    if not isinstance(values, kind):
        actual, needed = type(values).__name__, kind.__name__
        raise ModelError(f"{path} holds a JSON {actual}: it must hold a {needed}")
    return values


def is_whole(value: Any) -> TypeGuard[int]:
    """Return whether a JSON value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a JSON value is a number."""
    return isinstance(value, float) or is_whole(value)


def first_line(error: BaseException) -> str:
    """Return an error's message as a single line of at most 200 characters."""
    return plain(" ".join(str(error).split()), 200) or type(error).__name__


def plain(text: str, most: int) -> str:
    r"""Return text from a file in a printable form: on one line, with at most `most` characters.

    >>> print(plain("a\nb\x1b[31m" + 99 * "c", 14))
    a\nb\x1b[31...
    """
    line = visible(text[: most + 1])
    return line if len(line) <= most else f"{line[: most - 3]}..."
