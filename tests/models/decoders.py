"""Small GPT-2 models on disk; they have random weights or predict a given list of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import qkv

POSITIONS = 96
END = "<|end|>"


def byte_tokenizer() -> Any:
    """Return a tokenizer with a token per byte, tokens for `the` and ` the`, and an end token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    words = [*letters, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return tokenizer


TOKENIZER = byte_tokenizer()
VOCABULARY = TOKENIZER.get_vocab_size() + 3  # the table has three rows without a token
EOS = TOKENIZER.token_to_id(END)


def gpt2(
    folder: Path,
    *,
    seed: int | None = None,
    script: list[int] | None = None,
    tokenizer: bool = True,
    generation: dict[str, Any] | None = None,
    **others: Any,
) -> qkv.Model:
    """Return a GPT-2 with random weights, or a GPT-2 that predicts script[p] after position p."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    dim = 24 if script is None else POSITIONS
    layers = 2
    shapes = {"wte.weight": (VOCABULARY, dim), "wpe.weight": (POSITIONS, dim)}
    for layer in range(layers):
        for name, rows, columns in (
            ("attn.c_attn", dim, 3 * dim),
            ("attn.c_proj", dim, dim),
            ("mlp.c_fc", dim, 4 * dim),
            ("mlp.c_proj", 4 * dim, dim),
        ):
            shapes[f"h.{layer}.{name}.weight"] = (rows, columns)
            shapes[f"h.{layer}.{name}.bias"] = (columns,)
        for name in ("ln_1", "ln_2"):
            shapes[f"h.{layer}.{name}.weight"] = shapes[f"h.{layer}.{name}.bias"] = (dim,)
    shapes["ln_f.weight"] = shapes["ln_f.bias"] = (dim,)
    shapes = {f"transformer.{name}": shape for name, shape in shapes.items()}
    shapes["lm_head.weight"] = (VOCABULARY, dim)
    tensors = {
        name: rng.standard_normal(shape) * (0.5 if script is None else 0)
        for name, shape in shapes.items()
    }
    if script is not None:
        tensors["transformer.wpe.weight"] = np.eye(POSITIONS)
        tensors["transformer.ln_f.weight"] = np.ones(POSITIONS)
        head = np.zeros((VOCABULARY, POSITIONS))
        head[script, range(len(script))] = 9
        tensors["lm_head.weight"] = head
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": VOCABULARY,
        "n_positions": POSITIONS,
        "n_embd": dim,
        "n_head": 3,
        "n_layer": layers,
        "tie_word_embeddings": False,
        "eos_token_id": EOS,
        **others,
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    if tokenizer:
        TOKENIZER.save(str(folder / "tokenizer.json"))
    return qkv.load(folder)


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def writer(folder: Path, prompt: str, text: str, **options: Any) -> qkv.Model:
    """Return a model that writes `text` after `prompt`, then only end tokens."""
    script = [EOS] * (len(ids_of(prompt)) - 1) + ids_of(text)
    return gpt2(folder, script=script + [EOS] * (POSITIONS - len(script)), **options)
