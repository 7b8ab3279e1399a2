"""Turn a GGUF file's metadata into a config.json, and name its tensors as transformers does."""

import math
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.models.files._gguf import Blocks, Gguf, GgufTensors
from qkv.models.files.config import Config
from qkv.models.files.names import Family, Names
from qkv.models.files.read import ModelError, is_number, plain

TABLES = tomllib.loads(Path(__file__).with_name("gguf.toml").read_text("utf-8"))
# Keys that `gguf_config` reads without the table, or that repeat the sizes of tensors.
_READ = re.compile(
    r"vocab_size|rope\.(dimension_count|scale_linear)|attention\.(value_length|causal)|pooling_type|"
    r"rope\.scaling\.(type|factor|attn_factor|original_context_length|yarn_beta_(fast|slow)|finetuned)"
)
_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
# Maps a config key to a part that has a bias if the key is true.
_BIASES = {"attention_bias": "attn_output", "mlp_bias": "ffn_up"}
_POOLING = {0: None, 1: "mean", 2: "cls", 3: "lasttoken"}
_ENDS = ("eos", "eot", "eom")  # the end of a text, of a turn, of a message
_NAME = re.compile(r"(blk\.\d{1,5}\.)?([\w.]+?)(\.weight|\.bias)")


def gguf_config(file: Gguf, families: Mapping[str, Family]) -> dict[str, Any]:
    """Return the config.json that describes the model in a GGUF file.

    Args:
        file: the file.
        families: all families of models, keyed by `model_type`.

    Raises:
        ModelError: qkv does not support the architecture, or a value is missing or invalid.
    """
    about, section = _architecture(file, families), _section(file)
    parts = Config(file.metadata, str(file.path)).whole("split.count", 0)
    if parts > 1:
        raise ModelError(
            f"{file.path} is one of {parts} parts of a model; join them with "
            "llama-gguf-split --merge"
        )
    family = families[about["family"]]
    dim, heads = section.size("embedding_length"), section.size("attention.head_count")
    size = section.size("attention.key_length", max(1, dim // heads))
    section.only("attention.value_length", size, None)
    if about.get("keys", {}).get("num_key_value_heads") == "":
        section.only("attention.head_count_kv", heads, None)
    section.layers("block_count")
    section.size("feed_forward_length")
    values: dict[str, Any] = {"num_key_value_heads": heads, "head_dim": size, "rope_theta": 1e4}
    values["sliding_window"] = None
    values = {key: values[key] for key in values if key in family.defaults}
    values |= about.get("values", {})
    for key, value in section.values.items():
        if not _READ.fullmatch(key):
            usual = TABLES["config"].get(key, f"{section.source.rpartition(' ')[2]}.{key}")
            spelled = [*family.spellings.get(usual, ()), usual][0]
            values[spelled] = value.tolist() if isinstance(value, np.ndarray) else value
    if "sliding_window" in values:  # 0 means that there is no window
        values["sliding_window"] = values["sliding_window"] or None
    values["vocab_size"] = _rows(file, "token_embd.weight")
    if "token_types.weight" in file.tensors:
        values["type_vocab_size"] = _rows(file, "token_types.weight")
    values["tie_word_embeddings"] = "output.weight" not in file.tensors
    for key, part in about.get("biases", _BIASES).items():
        has_bias = f"blk.0.{part}.bias" in file.tensors
        if family.defaults.get(key, has_bias) != has_bias:
            values[key] = has_bias
    if about["family"] == "falcon":
        values |= _falcon_values(file, section)
    if about["family"] == "stablelm":
        values["qk_layernorm"] = "blk.0.attn_q_norm.weight" in file.tensors
    if "large" in about:  # the largest model divides scores by a different number
        is_large = section.layers("block_count") == about["large"]
        values["query_pre_attn_scalar"] = dim // heads if is_large else size
    decodes = about["class"].endswith(("CausalLM", "LMHeadModel"))
    if decodes and not section.flag("attention.causal", True):
        values["is_causal"] = False
    turned = section.size("rope.dimension_count", size)
    partial = about.get("keys", {}).get("partial_rotary_factor", "partial_rotary_factor")
    if "position_embd.weight" not in file.tensors and (
        turned != size or partial in family.defaults
    ):
        values["partial_rotary_factor"] = turned / size
    ids = special_ids(file)
    values |= {f"{name}_token_id": ids[name] for name in ("bos", "eos", "pad") if name in ids}
    values |= _scaling(file, section, turned // 2)
    renamed = {key: about.get("keys", {}).get(key, key) for key in values}
    values = {renamed[key]: value for key, value in values.items() if renamed[key]}
    return {"model_type": family.model_type, "architectures": [about["class"]], **values}


def _falcon_values(file: Gguf, section: Config) -> dict[str, Any]:
    """Return the keys of a Falcon's config.json that no metadata sets."""
    two = "blk.0.attn_norm_2.weight" in file.tensors
    kv_heads = section.size("attention.head_count_kv", section.size("attention.head_count"))
    values: dict[str, Any] = {"multi_query": kv_heads == 1}
    if two or kv_heads > 1:
        values |= {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1 + two}
    return values


def gguf_pooling(file: Gguf) -> str | None:
    """Return the pooling of token vectors that is named in the metadata, or None."""
    kind = _section(file).whole("pooling_type", 0)
    if kind not in _POOLING:
        raise ModelError(f"{file.path}: pooling_type is {kind}: qkv cannot read a reranker in GGUF")
    return _POOLING[kind]


def special_ids(file: Gguf) -> dict[str, int]:
    """Return the ids of special tokens, keyed by their short names: bos, eos, unk, ..."""
    found = Config(file.metadata, str(file.path))
    names = {"unk": "unknown", "pad": "padding", "sep": "seperator"}
    names |= {name: name for name in ("bos", "cls", "mask", *_ENDS)}
    keys = {name: f"tokenizer.ggml.{full}_token_id" for name, full in names.items()}
    return {name: found.whole(key) for name, key in keys.items() if key in file.metadata}


def gguf_generation(file: Gguf) -> dict[str, Any]:
    """Return the generation_config.json: the tokens that begin and end texts."""
    ids = special_ids(file)
    ends = list(dict.fromkeys(ids[end] for end in _ENDS if end in ids))
    return {"eos_token_id": ends} if ends else {}


def gguf_tensors(file: Gguf, names: Names) -> GgufTensors:
    """Return the tensors of a GGUF file, with the names and the layout of transformers' files.

    Raises:
        ModelError: the file holds a tensor for which the model's family has no name.
    """
    about, section, family = _architecture(file), _section(file), names.family
    found: dict[str, Blocks] = {}
    parts = TABLES["block"] | about.get("block", {})
    for name, tensor in file.tensors.items():
        if name in _FACTORS:
            continue
        match = _NAME.fullmatch(name)
        block, part, kind = match.groups() if match else (None, name, "")
        ours = (parts if block else TABLES["tensors"]).get(part)
        if part == "attn_norm" and f"{block}attn_norm_2.weight" in file.tensors:
            ours = parts["ffn_norm"]
        if ours is None:
            raise ModelError(
                f"{file.path}: the tensor {plain(name, 80)} does not belong to a "
                f"{family.model_type} model, as far as qkv knows"
            )
        if part.endswith("norm") and "offset" in about:
            tensor = replace(tensor, offset=about["offset"])
        tensor = replace(tensor, order=_order(part, tensor, about, section))
        for one, share in _experts(f"{block or ''}{ours}".replace("blk.", "blocks."), tensor):
            theirs = names.tensor_of(one + kind)[0]
            in_first = one.endswith("_proj") and not family.is_transposed(one + kind)
            if in_first and len(share.shape) == 2:
                share = replace(share, shape=share.shape[::-1], transposed=True)
            prefix = family.prefix if theirs.startswith(family.body) and family.body else ""
            found[prefix + theirs] = share
    return GgufTensors(str(file.path), found)


def _order(part: str, tensor: Blocks, about: dict[str, Any], section: Config) -> Array | None:
    """Return the order of a tensor's rows in transformers, as in `Blocks`."""
    heads = section.size("attention.head_count")
    kv_heads = section.size("attention.head_count_kv", heads)
    rows, count = tensor.shape[0], {"attn_q": heads, "attn_k": kv_heads}.get(part, 0)
    grouped = part == "attn_qkv" and "grouped" in about
    parts = heads + 2 * kv_heads if grouped else 2 * count if "permuted" in about else 0
    if not parts:
        return None
    if rows % parts:
        raise ModelError(
            f"{section.source}: {part} has {rows} rows, which cannot be divided among "
            f"{count or heads} heads"
        )
    if not grouped:
        return np.arange(rows).reshape(count, -1, 2).swapaxes(1, 2).reshape(-1)
    key = heads + np.arange(kv_heads)[:, None]
    query = np.arange(heads).reshape(kv_heads, -1)
    return np.hstack([query, key, key + kv_heads]).reshape(-1)


def _experts(ours: str, tensor: Blocks) -> list[tuple[str, Blocks]]:
    """Return the name and tensor of each expert or head, if these are the tensor's first axis."""
    if "*" not in ours or len(tensor.shape) < 2:
        return [(ours, tensor)]
    parts = tensor.raw.reshape(tensor.shape[0], -1)
    return [
        (ours.replace("*", str(n)), replace(tensor, shape=tensor.shape[1:], raw=part))
        for n, part in enumerate(parts)
    ]


def _architecture(file: Gguf, families: Collection[str] | None = None) -> dict[str, Any]:
    """Return the table's row for a file's architecture; its family must be in `families`."""
    name, rows = file.metadata.get("general.architecture"), TABLES["architectures"]
    known = [one for one in rows if families is None or rows[one]["family"] in families]
    if name not in known:
        raise ModelError(
            f"{file.path}: the architecture is {name!r:.80}, which qkv does not support in GGUF "
            f"files; qkv supports {', '.join(known)}"
        )
    row = rows[name]
    section = section_of(file, f"{name}.")
    others = [other for key, other in row.get("others", {}).items() if section.whole(key, 0) > 0]
    return dict(rows[others[0]] if others else row)


def _section(file: Gguf) -> Config:
    """Return the architecture's metadata; remove the architecture's name from the keys."""
    return section_of(file, f"{file.metadata['general.architecture']}.")


def section_of(file: Gguf, start: str) -> Config:
    """Return the metadata under the prefix `start`, with this prefix removed."""
    section = {k.removeprefix(start): v for k, v in file.metadata.items() if k.startswith(start)}
    return Config(section, f"{file.path}: {start[:-1]}")


def _rows(file: Gguf, name: str) -> int:
    """Return the number of rows of a tensor."""
    if name not in file.tensors:
        raise ModelError(f"{file.path}: the tensor {name} is missing: download the file again")
    return file.tensors[name].shape[0]


def _scaling(file: Gguf, section: Config, pairs: int) -> dict[str, Any]:
    """Return the keys of a config.json about scaled rotary positions, as llama.cpp reads them.

    Factors of tensors, one for each of a head's `pairs`, become a "longrope", and so does a factor
    of the scores without "yarn".
    """
    kinds = {kind: kind for kind in ("linear", "none", "yarn", "longrope")}
    kind = section.choice("rope.scaling.type", kinds, "linear")
    key = section.spelling("rope.scaling.factor", "rope.scale_linear")
    value = section.value(key, 0)
    scaled = kind != "none" and not (is_number(value) and value == 0)
    factor = section.positive(key) if scaled else 1.0
    scale = section.positive_or_none("rope.scaling.attn_factor") or 1.0
    limit = section.size_or_none("rope.scaling.original_context_length")
    keys: dict[str, Any] = {"original_max_position_embeddings": limit} if limit else {}
    factors = [_numbers(file, name) for name in _FACTORS if name in file.tensors]
    if kind == "yarn" and factor != 1:
        section.need(not factors, "rope.scaling.type", kind, f"another type beside {_FACTORS[0]}")
        scale *= max(1.0, 0.1 * math.log(factor) + 1)
        table = {"rope_type": kind, "factor": factor, "attention_factor": scale, **keys}
        for name in ("beta_fast", "beta_slow"):
            beta = section.positive_or_none(f"rope.scaling.yarn_{name}")
            table |= {} if beta is None else {name: beta}
        return {"rope_scaling": table}
    if factors or scale != 1:
        both = [[one * factor for one in part] for part in factors or [[1.0] * pairs]]
        table = {"rope_type": "longrope", "short_factor": both[0], "long_factor": both[-1]}
        return keys | {"rope_scaling": {**table, "attention_factor": scale, **keys}}
    return {"rope_scaling": {"rope_type": "linear", "factor": factor}} if factor != 1 else {}


def _numbers(file: Gguf, name: str) -> list[float]:
    """Return the values of a small tensor."""
    tensor = file.tensors[name]
    if len(tensor.shape) != 1:
        raise ModelError(
            f"{file.path}: {name} has shape {tensor.shape}: it must have one dimension"
        )
    return [float(value) for value in tensor.read()]
