"""Read sparse autoencoders and transcoders of Gemma Scope, Llama Scope, Qwen Scope and others."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import quote
from qkv.circuits._torch_file import read_torch_file
from qkv.models.files import FLOATS, header
from qkv.models.files.read import ModelError, is_number, read_json

About = dict[str, Any]
_RESIDUAL, _OF_HEADS = "hook_resid_post", "attn.hook_z"
_MLP = ("ln2.hook_normalized", "hook_mlp_out")
# For each name of a Gemma Scope folder: the activation that is encoded and, for a transcoder, the
# activation that is reconstructed.
_GEMMA_SITES = {
    "transcoders": _MLP,
    "transcoder": ("hook_mlp_in", "hook_mlp_out"),
    "clt": ("hook_mlp_in", "hook_mlp_out"),
    **{"res": (_RESIDUAL, None), "resid_post": (_RESIDUAL, None)},
    **{"mlp": ("hook_mlp_out", None), "mlp_out": ("hook_mlp_out", None)},
    **{"att": (_OF_HEADS, None), "attn_out": (_OF_HEADS, None)},
}
# The classes of dictionary_learning, their architecture here, and whether b_dec is subtracted.
_CLASSES = {
    "AutoEncoder": ("standard", True),
    "GatedAutoEncoder": ("gated", True),
    "AutoEncoderTopK": ("topk", True),
    "BatchTopKSAE": ("jumprelu", True),
    "MatryoshkaBatchTopKSAE": ("jumprelu", True),
    "JumpReluAutoEncoder": ("jumprelu", False),
}
# Names in files of the other libraries, and SAELens's names. A matrix after ".T" is transposed.
_NAMES = {
    **{"w_enc": "W_enc", "w_dec": "W_dec", "affine_skip_connection": "W_skip"},
    **{"encoder.weight": "W_enc.T", "decoder.weight": "W_dec.T", "encoder.bias": "b_enc"},
    **dict.fromkeys(("bias", "decoder_bias", "decoder.bias"), "b_dec"),
    **{"mag_bias": "b_mag", "gate_bias": "b_gate"},
}


def read_gemma_scope(path: Path) -> tuple[About, About]:
    """Read the JumpReLU model in Gemma Scope's params.npz or Gemma Scope 2's params.safetensors.

    The names of the folders give the layer and the activation, as on the Hub:
    "gemma-scope-2b-pt-res/layer_20/width_16k/average_l0_71".
    """
    folder = str(path.resolve().parent)
    arrays = _rename_arrays(_arrays(path))
    scale = arrays.pop("scaling_factor", None)
    if scale is not None and (scale != 1).any():
        raise ModelError(f"{path}: scaling_factor is not 1 everywhere, which is not supported")
    if "/embedding" in folder:
        size = np.sqrt(np.float32(len(arrays["W_enc"])))
        arrays |= {"W_enc": arrays["W_enc"] / size, "W_dec": arrays["W_dec"] * size}
        return _about("jumprelu", "hook_embed"), arrays
    layers = re.findall(r"layer_(\d+)", folder)
    words = re.findall(rf"(?<![a-z])({'|'.join(_GEMMA_SITES)})(?![a-z])", folder)
    sites = _GEMMA_SITES[words[-1]] if layers and words else (None, None)
    names = [None if site is None else f"blocks.{int(layers[-1])}.{site}" for site in sites]
    return _about("jumprelu", *names), arrays


def read_dictionary_learning(path: Path) -> tuple[About, About]:
    """Read ae.pt, with the config.json of the same folder."""
    trainer = read_json(path.with_name("config.json")).get("trainer")
    if not isinstance(trainer, Mapping) or trainer.get("dict_class") not in _CLASSES:
        kind = trainer.get("dict_class") if isinstance(trainer, Mapping) else None
        raise ModelError(
            f"{path.with_name('config.json')}: dict_class is {quote(kind)}, which qkv does not "
            f"support; qkv supports {', '.join(_CLASSES)}"
        )
    kind, subtracts = _CLASSES[trainer["dict_class"]]
    layer, site = trainer.get("layer"), str(trainer.get("submodule_name") or "resid")
    at = f"blocks.{layer}.{_RESIDUAL}" if layer is not None and "resid" in site else None
    arrays = _rename_arrays(_arrays(path))
    about = {**_about(kind, at), "subtracts_bias": subtracts}
    about["metadata"] |= {"model_name": str(trainer.get("lm_name", "")).rpartition("/")[2]}
    if kind == "topk":
        arrays["k"] = trainer.get("k")
    return about, arrays


def read_llama_scope(path: Path) -> tuple[About, About]:
    """Read the JumpReLU model in hyperparams.json and checkpoints/final.safetensors.

    The autoencoder reads vectors that are scaled to a mean norm of sqrt(D). The scale is folded
    into the weights, and the threshold is multiplied by it, as in SAELens.
    """
    config = read_json(path)
    norms = config.get("dataset_average_activation_norm")
    numbers = [config.get("d_model"), config.get("jump_relu_threshold")]
    numbers.append(norms.get("in") if isinstance(norms, Mapping) else None)
    if not all(is_number(number) and number > 0 for number in numbers):
        raise ModelError(
            f"{path}: d_model, jump_relu_threshold and dataset_average_activation_norm.in are "
            f"{', '.join(map(quote, numbers))}: each must be a number above 0"
        )
    at, out = config.get("hook_point_in"), config.get("hook_point_out")
    if out not in (None, at):
        raise ModelError(
            f"{path}: hook_point_out is {quote(out)} and hook_point_in is {quote(at)}, so this is "
            "a transcoder; of Llama Scope, qkv reads only the autoencoders"
        )
    size, threshold, norm = numbers
    scale = np.float32(math.sqrt(size) / norm)
    arrays = _rename_arrays(_arrays(path.parent / "checkpoints" / "final.safetensors"))
    for name, factor in (("W_enc", scale), ("W_dec", 1 / scale), ("b_dec", 1 / scale)):
        arrays[name] = arrays[name] * factor
    arrays["threshold"] = np.full(len(arrays["b_enc"]), threshold * scale, np.float32)
    return _about("jumprelu", at), arrays


def read_qwen_scope(path: Path) -> tuple[About, About]:
    """Read a TopK model such as layer12.sae.pt; the folder's name ends with k: "...-W32K-L0_50"."""
    k = re.findall(r"L0_(\d+)", str(path.resolve().parent))
    if not k:
        raise ModelError(
            f"{path}: k is unknown; keep the file in a folder whose name contains L0_ and k, as on "
            "the Hub, for example SAE-Res-Qwen3-1.7B-Base-W32K-L0_50"
        )
    arrays = _arrays(path)
    arrays |= {name: arrays[name].T for name in ("W_enc", "W_dec") if name in arrays}
    number = re.findall(r"layer(\d+)\.sae\.pt", path.name)
    at = f"blocks.{int(number[-1])}.{_RESIDUAL}" if number else None
    return _about("topk", at), {**_rename_arrays(arrays), "k": int(k[-1])}


