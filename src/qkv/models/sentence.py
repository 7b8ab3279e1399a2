"""What a model's sentence-transformers files say: where it lies, its limit, pooling and norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.models.files import (
    CONFIG,
    MODULES,
    MOST_JSON,
    PROMPTS,
    SENTENCE,
    ModelError,
    need_file,
    read_json,
)


def _mean(rows: Array) -> Array:
    pooled: Array = rows.mean(0)
    return pooled


def _mean_sqrt(rows: Array) -> Array:
    pooled: Array = rows.sum(0) / np.sqrt(rows.dtype.type(len(rows)))
    return pooled


# In the order in which sentence-transformers joins them, where there are several.
POOLING: Mapping[str, Callable[[Array], Array]] = {
    "cls": lambda rows: rows[0],
    "max": lambda rows: rows.max(0),
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt,
    "lasttoken": lambda rows: rows[-1],
}
_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_lasttoken": "lasttoken",
}
_OTHER_KEYS = ("word_embedding_dimension", "embedding_dimension", "include_prompt")


@dataclass(frozen=True)
class Sentence:
    """How a text becomes one vector.

    Attributes:
        home: the folder of config.json inside the model's folder.
        modes: how the vectors of the tokens are pooled; several are joined side by side.
        normalize: whether the result is scaled to length 1.
        max_length: the most tokens of a text.
        lowercase: whether a text is turned to lower case before anything else.
        files: the files that said so, by their place in the model's folder.
    """

    home: str = ""
    modes: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_length: int | None = None
    lowercase: bool = False
    files: dict[str, bytes] = field(default_factory=dict)

    def pool(self, rows: Array) -> Array:
        """One text's vectors (T, D) as one, (D,) for each mode."""
        return np.concatenate([POOLING[mode](rows) for mode in self.modes])


def read_sentence(folder: Path) -> Sentence:
    """Read modules.json and what it points to, all of which may be left out.

    Raises:
        ModelError: they are broken, or ask for something that qkv does not know.
    """
    home, normalize = "", False
    modes: tuple[str, ...] = ("mean",)
    files = [PROMPTS]
    if (folder / MODULES).is_file():
        files.append(MODULES)
        kinds, places = _modules(folder / MODULES)
        home, normalize = places[0], "Normalize" in kinds
        if "Pooling" in kinds:
            pooling = f"{places[1]}/{CONFIG}"
            modes = _modes(folder / pooling)
            files.append(pooling)
    prefix = f"{home}/" if home else ""
    files += [
        prefix + name for name in (SENTENCE, "tokenizer_config.json", "special_tokens_map.json")
    ]
    max_length, lowercase = _limit(folder / prefix / SENTENCE)
    _refuse_prompts(folder / PROMPTS)
    found = {}
    for name in files:
        if (folder / name).is_file():
            need_file(folder / name, MOST_JSON)
            found[name] = (folder / name).read_bytes()
    return Sentence(home, modes, normalize, max_length, lowercase, found)


def _modules(path: Path) -> tuple[list[str], list[str]]:
    """The kinds of the modules in order and the folder of each."""
    modules = read_json(path, list)
    if not modules or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"{path}: it must be a list of modules")
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    places = [module.get("path", "") for module in modules]
    for place in places:
        parts = PurePosixPath(place).parts if isinstance(place, str) else ("..",)
        if ".." in parts or str(place).startswith("/") or "\\" in str(place) or ":" in str(place):
            raise ModelError(f"{path}: the path {place!r} leads out of the model's folder")
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(
            f"{path}: its modules are {', '.join(kinds)}: "
            "qkv knows Transformer, Pooling and, last, Normalize"
        )
    return kinds, places


def _modes(path: Path) -> tuple[str, ...]:
    values = read_json(path)
    chosen = values.get("pooling_mode")
    if chosen is None:
        asked = [key for key, value in values.items() if value and key not in _OTHER_KEYS]
        modes = [_KEYS.get(key, key) for key in asked]
    else:
        modes = [str(mode) for mode in chosen] if isinstance(chosen, list) else [str(chosen)]
    if not modes or not set(modes) <= set(POOLING):
        raise ModelError(
            f"{path}: the pooling is {', '.join(modes) or 'none':.200}: "
            f"qkv knows {', '.join(POOLING)}"
        )
    return tuple(mode for mode in POOLING if mode in modes)


def _limit(path: Path) -> tuple[int | None, bool]:
    if not path.is_file():
        return None, False
    values = read_json(path)
    limit: Any = values.get("max_seq_length")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ModelError(f"{path}: max_seq_length is {limit!r:.40}: it must be a whole number >= 1")
    lowercase = values.get("do_lower_case", False)
    if not isinstance(lowercase, bool | None):
        raise ModelError(f"{path}: do_lower_case is {lowercase!r:.40}: it must be true or false")
    return limit, lowercase is True


def _refuse_prompts(path: Path) -> None:
    """A prompt that goes before every text would change every vector."""
    name = read_json(path).get("default_prompt_name") if path.is_file() else None
    if name is not None:
        raise ModelError(f"{path}: it puts the prompt {name!r:.40} before each text: qkv does not")
