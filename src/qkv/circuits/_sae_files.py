"""Read folders of sparse autoencoders, and write them in SAELens's format."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qkv._argument_errors import invalid
from qkv.arrays import Arrays, convert_exactly, float_type, quote
from qkv.circuits._sae_formats import format_of, read_format
from qkv.files import StrPath, named_folder, replacing
from qkv.models.files import FLOATS, header
from qkv.models.files.read import ModelError, read_json

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
# The version of the format. SAELens reads the version to recognise folders of version 6 or later.
_VERSION = "6.0.0"
# The parameters (n,) of each architecture. W_enc (D, n), W_dec (n, D) and b_dec (D,) are part of
# every architecture.
ARCHITECTURES = {
    "standard": ("b_enc",),
    "topk": ("b_enc",),
    "jumprelu": ("b_enc", "threshold"),
    "gated": ("b_gate", "b_mag", "r_mag"),
}
# SAELens's transcoders, and the architectures of their features. Those with "skip" have W_skip.
TRANSCODERS = {
    **{"transcoder": "standard", "skip_transcoder": "standard"},
    **{"jumprelu_transcoder": "jumprelu", "jumprelu_skip_transcoder": "jumprelu"},
}
NORMALIZATIONS = ("layer_norm", "constant_norm_rescale")
# Keys in files from SAELens versions before 6, and their current names.
_FORMER = {
    "hook_point": "hook_name",
    "hook_point_head_index": "hook_head_index",
    "activation_fn_str": "activation_fn",
}
_K = 100  # The default of `k` in SAELens, whose `TopKSAEConfig` documents it.
# Options in cfg.json that can change the computation, with all supported values.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "architecture": (*ARCHITECTURES, *TRANSCODERS),
    "apply_b_dec_to_input": (True, False),
    "rescale_acts_by_decoder_norm": (False, True),
    "normalize_activations": ("none", None, False, *NORMALIZATIONS),
    "reshape_activations": ("none", "hook_z", None),
    "finetuning_scaling_factor": (False, None),
    "hook_head_index": (None,),
    "hook_head_index_out": (None,),
    "model_from_pretrained_kwargs": ({}, None, {"fold_ln": False}),
}


def read_folder(folder: StrPath) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read an autoencoder or transcoder from a folder, or from a file in a single-file format.

    `about` holds arguments of `SAE`: "at" (the full name of an activation, or None),
    "subtracts_bias", "metadata", and possibly "at_out" and "normalize". `arrays` holds the arrays
    of the file, keyed by name. For a TopK autoencoder, `arrays` also holds the number "k".

    Returns:
        `(about, arrays)`, two dicts.

    Raises:
        FileNotFoundError: a file is missing.
        ModelError: a file is broken, or describes an autoencoder that is not supported.
    """
    path = Path(folder)
    other = None if (path / CONFIG).is_file() else format_of(path)
    if other is not None:
        return _read_other(other)
    for name in (CONFIG, WEIGHTS):
        if not (path / name).is_file():
            raise invalid(
                FileNotFoundError,
                f"{path} has no {name}; pass a folder in the format of SAELens, with {CONFIG} "
                f"and {WEIGHTS}, or of Gemma Scope, dictionary_learning, Llama Scope or Qwen Scope",
            )
    config = {_FORMER.get(name, name): value for name, value in read_json(path / CONFIG).items()}
    metadata = config.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise ModelError(f"{path / CONFIG}: metadata is {quote(metadata)}: it must be an object")
    about: dict[str, Any] = {"architecture": "standard", "activation_fn": "relu"}
    about |= {"apply_b_dec_to_input": True, "rescale_acts_by_decoder_norm": False}
    about |= {**metadata, **config}
    if (about["architecture"], about["activation_fn"]) == ("standard", "topk"):
        # SAELens before version 3.17 wrote a TopK autoencoder as the architecture "standard" with
        # the activation function "topk".
        about = {"activation_fn_kwargs": {}, **about, "architecture": "topk"}
        about["activation_fn"] = "relu"
    architecture = about["architecture"]
    if architecture in tuple(TRANSCODERS):
        about["apply_b_dec_to_input"] = False
    for name, values in (_SUPPORTED | {"activation_fn": ("relu", architecture)}).items():
        if about.get(name) not in values:
            raise ModelError(
                f"{path / CONFIG}: {name} is {quote(about[name])}, which qkv does not support; "
                f"qkv supports {', '.join(json.dumps(value) for value in values)}"
            )
    arrays = _arrays(path / WEIGHTS, architecture)
    for name, size in zip(("d_in", "d_sae"), arrays["W_enc"].shape, strict=False):
        if about.get(name, size) != size:
            raise ModelError(
                f"{path / CONFIG}: {name} is {quote(about[name])}, but W_enc in {WEIGHTS} has "
                f"shape {arrays['W_enc'].shape}: use two files of the same autoencoder"
            )
    if architecture == "topk":
        former = about.get("activation_fn_kwargs", {"k": _K})  # before version 6
        arrays["k"] = about.get("k", former.get("k") if isinstance(former, Mapping) else None)
        if arrays["k"] is None:
            raise ModelError(
                f"{path / CONFIG}: k is missing, so the number of active features is unknown: "
                "add the k that the autoencoder was trained with"
            )
        if about["rescale_acts_by_decoder_norm"]:
            lengths = np.linalg.norm(arrays["W_dec"], axis=1)
            arrays["W_dec"] = arrays["W_dec"] / lengths[:, None]
            arrays["W_enc"], arrays["b_enc"] = arrays["W_enc"] * lengths, arrays["b_enc"] * lengths
    fields = {name: about[name] for name in ("model_name", "prepend_bos") if name in about}
    subtracts = bool(about["apply_b_dec_to_input"])
    found = {"at": about.get("hook_name"), "subtracts_bias": subtracts}
    found["metadata"] = dict(metadata) or fields
    if about.get("normalize_activations") in NORMALIZATIONS:
        found["normalize"] = about["normalize_activations"]
    if architecture in tuple(TRANSCODERS):
        found["at_out"] = about.get("hook_name_out")
    return found, arrays