# The name of a file in each format's folder, and the function that reads this file.
FORMATS: dict[str, Callable[[Path], tuple[About, About]]] = {
    ".sae.pt": read_qwen_scope,
    "params.npz": read_gemma_scope,
    "params.safetensors": read_gemma_scope,
    "ae.pt": read_dictionary_learning,
    "hyperparams.json": read_llama_scope,
}


def format_of(path: Path) -> Path | None:
    """Return the file that one of `FORMATS` reads, or None."""
    if path.name.endswith(".npz") or path.name.endswith(".sae.pt"):
        return path
    found = (path / name for name in FORMATS if (path / name).is_file())
    return path if path.name in FORMATS else next(found, None)


def read_format(path: Path) -> tuple[About, About]:
    """Read an autoencoder from a file that `format_of` found; see `read_folder`."""
    ends = (name for name in FORMATS if path.name.endswith(name))
    about, arrays = FORMATS[next(ends, "params.npz")](path)
    return about, arrays


def _about(kind: str, at: str | None, out: str | None = None) -> About:
    about = {"architecture": kind, "at": at, "subtracts_bias": False, "metadata": About()}
    return about if out is None else {**about, "at_out": out}


def _arrays(path: Path) -> dict[str, Any]:
    """Read the arrays of a file, with floats in float32 or float64."""
    if not path.is_file():
        raise ModelError(f"{path.parent} has no {path.name}: download the folder again")
    if path.suffix == ".pt":
        found = read_torch_file(path)
    elif path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as stored:
                found = {name: stored[name] for name in stored.files}
        except (OSError, ValueError, EOFError, KeyError, AttributeError) as error:
            raise ModelError(f"{path}: the file is damaged ({error}); download it again") from error
    else:
        found = {name: one.read() for name, one in header(path).items() if one.kind in FLOATS}
    wide = any(array.dtype == np.float64 for array in found.values())
    return {name: array.astype(np.float64 if wide else np.float32) for name, array in found.items()}


def _rename_arrays(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays under SAELens's names."""
    found = {}
    for name, array in arrays.items():
        known, transposed, _ = _NAMES.get(name, name).partition(".T")
        found[known] = array.T if transposed else array
    return found
