"""Tests of each rotary scaling of Llama against transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Phi3ForCausalLM

import qkv
from qkv.models.tasks.generate import Prompt, TextCaches
from qkv.text import Tokenized

from .families import FAMILIES as COMPARED
from .models import Pair, compare, compare_layers, made

LONG = {"factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", **LONG}
LISTS = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.2, 1.3, 1.5, 2.0, 2.5, 2.5, 3.0],
    "long_factor": [1.0, 2.0, 3.5, 4.0, 6.0, 9.0, 11.0, 16.0],
}
# the texts have 23 tokens, more than the original limit of 16 in some of these
SCALINGS: dict[str, dict[str, Any]] = {
    "default, another base": {"rope_type": "default", "rope_theta": 123.0},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic, within": {"rope_type": "dynamic", "factor": 3.0, "positions": 23},
    "dynamic, beyond": {"rope_type": "dynamic", "factor": 3.0, "positions": 16},
    "yarn": YARN,
    "yarn, all ramp": {**YARN, "beta_fast": 2, "beta_slow": 0.05, "rope_theta": 50.0},
    "yarn, a step": {**YARN, "beta_fast": 1.5, "beta_slow": 1.5, "truncate": False},
    "yarn, not truncated": {**YARN, "beta_fast": 2, "truncate": False, "rope_theta": 20.0},
    "yarn, its own factor": {**YARN, "attention_factor": 0.7},
    "yarn, mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn, half an mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.0},
    "yarn, factor by the sizes": {**YARN, "factor": None},
    "longrope, long": {**LISTS, **LONG},
    "longrope, short": {**LISTS, "factor": 2.0, "original_max_position_embeddings": 23},
    "longrope, by the sizes": {**LISTS, "original_max_position_embeddings": 22},
    "longrope, its own factor": {**LISTS, **LONG, "attention_factor": 1.4},
    "llama3": {
        "rope_type": "llama3",
        **LONG,
        "low_freq_factor": 0.2,
        "high_freq_factor": 1.5,
        "rope_theta": 100.0,
    },
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.6, "factor": 2.0},
}


def scaled(scaling: dict[str, Any]) -> LlamaConfig:
    """Return a config with three query heads of size 16, one key head, and this scaling."""
    given = {"rope_theta": 10000.0, **scaling}
    positions = given.pop("positions", 64)
    sizes = COMPARED["llama"].sizes | {
        "hidden_size": 48,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "num_hidden_layers": 2,
        "max_position_embeddings": positions,
        "rope_parameters": given,
    }
    return LlamaConfig(**sizes)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scalings(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    compare(made(tmp_path, LlamaForCausalLM, scaled(SCALINGS[name]), dtype))


@pytest.mark.parametrize("name", SCALINGS)
def test_scalings_in_older_configs(tmp_path: Path, name: str) -> None:
    pair = made(tmp_path, LlamaForCausalLM, scaled(SCALINGS[name]))
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = {"type": scaling.pop("rope_type"), **scaling}
    if config["rope_scaling"] == {"type": "default"}:
        config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config))
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    compare_layers(Pair(qkv.load(tmp_path), theirs, pair.bound), 23)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_keys_in_a_cache_stay_as_they_were_turned(tmp_path: Path, name: str) -> None:
    """Past the limit, generation agrees with transformers: cached keys keep their rotation.

    Without a cache, a run of the whole text predicts tokens that differ from the generated tokens.
    """
    kinds = {
        "dynamic": {"rope_type": "dynamic", "factor": 3.0, "positions": 16},
        "longrope": {**LISTS, **LONG},
    }
    pair = made(tmp_path, LlamaForCausalLM, scaled(kinds[name]), torch.float64)
    prompts = [[5, 8, 13, 21, 34, 55, 89], [90, 80, 70, 60, 50, 40, 30, 20, 10, 9, 8]]
    ids = np.array([[0] * 4 + prompts[0], prompts[1]])
    ours = pair.ours.generate(prompts, max_new_tokens=40)
    assert [one.ids for one in ours] == pair.greedy(ids, 40, attention_mask=1 * (ids > 0))
    whole = pair.ours([prompts[1] + ours[1].ids]).logits
    assert whole[0, 10:-1].argmax(-1).tolist() != ours[1].ids


@pytest.mark.parametrize("length", [12, 16, 17])
def test_phi3_computes_its_caches_again_past_the_limit(tmp_path: Path, length: int) -> None:
    """Prompts below, at and past the limit of 16 tokens, one or two at once, also in a chat."""
    config = COMPARED["phi3"].config_of("long")
    pair = made(tmp_path, Phi3ForCausalLM, config, torch.float64)
    rng = np.random.default_rng(length)
    prompts = rng.integers(3, 90, (2, length)).tolist()
    theirs = pair.greedy(prompts, 12)
    assert [one.ids for one in pair.ours.generate(prompts, max_new_tokens=12)] == theirs
    past, known = TextCaches(), prompts[0] + theirs[0]
    for count in (length - 3, length, length + 4, length - 2):
        ids = np.array(known[:count])
        tokens = Tokenized(ids, [*map(str, ids)], [(0, 0)] * count, [False] * count)
        prompt = Prompt(tokens, past)
        want = pair.greedy([known[:count]], 5)
        assert [pair.ours.generate(prompt, max_new_tokens=5).ids] == want, count
