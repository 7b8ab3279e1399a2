"""Read and write folders of sparse autoencoders in the format of SAELens."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qkv._argument_errors import invalid
from qkv.arrays import Arrays, convert_exactly, float_type, quote
from qkv.files import StrPath, named_folder, replacing
from qkv.models.files import FLOATS, header
from qkv.models.files.read import ModelError, read_json

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
_K = 100  # The default of `k` in SAELens, whose `TopKSAEConfig` documents it.
# Options in cfg.json that can change the computation, with all supported values.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "architecture": tuple(ARCHITECTURES),
    "apply_b_dec_to_input": (True, False),
    "rescale_acts_by_decoder_norm": (False, True),
    "normalize_activations": ("none", None, False),
    "reshape_activations": ("none", "hook_z", None),
    "finetuning_scaling_factor": (False, None),
    "hook_head_index": (None,),
    "model_from_pretrained_kwargs": ({}, None),
}


def read_folder(folder: StrPath) -> tuple[dict[str, Any], dict[str, Any]]:
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
            raise invalid(
                FileNotFoundError,
                f"{path} has no {name}: give a folder in the format of SAELens, with "
                f"{CONFIG} and {WEIGHTS}",
            )
    config = {_FORMER.get(name, name): value for name, value in read_json(path / CONFIG).items()}
    metadata = config.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise ModelError(f"{path / CONFIG}: metadata is {quote(metadata)}: give an object")
    about: dict[str, Any] = {"architecture": "standard", "activation_fn": "relu"}
    about |= {"apply_b_dec_to_input": True, "rescale_acts_by_decoder_norm": False}
    about |= {**metadata, **config}
    if (about["architecture"], about["activation_fn"]) == ("standard", "topk"):
        # SAELens before version 3.17 wrote a TopK autoencoder as the architecture "standard" with
        # the activation function "topk".
        about = {"activation_fn_kwargs": {}, **about, "architecture": "topk"}
        about["activation_fn"] = "relu"
    architecture = about["architecture"]
    for name, values in (_SUPPORTED | {"activation_fn": ("relu", architecture)}).items():
        if about.get(name) not in values:
            raise ModelError(
                f"{path / CONFIG}: {name} is {quote(about[name])}, which qkv does not support: "
                f"it supports {', '.join(json.dumps(value) for value in values)}"
            )
    arrays = _arrays(path / WEIGHTS, architecture)
    for name, size in zip(("d_in", "d_sae"), arrays["W_enc"].shape, strict=False):
        if about.get(name, size) != size:
            raise ModelError(
                f"{path / CONFIG}: {name} is {quote(about[name])}, but W_enc in {WEIGHTS} has the "
                f"shape {arrays['W_enc'].shape}: the two files must belong together"
            )
    if architecture == "topk":
        former = about.get("activation_fn_kwargs", {"k": _K})  # before version 6
        arrays["k"] = about.get("k", former.get("k") if isinstance(former, Mapping) else None)
        if arrays["k"] is None:
            raise ModelError(
                f"{path / CONFIG}: k is missing, so the number of active features is unknown: add "
                "the k with which the autoencoder was trained"
            )
        if about["rescale_acts_by_decoder_norm"]:
            lengths = np.linalg.norm(arrays["W_dec"], axis=1)
            arrays["W_dec"] = arrays["W_dec"] / lengths[:, None]
            arrays["W_enc"], arrays["b_enc"] = arrays["W_enc"] * lengths, arrays["b_enc"] * lengths
    fields = {name: about[name] for name in ("model_name", "prepend_bos") if name in about}
    subtracts = bool(about["apply_b_dec_to_input"])
    fields = dict(metadata) or fields
    return {"at": about.get("hook_name"), "subtracts_bias": subtracts, "metadata": fields}, arrays


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

    path = named_folder(folder)
    kind = arrays["W_enc"].dtype if dtype is None else float_type(dtype)
    converted = {name: convert_exactly(array, kind, name) for name, array in arrays.items()}
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
