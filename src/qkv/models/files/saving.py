"""Writing a model's folder, as `qkv.load` and transformers read it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from qkv.files import named_folder, replacing
from qkv.models.files.names import Names, Weights
from qkv.models.files.read import CONFIG, TOKENIZER, WEIGHTS
from qkv.models.files.sentence import BESIDE, TOP, Sentence
from qkv.text import Tokenizer


def save_model(
    folder: str | os.PathLike[str],
    *,
    config: Mapping[str, Any],
    names: Names,
    weights: Weights,
    sentence: Sentence,
    tokenizer: Tokenizer | None,
    others: Mapping[str, Mapping[str, Any] | None],
) -> None:
    """Write all files of a model, config.json last; see `Model.save`.

    `others` are JSON files beside config.json, by name; None for one that there is not.
    """
    from safetensors.numpy import save

    home = named_folder(folder, "save")
    if home.exists() and not home.is_dir():
        raise NotADirectoryError(f"save: {home} is a file: name a folder")
    inner = home / sentence.home
    inner.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.ascontiguousarray(one) for name, one in weights.to_files(names).items()}
    kind = next(iter(weights.parameters.values())).dtype.name
    config = {key: value for key, value in config.items() if key != "torch_dtype"}
    with replacing(inner / WEIGHTS) as file:
        file.write(save(arrays, {"format": "pt"}))
    files = sentence.to_files()
    for name, content in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        with replacing(home / name) as file:
            file.write(content)
    if tokenizer is not None:
        tokenizer.save(inner / TOKENIZER)
    for name, values in others.items():
        if values is not None:
            with replacing(inner / name) as file:
                file.write(json.dumps(values, indent=2).encode())
    with replacing(inner / CONFIG) as file:  # last: without it a new folder is not a model
        file.write(json.dumps({**config, "dtype": kind}, indent=2).encode())
    written = {home / name for name in files}
    stale = {home / name for name in TOP} | {inner / name for name in BESIDE}
    stale |= {inner / name for name, values in others.items() if values is None}
    if tokenizer is None:
        stale.add(inner / TOKENIZER)
    for path in stale - written:  # of another model, which would be read with this one
        if path.is_file():
            path.unlink()