def _read_other(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read an autoencoder whose format is not that of SAELens; see `read_folder`."""
    about, stored = read_format(path)
    architecture = about.pop("architecture")
    names = _names(architecture)
    _check_names(path, names, stored, architecture)
    arrays = {name: stored[name] for name in (*names, "W_skip") if name in stored}
    if architecture == "jumprelu":  # The classes BatchTopK and Matryoshka store one threshold.
        arrays["threshold"] = np.broadcast_to(arrays["threshold"], arrays["b_enc"].shape)
    if architecture == "topk":
        arrays["k"] = stored.get("k")
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
    names = _names(architecture)
    _check_names(path, names, stored, architecture)
    for name in stored:
        if name not in names:
            raise _wrong_name(path, "also has", name, names, architecture)
        if stored[name].kind not in FLOATS:
            raise ModelError(f"{path}: {name} is {stored[name].kind}: store the weights as floats")
    wide = any(stored[name].kind == "F64" for name in names)
    kind = np.dtype(np.float64 if wide else np.float32)
    return {name: stored[name].read().astype(kind) for name in names}


def _names(architecture: str) -> tuple[str, ...]:
    """Return the names of an architecture's arrays."""
    features = ARCHITECTURES[TRANSCODERS.get(architecture, architecture)]
    skip = ["W_skip"] * (architecture in TRANSCODERS and "skip" in architecture)
    return ("W_enc", "W_dec", "b_dec", *features, *skip)


def _check_names(path: Path, names: Iterable[str], stored: Iterable[str], kind: str) -> None:
    """Raise an error if the file at `path` lacks an array."""
    for name in names:
        if name not in stored:
            raise _wrong_name(path, "has no", name, names, kind)


def _wrong_name(path: Path, what: str, name: str, names: Iterable[str], kind: str) -> ModelError:
    return ModelError(
        f"{path}: {what} {name}: an autoencoder of the architecture {kind!r} has {', '.join(names)}"
    )


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
        **({"d_out": arrays["W_dec"].shape[1]} if config["architecture"] in TRANSCODERS else {}),
        **config,
        "metadata": {**config["metadata"], "sae_lens_version": _VERSION},
    }
    path.mkdir(parents=True, exist_ok=True)
    with replacing(path / WEIGHTS) as file:
        file.write(save(converted))
    with replacing(path / CONFIG) as file:
        file.write((json.dumps(whole, indent=1) + "\n").encode())
