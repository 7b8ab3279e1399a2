"""Reading what a model's sentence-transformers files say of texts and their vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from qkv.arrays import frozen
from qkv.models.files.config import Config
from qkv.models.files.modules import Module
from qkv.models.files.read import (
    CONFIG,
    MOST_JSON,
    PROMPTS,
    ModelError,
    need_file,
    read_json,
)
from qkv.models.files.sentence import (
    BESIDE,
    LIMITS,
    NO_PROMPTS,
    SIMILARITIES,
    TOKENIZER_CONFIG,
    Sentence,
    tokenizer_limit,
)
from qkv.models.files.tensors import FLOATS, Tensors
from qkv.models.network.pooling import POOLING, Dense

_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_OTHER_KEYS = ("word_embedding_dimension", "embedding_dimension", "include_prompt")
ACTIVATIONS = {
    **{f"torch.nn.modules.activation.{name}": name.lower() for name in ("Tanh", "Sigmoid")},
    **{f"torch.nn.modules.activation.{name}": name.lower() for name in ("ReLU", "SiLU", "GELU")},
    "torch.nn.modules.linear.Identity": None,
}


def read_sentence(
    folder: Path, modules: Sequence[Module] = (), listed: Sequence[str] = ()
) -> Sentence:
    """Read what the modules of a text say, and the model's files about all of them.

    Args:
        folder: the model's.
        modules: those that a text goes through, in order; none where no file names them.
        listed: the files that do, by their place in the folder.

    Raises:
        ModelError: files are broken, or ask for something that qkv does not know.
    """
    said: dict[str, Any] = {}  # of the attributes of `Sentence`, those that the files speak of
    kinds = [module.kind for module in modules]
    home = said["home"] = modules[0].place if modules else ""
    files = [PROMPTS, *listed]
    if "Pooling" in kinds:
        dense = [module.place for module in modules if module.kind == "Dense"]
        said |= _pooling(folder / modules[1].place / CONFIG)
        said["dense"] = tuple(_dense(folder, place) for place in dense)
        said["normalize"] = kinds[-1] == "Normalize"
        files += [f"{place}/{CONFIG}" for place in (modules[1].place, *dense)]
    said |= _limit(folder / home, bool(modules)) | _prompts(folder / PROMPTS)
    files += [str(PurePosixPath(home, name)) for name in BESIDE]
    found = {}
    for name in files:
        if (folder / name).is_file():
            need_file(folder / name, MOST_JSON)
            found[name] = (folder / name).read_bytes()
    return Sentence(**said, files=found)


def _pooling(path: Path) -> dict[str, Any]:
    """The modes, and whether the tokens of a prompt are pooled with the others."""
    config = Config.read(path)
    include_prompt = config.flag("include_prompt", True)
    chosen = config.values.get("pooling_mode")
    if chosen is None:
        asked = [key for key, value in config.values.items() if value and key not in _OTHER_KEYS]
        modes = [_KEYS.get(key, key) for key in asked]
    else:
        modes = [str(mode) for mode in chosen] if isinstance(chosen, list) else [str(chosen)]
    if not modes or not set(modes) <= set(POOLING):
        raise ModelError(
            f"{path}: the pooling is {', '.join(modes) or 'none':.200}: "
            f"qkv knows {', '.join(POOLING)}"
        )
    in_order = tuple(mode for mode in POOLING if mode in modes)
    return {"modes": in_order, "include_prompt": include_prompt}


def _dense(folder: Path, place: str) -> Dense:
    """The linear layer whose files are in this folder inside the model's."""
    config = Config.read(folder / place / CONFIG)
    shape = config.size("in_features", 0), config.size("out_features", 0)
    has_bias = config.flag("bias", True)
    activation = config.choice(
        "activation_function", ACTIVATIONS, "torch.nn.modules.activation.Tanh"
    )
    for name in ("module_input_name", "module_output_name"):
        config.only(name, "sentence_embedding", None)
    config.finish(())
    tensors = Tensors(folder / place)
    expected = {"linear.weight": shape[::-1]} | ({"linear.bias": shape[1:]} if has_bias else {})
    for name, size in expected.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != size or tensor.kind not in FLOATS:
            found = "nothing" if tensor is None else f"{tensor.kind} {tensor.shape}"
            raise ModelError(
                f"{tensors.source}: {name} is {found} and must be floats {size} by {CONFIG}"
            )
    wide = np.float64 if tensors["linear.weight"].kind == "F64" else np.float32
    weight, *bias = (tensors[name].read().astype(wide, copy=False) for name in expected)
    return Dense(place, frozen(weight).T, bias[0] if bias else None, activation)


def _limit(home: Path, modules: bool) -> dict[str, Any]:
    """The most tokens of a text, and whether it is turned to lower case, where files say so.

    Without `max_seq_length`, and with modules.json, sentence-transformers takes `model_max_length`.
    """
    path = next((home / name for name in LIMITS if (home / name).is_file()), None)
    config = Config({}, "") if path is None else Config.read(path)
    lowercase = config.values.get("do_lower_case") is not None
    lowercase = lowercase and config.flag("do_lower_case", False)
    limit = config.size_or_none("max_seq_length", most=math.inf)
    path = home / TOKENIZER_CONFIG
    if limit is None and modules and path.is_file():
        limit = tokenizer_limit(Config.read(path))
    return {"max_seq_length": limit, "lowercase": lowercase}


def _prompts(path: Path) -> dict[str, Any]:
    """What may stand before each text, by name, and the name of what does by default.

    And how vectors are compared: as in sentence-transformers, by their cosine where it is not said,
    or said by a name that is for other kinds of models. And what a cross-encoder's scores are.
    """
    if not path.is_file():
        return {}
    values = read_json(path)
    prompts, default = values.get("prompts") or {}, values.get("default_prompt_name")
    strings = isinstance(prompts, dict) and all(isinstance(one, str) for one in prompts.values())
    if not strings:
        raise ModelError(f"{path}: prompts are {prompts!r:.80}: they must be strings by name")
    prompts = NO_PROMPTS | prompts
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise ModelError(
            f"{path}: default_prompt_name is {default!r:.40}: there is {', '.join(prompts)}"
        )
    how = values.get("similarity_fn_name")
    how = how if how in SIMILARITIES else "cosine"
    cut = Config(values, str(path)).size_or_none("truncate_dim", most=math.inf)
    found = {"prompts": prompts, "default_prompt": default, "similarity": how}
    return found | {"activation": values.get("activation_fn"), "truncate_dim": cut}
