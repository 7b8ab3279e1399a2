"""Read folders of sparse autoencoders in the formats of several libraries, and write SAELens's."""

import json
import math
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qkv._argument_errors import invalid
from qkv.arrays import Array, Arrays, convert_exactly, float_type, quote
from qkv.files import StrPath, named_folder, replacing
from qkv.models.files import FLOATS, header
from qkv.models.files.read import ModelError, is_number, read_json

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
    arrays = _rename_arrays(_read_arrays(path))
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
    arrays = _rename_arrays(_read_arrays(path))
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
    arrays = _rename_arrays(_read_arrays(path.parent / "checkpoints" / "final.safetensors"))
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
    arrays = _read_arrays(path)
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


def _read_arrays(path: Path) -> dict[str, Any]:
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


# The torch classes that stand for the dtypes of stored numbers. NumPy has no bfloat16.
_DTYPES = {
    **{"FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2"},
    **{"BFloat16Storage": "bfloat16", "LongStorage": "<i8", "IntStorage": "<i4"},
    **{"ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?"},
}


def read_torch_file(path: Path) -> dict[str, Array]:
    """Return the tensors of a file written by torch.save, by name; bfloat16 becomes float32.

    The file is a zip archive with a pickle. A pickle can name any Python function; this reader
    accepts only functions that describe tensors.

    Raises:
        ModelError: the file is broken, or does not hold a dict of tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = _Unpickler(archive).load()
    except ModelError:
        raise
    except Exception as error:  # a damaged pickle raises errors of any type
        raise ModelError(
            f"{path}: the file is damaged, or torch.save did not write it ({quote(str(error))}); "
            "download or save it again"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ModelError(
            f"{path}: the file does not contain a dict of tensors; save the state_dict()"
        )
    return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}


class _Unpickler(pickle.Unpickler):
    """Reads an archive's pickle, which may refer only to tensors."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(names) != 1:
            raise ValueError(f"{len(names)} files are named data.pkl")
        self._archive, self._folder = archive, names[0].removesuffix("data.pkl")
        super().__init__(archive.open(names[0]))

    def find_class(self, module: str, name: str) -> Any:
        """Return the function or class that a name in the pickle stands for."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        if module == "torch" and name in _DTYPES:
            return name
        raise ModelError(
            f"{self._archive.filename}: the pickle uses {quote(f'{module}.{name}')}, which could "
            "run code; save only a dict of tensors, with torch.save(sae.state_dict(), path)"
        )

    def persistent_load(self, pid: Any) -> Array:
        """Return the numbers (n,) of a storage."""
        _, kind, key, _, count = pid
        info = self._archive.getinfo(f"{self._folder}data/{key}")
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError("a tensor is compressed")
        data, dtype = self._archive.read(info), _DTYPES[kind]
        if dtype != "bfloat16":
            return np.frombuffer(data, dtype, count)
        return (np.frombuffer(data, "<u2", count).astype(np.uint32) << 16).view(np.float32)


def _tensor(flat: Array, offset: int, shape: Any, strides: Any, *_: Any) -> Array:
    """Return a tensor of a storage (n,); strides are in elements, not bytes."""
    last = offset + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if min((offset, *shape, *strides)) < 0 or (0 not in shape and last >= len(flat)):
        raise ValueError("a tensor is larger than its storage")
    steps = [step * flat.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, steps).copy()
