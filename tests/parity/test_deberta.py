"""Tests of DeBERTa's relative positions: gradients, long texts, and a saved trace."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import DebertaV2ForMaskedLM

import qkv

from .families import FAMILIES
from .models import Pair, compare_batch, double, made

FAMILY = FAMILIES["deberta-v2"]
SHARED, SEPARATE = list(FAMILY.configs)[:2]
IDS = np.array([[5, 7, 30, 11, 7, 25, 16, 9, 33]])


def pair_of(folder: Path, name: str, **sizes: int) -> Pair:
    return made(folder, DebertaV2ForMaskedLM, FAMILY.config_of(name, **sizes), torch.float64)


@pytest.mark.parametrize("name", [SHARED, SEPARATE])
@pytest.mark.parametrize("others", [[], ["attn_scores"]], ids=str)
def test_gradient_of_a_logit_for_the_embeddings(
    tmp_path: Path, name: str, others: list[str]
) -> None:
    """The gradient through recorded scores also passes the bias that queries and keys give."""
    pair = pair_of(tmp_path, name)
    with double(wanted=True):
        rows = pair.theirs.get_input_embeddings()(torch.tensor(IDS)).detach().requires_grad_()
        pair.theirs(inputs_embeds=rows).logits[0, 3, 8].backward()
    found = pair.ours.gradient(IDS, of=(3, 8), at=["embed", *others])
    pair.near(found["embed"], rows.grad, "embed")


def test_a_trace_has_the_bias_of_each_layer(tmp_path: Path) -> None:
    pair = pair_of(tmp_path / "model", SHARED)
    theirs = pair.run(IDS, output_attentions=True)
    pair.ours.trace(IDS).save(tmp_path / "trace.safetensors")
    trace = qkv.Trace.load(tmp_path / "trace.safetensors")
    for layer, expected in enumerate(theirs.attentions):
        _, weights = qkv.attention(**trace.attention_inputs(layer), return_weights=True)
        pair.near(weights, expected, f"layer {layer}")


def test_texts_longer_than_the_table(tmp_path: Path) -> None:
    sizes = {"max_position_embeddings": 300, "position_buckets": 16, "max_relative_positions": 40}
    compare_batch(pair_of(tmp_path, SHARED, **sizes), [250, 3, 90], "right")
