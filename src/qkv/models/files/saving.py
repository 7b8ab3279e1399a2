"""Writing a model's folder, as `qkv.load` and transformers read it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from qkv.files import named_folder, replacing
from qkv.models.files.names import Weights
from qkv.models.files.read import CONFIG, TOKENIZER, WEIGHTS
from qkv.models.files.sentence import BESIDE, TOP, Sentence
from qkv.text import Tokenizer


def save_model(
    folder: str | os.PathLike[str],
    *,
    config: Mapping[str, Any] | None,
    weights: Weights,
    sentence: Sentence,
    tokenizer: Tokenizer | None,
    others: Mapping[str, Mapping[str, Any] | None],
) -> None:
    """Write all files of a model, config.json last, if it has one; see `Model.save`.

    `others` are JSON files beside config.json, by name; None for one that there is not.
    """
    from safetensors.numpy import save

    home = named_folder(folder, "save")
    if home.exists() and not home.is_dir():
        raise NotADirectoryError(f"save: {home} is a file: name a folder")
    inner = home / sentence.home
    inner.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.asarray(one, order="C") for name, one in weights.to_files().items()}
    kind = next(iter(weights.parameters.values())).dtype.name
    about = {key: value for key, value in (config or {}).items() if key != "torch_dtype"}
    last = None if config is None else {**about, "dtype": kind}
    listed = {**others, CONFIG: last}  # last: without it there is no model
    contents = {inner / WEIGHTS: save(arrays, {"format": "pt"})}
    contents |= {home / name: content for name, content in sentence.to_files().items()}
    contents |= {
        inner / name: json.dumps(values, indent=2).encode()
        for name, values in listed.items()
        if values is not None
    }
    stale = {home / name for name in TOP} | {inner / name for name in (*BESIDE, *listed, TOKENIZER)}
    if tokenizer is not None:
        tokenizer.save(inner / TOKENIZER)
        stale.remove(inner / TOKENIZER)
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
    for path in stale - contents.keys():  # of another model, which would be read with this one
        if path.is_file():
            path.unlink()
