"""Sparse autoencoders in folders, as SAELens writes and reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import Array, float_type, shown
from qkv.files import named_folder, replacing
from qkv.models.files.read import ModelError, read_json
from qkv.models.files.tensors import FLOATS, header

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
# The version of the format, by which SAELens tells these folders from those before its version 6.
_VERSION = "6.0.0"
# What each architecture has beside W_enc (D, n), W_dec (n, D) and b_dec (D,), all of (n,).
ARCHITECTURES = {
    "standard": ("b_enc",),
    "topk": ("b_enc",),
    "jumprelu": ("b_enc", "threshold"),
    "gated": ("b_gate", "b_mag", "r_mag"),
}
# What the names of before version 6 are called since.
_FORMER = {
    "hook_point": "hook_name",
    "hook_point_head_index": "hook_head_index",
    "activation_fn_str": "activation_fn",
}
# Keys whose other values change what is computed, and the values that do not.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "normalize_activations": ("none", None, False),
    "reshape_activations": ("none", "hook_z", None),
    "finetuning_scaling_factor": (False, None),
    "hook_head_index": (None,),
}


def read_folder(folder: str | os.PathLike[str], call: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a folder says of its autoencoder: keys of cfg.json that matter, and the arrays.

    Returns:
        "architecture", "at" (the full name of an activation, or None), "subtracts_bias" and
        "metadata"; and the arguments of `SAE`: arrays by their names in the file, and "k".

    Raises:
        FileNotFoundError: a file is missing.
        ModelError: a file is broken, or describes what is not supported.
    """
    path = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (path / name).is_file():
            raise FileNotFoundError(
                f"{call}: {path} has no {name}: name a folder that SAELens has written, with "
                f"{CONFIG} and {WEIGHTS}"
            )
    given = read_json(path / CONFIG)
    config = {_FORMER.get(name, name): value for name, value in given.items()}
    metadata = config.get("metadata")
    metadata = dict(metadata) if isinstance(metadata, Mapping) else {}
    about = {**metadata, **config}
    architecture = about.get("architecture", "standard")
    activation = about.get("activation_fn", "relu")
    if (architecture, activation) == ("standard", "topk"):  # as versions before 3.17 write it
        architecture, activation = "topk", "relu"
    if architecture not in ARCHITECTURES:
        raise _unsupported(call, path, "architecture", architecture, ARCHITECTURES)
    if activation not in ("relu", architecture):
        raise _unsupported(call, path, "activation_fn", activation, ("relu",))
    for name, plain in _PLAIN.items():
        if about.get(name) not in plain:
            raise _unsupported(call, path, name, about[name], plain)
    options = about.get("model_from_pretrained_kwargs") or {}
    if options:
        raise _unsupported(call, path, "model_from_pretrained_kwargs", options, ({},))
    arrays = _arrays(path / WEIGHTS, architecture)
    if architecture == "topk":
        kwargs = about.get("activation_fn_kwargs")
        arrays["k"] = about.get("k", kwargs.get("k") if isinstance(kwargs, Mapping) else None)
        if about.get("rescale_acts_by_decoder_norm"):
            lengths = np.linalg.norm(arrays["W_dec"], axis=1)
            arrays["W_dec"] = arrays["W_dec"] / lengths[:, None]
            arrays["W_enc"], arrays["b_enc"] = arrays["W_enc"] * lengths, arrays["b_enc"] * lengths
    found = {
        "at": about.get("hook_name"),
        "subtracts_bias": bool(about.get("apply_b_dec_to_input", True)),
        "metadata": metadata
        or {name: about[name] for name in ("model_name", "prepend_bos") if name in about},
    }
    return found, arrays


def _arrays(path: Path, architecture: str) -> dict[str, Any]:
    """The arrays of a file by name, float32 or float64."""
    stored = header(path)
    scale = stored.pop("scaling_factor", None)  # of a version that could be tuned further
    if scale is not None and (scale.read() != 1).any():
        raise ModelError(
            f"{path}: scaling_factor is not 1 everywhere, which is not supported: multiply the "
            "rows of W_dec by it, and save it without"
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
            raise ModelError(f"{path}: {name} is {stored[name].kind}: weights are floats")
    wide = any(stored[name].kind == "F64" for name in names)
    kind = np.dtype(np.float64 if wide else np.float32)
    return {name: stored[name].read().astype(kind) for name in names}


def _unsupported(call: str, path: Path, name: str, value: Any, known: Any) -> ModelError:
    return ModelError(
        f"{path / CONFIG}: {name} is {shown(value)}, which {call} does not support: it knows "
        f"{', '.join(json.dumps(one) for one in known)}"
    )


def write_folder(
    folder: str | os.PathLike[str],
    arrays: Mapping[str, Array],
    architecture: str,
    config: Mapping[str, Any],
    dtype: Any,
    call: str,
) -> None:
    """Write an autoencoder, each file whole or not at all.

    Args:
        folder: is made if it is not there.
        arrays: by their names in the file.
        architecture: one of `ARCHITECTURES`.
        config: what else cfg.json says, "metadata" among it.
        dtype: of the file: float16, bfloat16, float32 or float64; None for that of the arrays.
        call: who is named in an error.

    Raises:
        ValueError: the type does not hold a number.
    """
    from safetensors.numpy import save

    path = named_folder(folder, call)
    kind = arrays["W_enc"].dtype if dtype is None else float_type(dtype, call=call)
    converted = {}
    for name, array in arrays.items():
        with np.errstate(over="ignore"):
            converted[name] = np.ascontiguousarray(array.astype(kind))
        if not np.isfinite(converted[name].astype(np.float64)).all() and np.isfinite(array).all():
            raise ValueError(
                f"{call}: {name} has {np.abs(array).max():.6g}, which {kind} does not hold: give "
                "dtype='float32'"
            )
    size, features = arrays["W_enc"].shape
    whole = {
        "architecture": architecture,
        "d_in": size,
        "d_sae": features,
        "dtype": kind.name,
        "device": "cpu",
        "normalize_activations": "none",
        **config,
        "metadata": {**config.get("metadata", {}), "sae_lens_version": _VERSION},
    }
    path.mkdir(parents=True, exist_ok=True)
    with replacing(path / WEIGHTS) as file:
        file.write(save(converted))
    with replacing(path / CONFIG) as file:
        file.write((json.dumps(whole, indent=1) + "\n").encode())
