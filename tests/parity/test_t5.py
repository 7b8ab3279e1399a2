"""Tests of T5 against transformers: encoder, decoder and cross-attention."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    MT5Config,
    MT5EncoderModel,
    MT5ForConditionalGeneration,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5ForTokenClassification,
    T5Model,
)

import qkv

from .models import EVERY_LAYER, Pair, compare, compare_saved, ids_of, made

SIZES = {"vocab_size": 97, "decoder_start_token_id": 3, "pad_token_id": 0, "eos_token_id": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "three heads, other sizes than their share, relu": {
        **{"d_model": 32, "num_heads": 3, "d_kv": 12, "d_ff": 40, "num_layers": 2},
        **{"num_decoder_layers": 3, "relative_attention_num_buckets": 8},
        **{"relative_attention_max_distance": 20, "layer_norm_epsilon": 1e-3},
    },
    "gated, not scaled": {
        **{"d_model": 40, "num_heads": 5, "d_kv": 8, "d_ff": 50, "num_layers": 3},
        **{"num_decoder_layers": 1, "feed_forward_proj": "gated-gelu"},
        **{"tie_word_embeddings": False, "relative_attention_max_distance": 17},
    },
    "gated with silu": {
        **{"d_model": 16, "num_heads": 1, "d_kv": 24, "d_ff": 20, "num_layers": 1},
        **{"feed_forward_proj": "gated-silu", "relative_attention_num_buckets": 6},
    },
}
TYPES = [torch.float32, torch.float64]


def written(pair: Pair, lengths: list[int], side: str, seed: int = 1) -> tuple[Any, Any]:
    """Return padded ids (B, L) for a decoder and their mask; texts begin with the start token."""
    ids, mask = ids_of(pair, lengths, side, seed)
    first = np.arange(len(ids)), mask.argmax(1)
    ids[first] = 3
    return ids, mask


def batch(pair: Pair, side: str, lengths: list[int], counts: list[int]) -> None:
    ids, mask = ids_of(pair, lengths, side)
    answer, shown = written(pair, counts, side)
    theirs = pair.run(ids, mask, answer, shown, output_hidden_states=True)
    ours = pair.ours(ids, mask, answer, shown)
    real, seen = mask.astype(bool), shown.astype(bool)
    encoded = theirs.encoder_last_hidden_state.numpy()
    pair.near(ours.encoder_last_hidden_state[real], encoded[real], "encoder")
    last = theirs.decoder_hidden_states[-1].numpy()
    pair.near(ours.last_hidden_state[seen], last[seen], "decoder")
    assert not ours.last_hidden_state[~seen].any()
    assert not ours.encoder_last_hidden_state[~real].any()
    if "logits" in theirs:
        pair.near(ours.logits[seen], theirs.logits.numpy()[seen], "logits")
    else:
        assert ours.logits is None


def layers(pair: Pair, length: int, count: int) -> None:
    ids, _ = ids_of(pair, [length], "right")
    answer, _ = written(pair, [count], "right")
    theirs = pair.run(ids, decoder_input_ids=answer, **EVERY_LAYER)
    trace = pair.ours.trace(ids, target=answer)
    found = {
        "encoder state": (trace.encoder.hidden_states, theirs.encoder_hidden_states),
        "encoder weights": (trace.encoder.attentions, theirs.encoder_attentions),
        "decoder state": (trace.decoder.hidden_states, theirs.decoder_hidden_states),
        "decoder weights": (trace.decoder.attentions, theirs.decoder_attentions),
        "cross weights": (trace.cross_attentions, theirs.cross_attentions),
    }
    for what, both in found.items():
        assert len(both[0]) == len(both[1]), what
        for number, parts in enumerate(zip(*both, strict=True)):
            pair.near(*parts, f"{what} {number}")
    for inputs, weights in (
        (trace.encoder.attention_inputs(0), theirs.encoder_attentions[0]),
        (trace.decoder.attention_inputs(-1), theirs.decoder_attentions[-1]),
        (trace.cross_attention_inputs(-1), theirs.cross_attentions[-1]),
    ):
        pair.near(qkv.attention(**inputs, return_weights=True)[1], weights, "the inputs again")


@pytest.mark.parametrize("kind", [T5ForConditionalGeneration, T5Model], ids=lambda k: k.__name__)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_t5(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    pair = made(tmp_path / "theirs", kind, T5Config(**SIZES, **CONFIGS[name]), dtype)
    layers(pair, 23, 31)
    compare_saved(pair, tmp_path / "ours")
    for side in ("right", "left", "inside"):
        batch(pair, side, [23, 5, 1, 14], [3, 9, 19, 1])


@pytest.mark.parametrize(
    "kind", [T5EncoderModel, T5ForTokenClassification], ids=lambda k: k.__name__
)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_encoder_alone(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    compare(made(tmp_path, kind, T5Config(num_labels=3, **SIZES, **CONFIGS[name]), dtype))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_mt5(tmp_path: Path, dtype: torch.dtype) -> None:
    sizes = {"d_model": 24, "num_heads": 3, "d_kv": 10, "d_ff": 30, "num_layers": 2, **SIZES}
    pair = made(tmp_path / "both", MT5ForConditionalGeneration, MT5Config(**sizes), dtype)
    layers(pair, 9, 7)
    batch(pair, "left", [9, 3], [2, 5])
    compare(made(tmp_path / "encoder", MT5EncoderModel, MT5Config(**sizes), dtype))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["t5", "mt5"])
def test_a_separate_output_matrix_with_a_config_of_transformers_4(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    """A separate output matrix is used, as in T5 1.1, FLAN-T5 and mT5.

    Outputs are scaled only in T5, and only if the config ties the matrix.
    """
    sizes = CONFIGS["three heads, other sizes than their share, relu"]
    config = (T5Config if kind == "t5" else MT5Config)(**SIZES, **sizes)
    model = T5ForConditionalGeneration if kind == "t5" else MT5ForConditionalGeneration
    pair = made(tmp_path, model, config)
    values = json.loads((tmp_path / "config.json").read_text())
    del values["transformers_version"]
    values.pop("scale_decoder_outputs", None)
    values |= {"tie_word_embeddings": tied, "torch_dtype": values.pop("dtype")}
    (tmp_path / "config.json").write_text(json.dumps(values))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn(97, 32)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    again = model.from_pretrained(tmp_path, attn_implementation="eager").eval()
    pair = Pair(qkv.load(tmp_path), again, pair.bound)
    assert torch.equal(again.lm_head.weight, tensors["lm_head.weight"])
    assert getattr(again.config, "scale_decoder_outputs", False) == (tied and kind == "t5")
    batch(pair, "right", [9, 3], [2, 5])


def longest_first(prompts: list[list[int]], side: str) -> tuple[Any, Any]:
    longest = max(map(len, prompts))
    ids, mask = np.zeros((2, len(prompts), longest), np.int64)
    for row, prompt in enumerate(prompts):
        position = slice(longest - len(prompt), None) if side == "left" else slice(len(prompt))
        ids[row, position], mask[row, position] = prompt, 1
    return ids, mask


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_are_those_of_transformers(tmp_path: Path, name: str, side: str) -> None:
    config = T5Config(**{**SIZES, **CONFIGS[name], "eos_token_id": None})
    pair = made(tmp_path, T5ForConditionalGeneration, config, torch.float64)
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, 97, length).tolist() for length in (9, 1, 17, 5)]
    ids, mask = longest_first(prompts, side)
    cached = config.num_decoder_layers <= config.num_layers  # their cache has the encoder's layers
    ours = pair.ours.generate(prompts, max_new_tokens=64)
    theirs = pair.greedy(ids, 64, attention_mask=mask, use_cache=cached)
    assert [one.ids for one in ours] == theirs
    assert len({tuple(one.ids) for one in ours}) > 1
    for prompt, found in zip(prompts, ours, strict=True):
        without_cache = pair.ours([prompt], None, [[3, *found.ids[:-1]]]).logits
        assert without_cache[0].argmax(-1).tolist() == found.ids


def test_rows_that_end_before_others(tmp_path: Path) -> None:
    sizes = {**CONFIGS["three heads, other sizes than their share, relu"], "num_decoder_layers": 2}
    config = T5Config(**{**SIZES, **sizes, "eos_token_id": None})
    pair = made(tmp_path, T5ForConditionalGeneration, config, torch.float64)
    prompts = [[4, 5, 6], [7], [8, 9, 10, 11, 4], [5, 5]]
    found = [one.ids for one in pair.ours.generate(prompts, max_new_tokens=12)]
    positions = {
        token: [row.index(token) if token in row else 12 for row in found]
        for token in set().union(*found)
    }
    end = max(positions, key=lambda token: len(set(positions[token])))
    assert len(set(positions[end])) > 2
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    ours = qkv.load(tmp_path).generate(prompts, max_new_tokens=12)
    ids, mask = longest_first(prompts, "right")
    theirs = pair.greedy(ids, 12, attention_mask=mask, eos_token_id=end)
    for one, row in zip(ours, theirs, strict=True):
        assert row[: len(one.ids)] == one.ids
        assert not any(row[len(one.ids) :])
        assert one.finish_reason == ("eos" if one.ids[-1] == end else "length")
