"""Read and write folders of sparse autoencoders in the format of SAELens."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import Arrays, float_type, narrowed, shown
from qkv.files import StrPath, named_folder, replacing
from qkv.models.files.read import ModelError, read_json
from qkv.models.files.tensors import FLOATS, header

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
# The version of the format. SAELens reads the version to recognize folders of version 6 or later.
_VERSION = "6.0.0"
# The parameters (n,) of each architecture. W_enc (D, n), W_dec (n, D) and b_dec (D,) are part of
# every architecture.
ARCHITECTURES = {
    "standard": ("b_enc",),
    "topk": ("b_enc",),
    "jumprelu": ("b_enc", "threshold"),
    "gated": ("b_gate", "b_mag", "r_mag"),
}
# Keys in files of SAELens before version 6, and their current names.
_FORMER = {
    "hook_point": "hook_name",
    "hook_point_head_index": "hook_head_index",
    "activation_fn_str": "activation_fn",
}
# Options in cfg.json that can change the computation. Each option is listed with the values that
# leave the computation unchanged. Other values are not supported.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "normalize_activations": ("none", None, False),
    "reshape_activations": ("none", "hook_z", None),
    "finetuning_scaling_factor": (False, None),
    "hook_head_index": (None,),
    "model_from_pretrained_kwargs": ({}, None),
}


def read_folder(folder: StrPath, call: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read an autoencoder from a folder.

    `about` holds three arguments of `SAE`: "at" (the full name of an activation, or None),
    "subtracts_bias" and "metadata". `arrays` holds the arrays of the file, keyed by name. For a
    TopK autoencoder, `arrays` also holds the number "k".

    Returns:
        `(about, arrays)`, two dicts.

    Raises:
        FileNotFoundError: a file is missing.
        ModelError: a file is broken, or describes an autoencoder that is not supported.
    """
    path = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (path / name).is_file():
            raise FileNotFoundError(
                f"{call}: {path} has no {name}: give a folder in the format of SAELens, with "
                f"{CONFIG} and {WEIGHTS}"
            )
    config = {_FORMER.get(name, name): value for name, value in read_json(path / CONFIG).items()}
    metadata = config.get("metadata")
    metadata = dict(metadata) if isinstance(metadata, Mapping) else {}
    about = {"architecture": "standard", "activation_fn": "relu", **metadata, **config}
    if (about["architecture"], about["activation_fn"]) == ("standard", "topk"):
        # SAELens before version 3.17 wrote a TopK autoencoder as the architecture "standard" with
        # the activation function "topk".
        about |= {"architecture": "topk", "activation_fn": "relu"}
    architecture = about["architecture"]
    supported = {"architecture": tuple(ARCHITECTURES), "activation_fn": ("relu", architecture)}
    for name, values in (supported | _PLAIN).items():
        if about.get(name) not in values:
            raise ModelError(
                f"{path / CONFIG}: {name} is {shown(about[name])}, which {call} does not support: "
                f"it supports {', '.join(json.dumps(value) for value in values)}"
            )
    arrays = _arrays(path / WEIGHTS, architecture)
    if architecture == "topk":
        kwargs = about.get("activation_fn_kwargs")
        arrays["k"] = about.get("k", kwargs.get("k") if isinstance(kwargs, Mapping) else None)
        if about.get("rescale_acts_by_decoder_norm"):
            lengths = np.linalg.norm(arrays["W_dec"], axis=1)
            arrays["W_dec"] = arrays["W_dec"] / lengths[:, None]
            arrays["W_enc"], arrays["b_enc"] = arrays["W_enc"] * lengths, arrays["b_enc"] * lengths
    own = {name: about[name] for name in ("model_name", "prepend_bos") if name in about}
    subtracts = bool(about.get("apply_b_dec_to_input", True))
    about = {"at": about.get("hook_name"), "subtracts_bias": subtracts, "metadata": metadata or own}
    return about, arrays


def _arrays(path: Path, architecture: str) -> dict[str, Any]:
    """Read the arrays of a file in float32 or float64, keyed by name."""
    stored = header(path)
    scale = stored.pop("scaling_factor", None)  # Old versions of SAELens wrote scaling_factor.
    if scale is not None and (scale.read() != 1).any():
        raise ModelError(
            f"{path}: scaling_factor is not 1 everywhere, which is not supported: multiply the "
            "rows of W_dec by scaling_factor, and save the file without scaling_factor"
        )
    names = ("W_enc", "W_dec", "b_dec", *ARCHITECTURES[architecture])
    for name in (*names, *stored):
        if name not in stored or name not in names:
            what = "has no" if name not in stored else "also has"
            raise ModelError(
                f"{path}: {what} {name}: an autoencoder of the architecture {architecture!r} has "
                f"{', '.join(names)}"
            )
        if stored[name].kind not in FLOATS:
            raise ModelError(f"{path}: {name} is {stored[name].kind}: store the weights as floats")
    wide = any(stored[name].kind == "F64" for name in names)
    kind = np.dtype(np.float64 if wide else np.float32)
    return {name: stored[name].read().astype(kind) for name in names}


def write_folder(folder: StrPath, arrays: Arrays, config: Mapping[str, Any], dtype: Any) -> None:
    """Write an autoencoder; if an error occurs, no incomplete file remains.

    Args:
        folder: the path of the folder, which is created if it is missing.
        arrays: arrays, keyed by their name in the file.
        config: entries of cfg.json, with "architecture" and "metadata".
        dtype: the dtype in the file (float16, bfloat16, float32 or float64); None for the dtype of
            the arrays.

    Raises:
        ValueError: a value is too large for the dtype.
    """
    from safetensors.numpy import save

    call = "SAE.save"
    path = named_folder(folder, call)
    kind = arrays["W_enc"].dtype if dtype is None else float_type(dtype, call=call)
    converted = {name: narrowed(array, kind, call, name) for name, array in arrays.items()}
    size, features = arrays["W_enc"].shape
    whole = {
        "d_in": size,
        "d_sae": features,
        "dtype": kind.name,
        "device": "cpu",
        "normalize_activations": "none",
        **config,
        "metadata": {**config["metadata"], "sae_lens_version": _VERSION},
    }
    path.mkdir(parents=True, exist_ok=True)
    with replacing(path / WEIGHTS) as file:
        file.write(save(converted))
    with replacing(path / CONFIG) as file:
        file.write((json.dumps(whole, indent=1) + "\n").encode())
