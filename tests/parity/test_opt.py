"""OPT against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM, OPTForSequenceClassification, OPTModel

from .models import compare_all, compare_saved, double, ids_of, made

CONFIGS: dict[str, dict[str, Any]] = {
    "norms before": {"num_attention_heads": 3},
    "norms after, untied": {
        "num_attention_heads": 4,
        "do_layer_norm_before": False,
        "tie_word_embeddings": False,
    },
    "no last norm, no biases, gelu": {
        "num_attention_heads": 1,
        "_remove_final_layer_norm": True,
        "enable_bias": False,
        "activation_function": "gelu",
    },
}


# As opt-350m has it.
PROJECTED: dict[str, dict[str, Any]] = {
    "norms after": {"num_attention_heads": 4, "do_layer_norm_before": False},
    "norms before, untied": {"num_attention_heads": 3, "tie_word_embeddings": False},
}


def config_of(name: str) -> OPTConfig:
    sizes = {"vocab_size": 97, "hidden_size": 36, "num_hidden_layers": 3, "ffn_dim": 50}
    return OPTConfig(**sizes, max_position_embeddings=64, num_labels=3, **CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_opt(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    compare_all(tmp_path, OPTForCausalLM, config_of(name), dtype)


@pytest.mark.parametrize(
    "kind", [OPTModel, OPTForSequenceClassification], ids=lambda kind: kind.__name__
)
def test_other_heads(tmp_path: Path, kind: type) -> None:
    compare_all(tmp_path, kind, config_of("norms before"))


def projected(name: str, **others: Any) -> OPTConfig:
    """With rows of 20 numbers, which are projected to 36 and back again."""
    sizes = {"vocab_size": 97, "hidden_size": 36, "num_hidden_layers": 3, "ffn_dim": 50}
    sizes |= {"word_embed_proj_dim": 20, "max_position_embeddings": 64}
    return OPTConfig(**{**sizes, **PROJECTED[name], **others})


@pytest.mark.parametrize("kind", [OPTForCausalLM, OPTForSequenceClassification])
@pytest.mark.parametrize("name", PROJECTED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_embeddings_of_another_size(
    tmp_path: Path, name: str, kind: type, dtype: torch.dtype
) -> None:
    """Theirs are the last vectors behind the projection to that size, which here the head has."""
    pair = made(tmp_path, kind, projected(name, num_labels=3), dtype)
    compare_saved(pair, tmp_path / "saved")
    decoder = pair.theirs.model.decoder
    for side in ("right", "left", "inside"):
        ids, mask = ids_of(pair, [23, 5, 1, 14], side)
        with torch.inference_mode(), double(pair.is_double):
            given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
            theirs = pair.theirs(**given, output_hidden_states=True)
        ours, real = pair.ours(ids, mask), mask.astype(bool)
        last = ours.last_hidden_state @ decoder.project_out.weight.detach().numpy().T
        pair.near(last[real], theirs.hidden_states[-1].numpy()[real], "last")
        rows = real if kind is OPTForCausalLM else slice(None)
        pair.near(ours.logits[rows], theirs.logits.numpy()[rows], "logits")
    ids, _ = ids_of(pair, [23], "right")
    with torch.inference_mode(), double(pair.is_double):
        options = {"output_hidden_states": True, "output_attentions": True}
        theirs = pair.theirs(torch.tensor(ids), **options)
    trace = pair.ours.trace(ids)
    for number, states in enumerate(trace.hidden_states[:-1]):
        pair.near(states, theirs.hidden_states[number], f"hidden state {number}")
    for weights in zip(trace.attentions, theirs.attentions, strict=True):
        pair.near(*weights, "weights")


def test_writing_from_embeddings_of_another_size(tmp_path: Path) -> None:
    pair = made(tmp_path, OPTForCausalLM, projected("norms after"), torch.float64)
    ids, _ = ids_of(pair, [9], "right")
    with torch.inference_mode(), double(True):
        theirs = pair.theirs.generate(torch.tensor(ids), max_new_tokens=12, do_sample=False)
    ours = pair.ours.generate(ids, max_new_tokens=12)[0]
    assert list(ours.ids) == theirs[0, 9:].tolist()
