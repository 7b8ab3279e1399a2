"""Tests of `position_ids`, and of the positions without them, against transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from .models import Pair, ids_of, made

V = 97
SIZES: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
}
ROTARY = {**SIZES, "num_key_value_heads": 2, "pad_token_id": 0}
GROWS = {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10000.0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": V, "n_embd": 24, "n_head": 4, "n_layer": 2, "pad_token_id": 0},
    ),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {
            **{"vocab_size": V, "hidden_size": 24, "num_layers": 2, "num_heads": 4},
            **{"attention_types": [[["global", "local"], 1]], "window_size": 5},
        },
    ),
    "gptj": (
        "GPTJForCausalLM",
        {
            **{"vocab_size": V, "n_positions": 40, "n_embd": 24, "n_layer": 2, "n_head": 4},
            "rotary_dim": 4,
        },
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", {**SIZES, "hidden_size": 32}),
    "llama": ("LlamaForCausalLM", ROTARY),
    "llama, dynamic": (
        "LlamaForCausalLM",
        {**ROTARY, "max_position_embeddings": 8, "rope_parameters": GROWS},
    ),
    "mistral, window": ("MistralForCausalLM", {**ROTARY, "sliding_window": 5}),
    "opt": (
        "OPTForCausalLM",
        {
            **{"vocab_size": V, "hidden_size": 24, "num_hidden_layers": 2, "ffn_dim": 40},
            **{"num_attention_heads": 4, "max_position_embeddings": 40, "word_embed_proj_dim": 24},
        },
    ),
    "bert": ("BertForMaskedLM", SIZES),
    "distilbert": (
        "DistilBertForMaskedLM",
        {
            **{"vocab_size": V, "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40},
            "max_position_embeddings": 40,
        },
    ),
    "roberta": ("RobertaForMaskedLM", {**SIZES, "pad_token_id": 1}),
    "mpnet": ("MPNetForMaskedLM", SIZES),
    "modernbert": ("ModernBertForMaskedLM", {**SIZES, "pad_token_id": 0}),
    "clip": ("CLIPTextModel", {**SIZES, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 1}),
}
LENGTHS = [12, 5, 1]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """Return a function that makes each random float64 model once."""
    known: dict[str, Pair] = {}

    def pair(name: str) -> Pair:
        if name not in known:
            folder: Path = tmp_path_factory.mktemp("model")
            known[name] = made(folder, *MODELS[name], torch.float64)
        return known[name]

    return pair


def theirs_of(pair: Pair, ids: Any, mask: Any, positions: Any = None) -> Any:
    """Return the last hidden states (B, T, D) of transformers."""
    given = {} if positions is None else {"position_ids": positions}
    pair.run(ids[:, :1])  # reset the dynamic scaling, which remembers longer texts
    found = pair.run(ids, attention_mask=mask, output_hidden_states=True, **given)
    if pair.ours.config["model_type"] == "clip_text_model":  # its states precede the last norm
        return found.last_hidden_state.numpy()
    return found.hidden_states[-1].numpy()


def compare(pair: Pair, ids: Any, mask: Any, positions: Any = None) -> Any:
    """Compare both libraries' last hidden states at tokens, and return ours."""
    expected, real = theirs_of(pair, ids, mask, positions), mask.astype(bool)
    found = pair.ours(ids, mask, position_ids=positions).last_hidden_state
    pair.near(found[real], expected[real], "last vectors")
    return found


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_positions_that_skip_padding(pairs: Callable[[str], Pair], name: str, side: str) -> None:
    """If positions skip padding, as in generation, padding does not change a text's states."""
    pair = pairs(name)
    ids, mask = ids_of(pair, LENGTHS, side)
    first = {"roberta": 2, "mpnet": 2}.get(name, 0)
    positions = np.where(mask == 1, mask.cumsum(1) - 1 + first, 1)
    found = compare(pair, ids, mask, positions)
    if name == "llama, dynamic":  # the scaling depends on the longest text
        return
    for row, length in enumerate(LENGTHS):
        own = mask[row].astype(bool)
        alone = pair.ours([ids[row, own]]).last_hidden_state[0]
        pair.near(found[row, own], alone, f"text {row} of {length} alone")


@pytest.mark.parametrize("name", MODELS)
def test_positions_anywhere(pairs: Callable[[str], Pair], name: str) -> None:
    pair = pairs(name)
    ids, mask = ids_of(pair, LENGTHS, "right")
    positions = np.random.default_rng(0).integers(2, 38, ids.shape)
    compare(pair, ids, mask, positions)


@pytest.mark.parametrize("side", ["left", "right", "inside"])
@pytest.mark.parametrize("name", MODELS)
def test_without_position_ids(pairs: Callable[[str], Pair], name: str, side: str) -> None:
    pair = pairs(name)
    compare(pair, *ids_of(pair, LENGTHS, side))
