"""Tests of OPT with embeddings of another size than the layers, against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM, OPTForSequenceClassification, OPTModel

from .families import FAMILIES
from .models import EVERY_LAYER, compare_saved, ids_of, made

# As in opt-350m, the embeddings are projected.
PROJECTED: dict[str, dict[str, Any]] = {
    "norms after": {"num_attention_heads": 4, "do_layer_norm_before": False},
    "norms before, untied": {"num_attention_heads": 3, "tie_word_embeddings": False},
}


def projected(name: str) -> OPTConfig:
    """Return a config with embeddings of size 20, which are projected to 36 and back."""
    sizes = FAMILIES["opt"].sizes | {"word_embed_proj_dim": 20}
    return OPTConfig(**sizes | PROJECTED[name])


@pytest.mark.parametrize("kind", [OPTForCausalLM, OPTForSequenceClassification, OPTModel])
@pytest.mark.parametrize("name", PROJECTED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_embeddings_of_another_size(
    tmp_path: Path, name: str, kind: type, dtype: torch.dtype
) -> None:
    """The layers compute hidden states of size 36, which are projected to size 20 at the end."""
    pair = made(tmp_path, kind, projected(name), dtype)
    compare_saved(pair, tmp_path / "saved")
    for side in ("right", "left", "inside"):
        ids, mask = ids_of(pair, [23, 5, 1, 14], side)
        theirs = pair.run(ids, attention_mask=mask, output_hidden_states=True)
        ours, real = pair.ours(ids, mask), mask.astype(bool)
        last = theirs.hidden_states[-1].numpy()
        assert last.shape[-1] == 20
        pair.near(ours.last_hidden_state[real], last[real], "last")
        if kind is OPTModel:
            continue
        rows = real if kind is OPTForCausalLM else slice(None)
        pair.near(ours.logits[rows], theirs.logits.numpy()[rows], "logits")
    ids, _ = ids_of(pair, [23], "right")
    theirs, trace = pair.run(ids, **EVERY_LAYER), pair.ours.trace(ids)
    for number, states in enumerate(trace.hidden_states):
        pair.near(states, theirs.hidden_states[number], f"hidden state {number}")
    assert pair.ours.get_embedding_dimension() == 20
    for weights in zip(trace.attentions, theirs.attentions, strict=True):
        pair.near(*weights, "weights")


def test_generation_from_embeddings_of_another_size(tmp_path: Path) -> None:
    pair = made(tmp_path, OPTForCausalLM, projected("norms after"), torch.float64)
    ids, _ = ids_of(pair, [9], "right")
    ours = pair.ours.generate(ids, max_new_tokens=12)
    assert [one.ids for one in ours] == pair.greedy(ids, 12)
