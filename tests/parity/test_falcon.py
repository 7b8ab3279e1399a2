"""Tests of Falcon with ALiBi against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import FalconForCausalLM, FalconForSequenceClassification
from transformers.models.falcon import modeling_falcon

from .families import FAMILIES
from .models import Pair, compare_batch, compare_layers, compare_saved, ids_of, made

# transformers rounds each slope, and its product with a position, to bfloat16. With at most eight
# heads and short texts, these numbers need no rounding.
CONFIGS: dict[str, dict[str, Any]] = {
    "as Falcon RW": {
        "num_attention_heads": 4,
        "multi_query": False,
        "parallel_attn": False,
        "bias": True,
    },
    "one key head": {"num_attention_heads": 6},
    "new": {"num_attention_heads": 8, "num_kv_heads": 2, "new_decoder_architecture": True},
}
CLASSES = [FalconForCausalLM, FalconForSequenceClassification]


def pair_of(folder: Path, kind: type, name: str, dtype: torch.dtype, attention: str) -> Pair:
    config = FAMILIES["falcon"].config_of("one key head", alibi=True, **CONFIGS[name])
    return made(folder, kind, config, dtype, attn_implementation=attention)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_alibi(tmp_path: Path, kind: type, name: str, dtype: torch.dtype) -> None:
    pair = pair_of(tmp_path / "theirs", kind, name, dtype, "sdpa")
    ids, _ = ids_of(pair, [23], "right")
    theirs = pair.run(ids, output_hidden_states=True)
    for number, states in enumerate(pair.ours.trace(ids).hidden_states):
        pair.near(states, theirs.hidden_states[number], f"hidden state {number}")
    for side in ("right", "left", "inside"):
        compare_batch(pair, [23, 5, 1, 14], side)
    compare_saved(pair, tmp_path / "saved")


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_with_alibi(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers computes the weights with "eager", which adds the bias of ALiBi twice."""
    pair = pair_of(tmp_path, FalconForCausalLM, name, torch.float64, "eager")
    build = modeling_falcon.build_alibi_tensor
    monkeypatch.setattr(
        modeling_falcon, "build_alibi_tensor", lambda *args, **kw: build(*args, **kw) / 2
    )
    compare_layers(pair, 23)


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_with_alibi(tmp_path: Path, name: str) -> None:
    pair = pair_of(tmp_path, FalconForCausalLM, name, torch.float64, "sdpa")
    prompt = [5, 8, 13, 21, 34, 55, 89]
    ours = pair.ours.generate(prompt, max_new_tokens=40)
    assert [ours.ids] == pair.greedy([prompt], 40, eos_token_id=None)
